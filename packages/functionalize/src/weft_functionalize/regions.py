"""Step 1 for control flow: the graphs that control-flow operators run, each recorded as a block.

A region's graph is recorded on fake values of its own and converted at once (the innermost first); the
block around it gets one node, whose results are new tensors.  What the region writes is noted on the node
(:mod:`.tensor_ssa.block_propagation`).  Tensors that a region's module holds itself become operands, and so
does what owns the storage of several operands of which one is written.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import torch
import torch.fx

from ._torch import HigherOrderOperator, known_equal, known_true, size_hint, version_of
from .aten_recorder import AtenRecorder
from .gradient_history import Reach, Sources
from .loop_regions import record_while
from .region_conversion import inputs_seen_written, inputs_told_written, written_inputs
from .region_effort import RegionEffort
from .region_layouts import note_gaps
from .region_operands import (
    MAX_ATTEMPTS,
    Operands,
    RecordedRegion,
    RegionRunner,
    check_same,
    convert,
    count_region_writes,
    fresh,
    note_aliases,
    operand_node,
    placed,
    record_block,
    share_taken,
    sources_at,
    touched_operands,
    written_by_region,
)
from .region_sharing import ONE_OF_SEVERAL, MaybeOne, conflicts, may_be_one, storage_of
from .region_ties import flag_inside, identity_inside
from .saved_in_regions import note_saved_in_branches
from .scan_regions import record_scan
from .tensor_ssa.block_propagation import set_region_writes
from .tensor_ssa.region_aliases import NeedsMoreEffort
from .unsupported import Unsupported

Flag = torch.Tensor | bool | None

GIVES_ZERO_GRADIENTS = "gives_zero_gradients"
"""Set in the ``meta`` of a ``cond`` that gives what its branch does not use gradients of zero, not none."""


def record_region_operator(
    recorder: AtenRecorder, target: HigherOrderOperator, args: Sequence[Any], runner: RegionRunner
) -> tuple[Any, ...]:
    """Record a call of a control-flow operator (arguments as torch defines them) and its regions.

    ``recorder`` is the block's around it, and active.  Returns the operator's results.  Raises
    :class:`Unsupported` for other operators, and for regions whose states can't be joined.
    """
    rule = _RULES.get(target.name())
    if rule is None:
        raise Unsupported("control-flow operator", str(target))
    results = rule(recorder, target, args, runner)
    source = recorder.source_node
    captured = None if source is None else source.meta.get("example_value")
    if not isinstance(captured, tuple) or len(captured) != len(results):
        return results
    given = [_given_by(module) for module in args if isinstance(module, torch.fx.GraphModule)]
    if target.name() == "while_loop":
        del given[0]  # the condition
    if any(len(values) != len(results) for values in given):
        return results
    return tuple(map(_expanded_as, results, captured, *given))


def _given_by(module: torch.fx.GraphModule) -> Sequence[Any]:
    """What a region of the captured graph gives, as its capture saw it."""
    (given,) = module.graph.output_node().args
    values = given if isinstance(given, (tuple, list)) else (given,)
    return [v.meta.get("example_value") if isinstance(v, torch.fx.Node) else v for v in values]


def _expanded_as(result: Any, *values: Any) -> Any:
    """``result`` with the dimensions expanded that are in all of ``values``: a region gives a dense tensor.

    ``values`` are the captured result and what each of the regions gives for it.  A tensor in a region may
    have lost dimensions since (``squeeze_``).
    """
    if not isinstance(result, torch.Tensor):
        return result
    dimensions = [
        d
        for d in range(result.dim())
        if not known_equal(result.stride(d), 0) and all(_is_expanded(v, d) for v in values)
    ]
    if not dimensions:
        return result
    shape = result.shape
    for d in dimensions:
        result = result.narrow(d, 0, 1)
    return _laid_out_as(result, dimensions, values).expand(shape)


def _laid_out_as(
    part: torch.Tensor, expanded: Sequence[int], values: Sequence[Any]
) -> torch.Tensor:
    """``part`` of one element along the dims ``expanded``, with the strides that all ``values`` have else.

    It is as it is where they differ, or leave gaps.
    """
    others = [d for d in range(part.dim()) if d not in expanded]
    if any(v.dim() != part.dim() for v in values):
        return part
    wanted = [values[0].stride(d) for d in others]
    pairs = ((v.stride(d), s) for v in values for d, s in zip(others, wanted, strict=True))
    if not all(known_equal(*pair) for pair in pairs):
        return part
    if all(known_equal(part.stride(d), s) for d, s in zip(others, wanted, strict=True)):
        return part
    inner = sorted(others, key=lambda d: size_hint(values[0].stride(d)), reverse=True)
    order = [*expanded, *inner]
    dense = part.permute(order).clone(memory_format=torch.contiguous_format)
    laid_out = dense.permute([order.index(d) for d in range(part.dim())])
    fits = all(known_equal(laid_out.stride(d), s) for d, s in zip(others, wanted, strict=True))
    return laid_out if fits else part


def _is_expanded(value: Any, dim: int) -> bool:
    return (
        isinstance(value, torch.Tensor)
        and dim < value.dim()
        and known_equal(value.stride(dim), 0)
        and known_true(value.shape[dim] > 1)
    )


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
        source = parent.source_node
        self.gives_zeros = source is not None and GIVES_ZERO_GRADIENTS in source.meta
        self.branches: list[RecordedRegion] = []
        self.taken: list[Any] = []
        self.orders: list[list[int]] = []
        self.written: list[int] = []  # positions among operands and what is taken

    def record(self, modules: Sequence[torch.fx.GraphModule], runner: RegionRunner) -> None:
        """Record both branches, until what they are given suits what they write."""
        parent, operands = self.parent, self.operands
        for _ in range(MAX_ATTEMPTS):
            self.branches = [
                record_block(parent, m, operands.passed, operands, runner) for m in modules
            ]
            self.taken = share_taken(self.branches)
            self.orders = [branch.order(self.taken) for branch in self.branches]
            self.written = sorted(
                {
                    order.index(i)
                    for branch, order in zip(self.branches, self.orders, strict=True)
                    for i in written_inputs(branch.recorder)
                }
            )
            if not self._resolve_conflicts() and not operands.pass_dense(parent, self.written):
                return
        raise Unsupported("operands of a branch that can't be given as it needs them")

    def _resolve_conflicts(self) -> bool:
        """Let the branches know which operands share storage that is written; whether that is new of any."""
        values = [*self.operands.values, *self.taken]
        changed = False
        for branch in self.branches:
            names = branch.names(self.taken)
            groups = branch.inside()
            groups.join_region_results(self.parent)
            for position, storage in names.items():
                groups.join(storage, storage_of(values[position]) or storage)
            touched = touched_operands(branch, names, groups)
            for found in conflicts(groups, names, touched):
                changed |= self._share(found)
        return changed

    def _share(self, positions: set[int]) -> bool:
        """Make operands inside, or tie them; whether any was not yet."""
        parent, operands, taken = self.parent, self.operands, self.taken
        if operands.regenerate_sharing(parent, positions, taken):
            return True
        values = [*operands.values, *taken]
        names = ", ".join(parent.node_of(values[p]).name for p in sorted(positions))
        if parent.effort < RegionEffort.IDENTIFY:
            raise NeedsMoreEffort(ONE_OF_SEVERAL, names)
        return operands.tie_all(parent, positions, taken)

    def emit(self, target: HigherOrderOperator, predicate: torch.Tensor) -> tuple[Any, ...]:
        """Append the operator's node; the branch's results."""
        parent, taken, written = self.parent, self.taken, self.written
        values, passed = [*self.operands.values, *taken], [*self.operands.passed, *taken]
        seen = {
            order.index(i)
            for branch, order in zip(self.branches, self.orders, strict=True)
            for i in inputs_seen_written(branch.recorder)
        }
        sources = [
            sources_at(values, self._reach(*both))
            for both in zip(*(branch.outputs for branch in self.branches), strict=False)
        ]
        self._check_written(values)
        self._pass_gradients(values, seen)
        for p in written:
            inside = [
                version_of(branch.recorder.inputs[order[p]].value)
                for branch, order in zip(self.branches, self.orders, strict=True)
            ]
            count_region_writes(parent, values[p], max(inside))
        layouts = _joined(parent, *(branch.outputs for branch in self.branches))
        order = [p for p in range(len(values)) if p not in self.operands.views]
        pairs = self._pairs()
        may_detach = any(branch.may_detach() for branch in self.branches)
        given = [pair for pair, flags in pairs.items() if _needs_result(*flags)]
        modules = []
        for k, (branch, inputs) in enumerate(zip(self.branches, self.orders, strict=True)):
            results = list(zip(branch.outputs, layouts, strict=True))
            for pair in given:
                flag = flag_inside(branch.recorder, pairs[pair][k])
                results.append((flag, flag))
            written_inside, placeholders = [inputs[p] for p in written], [inputs[p] for p in order]
            modules.append(convert(branch, results, written_inside, placeholders))
        made = [
            fresh(parent, layout, source) if isinstance(layout, torch.Tensor) else value
            for layout, value, source in zip(
                layouts, self.branches[0].outputs, sources, strict=True
            )
        ]
        note_saved_in_branches(parent, self.branches, self.orders, values, made)
        flags = {pair: fresh(parent, predicate) for pair in given}
        versions = [
            fresh(parent, self.branches[0].recorder.inputs[self.orders[0][p]].value)
            for p in written
        ]
        graphs = [
            parent.add_region(name, module)
            for name, module in zip(("true_graph", "false_graph"), modules, strict=True)
        ]
        operands = tuple(operand_node(parent, passed[p]) for p in order)
        arguments = (operand_node(parent, predicate), *graphs, operands)
        every = [*made, *flags.values(), *versions]
        node, items = parent.append_region_operator(target, arguments, every)
        outputs = zip(*(branch.outputs for branch in self.branches), strict=True)
        recorders = [branch.recorder for branch in self.branches]
        for item, both in zip(items, outputs, strict=False):
            note_gaps(parent, item, *zip(recorders, both, strict=True))
        if self.gives_zeros:
            node.meta[GIVES_ZERO_GRADIENTS] = True
        first = len(every) - len(versions)
        writes = [(parent.node_of(values[p]), first + k) for k, p in enumerate(written)]
        set_region_writes(node, writes, [parent.node_of(values[p]) for p in seen])
        known = {
            pair: flags[pair] if pair in flags else _by_predicate(predicate, *branches)
            for pair, branches in pairs.items()
        }
        note_aliases(
            parent, dict(enumerate(items[: len(made)])), values, known, may_be_unseen=may_detach
        )
        return tuple(made)

    def _reach(self, *results: Any) -> Reach:
        """What the branches' values for one result have gradients to."""
        first, second = (
            branch.reach(value, order)
            for branch, order, value in zip(self.branches, self.orders, results, strict=True)
        )
        possible = first.possible | second.possible
        return Reach(possible if self.gives_zeros else first.certain & second.certain, possible)

    def _check_written(self, values: Sequence[Any]) -> None:
        """:raises Unsupported: one branch alone writes to what autograd has saved, or may have outside."""
        both = [
            {order.index(i) for i in written_inputs(branch.recorder)}
            for branch, order in zip(self.branches, self.orders, strict=True)
        ]
        for position in both[0] ^ both[1]:
            self.parent.history.check_uncertain_write(values[position])
        told = [
            {order.index(i) for i in inputs_told_written(branch.recorder)}
            for branch, order in zip(self.branches, self.orders, strict=True)
        ]
        for position in told[0] ^ told[1]:
            self.parent.check_uncertain_version(values[position])

    def _pass_gradients(self, values: Sequence[Any], seen: Collection[int]) -> None:
        """Let what the branches write have the gradients that they write to it.

        One branch may write none: then data decides whether there are any, as for a result.
        :raises Unsupported: data would decide that of a caller's tensor, which has a history outside.
        """
        found = []
        for position in self.written:
            sources = Sources()
            inside = [
                branch.recorder.inputs[order[position]].value
                for branch, order in zip(self.branches, self.orders, strict=True)
            ]
            flags = {value.requires_grad for value in inside}
            if len(flags) > 1 and self.parent.is_of_input(values[position]):
                raise Unsupported(_IN_ONE_BRANCH)
            if True in flags and position in seen:
                sources = sources_at(values, self._reach(*inside))
                found.append((values[position], sources))
            found += written_by_region(self.parent, values[position], sources)
        self.parent.give_gradients(*found)

    def _pairs(self) -> dict[MaybeOne, tuple[Flag, Flag]]:
        """What results may be one with, and for each branch whether they are."""
        pairs: dict[MaybeOne, None] = {}
        for branch in self.branches:
            inside, names = branch.inside().joined, branch.names(self.taken)
            pairs |= dict.fromkeys(may_be_one(branch.outputs, inside, names))
        if self.parent.effort < RegionEffort.IDENTIFY:
            return dict.fromkeys(pairs, (None, None))
        first, second = (
            [self._are_one(branch, order, pair) for pair in pairs]
            for branch, order in zip(self.branches, self.orders, strict=True)
        )
        return dict(zip(pairs, zip(first, second, strict=True), strict=True))

    def _are_one(self, branch: RecordedRegion, order: Sequence[int], pair: MaybeOne) -> Flag:
        inputs = branch.recorder.inputs
        other = (
            inputs[order[pair.position]].value if pair.is_operand else branch.outputs[pair.position]
        )
        left = branch.outputs[pair.result]
        if not isinstance(left, torch.Tensor) or not isinstance(other, torch.Tensor):
            return False
        return identity_inside(branch.recorder, left, other)


def _needs_result(first: Flag, second: Flag) -> bool:
    """Whether a flag on each branch is known, and the predicate doesn't tell."""
    known = first is not None and second is not None
    return known and not (isinstance(first, bool) and isinstance(second, bool))


def _by_predicate(predicate: torch.Tensor, first: Flag, second: Flag) -> Flag:
    """The constant ``first`` where the predicate holds, ``second`` elsewhere."""
    if first is None or second is None:
        return None
    if first is second:
        return first
    return predicate if first else torch.logical_not(predicate)


_IN_ONE_BRANCH = "gradients in one branch of a conditional only"


def _joined(parent: AtenRecorder, first: Sequence[Any], second: Sequence[Any]) -> list[Any]:
    """What stands for each result of two branches: a tensor in its layout, None for equal numbers."""
    if len(first) != len(second):
        raise Unsupported("branches with different numbers of results")
    layouts: list[Any] = []
    for left, right in zip(first, second, strict=True):
        if isinstance(left, torch.Tensor) and isinstance(right, torch.Tensor):
            check_same(left, right, "branches that give different tensors")
            layouts.append(placed(parent, left if left.requires_grad else right))
        elif type(left) is type(right) and left == right:
            layouts.append(None)
        else:
            raise Unsupported("branches that give different values", f"{left} and {right}")
    return layouts


_RULES = {"cond": _record_cond, "while_loop": record_while, "associative_scan": record_scan}
