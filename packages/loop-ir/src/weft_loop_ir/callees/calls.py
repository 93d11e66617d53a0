"""Calls of what :data:`CALLEES` lists: what is known of their operands, and what is seen in the call."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from weft_loop_ir._torch import OpOverload, argument_names, named_arguments
from weft_loop_ir.callees.rules import Callee, OperandLayout, OperandRule, aligned_copy, dense_copy
from weft_loop_ir.callees.table import CALLEES
from weft_loop_ir.ir import BufferView, ExternCall, Schedule


def callee_of(operator: OpOverload) -> Callee | None:
    """What is known of ``operator`` as a callee; None for what eager calls too."""
    return CALLEES.get(operator._schema.name)


def view_layout(view: BufferView, base: int) -> OperandLayout:
    """A window on a buffer whose address is a multiple of ``base`` bytes."""
    offset = view.offset * view.dtype.itemsize
    return OperandLayout(view.dtype, view.size, view.stride, offset, base)


def accepts(name: str, **views: BufferView | None) -> bool:
    """Whether the callee of that name takes ``views``, by argument, in every call."""
    layouts = {key: None if view is None else view_layout(view, 1) for key, view in views.items()}
    return CALLEES[name].takes(layouts) is True


def needs_check(call: ExternCall, schedule: Schedule, alignment: int) -> bool:
    """Whether operands of ``call`` may be such as :func:`call_library` copies.

    The arena, and what the program allocates besides, begin at multiples of ``alignment`` bytes.
    """
    callee = callee_of(call.operator)
    if callee is None:
        return False
    memory = schedule.memory

    def layout(argument: object) -> OperandLayout | None:
        if not isinstance(argument, BufferView):
            return None
        is_own = argument.buffer in memory.offsets or argument.buffer in memory.alone
        return view_layout(argument, alignment if is_own else 1)

    layouts = {name: layout(value) for name, value in call.named_arguments.items()}
    return callee.takes(layouts) is not True


def call_library(operator: OpOverload, first_only: bool, *arguments: Any, **keywords: Any) -> Any:
    """``operator`` of operands that it takes: those that lie otherwise are copied to where they lie so.

    Where no copy does, eager's own operator gives the first result; the others are None.  This takes
    ``first_only``: nothing reads the others.  Without that the operator itself says what is wrong.
    """
    for position, name, rule in _checks(operator):
        operand = arguments[position] if position < len(arguments) else keywords.get(name)
        if operand is not None and not rule.surely_takes(operand):
            return _call_with_copies(operator, first_only, arguments, keywords)
    return operator(*arguments, **keywords)


@functools.cache
def _checks(operator: OpOverload) -> tuple[tuple[int, str, OperandRule], ...]:
    """What is looked at: the positions and names of operands, and their rules."""
    callee, names = callee_of(operator), argument_names(operator)
    rules = {} if callee is None else callee.operands
    return tuple((names.index(name), name, rule) for name, rule in rules.items())


def _call_with_copies(
    operator: OpOverload, first_only: bool, arguments: Sequence[Any], keywords: Mapping[str, Any]
) -> Any:
    """The call where not all operands are surely such as it takes."""
    callee = CALLEES[operator._schema.name]
    named = named_arguments(operator, arguments, keywords)
    tensors = {
        name: named[name]
        for name in callee.operands
        if isinstance(named.get(name), torch.Tensor) and named[name].numel()
    }
    layouts = {name: OperandLayout.of(tensor) for name, tensor in tensors.items()}
    fits = (callee.operands[name].takes_value(layout) for name, layout in layouts.items())
    if first_only and callee.otherwise and False in fits:  # no copy would do
        return _otherwise(operator, named)
    copies = copies_for(callee, tensors, layouts)
    if not copies:
        return operator(*arguments, **keywords)
    names = argument_names(operator)
    fitting = [copies.get(n, a) for n, a in zip(names, arguments, strict=False)]
    return operator(*fitting, **{n: copies.get(n, a) for n, a in keywords.items()})


def copies_for(
    callee: Callee, tensors: Mapping[str, torch.Tensor], layouts: Mapping[str, OperandLayout]
) -> dict[str, torch.Tensor]:
    """Copies of those of ``tensors``, operands by name, whose ``layouts`` ``callee`` does not take."""
    copies = {
        name: aligned_copy(tensor, callee.operands[name])
        for name, tensor in tensors.items()
        if callee.operands[name].takes_layout(layouts[name]) is False
    }
    for name, other in callee.dense_as.items():
        if other in copies and name in tensors:
            copies[name] = dense_copy(tensors[name], copies[other])
    return copies


def _otherwise(operator: OpOverload, named: Mapping[str, Any]) -> Any:
    """Attention by eager's dispatch."""
    query, key = named["query"], named["key"]
    result = torch.nn.functional.scaled_dot_product_attention(
        query,
        key,
        named["value"],
        named.get("attn_bias", named.get("attn_mask")),
        named.get("dropout_p", 0.0),
        named.get("is_causal", False),
        scale=named.get("scale"),
        enable_gqa=query.shape[1] != key.shape[1],
    )
    return (result, *[None] * (len(operator._schema.returns) - 1))
