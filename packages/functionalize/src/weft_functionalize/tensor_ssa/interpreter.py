"""Runs TensorSSA form by its definition: an oracle for the conversion, and for what runs the result.

Values never change and share no memory (definitions 3.3 and 3.4): Access gives a copy of a part, Assign a
copy of the base with one part replaced, written by the view operator itself and not by its functional
counterpart.  Update (definition 3.5) gives a name another value, so that a graph can be run before renaming.
Blocks are run as the paper means them: one branch of a conditional, a loop's body again and again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.fx

from .._torch import HigherOrderOperator, OpOverload, pytree
from .layout import overlaps_itself
from .rewrite_mutation import update
from .verifier import VerificationError

aten = torch.ops.aten

# Assign, by the Access whose part it replaces.
_ACCESS_OF: dict[Any, OpOverload] = {
    aten.select_scatter.default: aten.select.int,
    aten.slice_scatter.default: aten.slice.Tensor,
    aten.diagonal_scatter.default: aten.diagonal.default,
    aten.as_strided_scatter.default: aten.as_strided.default,
}


def interpret(module: torch.fx.GraphModule, inputs: Sequence[Any]) -> tuple[Any, ...]:
    """What ``module`` returns for ``inputs``: tensors and numbers, in the order of its placeholders.

    ``module`` is a graph of a :class:`FunctionalGraph`, before or after renaming.  Raises
    :class:`VerificationError` where an operator writes to a value.
    """
    return run_block(module.graph, module.get_submodule, inputs)


def run_block(
    graph: torch.fx.Graph,
    region_of: Callable[[str], torch.nn.Module],
    inputs: Sequence[Any],
) -> tuple[Any, ...]:
    """As :func:`interpret`, for a graph whose regions ``region_of`` gives by their names."""
    values: dict[torch.fx.Node, Any] = {}
    given = iter(inputs)
    for node in graph.nodes:
        args, kwargs = torch.fx.map_arg((node.args, node.kwargs), values.__getitem__)
        if node.op == "placeholder":
            values[node] = _separate(next(given))
        elif node.op == "get_attr":
            values[node] = region_of(str(node.target))
        elif node.op == "output":
            result = args[0]
            return tuple(result) if isinstance(result, (tuple, list)) else (result,)
        elif node.target is update:
            new, old = node.args
            values[old] = _placed(values[new], values[old])
        else:
            values[node] = pytree.tree_map(_separate, _call(node, args, kwargs))
    raise ValueError("the graph has no output")


def _call(node: torch.fx.Node, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    target: Any = node.target
    if isinstance(target, HigherOrderOperator):
        return _REGIONS[target.name()](*args)
    access = _ACCESS_OF.get(target)
    if access is not None:
        base, source, *where = args
        base = base.clone() if overlaps_itself(base) else _separate(base)
        access(base, *where, **kwargs).copy_(source)
        return base
    before = [_separate(value) for value in pytree.tree_leaves((args, kwargs))]
    result = target(*args, **kwargs)
    for old, new in zip(before, pytree.tree_leaves((args, kwargs)), strict=True):
        if isinstance(old, torch.Tensor) and not _same_bits(old, new):
            raise VerificationError(f"{node.format_node()} writes to one of its arguments")
    return result


def _branch(predicate: Any, true: Any, false: Any, operands: Sequence[Any]) -> tuple[Any, ...]:
    return interpret(true if bool(predicate) else false, operands)


def _loop(
    condition: Any, body: Any, carried: Sequence[Any], additional: Sequence[Any]
) -> tuple[Any, ...]:
    state = tuple(carried)
    while bool(interpret(condition, (*state, *additional))[0]):
        state = interpret(body, (*state, *additional))
    return state


def _scan(combine: Any, rows: Sequence[Any], additional: Sequence[Any]) -> tuple[Any, ...]:
    results = [[row[0] for row in rows]]
    for position in range(1, rows[0].shape[0]):
        given = (*results[-1], *(row[position] for row in rows), *additional)
        results.append(list(interpret(combine, given)))
    return tuple(torch.stack(column) for column in zip(*results, strict=True))


_REGIONS: dict[str, Callable[..., Any]] = {
    "cond": _branch,
    "while_loop": _loop,
    "associative_scan": _scan,
}


def _separate(value: Any) -> Any:
    """A tensor with the same place in memory of its own; another value as it is."""
    if not isinstance(value, torch.Tensor):
        return value
    storage = value.untyped_storage().clone()
    place = (value.storage_offset(), value.shape, value.stride())
    return torch.empty(0, dtype=value.dtype, device=value.device).set_(storage, *place)


def _placed(new: torch.Tensor, old: torch.Tensor) -> torch.Tensor:
    """``new`` with the strides of ``old``, on which views that are taken later depend."""
    if overlaps_itself(old):
        return new
    placed: torch.Tensor = _separate(old).copy_(new)
    return placed


def _same_bits(left: torch.Tensor, right: torch.Tensor) -> bool:
    return torch.equal(_bytes(left), _bytes(right))


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    """The whole storage of a tensor."""
    return torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(tensor.untyped_storage())
