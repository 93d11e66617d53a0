"""Associative scans: the function that combines two rows is a block without writes, element by element."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.fx

from ._torch import HigherOrderOperator, OpOverload
from .aten_recorder import AtenRecorder
from .gradient_history import Sources
from .region_conversion import written_inputs
from .region_operands import (
    Operands,
    RecordedRegion,
    RegionRunner,
    check_same,
    convert,
    operand_node,
    record_block,
    share_taken,
)
from .saved_in_regions import note_saved_in_branches
from .unsupported import Unsupported


def record_scan(
    parent: AtenRecorder, target: HigherOrderOperator, args: Sequence[Any], runner: RegionRunner
) -> tuple[Any, ...]:
    """Record a call of ``associative_scan`` (combine, rows, additional operands); its results."""
    module, rows, additional = args
    left = [_like(parent, row, row.dim() - 1) for row in rows]
    right = [_like(parent, row, row.dim() - 1) for row in rows]
    for value, row in zip([*left, *right], [*rows, *rows], strict=True):
        _give(parent, value, row.requires_grad)
    while True:
        operands = Operands([*left, *right, *additional])
        block = record_block(parent, module, operands.values, operands, runner)
        gaining = [
            value
            for value, made in zip(left, block.outputs, strict=True)
            if made.requires_grad and not value.requires_grad
        ]
        if not gaining:
            break
        for value in gaining:
            _give(parent, value, True)
    for value, made in zip(left, block.outputs, strict=True):
        check_same(value, made, "scan whose function changes sizes or dtypes")
    if written_inputs(block.recorder):
        raise Unsupported("write in the function of a scan")
    taken = share_taken([block])
    order = block.order(taken)
    sources = _sources(block, order, rows, [*additional, *taken])
    outputs = list(zip(block.outputs, left, strict=True))
    converted = convert(block, outputs, (), order)
    _check_elementwise(converted)
    results = [_like(parent, row, row.dim()) for row in rows]
    given = zip(results, sources, left, strict=True)
    parent.give_gradients(*((made, s) for made, s, value in given if value.requires_grad))
    given_values = [*rows, *rows, *additional, *taken]
    note_saved_in_branches(parent, [block], [order], given_values, results)
    arguments = (
        parent.add_region("combine", converted),
        tuple(operand_node(parent, row) for row in rows),
        tuple(operand_node(parent, value) for value in [*additional, *taken]),
    )
    parent.append_region_operator(target, arguments, results)
    return tuple(results)


def _like(parent: AtenRecorder, row: torch.Tensor, dims: int) -> torch.Tensor:
    """A contiguous fake tensor with the last ``dims`` dimensions of ``row``."""
    with parent.paused():
        size = row.shape[row.dim() - dims :]
        return torch.empty(size, dtype=row.dtype, device=row.device)


def _give(parent: AtenRecorder, value: torch.Tensor, has_gradient: bool) -> None:
    if has_gradient:
        with parent.paused():
            value.requires_grad_()


def _check_elementwise(module: torch.fx.GraphModule) -> None:
    """Refuse functions that combine other elements than those at one place, which no kernel would hold."""
    for node in module.graph.nodes:
        if node.op != "call_function":
            continue
        target = node.target
        is_elementwise = isinstance(target, OpOverload) and torch.Tag.pointwise in target.tags
        if not is_elementwise and target not in _ALSO_ELEMENTWISE:
            raise Unsupported("scan whose function is not elementwise", str(target))


aten = torch.ops.aten

_ALSO_ELEMENTWISE = frozenset(
    {
        aten._to_copy.default,
        aten.alias.default,
        aten.clone.default,
        aten.detach.default,
        aten.full.default,
        aten.full_like.default,
        aten.lift_fresh_copy.default,
        aten.ones_like.default,
        aten.scalar_tensor.default,
        aten.zeros_like.default,
    }
)


def _sources(
    block: RecordedRegion, order: Sequence[int], rows: Sequence[torch.Tensor], others: Sequence[Any]
) -> list[Sources]:
    """What each result has gradients to: the first row is itself, any later one combines all before it."""
    count = len(rows)
    reach = [block.reach(value, order) for value in block.outputs]
    certain = _closed({k: r.certain for k, r in enumerate(reach)}, count)
    possible = _closed({k: r.possible for k, r in enumerate(reach)}, count)
    values = [*rows, *others]
    return [
        Sources(*([values[p] for p in sorted(found[k])] for found in (certain, possible)))
        for k in range(count)
    ]


def _closed(once: Mapping[int, frozenset[int]], count: int) -> list[set[int]]:
    """By result, the positions among rows and other operands of what reaches it.

    ``once`` has positions among left values, right values and other operands.
    """
    found = [{k} for k in range(count)]
    changed = True
    while changed:
        changed = False
        for k, positions in once.items():
            new = set(found[k])
            for position in positions:
                new |= found[position] if position < count else {position - count}
            changed |= new != found[k]
            found[k] = new
    return found
