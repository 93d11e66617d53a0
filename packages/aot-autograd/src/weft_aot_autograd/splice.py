"""Replaces a node by what a decomposition rule does with its fake arguments."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.fx
from weft_functionalize import NumberNodes, known_equal, size_hint

from ._torch import (
    DATA_DEPENDENT_ERRORS,
    FakeTensor,
    OpOverload,
    TorchDispatchMode,
)

aten = torch.ops.aten
prims = torch.ops.prims

# Answered, not recorded.
_QUERIES = frozenset(
    {
        aten.is_pinned.default,
        aten.sym_size.int,
        aten.sym_stride.int,
        aten.sym_numel.default,
        aten.sym_storage_offset.default,
    }
)

_PROVENANCE = ("stack_trace", "nn_module_stack")


class _NotSpliceable(Exception):
    """The rule did something that has no place in a functional graph."""


# The operator stays as it is where its rule needs its arguments' data, or is not written for them.
_DECLINED: tuple[type[Exception], ...] = (
    _NotSpliceable,
    NotImplementedError,
    *DATA_DEPENDENT_ERRORS,
)


class _Splicer(TorchDispatchMode):
    """Appends what runs under it before an anchor node, decomposing further by the same table."""

    def __init__(
        self, anchor: torch.fx.Node, table: Mapping[OpOverload, Callable[..., Any]]
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._anchor = anchor
        self._table = table
        self._nodes: dict[int, torch.fx.Node] = {}
        self._alive: list[Any] = []
        self.added: list[torch.fx.Node] = []
        self.numbers = NumberNodes(anchor.graph)

    def know(self, value: Any, node: torch.fx.Node) -> None:
        self._nodes[id(value)] = node
        self._alive.append(value)

    def node_of(self, tensor: torch.Tensor) -> torch.fx.Node:
        node = self._nodes.get(id(tensor))
        if node is None:
            raise _NotSpliceable("a tensor that is no result of the graph")
        return node

    def __torch_dispatch__(
        self,
        func: OpOverload,
        types: tuple[type, ...],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if func.namespace == "prim" or func in _QUERIES:
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
        self._record(func, args, kwargs, result)
        return result

    def _record(self, func: OpOverload, args: Any, kwargs: Any, result: Any) -> None:
        node = self._append(func, _nodes_in(args, self), _nodes_in(kwargs, self), result)
        if isinstance(result, torch.Tensor):
            self.know(result, node)
        elif isinstance(result, (tuple, list)):
            for index, item in enumerate(result):
                if isinstance(item, torch.Tensor):
                    self.know(item, self._append(operator.getitem, (node, index), {}, item))
        else:
            raise _NotSpliceable(f"{func} gives no tensor")

    def _append(
        self, target: Callable[..., Any], args: Any, kwargs: Any, value: Any
    ) -> torch.fx.Node:
        with self._anchor.graph.inserting_before(self._anchor):
            node = self._anchor.graph.call_function(target, args, kwargs)
        node.meta["val"] = value
        for key in _PROVENANCE:
            if key in self._anchor.meta:
                node.meta[key] = self._anchor.meta[key]
        self.added.append(node)
        return node


def _nodes_in(value: Any, splicer: _Splicer) -> Any:
    if isinstance(value, torch.Tensor):
        return splicer.node_of(value)
    if isinstance(value, (list, tuple)):
        kind = list if isinstance(value, torch.Size) else type(value)
        return kind(_nodes_in(item, splicer) for item in value)
    if isinstance(value, dict):
        return {key: _nodes_in(item, splicer) for key, item in value.items()}
    return splicer.numbers.node_of(value)


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


def _with_layout(splicer: _Splicer, new: Any, old: torch.Tensor) -> torch.Tensor:
    """The result as the operator itself gives it: operators after it may depend on its strides."""
    if not isinstance(new, FakeTensor) or new.dtype != old.dtype or new.dim() != old.dim():
        raise _NotSpliceable("a rule with another result")
    if any(a != b for a, b in zip(new.shape, old.shape, strict=True)):
        raise _NotSpliceable("a rule with another size")
    if new.numel() == 0 or _same_strides(new, old):
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
