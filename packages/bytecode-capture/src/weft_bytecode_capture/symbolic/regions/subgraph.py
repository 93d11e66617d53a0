"""The graphs of regions: made while a region is evaluated, then closed over what they take from outside."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.fx

from ..._torch import CapturedModule
from ..._torch.symbols import guard_or_false
from ...unsupported import Unsupported
from ..graph.hoisting import HOISTED
from ..graph.modes import SWITCHED_IN_REGION
from ..graph.unread_results import read_what_may_raise
from ..models.torch.tensor import TensorVariable
from ..protocol import Frame


@dataclass
class Carried:
    """A tensor from one iteration to the next: its value before, and as the body takes and leaves it."""

    start: TensorVariable
    parameter: TensorVariable
    result: TensorVariable | None = None


class Subgraph:
    """The graph that nodes go to while a region is evaluated.

    ``is_branch``: it runs once at most, on what is outside as that is then.
    """

    def __init__(self, evaluator: Frame, *, is_branch: bool = False) -> None:
        self._is_loop = not is_branch
        self._builder = evaluator.graph
        self._devices = evaluator.state.options.region_devices
        self._symbols_outside = self._builder.shapes.number_of_symbols
        self.graph = torch.fx.Graph()
        self._around: torch.fx.Graph | None = None
        self._added_outside = 0
        self._aliases = evaluator.state.aliases
        self._aliases.enter(self.graph, self._builder.graph)

    @contextlib.contextmanager
    def active(self, may_add_outside: bool = False) -> Iterator[None]:
        """Nodes go here.  Those that must be in the outermost graph end the attempt."""
        builder = self._builder
        outer, builder.graph = builder.graph, self.graph
        repeated, builder.is_repeated = builder.is_repeated, builder.is_repeated or self._is_loop
        outside, builder.symbols_outside = builder.symbols_outside, self._symbols_outside
        if outer is builder.outermost:
            self._aliases.note_entry()
        calls = None if may_add_outside else _calls(builder.outermost)
        self._added_outside = 0
        self._around = outer
        try:
            with builder.modes.inside(self.graph):
                yield
        finally:
            builder.graph, builder.is_repeated = outer, repeated
            builder.symbols_outside = outside
        if calls is not None and _calls(builder.outermost) != calls + self._added_outside:
            raise Unsupported(SWITCHED_IN_REGION)

    @contextlib.contextmanager
    def around(self) -> Iterator[None]:
        """Nodes go before the region meanwhile, which is active."""
        builder = self._builder
        assert self._around is not None
        inner, builder.graph = builder.graph, self._around
        calls = _calls(builder.outermost)
        try:
            yield
        finally:
            builder.graph = inner
        self._added_outside += _calls(builder.outermost) - calls

    def note_symbols(self) -> None:
        """Let the symbols that there are count as from outside: the graph relies on nothing more of them."""
        self._symbols_outside = self._builder.shapes.number_of_symbols

    def taken(self, *results: torch.fx.Node) -> list[torch.fx.Node]:
        """The nodes of other graphs that this one uses, or gives among ``results``, in order of use."""
        used = itertools.chain(*(node.all_input_nodes for node in self.graph.nodes), results)
        return list(dict.fromkeys(node for node in used if node.graph is not self.graph))

    def close(
        self, parameters: Sequence[torch.fx.Node], taken: Sequence[torch.fx.Node], results: Any
    ) -> torch.fx.GraphModule:
        """The region's module: its placeholders are ``parameters``, then one for each node ``taken``."""
        for node in (*parameters, *taken):
            self._check(node.meta.get("example_value"))
        given: list[object] = []
        torch.fx.map_arg(results, lambda node: given.append(node.meta.get("example_value")))
        for value in given:
            _check_recorded(value)
        for element in self._aliases.elements:
            element.check()
            if any(element.fake is value for value in given) and element.is_unrecorded_view():
                raise Unsupported(_UNRECORDED, "a result is an element read without gradients")
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
        read_what_may_raise(self.graph)
        self._aliases.note_attributes(self.graph)
        attributes = {
            str(n.target): getattr(self._builder.root, str(n.target))
            for n in self.graph.find_nodes(op="get_attr")
        }
        return CapturedModule(attributes, self.graph, "Region")

    def _check(self, value: object) -> None:
        """Refuse tensors of devices on which regions are not run natively, and numbers that don't count."""
        if isinstance(value, torch.Tensor):
            if value.device.type not in self._devices:
                raise Unsupported("region on this device", str(value.device))
        elif isinstance(value, torch.SymBool):
            raise Unsupported("symbolic number in a region", str(value))


def _check_recorded(value: object) -> None:
    """Refuse results that require gradients of which autograd does not see what they are computed from.

    A view made without gradients requires some as its base does, and regions give no views.  A region that
    runs without gradients may give what came from outside.
    """
    if not isinstance(value, torch.Tensor) or not value.requires_grad:
        return
    if not torch.is_grad_enabled():
        raise Unsupported(_UNRECORDED, "a result of a region without gradients requires some")
    if not value._is_view():
        return
    try:
        is_recorded = value.grad_fn is not None
    except RuntimeError:  # its memory was written to since
        is_recorded = False
    if not is_recorded:
        raise Unsupported(_UNRECORDED, "a result is a view made without gradients")


_UNRECORDED = "gradient through a region"


def _calls(graph: torch.fx.Graph) -> int:
    """How many calls there are in a graph, without those that may stand anywhere, as what computes sizes."""
    return sum(
        node.op not in ("placeholder", "get_attr")
        and not node.meta.get(HOISTED)
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
    made = TensorVariable(node, fake, None)
    made.is_regional = True
    return made


def add_region(evaluator: Frame, name: str, module: torch.fx.GraphModule) -> torch.fx.Node:
    """Name a region's module in the outermost module; a node that gives it where the graph stands."""
    builder = evaluator.graph
    number = 0
    while hasattr(builder.root, f"{name}_{number}"):
        number += 1
    builder.root.add_module(f"{name}_{number}", module)
    node = builder.graph.get_attr(f"{name}_{number}")
    node.meta["region"] = module
    return node


def call_region(
    evaluator: Frame, target: Any, arguments: tuple[Any, ...], values: Sequence[Any]
) -> list[torch.fx.Node]:
    """Append a region operator's node; a node for each of its results, which are like ``values``."""
    graph = evaluator.graph
    node = graph.node(evaluator, "call_function", target, arguments, {})
    node.meta["example_value"] = tuple(values)
    items = graph.items(node)
    with (
        graph.fake_mode,
        torch.no_grad(),
    ):  # as they lie now: ``y.unsqueeze_(0)`` changes a result's fake
        node.meta["example_value"] = tuple(
            value.detach() if isinstance(value, torch.Tensor) else value for value in values
        )
    return items


def fresh_like(evaluator: Frame, fake: torch.Tensor) -> torch.Tensor:
    """A fake tensor in the layout of ``fake``, with storage of its own; with gradients if that has them."""
    with evaluator.graph.fake_mode:
        made = torch.empty_strided(fake.shape, fake.stride(), dtype=fake.dtype, device=fake.device)
    if fake.requires_grad:
        give_gradients(evaluator, made)
    return made


def expanded_dims(fake: torch.Tensor) -> frozenset[int]:
    """The dims along which all elements are one, or may be, where data determines the size."""
    return frozenset(
        d
        for d, (size, stride) in enumerate(zip(fake.shape, fake.stride(), strict=True))
        if guard_or_false(stride == 0) and not guard_or_false(size <= 1)
    )


def give_gradients(evaluator: Frame, fake: torch.Tensor) -> None:
    """Let ``fake`` have gradients as an operator's result has them, if they are enabled."""
    leaf = fake
    with evaluator.graph.fake_mode:
        if not expanded_dims(fake):
            leaf = torch.zeros((), dtype=fake.dtype, device=fake.device, requires_grad=True)
            fake.add_(leaf)
        elif torch.is_grad_enabled():
            fake.requires_grad_()
    evaluator.graph.region_histories.note_leaf(fake, leaf)
