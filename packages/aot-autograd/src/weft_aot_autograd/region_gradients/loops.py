"""Loops: forward keeps what each iteration's backward needs in the rows of stacks; backward counts down.

Where a tensor may end the loop early, forward also counts its iterations, in a tensor.  Backward begins at
the last that there could be, and what it computes of those that did not run is dropped.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.fx
from weft_functionalize import new_integer, symbols_of

from ..joint_recorder import JointRecorder
from ..tracing import fake_mode_of
from ..unsupported import Unsupported
from .accumulation import accumulated
from .body import DifferentiatedBody, differentiate
from .counts import Count, find_count, min_iterations
from .recording import RegionRule, record_region, run_nodes, with_parameters
from .region_function import call_region, given_or_zeros
from .undefined_after_loops import DefinedAfterLoop
from .undefined_gradients import Reach

aten = torch.ops.aten


def differentiate_loop(
    recorder: JointRecorder, node: torch.fx.Node, args: Sequence[Any], rule: RegionRule
) -> tuple[Any, ...] | None:
    """The results of a ``while_loop`` through which gradients flow; None where none of them has any."""
    condition, module, carried, additional = args
    count = find_count(condition, module, carried)
    if count is None:
        raise Unsupported("gradient of a loop without a count")
    operands = [*carried, *additional]
    body, tracked = differentiated_body(recorder, module, operands, len(carried), rule)
    if not body.tangents:
        return None
    with_gradients = [
        k for k, v in enumerate(operands) if isinstance(v, torch.Tensor) and v.requires_grad
    ]
    defined = DefinedAfterLoop(
        body.reach,
        [k for k in sorted(tracked) if k < len(carried)],
        with_gradients,
        min_iterations(recorder, condition, carried, count),
        count.trips if isinstance(count.trips, int) else None,
    )
    loop = CountedLoop(
        recorder,
        node,
        node.meta["val"],
        condition,
        body,
        tracked,
        len(carried),
        count,
        defined,
        rule,
    )
    return call_region(loop, operands)


def differentiated_body(
    recorder: JointRecorder,
    module: torch.fx.GraphModule,
    operands: Sequence[Any],
    carried_count: int,
    rule: RegionRule,
) -> tuple[DifferentiatedBody, frozenset[int]]:
    """The body with respect to the operands that have gradients in any iteration, and these."""
    tracked = {k for k, v in enumerate(operands) if isinstance(v, torch.Tensor) and v.requires_grad}
    overwritten = [k for k in range(carried_count) if isinstance(operands[k], torch.Tensor)]
    while True:
        body = differentiate(recorder, module, tracked, overwritten, rule)
        following = set(body.tangents)
        if following <= tracked:
            return body, frozenset(tracked)
        tracked |= following


class CountedLoop:
    """The two loops.  Positions are those of the body's parameters: what is carried, then the rest."""

    def __init__(
        self,
        recorder: JointRecorder,
        node: torch.fx.Node,
        results: Sequence[Any],
        condition: torch.fx.GraphModule,
        body: DifferentiatedBody,
        tracked: frozenset[int],
        carried_count: int,
        count: Count,
        defined: DefinedAfterLoop,
        rule: RegionRule,
    ) -> None:
        self.recorder = recorder
        self.node = node
        self.results = results
        self.condition = condition
        self.body = body
        self.tracked = tracked
        self.carried_count = carried_count
        self.count = count
        self.defined = defined
        self.rule = rule
        self.carried = sorted(k for k in tracked if k < carried_count)
        self.summed = [k for k in body.gradients if k >= carried_count]
        placeholders = body.parts.forward.graph.find_nodes(op="placeholder")
        self.counter = placeholders[count.position].meta["val"]
        saved = body.saved_values()
        # Saved values that differ by iteration; of these a stack each.
        self.stacked = [
            s
            for s, value in enumerate(saved)
            if isinstance(value, torch.Tensor) and body.saved_parameter(s) is None
        ]

    # Forward.

    def _begin(self, device: torch.device) -> list[torch.Tensor]:
        """New stacks, flags; and last, if the loop may end early, how many iterations ran (0-dim, int64)."""
        saved = self.body.saved_values()
        # What did not run may be read as positions, and has to be some.
        make = torch.zeros if self.count.may_end_early else torch.empty
        stacks = [
            make((self.count.trips, *saved[s].shape), dtype=saved[s].dtype, device=saved[s].device)
            for s in self.stacked
        ]
        stacks += self.defined.begin(device)
        if self.count.may_end_early:
            stacks.append(torch.zeros((), dtype=torch.int64, device=device))
        return stacks

    def forward(
        self, operands: Sequence[Any]
    ) -> tuple[tuple[Any, ...], tuple[list[torch.Tensor], torch.Tensor | None], Reach]:
        """Record the loop with stacks; its results, the filled stacks and how many iterations ran, its reach.

        How many ran is None where it is known when the loop begins.
        """
        recorder, body = self.recorder, self.body
        stacks = self._begin(operands[self.carried[0]].device)
        carried, additional = operands[: self.carried_count], operands[self.carried_count :]
        placeholders = body.parts.forward.graph.find_nodes(op="placeholder")
        own = [node.meta["val"] for node in placeholders]
        names = [node.name for node in placeholders]
        at = self.carried_count
        module = record_region(
            recorder,
            [*own[:at], *stacks, *own[at:]],
            [*names[:at], *["stack"] * len(stacks), *names[at:]],
            self._forward_body,
        )
        results = [
            recorder.fresh(value) if isinstance(value, torch.Tensor) else value
            for value in self.results
        ]
        results += [recorder.fresh(stack) for stack in stacks]
        arguments = (
            recorder.add_region(
                "condition", with_parameters(self.condition, at, [s.detach() for s in stacks])
            ),
            recorder.add_region("body", module),
            recorder.nodes_in((*carried, *stacks)),
            recorder.nodes_in(tuple(additional)),
        )
        made = recorder.add_region_operator(self.node, arguments, results)
        filled, flags, ran = self._apart(made[at:])
        return made[:at], (filled, ran), self.defined.reach(flags)

    def _apart(
        self, values: Sequence[Any]
    ) -> tuple[list[torch.Tensor], list[torch.Tensor], torch.Tensor | None]:
        """Stacks, flags and how many iterations ran, of values in the order of :meth:`_begin`."""
        first = len(self.stacked)
        after = first + len(self.defined.flags)
        ran = values[after] if self.count.may_end_early else None
        return list(values[:first]), list(values[first:after]), ran

    def _forward_body(self, recorder: JointRecorder, values: list[Any]) -> list[Any]:
        at = self.carried_count
        count = len(self.stacked) + len(self.defined.flags) + self.count.may_end_early
        parameters = [*values[:at], *values[at + count :]]
        placeholders = self.body.parts.forward.graph.find_nodes(op="placeholder")
        outputs = run_nodes(
            self.body.parts.forward,
            recorder,
            dict(zip(placeholders, parameters, strict=True)),
            self.rule,
        )
        counter = values[self.count.position]
        iteration = self.count.iteration(counter)
        following: list[Any] = [None] * at
        following[self.count.position] = counter + self.count.step
        for k, output in zip(self.body.tensors, outputs, strict=False):
            following[k] = output
        stacks, flags, ran = self._apart(values[at : at + count])
        for s, stack in zip(self.stacked, stacks, strict=True):
            index = self.body.parts.saved[s].output_index
            assert index is not None
            following.append(aten.select_scatter.default(stack, outputs[index], 0, iteration))
        following += self.defined.follow(flags, outputs)
        return following if ran is None else [*following, ran + 1]

    # Backward.

    def backward(
        self,
        operands: Sequence[Any],
        kept: tuple[list[torch.Tensor], torch.Tensor | None],
        gradients: Sequence[Any],
    ) -> dict[int, torch.Tensor]:
        """Record the loop that counts down; the gradients by operand."""
        recorder, trips = self.recorder, self.count.trips
        stacks, ran = kept
        shapes = dict(zip(self.body.tangents, self.body.tangent_values(), strict=True))
        tangents = [given_or_zeros(gradients[k], shapes.get(k, operands[k])) for k in self.carried]
        sums = [torch.zeros_like(operands[k]) for k in self.summed]
        same = self._same_in_all(operands)
        mode = fake_mode_of(recorder.graph)
        assert mode is not None
        tested = new_integer(mode, None, None)
        state = [
            *(recorder.fresh(shapes.get(k, operands[k])) for k in self.carried),
            *map(recorder.fresh, sums),
        ]
        passed = [*stacks, *same.values(), *(() if ran is None else (ran,))]
        only_last = self._only_last_leads_on(gradients)
        if only_last:
            none = torch.zeros((), dtype=torch.int64, device=tangents[0].device)
            passed.append((none + trips if ran is None else ran) - 1)
        names = ["counter", *["tangent"] * len(tangents), *["sum"] * len(sums)]
        names += ["kept"] * len(passed)
        positions = list(same)

        def run(inner: JointRecorder, values: list[Any]) -> list[Any]:
            last = values.pop() if only_last else None
            return self._backward_body(inner, values, positions, last)

        module = record_region(recorder, [self.counter, *state, *passed], names, run)
        test = record_region(
            recorder,
            [tested, *state, *passed],
            names,
            lambda inner, values: [self.count.not_before_first(values[0])],
        )
        arguments = (
            recorder.add_region("condition", bare(test)),
            recorder.add_region("body", module),
            recorder.nodes_in((self.count.counter(trips - 1), *tangents, *sums)),
            recorder.nodes_in(tuple(passed)),
        )
        results = [self.count.counter(-1), *(recorder.fresh(value) for value in state)]
        made = recorder.add_region_operator(self.node, arguments, results)
        return dict(zip([*self.carried, *self.summed], made[1:], strict=True))

    def _same_in_all(self, operands: Sequence[Any]) -> dict[int, Any]:
        """By position among the saved values: what is the same in each iteration, as it is outside."""
        kept: dict[int, Any] = {}
        for s, value in enumerate(self.body.saved_values()):
            parameter = self.body.saved_parameter(s)
            if s in self.stacked or symbols_of(self.counter) & symbols_of(value):
                continue  # a number that the counter gives
            kept[s] = value if parameter is None else operands[parameter]
        return kept

    def _only_last_leads_on(self, gradients: Sequence[Any]) -> bool:
        """Whether results with gradients are made anew in each iteration: those before the last have none.

        Zeros in their place may meet infinities.
        """
        given = {k for k in self.carried if gradients[k] is not None}
        return not any(j in given and p in self.carried for j, p in self.body.reach)

    def _backward_body(
        self,
        recorder: JointRecorder,
        values: list[Any],
        positions: Sequence[int],
        last: Any,
    ) -> list[Any]:
        """An iteration's backward; only the ``last`` (a tensor) has gradients, if that is given."""
        counter, rest = values[0], values[1:]
        iteration = self.count.iteration(counter)
        ran = rest.pop() if self.count.may_end_early else None
        state = rest[: len(self.carried) + len(self.summed)]
        tangents, rest = rest[: len(self.carried)], rest[len(self.carried) :]
        sums, rest = rest[: len(self.summed)], rest[len(self.summed) :]
        stacks, kept = rest[: len(self.stacked)], rest[len(self.stacked) :]
        saved: list[Any] = self.body.saved_values()
        for s, stack in zip(self.stacked, stacks, strict=True):
            saved[s] = aten.select.int(stack, 0, iteration)
        for s, value in zip(positions, kept, strict=True):
            saved[s] = value
        backward = self.body.parts.backward
        placeholders = backward.graph.find_nodes(op="placeholder")
        known = dict(zip(self.carried, tangents, strict=True))
        given = [known[k] for k in self.body.tangents]
        environment = dict(zip(placeholders, [*saved, *given], strict=True))
        run_nodes(backward, recorder, environment, self.rule)
        (output,) = backward.graph.find_nodes(op="output")
        nodes: Any = dict(zip(self.body.gradients, output.args[0], strict=True))
        following = [
            environment[nodes[k]] if k in nodes else torch.zeros_like(operand)
            for k, operand in known.items()
        ]
        following += [
            accumulated(total, nodes[k], environment)
            for k, total in zip(self.summed, sums, strict=True)
        ]
        if last is not None:
            is_earlier = last > iteration
            before = [*map(torch.zeros_like, tangents), *sums]
            chosen = zip(following, before, strict=True)
            following = [torch.where(is_earlier, old, new) for new, old in chosen]
        if ran is not None:
            has_run = ran > iteration
            chosen = zip(following, state, strict=True)
            following = [torch.where(has_run, new, old) for new, old in chosen]
        return [counter - self.count.step, *following]


def bare(module: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """torch's loops want the condition's value itself, not a tuple of one."""
    (output,) = module.graph.find_nodes(op="output")
    output.args = output.args[0]
    output.meta["val"] = output.meta["val"][0]
    module.recompile()
    return module
