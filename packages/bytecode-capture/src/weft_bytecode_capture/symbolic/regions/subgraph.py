"""The graphs of regions: made while a region is evaluated, then closed over what they take from outside."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch
import torch.fx

from ...unsupported import Unsupported
from ..graph.modes import SWITCHED_IN_REGION

if TYPE_CHECKING:
    from ..evaluator import Evaluator
    from ..variables.base import Variable
    from ..variables.tensor import TensorVariable
    from .carried import Carried
    from .decisions import Place


class Subgraph:
    """The graph that nodes go to while a region is evaluated."""

    def __init__(self, evaluator: Evaluator) -> None:
        self._builder = evaluator.graph
        self._devices = evaluator.state.options.region_devices
        self.graph = torch.fx.Graph()
        self._modules: dict[str, torch.fx.GraphModule] = {}

    @contextlib.contextmanager
    def active(self, may_add_outside: bool = False) -> Iterator[None]:
        """Nodes go here.  Those that must be in the outermost graph end the attempt."""
        builder = self._builder
        outer, builder.graph = builder.graph, self.graph
        calls = None if may_add_outside else _calls(builder.outermost)
        try:
            with builder.modes.inside(self.graph):
                yield
        finally:
            builder.graph = outer
        if calls is not None and _calls(builder.outermost) != calls:
            raise Unsupported(SWITCHED_IN_REGION)

    def taken(self) -> list[torch.fx.Node]:
        """The nodes of other graphs that this one uses, in order of use."""
        found: dict[torch.fx.Node, None] = {}
        for node in self.graph.nodes:
            found.update(
                dict.fromkeys(n for n in node.all_input_nodes if n.graph is not self.graph)
            )
        return list(found)

    def close(
        self, parameters: Sequence[torch.fx.Node], taken: Sequence[torch.fx.Node], results: Any
    ) -> torch.fx.GraphModule:
        """The region's module: its placeholders are ``parameters``, then one for each node ``taken``."""
        for node in (*parameters, *taken):
            self._check(node.meta.get("example_value"))
        for element in self._builder.elements:
            element.check()
        anchor = self.graph._root
        for node in parameters:
            if anchor.next is not node:
                anchor.append(node)
            anchor = node
        inside: dict[torch.fx.Node, torch.fx.Node] = {}
        for outer in taken:
            with self.graph.inserting_after(anchor):
                anchor = inside[outer] = self.graph.placeholder(outer.name)
            anchor.target = anchor.name
            anchor.meta.update(outer.meta)

        def local(node: torch.fx.Node) -> torch.fx.Node:
            return inside.get(node, node)

        for node in list(self.graph.nodes):
            if any(n in inside for n in node.all_input_nodes):
                node.args = torch.fx.map_arg(node.args, local)
                node.kwargs = torch.fx.map_arg(node.kwargs, local)
        self.graph.output(torch.fx.map_arg(results, local))
        attributes = {
            str(n.target): getattr(self._builder.root, str(n.target))
            for n in self.graph.find_nodes(op="get_attr")
        }
        return torch.fx.GraphModule(attributes, self.graph, "Region")

    def _check(self, value: object) -> None:
        """Refuse tensors of devices on which regions are not run natively, and numbers that don't count."""
        if isinstance(value, torch.Tensor):
            if value.device.type not in self._devices:
                raise Unsupported("region on this device", str(value.device))
        elif isinstance(value, (torch.SymFloat, torch.SymBool)):
            raise Unsupported("symbolic number in a region", str(value))


def _calls(graph: torch.fx.Graph) -> int:
    """How many calls there are in a graph, without those that compute sizes: these may stand anywhere."""
    return sum(
        node.op not in ("placeholder", "get_attr")
        and not isinstance(node.meta.get("example_value"), (torch.SymInt, torch.SymFloat))
        for node in graph.nodes
    )


def parameter(graph: torch.fx.Graph, name: str, value: Any) -> torch.fx.Node:
    """A placeholder of a region's graph, which stands for ``value``."""
    node = graph.placeholder(name)
    node.target = node.name  # parameters may have one name in the program
    node.meta["example_value"] = value
    return node


def regional(node: torch.fx.Node, fake: torch.Tensor) -> TensorVariable:
    """A tensor that a region is given or gives: it may be another one, depending on data."""
    from ..variables.tensor import TensorVariable

    made = TensorVariable(node, fake, None)
    made.is_regional = True
    return made


def add_region(evaluator: Evaluator, name: str, module: torch.fx.GraphModule) -> torch.fx.Node:
    """Name a region's module in the outermost module; a node that gives it where the graph stands."""
    builder = evaluator.graph
    number = 0
    while hasattr(builder.root, f"{name}_{number}"):
        number += 1
    builder.root.add_module(f"{name}_{number}", module)
    return builder.graph.get_attr(f"{name}_{number}")


def call_region(
    evaluator: Evaluator, target: Any, arguments: tuple[Any, ...], values: Sequence[Any]
) -> list[torch.fx.Node]:
    """Append a region operator's node; a node for each of its results, which are like ``values``."""
    graph = evaluator.graph
    node = graph.node(evaluator, "call_function", target, arguments, {})
    node.meta["example_value"] = tuple(values)
    return graph.items(node)


def fresh_like(evaluator: Evaluator, fake: torch.Tensor) -> torch.Tensor:
    """A fake tensor in the layout of ``fake``, with storage of its own; with gradients if that has them."""
    with evaluator.graph.fake_mode:
        made = torch.empty_strided(fake.shape, fake.stride(), dtype=fake.dtype, device=fake.device)
    if fake.requires_grad:
        give_gradients(evaluator, made)
    return made


def give_gradients(evaluator: Evaluator, fake: torch.Tensor) -> None:
    """Let ``fake`` have gradients as an operator's result has them, if they are enabled."""
    overlaps = any(n > 1 and s == 0 for n, s in zip(fake.shape, fake.stride(), strict=True))
    with evaluator.graph.fake_mode:
        if overlaps and torch.is_grad_enabled():
            fake.requires_grad_()
        elif not overlaps:
            fake.add_(torch.zeros((), dtype=fake.dtype, device=fake.device, requires_grad=True))


def note_aliases(
    evaluator: Evaluator,
    place: Place,
    results: Sequence[TensorVariable],
    inner: Sequence[TensorVariable],
    outside: Sequence[torch.fx.Node],
) -> None:
    """Note which results of a region may be what it was given, or one another.

    In the graph each is a tensor of its own.  Returned to the caller the difference would show: the frame is
    then evaluated without the region.
    """
    seen = {
        storage_of(value)
        for value in (node.meta.get("example_value") for node in outside)
        if isinstance(value, torch.Tensor)
    }
    aliases = evaluator.state.region_aliases
    for result, variable in zip(results, inner, strict=True):
        storage = storage_of(variable.fake)
        if storage in seen:
            aliases.setdefault(storage_of(result.fake), []).append((place, storage))
        seen.add(storage)


def note_passed_aliases(
    evaluator: Evaluator,
    place: Place,
    results: Sequence[TensorVariable],
    inner: Sequence[TensorVariable],
    outside: Sequence[torch.fx.Node],
) -> None:
    """Note which results of a region may be what it was given because a region inside gives that."""
    values = (node.meta.get("example_value") for node in outside)
    given = {storage_of(value) for value in values if isinstance(value, torch.Tensor)}
    given -= {storage_of(result.fake) for result in results}  # states of a loop, for note_starts
    for result, variable in zip(results, inner, strict=True):
        for storage in _possible_aliases(evaluator, storage_of(variable.fake)).keys() & given:
            _note(evaluator, place, result, storage)


def note_starts(evaluator: Evaluator, place: Place, kept: Sequence[Carried]) -> None:
    """Note which results of a loop may be what it began with because regions inside pass it on."""
    passed = [_possible_aliases(evaluator, storage_of(c.result.fake)) for c in kept if c.result]
    states = [storage_of(c.parameter.fake) for c in kept]
    sources = [{j for j, state in enumerate(states) if state in found} for found in passed]
    for _ in kept:  # what an iteration passes on the one before it may have passed on
        sources = [own.union(*(sources[j] for j in own)) for own in sources]
    for carried, own in zip(kept, sources, strict=True):
        for j in own:
            _note(evaluator, place, carried.parameter, storage_of(kept[j].start.fake))


def _note(evaluator: Evaluator, place: Place, result: TensorVariable, storage: int) -> None:
    passed = evaluator.state.passed_aliases.setdefault(storage_of(result.fake), [])
    if storage != storage_of(result.fake):
        passed.append((place, storage))


def _possible_aliases(evaluator: Evaluator, storage: int) -> dict[int, Place]:
    """The storages that one may be, other than itself, each with the region that gives it."""
    state = evaluator.state
    found: dict[int, Place] = {}
    pending = [storage]
    while pending:
        at = pending.pop()
        for place, other in [*state.region_aliases.get(at, ()), *state.passed_aliases.get(at, ())]:
            if other != storage and other not in found:
                found[other] = place
                pending.append(other)
    return found


def storage_of(tensor: torch.Tensor) -> int:
    """What fake tensors that share storage have in common; sparse ones have none to share."""
    if tensor.layout is not torch.strided:
        return -id(tensor)
    return int(tensor.untyped_storage()._cdata)


def passed_on_alias(evaluator: Evaluator, outputs: Sequence[Variable]) -> Place | None:
    """The region of which a result that may be an input, through regions inside, is used after a break.

    What follows a break may write to it, which the graph does not see.
    """
    inputs = evaluator.graph.outermost.find_nodes(op="placeholder")
    values = [node.meta.get("example_value") for node in inputs]
    visible = {storage_of(value) for value in values if isinstance(value, torch.Tensor)}
    for fake in (getattr(output, "fake", None) for output in outputs):
        if isinstance(fake, torch.Tensor):
            found = _possible_aliases(evaluator, storage_of(fake))
            for storage in found.keys() & visible:
                return found[storage]
    return None


def returned_alias(
    evaluator: Evaluator, outputs: Sequence[Variable], chosen: Sequence[TensorVariable]
) -> Place | None:
    """The region of which a result that may be another tensor of the caller's leaves the frame.

    The caller's are the graph's inputs, attributes and outputs, and the results ``chosen`` elsewhere.  None
    if there is no such result.
    """
    fakes = [getattr(output, "fake", None) for output in outputs]
    returned = [storage_of(fake) for fake in fakes if isinstance(fake, torch.Tensor)]
    outermost = evaluator.graph.outermost
    visible = {*returned, *(storage_of(variable.fake) for variable in chosen)}
    for node in [*outermost.find_nodes(op="placeholder"), *outermost.find_nodes(op="get_attr")]:
        value = node.meta.get("example_value")
        if isinstance(value, torch.Tensor):
            visible.add(storage_of(value))
    for storage in returned:
        pending, seen = list(evaluator.state.region_aliases.get(storage, ())), set()
        while pending:
            place, other = pending.pop()
            if other in visible:
                return place
            if other not in seen:
                seen.add(other)
                pending += evaluator.state.region_aliases.get(other, ())
    return None
