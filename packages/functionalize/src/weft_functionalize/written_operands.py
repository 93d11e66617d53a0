"""Which operands an operator's call writes to, by its schema, and how these lie in memory."""

from __future__ import annotations

import functools
import operator
from collections.abc import Iterator
from typing import Any

import torch
import torch.fx

from ._torch import OpOverload, schema_arguments
from .unsupported import Unsupported


@functools.cache
def schema_results(func: OpOverload) -> tuple[Any, ...]:
    """What an operator gives, as its schema describes it."""
    return tuple(func._schema.returns)


def is_write(result: Any) -> bool:
    """Whether a result, as the schema describes it, is an operand that was written to."""
    return result.alias_info is not None and bool(result.alias_info.is_write)


def _argument(func: OpOverload, name: str, args: Any, kwargs: Any) -> Any:
    for position, argument in enumerate(schema_arguments(func)):
        if argument.name == name:
            return args[position] if position < len(args) else kwargs.get(name)
    raise KeyError(name)


def written_operand(func: OpOverload, result: Any, args: Any, kwargs: Any) -> Any:
    """The operand that ``result``, as the schema describes it, is."""
    for argument in schema_arguments(func):
        info = argument.alias_info
        if info is not None and set(info.before_set) & set(result.alias_info.before_set):
            return _argument(func, argument.name, args, kwargs)
    raise Unsupported("result of a write", str(func))


@functools.cache
def returned_operands(func: OpOverload, written: tuple[str, ...]) -> tuple[str, ...]:
    """Those of ``written`` that a result is: eager counts no writes to others, as running statistics."""
    infos = [result.alias_info for result in func._schema.returns if is_write(result)]
    returned = {name for info in infos if info is not None for name in info.before_set}
    return tuple(
        argument.name
        for argument in schema_arguments(func)
        if argument.name in written
        and argument.alias_info is not None
        and returned & argument.alias_info.before_set
    )


def written_tensors(
    func: OpOverload, written: tuple[str, ...], args: Any, kwargs: Any
) -> Iterator[torch.Tensor]:
    """Each tensor among the operands of the names ``written``."""
    for name in written:
        value = _argument(func, name, args, kwargs)
        for tensor in value if isinstance(value, (list, tuple)) else (value,):
            if isinstance(tensor, torch.Tensor):
                yield tensor


def written_layouts(
    func: OpOverload, written: tuple[str, ...], args: Any, kwargs: Any
) -> tuple[Any, ...]:
    """Size, stride and storage offset of each tensor among the operands of the names ``written``."""
    return tuple(
        (tuple(tensor.shape), tensor.stride(), tensor.storage_offset())
        for tensor in written_tensors(func, written, args, kwargs)
    )


def keep_value(node: torch.fx.Node, fake: torch.Tensor) -> None:
    """Let ``node`` have what it computed, which ``fake`` will not be any more; so the call that it is of."""
    before = node.meta["val"] = fake.detach()
    if node.target is operator.getitem:
        source: Any = node.args[0]
        results = source.meta["val"]
        source.meta["val"] = tuple(before if result is fake else result for result in results)
