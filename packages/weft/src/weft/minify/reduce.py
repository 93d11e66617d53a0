"""Making a graph smaller while something stays true of it: the steps of delta debugging on FX graphs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.fx

Holds = Callable[[torch.fx.GraphModule, Sequence[Any]], bool]
"""Whether what is looked for is true of a graph and its inputs."""


@dataclass(frozen=True)
class Reduced:
    """A graph, the inputs that it is called with, and how many graphs were tried for it."""

    graph_module: torch.fx.GraphModule
    inputs: tuple[Any, ...]
    tried: int

    @property
    def size(self) -> int:
        return call_count(self.graph_module)


def call_count(graph_module: torch.fx.GraphModule) -> int:
    """How many operations a graph has."""
    return sum(node.op.startswith("call_") for node in graph_module.graph.nodes)


def reduce_graph(
    graph_module: torch.fx.GraphModule, inputs: Sequence[Any], holds: Holds, limit: int = 500
) -> Reduced:
    """A smaller graph of which ``holds`` is true too; at most ``limit`` graphs are tried.

    Tried, until nothing helps: one value as the only result, values that are given as inputs instead of
    computed, and values in place of what is computed from them.

    :raises ValueError: ``holds`` is not true of the whole graph.
    """
    if not holds(graph_module, inputs):
        raise ValueError("there is nothing to look for in the whole graph")
    best = Reduced(graph_module, tuple(inputs), 1)
    tried = 1
    helped = True
    while helped:
        helped = False
        for step in (_results, _given, _skipped):
            for candidate, given in step(best.graph_module, best.inputs):
                if tried >= limit:
                    return Reduced(best.graph_module, best.inputs, tried)
                if call_count(candidate) >= best.size:
                    continue
                tried += 1
                if holds(candidate, given):
                    best = Reduced(candidate, tuple(given), tried)
                    helped = True
                    break
    return Reduced(best.graph_module, best.inputs, tried)


Candidate = tuple[torch.fx.GraphModule, Sequence[Any]]


class _Recorder(torch.fx.Interpreter):
    """Runs a graph and keeps what each node gave, as it was then."""

    def __init__(self, graph_module: torch.fx.GraphModule) -> None:
        super().__init__(graph_module)
        self.values: dict[str, Any] = {}

    def run_node(self, n: torch.fx.Node) -> Any:
        value = super().run_node(n)
        self.values[n.name] = value.clone() if isinstance(value, torch.Tensor) else value
        return value


def node_values(graph_module: torch.fx.GraphModule, inputs: Sequence[Any]) -> dict[str, Any]:
    """What each node of a graph gives, by its name."""
    recorder = _Recorder(graph_module)
    given = [value.clone() if isinstance(value, torch.Tensor) else value for value in inputs]
    with torch.no_grad():
        recorder.run(*given)
    return recorder.values


def _results(graph_module: torch.fx.GraphModule, inputs: Sequence[Any]) -> Iterator[Candidate]:
    """Each value as the only result: the middle one first, then those around it."""
    values = node_values(graph_module, inputs)
    calls = [n for n in graph_module.graph.nodes if n.op.startswith("call_")]
    for node in _middle_first(calls):
        if isinstance(values.get(node.name), torch.Tensor):
            yield _rebuilt(graph_module, inputs, result=node.name)


def _given(graph_module: torch.fx.GraphModule, inputs: Sequence[Any]) -> Iterator[Candidate]:
    """Each computed value as an input."""
    values = node_values(graph_module, inputs)
    calls = [n for n in graph_module.graph.nodes if n.op.startswith("call_")]
    for node in _middle_first(calls):
        value = values.get(node.name)
        if isinstance(value, torch.Tensor) and value.device.type != "meta":
            yield _rebuilt(graph_module, inputs, given={node.name: value})


def _skipped(graph_module: torch.fx.GraphModule, inputs: Sequence[Any]) -> Iterator[Candidate]:
    """Each value replaced by one that it is computed from, of the same shape and dtype."""
    values = node_values(graph_module, inputs)
    for node in graph_module.graph.nodes:
        value = values.get(node.name)
        if not node.op.startswith("call_") or not isinstance(value, torch.Tensor):
            continue
        for source in node.all_input_nodes:
            before = values.get(source.name)
            if isinstance(before, torch.Tensor) and _alike(before, value):
                yield _rebuilt(graph_module, inputs, replaced={node.name: source.name})
                break


def _alike(first: torch.Tensor, second: torch.Tensor) -> bool:
    return first.shape == second.shape and first.dtype == second.dtype


def _middle_first(nodes: list[torch.fx.Node]) -> Iterator[torch.fx.Node]:
    """Halves before quarters: most of a graph goes in few steps."""
    spans = [(0, len(nodes))]
    while spans:
        begin, end = spans.pop(0)
        if begin < end:
            middle = (begin + end) // 2
            yield nodes[middle]
            spans += [(begin, middle), (middle + 1, end)]


def _rebuilt(
    graph_module: torch.fx.GraphModule,
    inputs: Sequence[Any],
    *,
    result: str | None = None,
    given: dict[str, torch.Tensor] | None = None,
    replaced: dict[str, str] | None = None,
) -> Candidate:
    """A copy with that change, without what is then needed by nobody."""
    graph = torch.fx.Graph()
    copies: dict[str, torch.fx.Node] = {}
    arguments = iter(inputs)
    values: dict[str, Any] = {}
    for name, value in (given or {}).items():
        copies[name] = graph.placeholder(f"{name}_given")
        values[copies[name].name] = value
    for node in graph_module.graph.nodes:
        if node.name in (replaced or {}):
            copies[node.name] = copies[(replaced or {})[node.name]]
        elif node.name not in copies and node.op != "output":
            copies[node.name] = graph.node_copy(node, lambda n: copies[n.name])
        if node.op == "placeholder":
            values[copies[node.name].name] = next(arguments)
        if node.op == "output":
            results = node.args[0] if result is None else (copies[result],)
            if result is None:
                results = torch.fx.map_arg(results, lambda n: copies[n.name])
            graph.output(results)
    graph.eliminate_dead_code(lambda n: n.op != "placeholder" and n.is_impure())
    for node in list(graph.find_nodes(op="placeholder")):
        if not node.users:
            graph.erase_node(node)
    kept = [values[node.name] for node in graph.find_nodes(op="placeholder")]
    return torch.fx.GraphModule(graph_module, graph), kept
