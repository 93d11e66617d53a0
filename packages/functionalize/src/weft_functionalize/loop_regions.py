"""Loops: the carried state's storages and strides are found by recording the body until they are stable.

A tensor that the body writes, but does not bind anew, is carried as the paper says.  One that it binds anew
and also writes is clobbered by the first iteration; where that shows, the first iteration stands before the
loop, if there is one in any case.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.fx

from ._torch import HigherOrderOperator, assume, new_integer
from .aten_recorder import AtenRecorder
from .counted_loops import CountedTest, Counter, find_counter
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
from .tensor_ssa.block_propagation import set_region_clobbers, set_region_writes
from .tensor_ssa.layout import same_layout
from .unsupported import Unsupported


class _FirstIterationDiffers(Unsupported):
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
        return loop.record(target, may_clobber=not (certain and parent.peels_clobbering_loops))
    except _FirstIterationDiffers:
        if not certain or counter is None:
            raise
    following = runner.inline(body, parent, [*carried, *additional])
    counter = replace(counter, start=counter.start + counter.step)
    loop = _Loop(parent, (condition, body), following, additional, counter, runner)
    return loop.record(target, may_clobber=True)


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
        self.unchanged: set[int] = set()  # carried tensors that the body does not bind anew

    def record(self, target: HigherOrderOperator, *, may_clobber: bool) -> tuple[Any, ...]:
        """Record the loop and append its node; its results.

        ``may_clobber``: whether it may write to what it begins with, if nobody sees that afterwards.
        """
        self._record_blocks()
        if written_inputs(self.condition.recorder):
            raise Unsupported("write in a loop's condition")
        self.carried = [k for k in range(self.count) if k not in self.unchanged]
        names = self.body.names(self.taken)
        touched = touched_operands(self.body, names)
        self.clobbered = sorted(touched.intersection(self.carried))
        if self.clobbered and not may_clobber:
            raise _FirstIterationDiffers("write to a carried tensor")
        return self._emit(target, names)

    def _emit(self, target: HigherOrderOperator, names: dict[int, int]) -> tuple[Any, ...]:
        parent, operands, body = self.parent, self.operands, self.body
        values, passed = [*operands.values, *self.taken], [*operands.passed, *self.taken]
        inputs, tested_inputs = body.order(self.taken), self.condition.order(self.taken)
        written = [
            p
            for p in sorted(map(inputs.index, written_inputs(body.recorder)))
            if p not in self.carried
        ]
        split = [*self.carried, *written]
        order = split + [p for p in range(len(values)) if p not in {*split, *operands.views}]
        inside = body.inside()
        may_be = reached(body.outputs, inside.joined, names, self.carried)
        layouts = {k: body.recorder.inputs[k].value for k in self.carried}
        converted = convert(
            body,
            [(body.outputs[k], layouts[k]) for k in self.carried],
            [inputs[p] for p in written],
            [inputs[p] for p in order],
            self.carried,
        )
        predicate = [(_predicate(self.condition), None)]
        tested_order = [tested_inputs[p] for p in order]
        tested = convert(self.condition, predicate, (), tested_order, is_condition=True)
        graphs = [parent.add_region("condition", tested), parent.add_region("body", converted)]
        nodes = [operand_node(parent, passed[p]) for p in order]
        counts = self.counter if isinstance(self.condition.outputs[0], torch.SymBool) else None
        results = {k: _loop_result(parent, k, v, counts) for k, v in layouts.items()}
        versions = [fresh(parent, body.recorder.inputs[inputs[p]].value) for p in written]
        arguments = (*graphs, tuple(nodes[: len(split)]), tuple(nodes[len(split) :]))
        node, items = parent.append_region_operator(
            target, arguments, [*results.values(), *versions]
        )
        set_region_writes(
            node, [(parent.node_of(values[p]), len(results) + k) for k, p in enumerate(written)]
        )
        set_region_clobbers(node, [parent.node_of(values[k]) for k in self.clobbered])
        if counts is None or not counts.trips:  # it may run no iteration: results are the operands
            for k in self.carried:
                may_be.setdefault(k, set()).add(k)
        shared = shared_results(body.outputs, inside.joined)
        by_position = dict(zip(self.carried, items, strict=False))
        note_aliases(parent, by_position, values, may_be, shared)
        return tuple(results.get(k, operands.values[k]) for k in range(self.count))

    def _record(self, module: torch.fx.GraphModule, extra_steps: int = 0) -> Block:
        values = self._values(extra_steps)
        return record_block(self.parent, module, values, self.operands.views, self.runner)

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
            if not self._resolve_conflicts(body) and not self._fit_strides(body):
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
                values[k] = placed(self.parent, value)
            elif isinstance(value, (bool, float)) or not isinstance(value, (int, torch.SymInt)):
                raise Unsupported("carried value that is no tensor or integer", str(value))
            else:
                values[k] = self._integer(k, extra_steps)
        return values

    def _integer(self, position: int, extra_steps: int) -> torch.SymInt:
        """A carried integer in any iteration."""
        counter = self.counter
        if counter is None or counter.position != position:
            return new_integer(self.parent.fake_mode, None, None)
        value = new_integer(self.parent.fake_mode, *counter.bounds(extra_steps))
        if counter.trips is None and not extra_steps:
            assume(value < counter.stop if counter.step > 0 else value > counter.stop)
        return value

    def _fit_strides(self, body: Block) -> bool:
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
            check_same(value, result, "carried tensor that changes")
            wanted = placed(parent, result)
            if not same_layout(wanted, operands.passed[k]):
                operands.give_strides(k, wanted)
                changed = True
        return changed

    def _resolve_conflicts(self, body: Block) -> bool:
        """Operands that share storage which is written are made inside; whether that is new of any."""
        values = [*self.operands.values, *self.taken]
        names = body.names(self.taken)
        touched = touched_operands(body, names)
        groups = body.inside()
        groups.join_region_results(self.parent)
        for position, storage in names.items():
            groups.join(storage, storage_of(values[position]) or storage)
            if position < self.count:  # in later iterations: what the one before has left
                groups.join(storage, storage_of(body.outputs[position]) or storage)
        changed = False
        for found in conflicts(groups, names, touched):
            fixed = found.isdisjoint(set(range(self.count)) - self.unchanged)
            if not fixed or len({storage_of(values[p]) for p in found}) > 1:
                described = ", ".join(self.parent.node_of(values[p]).name for p in sorted(found))
                raise _FirstIterationDiffers(
                    "write in a region to one of several tensors", described
                )
            if not self.operands.regenerate(self.parent, found):
                raise Unsupported("write in a region to one of several tensors")
            changed = True
        return changed


def _is_input(block: Block, position: int) -> bool:
    """Whether the block returns its input at ``position``, a tensor, at the same position."""
    result = block.outputs[position]
    if not isinstance(result, torch.Tensor):
        return False
    return block.recorder.node_of(result) is block.recorder.inputs[position].node


def _predicate(condition: Block) -> Any:
    if len(condition.outputs) != 1:
        raise Unsupported("loop condition with several results")
    (value,) = condition.outputs
    flag = value.goes_on if isinstance(value, CountedTest) else value
    if isinstance(flag, torch.Tensor) and (flag.dtype != torch.bool or flag.dim()):
        raise Unsupported("predicate of a loop", str(value), "a bool tensor without dimensions")
    if not isinstance(value, (torch.Tensor, torch.SymBool, CountedTest)):
        raise Unsupported("loop condition that is always the same", str(value))
    return value


def _loop_result(parent: AtenRecorder, position: int, value: Any, counter: Counter | None) -> Any:
    if isinstance(value, torch.Tensor):
        return fresh(parent, value)
    if counter is not None and counter.position == position and counter.final is not None:
        return counter.final
    return new_integer(parent.fake_mode, None, None)
