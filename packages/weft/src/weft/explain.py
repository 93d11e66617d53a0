"""``weft.explain``: what became of a call, as data and as tables."""

from __future__ import annotations

import dataclasses
import io
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TextIO

import torch
import weft_bytecode_capture as capture
from weft_guards import GuardFailure

from .api import compile as weft_compile
from .compiled_module import CompiledModule
from .contexts import compiled_anew
from .graph_report import GraphReport
from .report import CompileLog, observe

if TYPE_CHECKING:
    from rich.console import RenderableType


@dataclass(frozen=True)
class Explanation:
    """What one call gave: its ``result``, a report of each frame met and of each graph compiled.

    ``failed_guards`` say why the versions that the function was compiled to before do not fit the call, the
    one used last first; empty where one fits.  ``print(explanation)`` shows tables of it all but the guards,
    :meth:`show` the guards too if asked.
    """

    result: Any
    frames: tuple[capture.CaptureReport, ...]
    compiled_graphs: tuple[GraphReport, ...]
    failed_guards: tuple[GuardFailure, ...] = ()

    @property
    def graphs(self) -> tuple[capture.CapturedGraph, ...]:
        return tuple(frame.graph for frame in self.frames if frame.graph is not None)

    @property
    def breaks(self) -> tuple[capture.GraphBreak, ...]:
        found = (frame.graph_break for frame in self.frames)
        return tuple(graph_break for graph_break in found if graph_break is not None)

    @property
    def unkept_regions(self) -> tuple[capture.UnkeptRegion, ...]:
        """The branches and loops on tensors that the graphs don't have, each with the reason."""
        return tuple(region for frame in self.frames for region in frame.unkept_regions)

    @property
    def recompiles(self) -> tuple[capture.CaptureReport, ...]:
        """The frames that were compiled again, each with the guard that failed (``recompile_reason``)."""
        return tuple(frame for frame in self.frames if frame.recompile_reason is not None)

    def show(self, *, guards: bool = False, file: TextIO | None = None) -> None:
        """Print tables of graphs, breaks, recompilations and times; ``guards``: those too.

        ``file``: where to, by default standard output.
        """
        from rich.console import Console  # takes a while to import

        from .explanation_tables import tables_of

        Console(file=file).print(tables_of(self, guards=guards))

    def __rich__(self) -> RenderableType:
        from .explanation_tables import tables_of

        return tables_of(self, guards=False)

    def __str__(self) -> str:
        from rich.console import Console

        text = io.StringIO()
        Console(file=text, width=120).print(self)
        return text.getvalue()

    def __repr__(self) -> str:
        return f"<Explanation: {len(self.graphs)} graphs, {len(self.breaks)} graph breaks>"


def explain(function: Callable[..., Any], **options: Any) -> Callable[..., Explanation]:
    """A callable that runs ``function`` once, compiled anew, and gives what became of the call.

    ``print(weft.explain(model)(x))`` shows the graphs, where and why they broke, and the times.  ``options``
    are those of :func:`weft.compile`; what is compiled already is explained as it was written, and the guards
    that keep its compiled versions from serving the call are named.

    :raises TypeError: ``function`` is not callable.
    """
    original = original_of(function)

    def run(*args: Any, **kwargs: Any) -> Explanation:
        failures = capture.failed_guards(_compiled_frame(function), args, kwargs)
        with compiled_anew():
            compiled = weft_compile(original, **options)
        with observe(CompileLog()) as log:
            result = compiled(*args, **kwargs)
        return explanation_of(log, result, failures)

    return run


def explanation_of(
    log: CompileLog, result: Any, failures: tuple[GuardFailure, ...] = ()
) -> Explanation:
    """What ``log`` has seen."""
    frames = tuple(map(_without_tensors, log.conversions))
    return Explanation(result, frames, tuple(log.graphs), failures)


def _without_tensors(report: capture.CaptureReport) -> capture.CaptureReport:
    """The report with fakes for what its graph holds: who keeps it shall not keep parameters."""
    if report.graph is None:
        return report
    module = report.graph.graph_module
    attributes = {
        node.target: node.meta.get("example_value", getattr(module, node.target, None))
        for node in module.graph.find_nodes(op="get_attr")
    }
    shown = torch.fx.GraphModule(attributes, module.graph, "CapturedGraph")
    module.graph.owning_module = None
    graph = dataclasses.replace(report.graph, graph_module=shown)
    return dataclasses.replace(report, graph=graph)


def original_of(function: Any) -> Any:
    """What a compiled function or module was made from."""
    if isinstance(function, CompiledModule):
        return function._orig_mod
    if isinstance(function, torch.nn.Module) or not hasattr(function, "context"):
        return function
    return getattr(function, "callable", function)


def _compiled_frame(function: Any) -> Any:
    """What holds the compiled versions of a function or module."""
    return function._compiled_forward if isinstance(function, CompiledModule) else function
