"""Replaces a node by what a decomposition rule does with its fake arguments."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NoReturn

import torch
import torch.fx
from weft_functionalize import is_empty, known_equal, size_hint, storage_identity

from ._torch import DATA_DEPENDENT_ERRORS, FakeTensor, OpOverload
from .recording import QUESTIONS, NodeRecorder

aten = torch.ops.aten
prims = torch.ops.prims


class _NotSpliceable(Exception):
    """The rule did something that has no place in a functional graph."""


# The operator stays as it is where its rule needs its arguments' data, or is not written for them.
_DECLINED: tuple[type[Exception], ...] = (
    _NotSpliceable,
    NotImplementedError,
    *DATA_DEPENDENT_ERRORS,
)


class _Splicer(NodeRecorder):
    """Appends what runs under it before an anchor node, decomposing further by the same table."""

    def __init__(
        self, anchor: torch.fx.Node, table: Mapping[OpOverload, Callable[..., Any]]
    ) -> None:
        super().__init__(anchor.graph)
        self.provenance = self._anchor = anchor
        self._table = table
        self.added: list[torch.fx.Node] = []
        self.operands: list[torch.Tensor] = []

    def refuse(self, kind: str, context: str) -> NoReturn:
        raise _NotSpliceable(f"{kind}: {context}")

    def __torch_dispatch__(
        self,
        func: OpOverload,
        types: tuple[type, ...],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if func.namespace == "prim" or func in QUESTIONS:
            return func(*args, **kwargs)
        rule = self._table.get(func) or _PRIM_RULES.get(func)
        if rule is not None:
            with self:
                result = rule(*args, **kwargs)
            if result is not NotImplemented:
                return result
        if func._schema.is_mutable:
            raise _NotSpliceable(f"a write by {func}")
        result = func(*args, **kwargs)
        self.record(func, args, kwargs, result)
        return result

    def append(
        self, target: Callable[..., Any], args: Any, kwargs: Any, value: Any
    ) -> torch.fx.Node:
        with self.graph.inserting_before(self._anchor):
            node = super().append(target, args, kwargs, value)
        self.added.append(node)
        return node


def _fake_arguments(value: Any) -> Any:
    """Arguments with fake values for nodes, in plain containers: rules may change a list they are given."""
    if isinstance(value, torch.fx.Node):
        return value.meta["val"]
    if isinstance(value, tuple):
        return tuple(_fake_arguments(item) for item in value)
    if isinstance(value, list):
        return [_fake_arguments(item) for item in value]
    if isinstance(value, dict):
        return {key: _fake_arguments(item) for key, item in value.items()}
    return value


def splice(node: torch.fx.Node, table: Mapping[OpOverload, Callable[..., Any]]) -> bool:
    """Replace ``node`` by its decomposition; False, with nothing changed, where its rule declines.

    The fake mode of the graph's values has to be active.
    """
    assert isinstance(node.target, OpOverload)
    splicer = _Splicer(node, table)
    for argument in node.all_input_nodes:
        splicer.know(argument.meta["val"], argument)
        if isinstance(argument.meta["val"], torch.Tensor):
            splicer.operands.append(argument.meta["val"])
    args, kwargs = _fake_arguments(node.args), _fake_arguments(node.kwargs)
    try:
        with splicer:
            result = table[node.target](*args, **kwargs)
        if result is not NotImplemented:
            _replace(node, result, splicer)
            return True
    except _DECLINED:
        pass
    for added in reversed(splicer.added):
        node.graph.erase_node(added)
    return False


def _replace(node: torch.fx.Node, result: Any, splicer: _Splicer) -> None:
    old = node.meta["val"]
    if isinstance(result, torch.Tensor):
        if not isinstance(old, torch.Tensor):
            raise _NotSpliceable("a rule with another number of results")
        replacements = [(node, splicer.node_of(_with_layout(splicer, result, old)))]
    else:
        replacements = [
            (
                user,
                splicer.node_of(_with_layout(splicer, result[_index(user)], user.meta["val"])),
            )
            for user in list(node.users)
        ]
    for replaced, new in replacements:
        replaced.replace_all_uses_with(new)
        if replaced is not node:
            node.graph.erase_node(replaced)
    node.graph.erase_node(node)


def _index(item: torch.fx.Node) -> int:
    index = item.args[1]
    assert isinstance(index, int)
    return index


def _becomes_a_view(splicer: _Splicer, new: torch.Tensor, old: torch.Tensor) -> bool:
    """Whether a rule gives a view of an operand where the operator's result has memory of its own."""
    operands = {storage_identity(value) for value in splicer.operands}
    return storage_identity(new) in operands and storage_identity(old) not in operands


def _with_layout(splicer: _Splicer, new: Any, old: torch.Tensor) -> torch.Tensor:
    """The result as the operator itself gives it: operators after it may depend on its strides."""
    if not isinstance(new, FakeTensor) or new.dtype != old.dtype or new.dim() != old.dim():
        raise _NotSpliceable("a rule with another result")
    if not all(map(known_equal, new.shape, old.shape)):
        raise _NotSpliceable("a rule with another size")
    if is_empty(new) or (_same_strides(new, old) and not _becomes_a_view(splicer, new, old)):
        return new
    order = sorted(range(old.dim()), key=lambda d: size_hint(old.stride(d)), reverse=True)
    inverse = [order.index(d) for d in range(len(order))]
    with splicer:
        dense = new.permute(order).clone(memory_format=torch.contiguous_format)
        placed = dense.permute(inverse)
    if not _same_strides(placed, old):
        raise _NotSpliceable("a rule with other strides")
    return placed


def _same_strides(left: torch.Tensor, right: torch.Tensor) -> bool:
    """Whether strides agree, for all sizes, in every dimension in which they matter."""
    return all(
        known_equal(size, 1) or known_equal(a, b)
        for size, a, b in zip(left.shape, left.stride(), right.stride(), strict=True)
    )


def _convert_element_type(a: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return a if a.dtype == dtype else aten._to_copy.default(a, dtype=dtype)


def _broadcast_in_dim(
    a: torch.Tensor, shape: list[int], broadcast_dimensions: list[int]
) -> torch.Tensor:
    sizes = [1] * len(shape)
    for size, dimension in zip(a.shape, broadcast_dimensions, strict=True):
        sizes[dimension] = size
    return a.view(sizes).expand(shape)


def _iota(
    length: int,
    *,
    start: int,
    step: int,
    dtype: torch.dtype,
    device: torch.device,
    requires_grad: bool,
) -> torch.Tensor:
    return torch.arange(start, start + step * length, step, dtype=dtype, device=device)


# torch's rules are partly written in terms of primitives; ATen has the same operators.
_PRIM_RULES: dict[OpOverload, Callable[..., Any]] = {
    prims.convert_element_type.default: _convert_element_type,
    prims.broadcast_in_dim.default: _broadcast_in_dim,
    prims.iota.default: _iota,
}
