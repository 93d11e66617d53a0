"""Loops: the carried state's storages and strides are found by recording the body until they are stable.

A tensor that the body writes, but does not bind anew, is carried as the paper says.  One that it binds anew
and also writes is clobbered by the first iteration; where that shows, the first iteration stands before the
loop, if there is one in any case.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.fx

from ._torch import HigherOrderOperator, assume, new_integer, version_of
from .aten_recorder import AtenRecorder
from .counted_loops import Comparison, CountedTest, Counter, find_counter
from .gradient_history import Reach, Sources
from .loop_reach import reached_after
from .loop_sizes import VaryingSizes
from .region_conversion import inputs_seen_written, written_inputs
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
from .region_recorder import Tie
from .region_sharing import ONE_OF_SEVERAL, MaybeOne, conflicts, may_be_one, storage_of
from .region_ties import End, flag_inside, flag_tensor, identity_inside
from .saved_in_regions import note_saved_in_loop
from .tensor_ssa.block_propagation import set_region_clobbers, set_region_writes
from .tensor_ssa.layout import same_layout
from .tensor_ssa.region_aliases import NeedsMoreEffort
from .tensor_ssa.written_origins import check_written_layouts
from .unsupported import Unsupported

_ZEROS = (torch.ops.aten.zeros.default, torch.ops.aten.zeros_like.default)


class _FirstIterationDiffers(NeedsMoreEffort):
    """What the loop begins with is seen by others, what later iterations begin with may not be."""


def record_while(
    parent: AtenRecorder, target: HigherOrderOperator, args: Sequence[Any], runner: RegionRunner
) -> tuple[Any, ...]:
    """Record a call of ``while_loop``; its results."""
    condition, body, carried, additional = args
    counter = find_counter(condition, body, carried, additional)
    certain = counter is not None and bool(counter.trips) and not counter.may_end_early
    try:
        loop = _Loop(parent, (condition, body), carried, additional, counter, runner)
        return loop.record(target, may_peel=certain)
    except _FirstIterationDiffers:
        if not certain or counter is None:
            raise
    following = runner.inline(body, parent, [*carried, *additional])
    counter = replace(counter, start=counter.start + counter.step)
    loop = _Loop(parent, (condition, body), following, additional, counter, runner)
    return loop.record(target, may_peel=False)


class _Loop:
    def __init__(
        self,
        parent: AtenRecorder,
        modules: tuple[torch.fx.GraphModule, torch.fx.GraphModule],
        carried: Sequence[Any],
        additional: Sequence[Any],
        counter: Counter | None,
        runner: RegionRunner,
    ) -> None:
        self.parent = parent
        self.condition_module, self.body_module = modules
        self.count = len(carried)
        self.operands = Operands([*carried, *additional])
        self.counter = counter
        self.runner = runner
        self.sizes = VaryingSizes(parent, modules[1], carried)
        self.unchanged: set[int] = set()  # carried tensors that the body does not bind anew
        self.may_peel = False
        self.identifies = False
        self.gaining: set[int] = set()  # operands that have gradients from the second iteration on

    def record(self, target: HigherOrderOperator, *, may_peel: bool) -> tuple[Any, ...]:
        """Record the loop and append its node; its results.

        ``may_peel``: whether the loop may be tried again from its second iteration on, where it writes to
        what it begins with and others see that.
        """
        self.may_peel = may_peel
        self.identifies = self.parent.effort >= RegionEffort.IDENTIFY
        self._record_blocks()
        if written_inputs(self.condition.recorder):
            raise Unsupported("write in a loop's condition")
        clobbered = self._clobbered()
        for k in clobbered:  # inside, it is dense in every iteration
            check_written_layouts([self.parent.node_of(self.operands.values[k])])
            check_written_layouts([self.body.recorder.node_of(self.body.outputs[k])])
        if clobbered and may_peel and self.parent.effort >= RegionEffort.PEEL:
            raise _FirstIterationDiffers("write to a carried tensor")
        return self._emit(target, [k for k in clobbered if self._start_tie(k) is None])

    @property
    def carried(self) -> list[int]:
        """The positions of the values that the body binds anew."""
        return [k for k in range(self.count) if k not in self.unchanged]

    def _clobbered(self) -> list[int]:
        """The carried tensors that the body writes."""
        touched = touched_operands(self.body, self.body.names(self.taken))
        return sorted(touched.intersection(self.carried))

    def _start_tie(self, position: int) -> Tie | None:
        """What says in which iterations the carried value at ``position`` is what the loop began with."""
        return self.operands.find(position, self.operands.values[position])

    def _emit(self, target: HigherOrderOperator, clobbered: Sequence[int]) -> tuple[Any, ...]:
        parent, operands, body = self.parent, self.operands, self.body
        values, passed = [*operands.values, *self.taken], [*operands.passed, *self.taken]
        inputs, tested_inputs = body.order(self.taken), self.condition.order(self.taken)
        carried, flags = self.carried, [t for t in operands.ties.values() if t.is_carried]
        written = [
            p for p in sorted(map(inputs.index, written_inputs(body.recorder))) if p not in carried
        ]
        seen = set(map(inputs.index, inputs_seen_written(body.recorder))).difference(carried)
        fixed = {*carried, *written, *operands.views}
        rest = [*written, *(p for p in range(len(values)) if p not in fixed)]
        reached = self._reach([*carried, *written])
        sources = {k: sources_at(values, reach) for k, reach in reached.items()}
        for position in [] if self._runs() else written:
            parent.history.check_uncertain_write(values[position])
            if parent.history.was_told_of_write(body.recorder.inputs[inputs[position]].value):
                parent.check_uncertain_version(values[position])
        self._pass_gradients(values, written, seen, sources)
        self._count_writes(values, written)
        pairs, may_detach = self._pairs(body), body.may_detach()
        layouts = {k: body.recorder.inputs[k].value for k in carried}
        following = [flag_inside(body.recorder, self._following(tie)) for tie in flags]
        outputs = [(body.outputs[k], self._left_layout(k)) for k in carried]
        outputs += [(f, f) for f in following]
        converted = self._converted_body(
            outputs, [inputs[p] for p in written], [inputs[p] for p in rest]
        )
        tested = self._converted_condition([tested_inputs[p] for p in rest])
        graphs = [parent.add_region("condition", tested), parent.add_region("body", converted)]
        starts = [operand_node(parent, passed[k]) for k in carried]
        starts += [parent.node_of(flag_tensor(tie.flag)) for tie in flags]
        nodes = [operand_node(parent, passed[p]) for p in rest]
        counts = self.counter if isinstance(self.condition.outputs[0], torch.SymBool) else None
        results = {
            k: fresh(parent, self._left_gradients(k, v, reached), sources[k])
            if isinstance(v, torch.Tensor)
            else _final_integer(parent, k, counts)
            for k, v in layouts.items()
        }
        results |= self.sizes.results(layouts)
        left = [results.get(k) for k in range(self.count)]
        note_saved_in_loop(parent, body, inputs, values, left)
        final = {tie: fresh(parent, f) for tie, f in zip(flags, following, strict=True)}
        versions = [fresh(parent, body.recorder.inputs[inputs[p]].value) for p in written]
        arguments = (
            *graphs,
            (*starts, *nodes[: len(written)]),
            tuple(nodes[len(written) :]),
        )
        every = [*results.values(), *final.values(), *versions]
        node, items = parent.append_region_operator(target, arguments, every)
        runs = self._runs()
        for item, k in zip(items, carried, strict=False):
            before = [] if runs else [(parent, operands.values[k])]
            note_gaps(parent, item, (body.recorder, body.outputs[k]), *before)
        first = len(every) - len(versions)
        set_region_writes(
            node,
            [(parent.node_of(values[p]), first + k) for k, p in enumerate(written)],
            [parent.node_of(values[p]) for p in seen],
        )
        set_region_clobbers(node, [parent.node_of(values[k]) for k in clobbered])
        known = {pair: final.get(tie) if tie else None for pair, tie in pairs.items()}
        by_position = dict(zip(carried, items, strict=False))
        note_aliases(parent, by_position, values, known, may_be_unseen=may_detach)
        return tuple(results.get(k, operands.values[k]) for k in range(self.count))

    def _left_gradients(
        self, position: int, inside: torch.Tensor, reached: Mapping[int, Reach]
    ) -> torch.Tensor:
        """``inside``, without gradients where every number of iterations leaves a value that has none.

        What a loop begins with may have some that no iteration passes on.
        """
        if reached[position].possible or not inside.requires_grad:
            return inside
        with self.parent.paused():
            return inside.detach()

    def _left_layout(self, position: int) -> Any:
        """How the body gives the carried value at ``position``."""
        body = self.body
        if self.sizes.varies(position):
            return self.sizes.following(body.outputs[position])
        return body.recorder.inputs[position].value

    def _converted_body(
        self, outputs: Sequence[tuple[Any, Any]], written: Sequence[int], rest: Sequence[int]
    ) -> torch.fx.GraphModule:
        """``outputs`` each with what it has to look like; ``written`` and ``rest`` are not carried."""
        carried = [*self.carried, *self.body.recorder.carried_flags]
        return convert(self.body, outputs, written, [*carried, *rest], carried)

    def _converted_condition(self, rest: Sequence[int]) -> torch.fx.GraphModule:
        order = [*self.carried, *self.condition.recorder.carried_flags, *rest]
        return convert(self.condition, [(self._test(), None)], (), order, is_condition=True)

    def _test(self) -> Any:
        """The condition's result: a counter's comparison in terms of what the condition is given."""
        value, counter = _predicate(self.condition), self.counter
        if counter is None:
            return value
        given = self.condition.given[counter.position]
        comparison = Comparison(given, counter.stop, counter.ascends)
        return replace(value, comparison=comparison) if counter.may_end_early else comparison

    def _drop_ties(self) -> bool:
        """Know pairs that are one in no iteration, or of which that isn't known; whether any is new."""
        fixed: dict[tuple[int, int], Tie] = {}
        for key, tie in self.operands.ties.items():
            following = self._following(tie) if tie.is_carried else tie.flag
            if tie.is_carried and following is None:
                fixed[key] = replace(tie, flag=None, is_carried=False)
            elif tie.is_carried and tie.flag is False and following is False:
                fixed[key] = replace(tie, is_carried=False)
        self.operands.ties.update(fixed)
        return bool(fixed)

    def _following(self, tie: Tie) -> torch.Tensor | bool | None:
        """Whether the two are one in the next iteration."""
        recorder = self.body.recorder
        left, right = (
            self.body.outputs[end]
            if isinstance(end, int) and end in self.carried
            else recorder.input_of(end).value
            for end in (tie.left, tie.right)
        )
        return identity_inside(recorder, left, right)

    def _pairs(self, body: RecordedRegion) -> dict[MaybeOne, Tie | None]:
        """What the loop's results may be one with, and what says whether they are."""
        names, carried = body.names(self.taken), self.carried
        found = may_be_one(body.outputs, body.inside().joined, names, carried)
        found = [pair for pair in found if pair.result in carried]
        counts = self.counter if isinstance(self.condition.outputs[0], torch.SymBool) else None
        if counts is None or not counts.trips:  # it may run no iteration: results are the operands
            found += [MaybeOne(k, k, True) for k in carried if storage_of(body.outputs[k])]
        return {
            pair: self.operands.find(pair.result, self._end(pair)) for pair in dict.fromkeys(found)
        }

    def _end(self, pair: MaybeOne) -> End:
        """What a result may be one with, as the end of a tie."""
        count = len(self.operands.values)
        if not pair.is_operand or (pair.position < count and pair.position not in self.carried):
            return pair.position
        end: torch.Tensor = [*self.operands.values, *self.taken][pair.position]
        return end

    def _reach(self, state: Sequence[int]) -> dict[int, Reach]:
        """What the positions ``state``, which iterations leave anew, have gradients to after the loop."""
        body, order = self.body, self.body.order(self.taken)
        once = {
            k: body.reach(
                body.outputs[k] if k in self.carried else body.recorder.inputs[order[k]].value,
                order,
            )
            for k in state
        }
        least, most = self._iterations()
        certain = reached_after({k: reach.certain for k, reach in once.items()}, least, most)
        possible = reached_after({k: reach.possible for k, reach in once.items()}, least, most)
        return {
            k: Reach(
                frozenset.intersection(*(after[k] for after in certain)),
                frozenset().union(*(after[k] for after in possible)),
            )
            for k in state
        }

    def _iterations(self) -> tuple[int, int | None]:
        """How many iterations there are, at least and at most; None for no bound."""
        counter = self.counter
        most = None if counter is None else counter.trips
        if most is not None and counter is not None and not counter.may_end_early:
            return most, most
        return int(self._runs()), most

    def _pass_gradients(
        self,
        values: Sequence[Any],
        written: Collection[int],
        seen: Collection[int],
        sources: Mapping[int, Sources],
    ) -> None:
        """Let what the loop writes, at the positions ``written``, have the gradients that it writes to it.

        It may have no iteration: then data decides whether there are any, as for a result.
        :raises Unsupported: data would decide that of a caller's tensor, which has a history outside.
        """
        gaining = self.gaining.difference(self.carried)
        if not self._runs() and any(self.parent.is_of_input(values[p]) for p in gaining):
            raise Unsupported("gradients that depend on whether a loop has an iteration")
        inputs, order = self.body.recorder.inputs, self.body.order(self.taken)
        of_writes = [p for p in sorted(seen) if inputs[order[p]].value.requires_grad]
        unwritten = gaining.difference(of_writes)
        found = [(values[p], sources[p]) for p in (*of_writes, *unwritten)]
        for p in written:
            given = sources[p] if p in of_writes else Sources()
            found += written_by_region(self.parent, values[p], given)
        self.parent.give_gradients(*found)

    def _count_writes(self, values: Sequence[Any], written: Collection[int]) -> None:
        """Have autograd count the writes of all iterations; of one where data says how many there are."""
        inputs, order = self.body.recorder.inputs, self.body.order(self.taken)
        least, most = self._iterations()
        times = most if most is not None and least == most else 1
        for p in written:
            count_region_writes(self.parent, values[p], times * version_of(inputs[order[p]].value))

    def _runs(self) -> bool:
        """Whether the loop certainly has an iteration."""
        counter = self.counter
        if counter is None or not self._goes_on_at_first(counter):
            return False
        return counter.has_iterations()

    def _goes_on_at_first(self, counter: Counter) -> bool:
        """Whether no tensor ends the loop before its first iteration: what says so begins with False."""
        if counter.ended is None:
            return not counter.may_end_early
        begun = self.parent.node_of(self.operands.values[counter.ended])
        only_user: dict[torch.fx.Node, None] = {}
        while begun.target is torch.ops.aten.detach.default and begun.users == only_user:
            only_user = {begun: None}
            begun = begun.all_input_nodes[0]
        return begun.target in _ZEROS and begun.users == only_user

    def _record(self, module: torch.fx.GraphModule, extra_steps: int = 0) -> RecordedRegion:
        values = self._values(extra_steps)
        return record_block(self.parent, module, values, self.operands, self.runner)

    def _record_blocks(self) -> None:
        """Record body and condition until carried tensors keep their strides, and writes their storages."""
        for _ in range(MAX_ATTEMPTS):
            self.body = body = self._record(self.body_module)
            if len(body.outputs) != self.count:
                raise Unsupported("loop body with another number of results than carried values")
            unchanged = {k for k in range(self.count) if _is_input(body, k)}
            if not unchanged <= self.unchanged:
                self.unchanged |= unchanged
                continue
            self.condition = self._record(self.condition_module, extra_steps=1)
            self.taken = share_taken([self.body, self.condition])
            if self._find_gaining(body):
                continue
            self.operands.may_detach |= body.may_detach()
            if (
                not self._resolve_conflicts(body)
                and not self._tie_results(body)
                and not self._drop_ties()
                and not self._fit_strides(body)
            ):
                return
        raise Unsupported("carried tensor whose strides change with each iteration")

    def _values(self, extra_steps: int) -> list[Any]:
        """What the loop's graphs are recorded on: carried values are any iteration's.

        ``extra_steps`` counts values of the counter after the last, which only the condition sees.
        """
        values = list(self.operands.passed)
        for k in range(self.count):
            value = values[k]
            if k in self.unchanged:
                continue
            if isinstance(value, torch.Tensor):
                varies = self.sizes.varies(k)
                values[k] = self.sizes.inside(k, value) if varies else placed(self.parent, value)
            elif isinstance(value, (bool, float)) or not isinstance(value, (int, torch.SymInt)):
                raise Unsupported("carried value that is no tensor or integer", str(value))
            else:
                values[k] = self._integer(k, extra_steps)
        for k in self.gaining:
            if not values[k].requires_grad:
                with self.parent.paused():
                    values[k] = values[k].detach()
                self.parent.give_gradients((values[k], Sources()))
        return values

    def _find_gaining(self, body: RecordedRegion) -> bool:
        """Note the operands that the body leaves with gradients and was given without; whether any is new."""
        left = list(body.outputs)
        left += [recorded.value for recorded in body.recorder.inputs[self.count : len(body.given)]]
        for k in self.unchanged:
            left[k] = body.recorder.inputs[k].value
        found = {k for k, value in enumerate(left) if _gains(body.given[k], value)}
        self.gaining |= found
        for outer, position in body.recorder.taken.values():
            if _gains(outer, body.recorder.inputs[position].value):
                raise Unsupported("gradients written in a region", str(outer))
        return bool(found)

    def _integer(self, position: int, extra_steps: int) -> torch.SymInt:
        """A carried integer in any iteration."""
        counter = self.counter
        if counter is None or counter.position != position:
            return new_integer(self.parent.fake_mode, None, None)
        value = new_integer(self.parent.fake_mode, *counter.bounds(extra_steps))
        if counter.trips is None and not extra_steps:
            for condition in counter.is_inside(value):
                assume(condition)
        return value

    def _fit_strides(self, body: RecordedRegion) -> bool:
        """Pass operands with other strides where the loop needs that; whether any was changed."""
        parent, operands = self.parent, self.operands
        carried = [k for k in range(self.count) if k not in self.unchanged]
        written = [p for p in written_inputs(body.recorder) if p not in carried]
        changed = operands.pass_dense(parent, sorted(written))
        for k in carried:
            value, result = body.given[k], body.outputs[k]
            if not isinstance(value, torch.Tensor):
                if not isinstance(result, (int, torch.SymInt)) or isinstance(result, bool):
                    raise Unsupported("carried integer that becomes another value", str(result))
                continue
            if not isinstance(result, torch.Tensor):
                raise Unsupported("carried tensor that becomes another value", str(result))
            if self.sizes.varies(k):
                self.sizes.check(k, value, result)
                continue
            check_same(value, result, "carried tensor that changes")
            wanted = placed(parent, result)
            if not same_layout(wanted, operands.passed[k]):
                operands.give_strides(k, wanted)
                changed = True
        return changed

    def _resolve_conflicts(self, body: RecordedRegion) -> bool:
        """Let the body know which operands share storage that is written; whether that is new of any."""
        values = [*self.operands.values, *self.taken]
        names = body.names(self.taken)
        touched = touched_operands(body, names)
        groups = body.inside()
        groups.join_region_results(self.parent)
        for position, storage in names.items():
            groups.join(storage, storage_of(values[position]) or storage)
            if position < self.count:  # in later iterations: what the one before has left
                groups.join(storage, storage_of(body.outputs[position]) or storage)
        changed = [self._share(found) for found in conflicts(groups, names, touched)]
        return any(changed)

    def _share(self, positions: set[int]) -> bool:
        """Make operands inside, or tie them; whether any was not yet."""
        parent, operands, taken = self.parent, self.operands, self.taken
        if operands.regenerate_sharing(parent, positions.difference(self.carried), taken):
            return True
        values = [*operands.values, *taken]
        names = ", ".join(parent.node_of(values[p]).name for p in sorted(positions))
        if self.may_peel or not self.identifies:
            raise _FirstIterationDiffers(ONE_OF_SEVERAL, names)
        return operands.tie_all(parent, positions, taken, self.carried)

    def _tie_results(self, body: RecordedRegion) -> bool:
        """Have the loop give flags for what its results may be one with; whether any was not yet."""
        if not self.identifies:
            return False
        parent, operands = self.parent, self.operands
        changed = [
            operands.tie(parent, k, operands.values[k], is_carried=True) for k in self._clobbered()
        ]
        for pair in self._pairs(body):
            changed.append(operands.tie(parent, pair.result, self._end(pair), is_carried=True))
        return any(changed)


def _gains(before: Any, after: Any) -> bool:
    return isinstance(after, torch.Tensor) and after.requires_grad and not before.requires_grad


def _is_input(block: RecordedRegion, position: int) -> bool:
    """Whether the block returns its input at ``position``, a tensor, at the same position."""
    result = block.outputs[position]
    if not isinstance(result, torch.Tensor):
        return False
    return block.recorder.node_of(result) is block.recorder.inputs[position].node


def _predicate(condition: RecordedRegion) -> Any:
    if len(condition.outputs) != 1:
        raise Unsupported("loop condition with several results")
    (value,) = condition.outputs
    flag = value.goes_on if isinstance(value, CountedTest) else value
    if isinstance(flag, torch.Tensor) and (flag.dtype != torch.bool or flag.dim()):
        raise Unsupported("predicate of a loop", str(value), "a bool tensor without dimensions")
    if not isinstance(value, (torch.Tensor, torch.SymBool, CountedTest)):
        raise Unsupported("loop condition that is always the same", str(value))
    return value


def _final_integer(parent: AtenRecorder, position: int, counter: Counter | None) -> Any:
    """A carried integer after the loop."""
    if counter is not None and counter.position == position and counter.final is not None:
        return counter.final
    return new_integer(parent.fake_mode, None, None)
