"""Numbers read from small tensors of integers that are given: constants, guarded by what is in them.

``for t, h, w in grid.tolist()`` decides shapes and how often a loop runs, and ``grid`` holds the same for
images of the same size.  What is computed from such tensors alone is computed during capture.  So are points
in time or space, floats in order, at which a solver looks for those where it has to give something.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
import torch.fx
from weft_guards import ContentsAre, Source

from ..._torch import OpOverload, OpOverloadPacket, storage_identity
from ..._torch.symbols import size_hint, substituted, unbacked_symbols
from ...unsupported import Unsupported
from ..protocol import Evaluator, Graph
from .node_calls import run_call
from .purity import REGION_OPERATORS, has_effect, possibly_written, region_graphs, writes
from .storages import UNCOUNTED, Tensor, leaves, node_values, storages, version_of

_MAX_ELEMENTS = 64  # of a tensor that is guarded
_MAX_COMPUTED = 1 << 14  # of what is computed from it
_MAX_NODES = 64

READS = frozenset(
    {
        "value of a tensor as a Python object",
        "number that depends on data",
        "decision by a number that depends on data",
        "branch on a tensor's value",
        "decision by a number that the graph computes",
        "use of a number that depends on data",
        "result whose size depends on data",
        "backward pass inside the function",  # through a branch that writes
        "gradients that data decides",
    }
)
"""Kinds of breaks that known contents may spare."""


def _written_uncounted(graphs: Iterable[torch.fx.Graph]) -> set[int]:
    """The storages of which no version may count that they are written to.

    By branches and loops in the graphs, by operators of libraries, and by some that are given ``out``.
    """
    found = set[int]()
    for node in (node for graph in graphs for node in graph.nodes):
        if "out" in node.kwargs or isinstance(node.target, (OpOverload, OpOverloadPacket)):
            if writes(node):
                found |= storages(leaves(node_values(possibly_written(node))))
            continue
        if node.target not in REGION_OPERATORS or not writes(node):
            continue
        for inner in (inner for region in region_graphs(node) for inner in region.nodes):
            pending = possibly_written(inner) if writes(inner) else []
            seen = set(pending)
            while pending:
                given = pending.pop()
                found |= storages(leaves(given.meta.get("example_value")))
                pending += (more := set(given.all_input_nodes) - seen)
                seen |= more
    return found


class _Unknown(Exception):
    """A value is not computed from small integer inputs alone."""


def has_known_contents(graph: Graph) -> bool:
    """Whether some input's contents could be guarded, or the frame makes a small tensor of constants."""
    if any(_may_be_guarded(tensor) for _, tensor, _ in graph.given):
        return True
    calls = (n for n in graph.outermost.nodes if n.op == "call_function" and not n.all_input_nodes)
    made = (node.meta.get("example_value") for node in calls)
    return any(
        isinstance(value, torch.Tensor)
        and all(type(size) is int for size in value.shape)
        and _is_small(value)
        for value in made
    )


def known_contents(evaluator: Evaluator, tensor: Tensor) -> torch.Tensor | None:
    """What ``tensor`` holds in this call, which guards on the contents of inputs make sure of; or None.

    Without leave to read inputs only what a branch makes of constants is known.
    """
    graph = evaluator.graph
    reads_inputs = bool(evaluator.state.options.read_contents)
    if graph.is_repeated or graph.transforms.active:
        return None
    if not reads_inputs and not graph.is_in_region:
        return None
    graphs = evaluator.state.aliases.with_around(graph.graph)
    evaluation = _Evaluation(graph, reads_inputs, _written_uncounted(graphs))
    try:
        with torch.no_grad():
            found = evaluation.value(tensor.node)
    except (_Unknown, Unsupported, RuntimeError, IndexError, ValueError):
        return None  # what an operator raises for the contents is raised where it runs
    for given in evaluation.read:
        if not graph.shapes.contents_recur(given.source, tuple(given.tensor.flatten().tolist())):
            return None
    for number in evaluation.numbers:
        graph.shapes.specialise(number)
    for given in evaluation.read:
        evaluator.guard(given.source, ContentsAre.of(given.tensor))
    return found if isinstance(found, torch.Tensor) else None


def known_number(evaluator: Evaluator, number: Any) -> Any:
    """A number in this call, as far as known contents decide it; None where other data does."""
    symbols, data = unbacked_symbols(number), evaluator.graph.shapes.data
    values: dict[Any, int] = {}
    for symbol in symbols:
        if symbol not in data:
            return None
        place = data[symbol]
        contents = known_contents(evaluator, cast("Tensor", place.tensor))
        if contents is None:
            return None
        size = None if place.dimension is None else contents.shape[place.dimension]
        values[symbol] = int(contents.item()) if size is None else size
    return substituted(number, values) if symbols else number


def _is_small(tensor: Any) -> bool:
    return tensor.layout is torch.strided and 0 < tensor.numel() <= _MAX_ELEMENTS


def _may_be_guarded(tensor: torch.Tensor) -> bool:
    """Whether what a tensor holds may well be the same in each call: integers, or floats in order."""
    if not _is_small(tensor) or tensor.is_complex():
        return False
    return not tensor.is_floating_point() or _is_grid(tensor)


def _is_grid(tensor: torch.Tensor) -> bool:
    """Whether floats ascend or descend, as points in time do."""
    if tensor.dim() != 1 or len(tensor) < 2 or tensor.requires_grad or tensor.device.type != "cpu":
        return False
    steps = tensor.detach().diff()
    return bool((steps > 0).all() or (steps < 0).all())


@dataclass(frozen=True, eq=False)
class _Attribute:
    """A tensor that the graph has as an attribute, and where it was found."""

    source: Source
    tensor: torch.Tensor


class _Evaluation:
    """Values of nodes in this call, by the tensors that the frame was given.

    ``read`` are those that it takes, ``numbers`` the sizes and numbers that vary: they are relied on
    only where a value is found.
    """

    def __init__(self, graph: Graph, reads_inputs: bool, uncounted: set[int]) -> None:
        self._graph = graph
        self._reads_inputs = reads_inputs
        self._inputs = graph.inputs_by_node()
        self._values: dict[torch.fx.Node, Any] = {}
        self._uncounted = graph.taken_as_data | uncounted
        self.read: list[Any] = []
        self.numbers: list[torch.SymInt | torch.SymBool] = []

    def value(self, node: torch.fx.Node) -> Any:
        if node not in self._values:
            if len(self._values) > _MAX_NODES:
                raise _Unknown
            self._values[node] = self._computed(node)
        return self._values[node]

    def _computed(self, node: torch.fx.Node) -> Any:
        example = node.meta.get("example_value")
        if isinstance(example, (torch.SymInt, torch.SymBool)):
            return self._number(example)
        parts: Sequence[Any] = example if isinstance(example, (tuple, list)) else (example,)
        if not parts or not all(isinstance(p, torch.Tensor) for p in parts):
            raise _Unknown
        if any(map(version_of, parts)) or storages(parts) & self._uncounted:
            raise _Unknown  # written to, or not counted
        if node.op == "placeholder":
            return self._given(node, parts[0])
        if node.op == "get_attr":
            return self._attribute(parts[0])
        if node.op not in ("call_function", "call_method") or has_effect(node):
            raise _Unknown
        sizes: list[Any] = [size for part in parts for size in part.shape]
        if any(isinstance(size, int) and size > _MAX_COMPUTED for size in sizes):
            raise _Unknown
        arguments: Any = torch.fx.map_arg(node.args, self.value)
        keywords: Any = torch.fx.map_arg(node.kwargs, self.value)
        return run_call(node.op, node.target, arguments, keywords)

    def _number(self, number: torch.SymInt | torch.SymBool) -> int | bool:
        known = size_hint(number) if self._reads_inputs else None
        if known is None:
            raise _Unknown
        self.numbers.append(number)
        return known if isinstance(number, torch.SymInt) else bool(known)

    def _attribute(self, fake: torch.Tensor) -> torch.Tensor:
        """A module's own tensor: sizes of a convolution, which it keeps in buffers."""
        for source, tensor, known in self._graph.given:
            if known is fake and self._reads_inputs and _may_be_guarded(tensor):
                self.read.append(_Attribute(source, tensor))
                return tensor
        raise _Unknown

    def _may_be_written(self, given: Any) -> bool:
        """In the memory that it shares with another input, which may count no writes."""
        storage = storage_identity(given.tensor)
        others = (other for other in self._inputs.values() if other is not given)
        return any(
            storage_identity(other.tensor) == storage
            and (other.version == UNCOUNTED or version_of(other.fake) != other.version)
            for other in others
        )

    def _given(self, node: torch.fx.Node, example: torch.Tensor) -> torch.Tensor:
        given = self._inputs.get(node)
        if given is None or not self._reads_inputs or not _may_be_guarded(given.tensor):
            raise _Unknown
        if self._may_be_written(given):
            raise _Unknown
        sizes: Sequence[Any] = example.shape
        self.numbers += (size for size in sizes if isinstance(size, torch.SymInt))
        self.read.append(given)
        tensor: torch.Tensor = given.tensor
        return tensor
