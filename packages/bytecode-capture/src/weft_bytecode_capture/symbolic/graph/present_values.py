"""What the graph's nodes give in the call that is captured: its operators, run on the call's own tensors.

A value found so is right for this call alone: a hint, and whatever relies on it is checked in each call.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import torch
import torch.fx
import torch.nn.functional as F

from ..._torch import HigherOrderOperator, set_grad_enabled, storage_identity
from ...gradient_rule import GradientRule
from ..faults import raise_fault
from ..protocol import Graph
from .modes import MODE_CALLS
from .node_calls import run_call
from .purity import (
    REGION_OPERATORS,
    draws,
    has_effect,
    is_functional_custom_operator,
    is_tracked_write,
    possibly_written,
    writes,
)
from .recovery import is_little

Values = dict[torch.fx.Node, Any]

_MAX_BYTES = 1 << 30  # of results that are held while a frame is captured

_LOOPS = frozenset(REGION_OPERATORS - {torch.ops.higher_order.cond})
_COMMUNICATES = re.compile("c10d|symm_mem|dtensor")


class _NotRun(Exception):
    """A node would change what the program has, or draw its random numbers."""


class _Written(Exception):
    """A node writes to a tensor of the program, of this storage: all is run again with a copy."""

    def __init__(self, storage: int) -> None:
        super().__init__()
        self.storage = storage


class PresentValues:
    """Values of nodes of the outermost graph, found in the order of the graph.

    What chance decides has none, nor what a loop in the graph gives, and what is computed from them; but
    dropout drops nothing.  What is written to is a copy, where it is little.
    """

    def __init__(self, builder: Graph) -> None:
        self._builder = builder
        self._values: Values = {}
        self._seen: set[torch.fx.Node] = set()
        self._copied: set[int] = set()  # storages that the graph writes to
        self._bytes = 0
        self._gradients = builder.modes.gradients_on_entry
        self._ended = False

    def value(self, node: torch.fx.Node) -> Any:
        """What ``node`` gives; None where the graph cannot be run for it."""
        if self._ended:
            return None
        try:
            while True:
                try:
                    with torch.set_grad_enabled(self._gradients):
                        self._run()
                    break
                except _Written as written:
                    self._copied.add(written.storage)
                    self._begin_again()
        except Exception as error:  # an operator's own, which it raises where the program runs it
            raise_fault(error)
            self._ended = True
            self._values.clear()
            return None
        return self._values.get(node)

    def _begin_again(self) -> None:
        self._values.clear()
        self._seen.clear()
        self._bytes = 0
        self._gradients = self._builder.modes.gradients_on_entry

    def _given(self, tensor: Any) -> Any:
        """A tensor of the program, or a copy of one that the graph writes to."""
        if not isinstance(tensor, torch.Tensor) or storage_identity(tensor) not in self._copied:
            return tensor
        return tensor.detach().clone().requires_grad_(tensor.requires_grad)

    def _run(self) -> None:
        inputs = self._builder.inputs_by_node()
        outside = {storage_identity(tensor) for _, tensor, _ in self._builder.given}
        for node in self._builder.outermost.nodes:
            if node in self._seen or node.target is torch._check:
                continue
            self._seen.add(node)
            if node.op == "placeholder":
                given = inputs.get(node)
                self._values[node] = _number(node) if given is None else self._given(given.tensor)
            else:
                self._run_node(self._builder.root, node, self._values, outside)

    def _run_node(
        self, module: Any, node: torch.fx.Node, values: Values, outside: set[int]
    ) -> None:
        """Add the value of a node of ``module``'s graph to ``values``."""
        if node.op == "get_attr":
            values[node] = self._given(getattr(module, str(node.target)))
        elif node.target is set_grad_enabled:
            torch.set_grad_enabled(bool(node.args[0]))
            self._gradients = torch.is_grad_enabled()
        else:
            is_unknown = _is_drawn(node) or node.target in _LOOPS
            is_unknown |= not values.keys() >= set(node.all_input_nodes)
            if is_unknown and writes(node):
                raise _NotRun
            if is_unknown:
                return
            _require_harmless(node, values, outside)
            values[node] = self._result(node, values, outside)
            self._count(values[node])

    def _result(self, node: torch.fx.Node, values: Values, outside: set[int]) -> Any:
        arguments: Any = torch.fx.map_arg(node.args, values.__getitem__)
        keywords: Any = torch.fx.map_arg(node.kwargs, values.__getitem__)
        if isinstance(node.target, GradientRule):
            return arguments[0]
        if node.target is torch.ops.higher_order.cond:
            predicate, if_true, if_false, operands = arguments
            return self._branch(if_true if predicate else if_false, operands, outside)
        if node.target in _WITHOUT_CHANCE:
            arguments, keywords = _without_chance(node.target, arguments, keywords)
        return run_call(node.op, node.target, arguments, keywords)

    def _branch(self, module: torch.fx.GraphModule, operands: Any, outside: set[int]) -> Any:
        """What the side of a branch gives that the present call takes."""
        given = iter(operands)
        values: Values = {}
        for node in module.graph.nodes:
            if node.op == "placeholder":
                values[node] = next(given)
            elif node.op == "output":
                if not values.keys() >= set(node.all_input_nodes):
                    raise _NotRun
                return torch.fx.map_arg(node.args[0], values.__getitem__)
            elif node.target is not torch._check:
                self._run_node(module, node, values, outside)
        raise _NotRun

    def _count(self, value: Any) -> None:
        if isinstance(value, torch.Tensor):
            self._bytes += value.numel() * value.element_size()
            if self._bytes > _MAX_BYTES:
                raise _NotRun

    def release(self) -> None:
        """Let go of all values."""
        self._ended = True
        self._values.clear()


def _require_harmless(node: torch.fx.Node, values: Values, outside: set[int]) -> None:
    """Refuse a call that would change a tensor of the program, whose storages are ``outside``."""
    if _is_drawn(node) or node.target in MODE_CALLS:
        raise _NotRun
    if isinstance(node.target, HigherOrderOperator):
        if node.target is not torch.ops.higher_order.cond:
            raise _NotRun
        return  # the side that is taken is looked through
    if not has_effect(node) or (node.target in _WITHOUT_CHANCE and not writes(node)):
        return
    if is_functional_custom_operator(node):
        if _COMMUNICATES.search(str(node.target)):
            raise _NotRun  # with processes that may not capture now
        return
    if not (writes(node) and is_tracked_write(node)):
        raise _NotRun
    for written in possibly_written(node):
        value = values[written]
        if not isinstance(value, torch.Tensor):
            raise _NotRun
        if storage_identity(value) in outside:
            if not is_little(value):
                raise _NotRun
            raise _Written(storage_identity(value))


_WITHOUT_CHANCE: dict[Any, tuple[int, str, Any]] = {
    **{getattr(F, f"{kind}dropout"): (1, "p", 0.0) for kind in ("", "alpha_", "feature_alpha_")},
    **{getattr(F, f"dropout{n}d"): (1, "p", 0.0) for n in (1, 2, 3)},
    **{
        getattr(torch, f"{kind}dropout"): (2, "train", False) for kind in ("", "alpha_", "feature_")
    },
    F.scaled_dot_product_attention: (4, "dropout_p", 0.0),
    F.multi_head_attention_forward: (10, "dropout_p", 0.0),
}
"""Functions that drop some elements: the argument, by position and name, by which they drop none."""


def _is_drawn(node: torch.fx.Node) -> bool:
    return node.target not in _WITHOUT_CHANCE and draws(node)


def _without_chance(
    function: Any, arguments: Any, keywords: Mapping[str, Any]
) -> tuple[Any, Mapping[str, Any]]:
    """The arguments of a call with which it drops nothing."""
    position, name, value = _WITHOUT_CHANCE[function]
    if position < len(arguments):
        return (*arguments[:position], value, *arguments[position + 1 :]), keywords
    return arguments, {**keywords, name: value}


def _number(node: torch.fx.Node) -> Any:
    example = node.meta["example_value"]
    if not isinstance(example, (torch.SymInt, torch.SymFloat)) or not example.node.has_hint():
        raise _NotRun
    return example.node.hint
