"""What capture gives: graphs, guards and breaks."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch.fx
from weft_guards import Guard, Source

from .unsupported import Unsupported
from .user_location import UserLocation


@dataclass(frozen=True)
class UnkeptRegion:
    """A branch or loop that was not kept in the graph, and why: a loop is unrolled, a branch a break.

    ``cause`` is the line in it that cannot be kept, None where that is the whole.
    """

    location: UserLocation
    reason: str
    cause: UserLocation | None = None

    def __str__(self) -> str:
        lines = ["not kept in the graph: " + self.reason]
        if self.cause is not None:
            lines += self.cause.quoted()
        return textwrap.indent("\n".join(lines), "  ")


@dataclass(frozen=True)
class GraphBreak:
    """Why a graph ended before its function did: an entry of the catalogue, and where.

    ``region`` is the branch or loop at whose test it ended, which could have been kept.
    """

    kind: str
    context: str
    explanation: str
    hints: tuple[str, ...]
    location: UserLocation
    stack: tuple[UserLocation, ...]  # inlined calls, outermost first
    region: UnkeptRegion | None = None

    def __str__(self) -> str:
        lines = [str(Unsupported(self.kind, self.context, self.explanation, self.hints))]
        for place in (*self.stack, self.location):
            lines += place.quoted()
        if self.region is not None:
            lines.append(str(self.region))
        return "\n".join(lines)


class GraphBreakError(Unsupported):
    """A graph break where none is allowed (``fullgraph=True``); ``graph_break`` says which."""

    def __init__(self, graph_break: GraphBreak) -> None:
        super().__init__(
            graph_break.kind, graph_break.context, graph_break.explanation, graph_break.hints
        )
        self.graph_break = graph_break

    def __str__(self) -> str:
        return f"graph break under fullgraph=True: {self.graph_break}"


@dataclass(frozen=True)
class CapturedGraph:
    """A graph of torch-level calls that ``torch.fx.Interpreter`` runs.

    Placeholders are the tensors (and numbers) that differ from call to call, ``input_sources`` says where
    each was read.  Parameters, buffers and other tensors known by identity are attributes of
    ``graph_module`` (``get_attr`` nodes).  Each placeholder's and node's ``meta["example_value"]`` is the
    FakeTensor seen during capture, ``meta["stack_trace"]`` the user's lines, outermost call first.  The
    output is a flat tuple.
    A target of type :class:`GradientRule` gives results the gradients that the program wrote for them.
    ``inference_mode``: the graph runs, and is compiled, inside ``torch.inference_mode`` (True) or outside
    (False); None: as its caller.
    """

    graph_module: torch.fx.GraphModule
    example_inputs: tuple[Any, ...]
    input_sources: tuple[Source, ...]
    guards: tuple[Guard, ...]
    inference_mode: bool | None = None

    def __repr__(self) -> str:
        nodes = len(self.graph_module.graph.nodes)
        return f"<CapturedGraph: {nodes} nodes, {len(self.input_sources)} inputs>"


class SpecialiseSizes(Exception):
    """Raised where symbolic sizes cannot be taken, also by a backend: the frame is captured again without."""


class DropDataDependence(Exception):
    """Raised where numbers and sizes that depend on data cannot be taken: the frame is captured without any.

    Its text says why.  A backend may raise it for a graph that :func:`depends_on_data`.
    """


def depends_on_data(graph_module: torch.fx.GraphModule) -> bool:
    """Whether a captured graph has numbers or sizes that depend on the values of its tensors."""
    return any("data_dependent" in node.meta for node in graph_module.graph.nodes)


class DropControlFlow(Exception):
    """Raised by a backend that cannot take the regions of a graph: the frame is captured again without any.

    Its text says why.  A backend that runs torch's own operators raises it for what is
    :func:`refused_by_torch`.
    """


class Backend(Protocol):
    """torch's backend protocol.

    May raise :class:`SpecialiseSizes`, :class:`DropDataDependence` and :class:`DropControlFlow`.
    """

    def __call__(
        self, graph_module: torch.fx.GraphModule, example_inputs: list[Any], /
    ) -> Callable[..., Any]: ...
