"""Loops that only a tensor ends: forward counts their iterations; backward runs as many again, with stacks.

So forward keeps nothing of an iteration; what backward runs first is the body without the test, a counted
loop.  Stacks that grow would spare the second run, but each doubling copies all that is in them, and forward
would pay for them where nobody asks for gradients.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.fx
from weft_functionalize import assume, new_integer

from ..joint_recorder import JointRecorder
from ..recording import COMPUTED_IN_BACKWARD
from ..tracing import fake_mode_of
from ..unsupported import Unsupported
from .body import DifferentiatedBody
from .counts import Count
from .loops import CountedLoop, bare, differentiated_body
from .recording import RegionRule, record_region, run_nodes, with_parameters
from .region_function import call_region
from .undefined_after_loops import DefinedAfterLoop
from .undefined_gradients import Reach

aten = torch.ops.aten


def differentiate_uncounted(
    recorder: JointRecorder, node: torch.fx.Node, args: Sequence[Any], rule: RegionRule
) -> tuple[Any, ...]:
    """The results of a ``while_loop`` that carries no integer, and through which gradients flow."""
    condition, module, carried, additional = args
    mode = fake_mode_of(module.graph)
    assert mode is not None
    if any(map(_draws, _calls(module))):
        raise Unsupported("gradient of a loop without a bound that draws random numbers")
    trips, counter = new_integer(mode, 0, None), new_integer(mode, 0, None)
    assume(counter < trips)
    operands = [*carried, *additional]
    counted = [0, *operands, trips]
    body, tracked = differentiated_body(
        recorder, _with_counter(module, counter, trips), counted, len(carried) + 1, rule
    )
    with_gradients = [
        k for k, v in enumerate(counted) if isinstance(v, torch.Tensor) and v.requires_grad
    ]
    defined = DefinedAfterLoop(
        body.reach, [k for k in sorted(tracked) if k <= len(carried)], with_gradients, 0, None
    )
    loop = _UncountedLoop(
        recorder, node, condition, body, tracked, len(carried), trips, defined, rule
    )
    return call_region(loop, operands)


class _UncountedLoop:
    """The loop, and what backward makes of it.

    Positions in ``body``, in ``defined`` and in the ``tracked`` that it is given are those of the counted
    loop, whose counter is first and whose number of iterations is last.
    """

    def __init__(
        self,
        recorder: JointRecorder,
        node: torch.fx.Node,
        condition: torch.fx.GraphModule,
        body: DifferentiatedBody,
        tracked: frozenset[int],
        carried_count: int,
        trips: torch.SymInt,
        defined: DefinedAfterLoop,
        rule: RegionRule,
    ) -> None:
        self.recorder = recorder
        self.node = node
        self.condition = condition
        self.body = body
        self.tracked = frozenset(k - 1 for k in tracked)
        self._tracked_of_counted = tracked
        self.carried_count = carried_count
        self.trips = trips
        self.defined = defined
        self.rule = rule
        self.placeholders = body.parts.forward.graph.find_nodes(op="placeholder")

    def forward(self, operands: Sequence[Any]) -> tuple[tuple[Any, ...], torch.Tensor, Reach]:
        """Record the loop; its results, how many iterations ran, and what has gradients of what."""
        recorder, at = self.recorder, self.carried_count
        device = operands[0].device
        added = [*self.defined.begin(device), torch.zeros((), dtype=torch.int64, device=device)]
        inside = self.placeholders[1:-1]
        own, names = [node.meta["val"] for node in inside], [node.name for node in inside]
        module = record_region(
            recorder,
            [*own[:at], *added, *own[at:]],
            [*names[:at], *["counted"] * len(added), *names[at:]],
            self._forward_body,
        )
        results = [recorder.fresh(value) for value in (*self.node.meta["val"], *added)]
        arguments = (
            recorder.add_region(
                "condition", with_parameters(self.condition, at, [v.detach() for v in added])
            ),
            recorder.add_region("body", module),
            recorder.nodes_in((*operands[:at], *added)),
            recorder.nodes_in(tuple(operands[at:])),
        )
        made = recorder.add_region_operator(self.node, arguments, results)
        reach = self.defined.reach(made[at:-1])
        by_operand = {(j - 1, k - 1): defined for (j, k), defined in reach.items()}
        return made[:at], made[-1], by_operand

    def _forward_body(self, recorder: JointRecorder, values: list[Any]) -> list[Any]:
        at, count = self.carried_count, len(self.defined.flags)
        parameters = [None, *values[:at], *values[at + count + 1 :], None]  # neither number is read
        outputs = run_nodes(
            self.body.parts.forward,
            recorder,
            dict(zip(self.placeholders, parameters, strict=True)),
            self.rule,
        )
        flags = self.defined.follow(values[at : at + count], outputs)
        return [*outputs[:at], *flags, values[at + count] + 1]

    def backward(
        self, operands: Sequence[Any], kept: torch.Tensor, gradients: Sequence[Any]
    ) -> dict[int, torch.Tensor]:
        """Record the loop with stacks, and the one that counts down; the gradients by operand."""
        recorder = self.recorder
        names = [node.name for node in self.placeholders]
        mode = fake_mode_of(recorder.graph)
        assert mode is not None
        values = [node.meta["val"] for node in self.placeholders]
        test = record_region(
            recorder,
            [new_integer(mode, None, None), *values[1:]],
            names,
            lambda _, inner: [inner[0] < inner[-1]],
        )
        loop = CountedLoop(
            recorder,
            self.node,
            (self.trips, *self.node.meta["val"]),
            bare(test),
            self.body,
            self._tracked_of_counted,
            self.carried_count + 1,
            Count(0, 0, 1, self.trips, may_end_early=False),
            DefinedAfterLoop({}, [], [], 0, None),
            self.rule,
        )
        counted = [0, *operands, self.trips]
        before = set(recorder.graph.nodes)
        node = recorder.node_of(kept)
        recorder.append(aten._local_scalar_dense.default, (node,), {}, self.trips)
        _, filled, _ = loop.forward(counted)
        found = loop.backward(counted, filled, (None, *gradients))
        if recorder.is_in_backward:
            for node in set(recorder.graph.nodes).difference(before):
                node.meta[COMPUTED_IN_BACKWARD] = True
        return {k - 1: gradient for k, gradient in found.items()}


def _with_counter(
    module: torch.fx.GraphModule, counter: torch.SymInt, trips: torch.SymInt
) -> torch.fx.GraphModule:
    """The body with a counter, its first parameter, and the number of iterations, its last."""
    graph = torch.fx.Graph()
    copies: dict[torch.fx.Node, torch.fx.Node] = {}
    first = _number(graph, "counter", counter)
    placeholders = module.graph.find_nodes(op="placeholder")
    for node in module.graph.nodes:
        if node.op == "output":
            graph.output((first, *torch.fx.map_arg(node.args[0], copies.__getitem__)))
            continue
        copies[node] = graph.node_copy(node, copies.__getitem__)
        if node is placeholders[-1]:
            _number(graph, "trips", trips)
    return torch.fx.GraphModule(module, graph, "Region")


def _number(graph: torch.fx.Graph, name: str, value: torch.SymInt) -> torch.fx.Node:
    node = graph.placeholder(name)
    node.target = node.name
    node.meta["val"] = value
    return node


def _calls(module: torch.fx.GraphModule) -> Iterator[torch.fx.Node]:
    """The calls of a region and of those in it."""
    for node in module.graph.nodes:
        if node.op == "call_function":
            yield node
        elif node.op == "get_attr":
            inner = getattr(module, str(node.target))
            if isinstance(inner, torch.fx.GraphModule):
                yield from _calls(inner)


def _draws(node: torch.fx.Node) -> bool:
    return torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ())
