"""Step 1 for control flow: the graphs that ``cond`` and ``while_loop`` run, each recorded as a block.

A region's graph is recorded on fake values of its own and converted at once (the innermost first); the
block around it gets one node, whose results are new tensors.  What the region writes is noted on the node
(:mod:`.tensor_ssa.block_propagation`).  Tensors that a region's module holds itself become operands, and so
does what owns the storage of several operands of which one is written.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.fx

from ._torch import HigherOrderOperator
from .aten_recorder import AtenRecorder
from .loop_regions import record_while
from .region_conversion import written_inputs
from .region_operands import (
    MAX_ATTEMPTS,
    Block,
    Operands,
    RegionRunner,
    check_same,
    convert,
    fresh,
    note_aliases,
    operand_node,
    placed,
    record_block,
    share_taken,
    touched_operands,
)
from .region_sharing import conflicts, reached, shared_results, storage_of
from .tensor_ssa.block_propagation import set_region_writes
from .unsupported import Unsupported


def record_region_operator(
    recorder: AtenRecorder, target: HigherOrderOperator, args: Sequence[Any], runner: RegionRunner
) -> tuple[Any, ...]:
    """Record a call of ``cond`` or ``while_loop`` (arguments as torch defines them) and its regions.

    ``recorder`` is the block's around it, and active.  Returns the operator's results.  Raises
    :class:`Unsupported` for other operators, and for regions whose states can't be joined.
    """
    rule = _RULES.get(target.name())
    if rule is None:
        raise Unsupported("control-flow operator", str(target))
    return rule(recorder, target, args, runner)


def _record_cond(
    parent: AtenRecorder, target: HigherOrderOperator, args: Sequence[Any], runner: RegionRunner
) -> tuple[Any, ...]:
    predicate, true_module, false_module, given = args
    if not isinstance(predicate, torch.Tensor) or predicate.dtype != torch.bool or predicate.dim():
        raise Unsupported(
            "predicate of a branch", str(predicate), "a bool tensor without dimensions"
        )
    branch = _Branch(parent, Operands(list(given)))
    branch.record((true_module, false_module), runner)
    return branch.emit(target, predicate)


class _Branch:
    def __init__(self, parent: AtenRecorder, operands: Operands) -> None:
        self.parent = parent
        self.operands = operands
        self.sides: list[Block] = []
        self.taken: list[Any] = []
        self.orders: list[list[int]] = []
        self.written: list[int] = []  # positions among operands and what is taken

    def record(self, modules: Sequence[torch.fx.GraphModule], runner: RegionRunner) -> None:
        """Record both sides, until what they are given suits what they write."""
        parent, operands = self.parent, self.operands
        for _ in range(MAX_ATTEMPTS):
            self.sides = [
                record_block(parent, m, operands.passed, operands.views, runner) for m in modules
            ]
            self.taken = share_taken(self.sides)
            self.orders = [side.order(self.taken) for side in self.sides]
            self.written = sorted(
                {
                    order.index(i)
                    for side, order in zip(self.sides, self.orders, strict=True)
                    for i in written_inputs(side.recorder)
                }
            )
            if not self._resolve_conflicts() and not operands.pass_dense(parent, self.written):
                return
        raise Unsupported("operands of a branch that can't be given as it needs them")

    def _resolve_conflicts(self) -> bool:
        """Operands that share storage which is written are made inside; whether that is new of any."""
        values = [*self.operands.values, *self.taken]
        changed = False
        for side in self.sides:
            names = side.names(self.taken)
            groups = side.inside()
            groups.join_region_results(self.parent)
            for position, storage in names.items():
                groups.join(storage, storage_of(values[position]) or storage)
            touched = touched_operands(side, names, groups)
            for found in conflicts(groups, names, touched):
                if len({storage_of(values[p]) for p in found}) > 1 or not (
                    self.operands.regenerate(self.parent, found)
                ):
                    described = ", ".join(
                        self.parent.node_of(values[p]).name for p in sorted(found)
                    )
                    raise Unsupported("write in a region to one of several tensors", described)
                changed = True
        return changed

    def emit(self, target: HigherOrderOperator, predicate: torch.Tensor) -> tuple[Any, ...]:
        """Append the operator's node; the branch's results."""
        parent, taken, written = self.parent, self.taken, self.written
        values, passed = [*self.operands.values, *taken], [*self.operands.passed, *taken]
        first, second = (side.outputs for side in self.sides)
        layouts = _joined(parent, first, second)
        order = [p for p in range(len(values)) if p not in self.operands.views]
        names = [side.names(taken) for side in self.sides]
        groups = [side.inside() for side in self.sides]
        modules = [
            convert(
                side,
                list(zip(side.outputs, layouts, strict=True)),
                [inputs[p] for p in written],
                [inputs[p] for p in order],
            )
            for side, inputs in zip(self.sides, self.orders, strict=True)
        ]
        results = [fresh(parent, t) if isinstance(t, torch.Tensor) else t for t in layouts]
        results = [first[k] if r is None else r for k, r in enumerate(results)]
        versions = [
            fresh(parent, self.sides[0].recorder.inputs[self.orders[0][p]].value) for p in written
        ]
        graphs = [
            parent.add_region(name, module)
            for name, module in zip(("true_graph", "false_graph"), modules, strict=True)
        ]
        operands = tuple(operand_node(parent, passed[p]) for p in order)
        arguments = (operand_node(parent, predicate), *graphs, operands)
        node, items = parent.append_region_operator(target, arguments, [*results, *versions])
        writes = [(parent.node_of(values[p]), len(results) + k) for k, p in enumerate(written)]
        set_region_writes(node, writes)
        for side, inner, names_inside in zip(self.sides, groups, names, strict=True):
            note_aliases(
                parent,
                dict(enumerate(items[: len(results)])),
                values,
                reached(side.outputs, inner.joined, names_inside),
                shared_results(side.outputs, inner.joined),
            )
        return tuple(results)


def _joined(parent: AtenRecorder, first: Sequence[Any], second: Sequence[Any]) -> list[Any]:
    """What stands for each result of two branches: a tensor in its layout, None for equal numbers."""
    if len(first) != len(second):
        raise Unsupported("branches with different numbers of results")
    layouts: list[Any] = []
    for left, right in zip(first, second, strict=True):
        if isinstance(left, torch.Tensor) and isinstance(right, torch.Tensor):
            check_same(left, right, "branches that give different tensors")
            layouts.append(placed(parent, left))
        elif type(left) is type(right) and left == right:
            layouts.append(None)
        else:
            raise Unsupported("branches that give different values", f"{left} and {right}")
    return layouts


_RULES = {"cond": _record_cond, "while_loop": record_while}
