"""``weft.explain``: what became of a call, as a table."""

from __future__ import annotations

import io
import linecache
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import weft_bytecode_capture as capture
from rich import box
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text
from weft_guards import GuardFailure

from .api import compile as weft_compile
from .compiled_module import CompiledModule
from .contexts import compiled_anew
from .pipeline import GraphReport
from .report import CompileLog, observe


@dataclass(frozen=True)
class Explanation:
    """What one call gave: its ``result``, a report of each frame met and of each graph compiled.

    ``failed_guards`` say why the versions that the function was compiled to before do not fit the call, the
    one used last first; empty where one fits.  ``str()`` is the tables that :func:`explain` prints.
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

    def __rich__(self) -> RenderableType:
        parts: list[RenderableType] = [_summary(self), _frames(self.frames)]
        if self.failed_guards:
            title = "\nWhy what was compiled before does not fit"
            parts += [Text(title, style="bold"), *map(_failure, self.failed_guards)]
        if self.breaks:
            parts += [Text("\nGraph breaks", style="bold"), *map(_break, self.breaks)]
        if self.unkept_regions:
            parts.append(_regions(self.unkept_regions))
        if self.compiled_graphs:
            parts.append(_stages(self.compiled_graphs))
        if any(frame.guards for frame in self.frames):
            parts.append(_guards(self.frames))
        return Group(*parts)

    def __str__(self) -> str:
        text = io.StringIO()
        Console(file=text, width=120).print(self)
        return text.getvalue()

    def __repr__(self) -> str:
        return f"<Explanation: {len(self.graphs)} graphs, {len(self.breaks)} graph breaks>"


def explain(function: Callable[..., Any], **options: Any) -> Callable[..., Explanation]:
    """A callable that runs ``function`` once, compiled anew, and prints what became of the call.

    The tables show the graphs, where and why they broke, the guards, and the times.  ``options`` are those of
    :func:`weft.compile`; what is compiled already is explained as it was written, and the guards that keep
    its compiled versions from serving the call are named.

    :raises TypeError: ``function`` is not callable.
    """
    original = _original(function)

    def run(*args: Any, **kwargs: Any) -> Explanation:
        failures = capture.failed_guards(_compiled_frame(function), args, kwargs)
        with compiled_anew():
            compiled = weft_compile(original, **options)
        with observe(CompileLog()) as log:
            result = compiled(*args, **kwargs)
        explanation = Explanation(result, tuple(log.conversions), tuple(log.graphs), failures)
        Console().print(explanation)
        return explanation

    return run


def _original(function: Any) -> Any:
    """What a compiled function or module was made from."""
    if isinstance(function, CompiledModule):
        return function._orig_mod
    if isinstance(function, torch.nn.Module) or not hasattr(function, "context"):
        return function
    return getattr(function, "callable", function)


def _compiled_frame(function: Any) -> Any:
    """What holds the compiled versions of a function or module."""
    return function._compiled_forward if isinstance(function, CompiledModule) else function


# Printing.


def _table(title: str, *columns: str, numbers: Sequence[str] = ()) -> Table:
    table = Table(
        title=title, title_justify="left", box=box.SIMPLE, padding=(0, 1), show_edge=False
    )
    for column in columns:
        table.add_column(column, overflow="fold")
    for column in numbers:
        table.add_column(column, justify="right")
    return table


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _summary(explanation: Explanation) -> Text:
    seconds = sum(frame.seconds for frame in explanation.frames)
    guards = sum(len(frame.guards) for frame in explanation.frames)
    return Text(
        f"{_counted(len(explanation.graphs), 'graph')}, "
        f"{_counted(len(explanation.breaks), 'graph break')}, {_counted(guards, 'guard')}, "
        f"{seconds:.3f} s to capture and compile\n",
        style="bold",
    )


def _place(location: capture.UserLocation) -> str:
    return f"{location.function} ({_short(location.file)}:{location.line})"


def _short(file: str) -> str:
    """The path from the working directory, or within the library that it belongs to."""
    path = Path(file)
    if "site-packages" in path.parts:
        return file.rpartition("site-packages/")[2]
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else file


def _frames(frames: Sequence[capture.CaptureReport]) -> Table:
    table = _table("Frames", "function", "ends", numbers=("operations", "guards", "seconds"))
    for frame in frames:
        if frame.skip_reason is not None:
            ending = f"not captured: {frame.skip_reason}"
        elif frame.graph_break is not None:
            ending = f"break: {frame.graph_break.kind}"
        else:
            ending = "at its end"
        operations = "-"
        if frame.graph is not None:
            nodes = frame.graph.graph_module.graph.nodes
            operations = str(sum(node.op.startswith("call_") for node in nodes))
        table.add_row(
            Text(_place(frame.location)),
            Text(ending),
            operations,
            str(len(frame.guards)),
            f"{frame.seconds:.3f}",
        )
    return table


def _break(graph_break: capture.GraphBreak) -> Text:
    text = Text(f"  {graph_break.kind}\n", style="")
    for place in (*graph_break.stack, graph_break.location):
        text.append(f'    File "{place.file}", line {place.line}, in {place.function}\n')
        line = linecache.getline(place.file, place.line).strip()
        if line:
            text.append(f"      {line}\n")
    for name, value in (
        ("context", graph_break.context),
        ("explanation", graph_break.explanation),
        *(("hint", hint) for hint in graph_break.hints),
    ):
        if value:
            text.append(f"    {name}: {value}\n")
    return text


def _failure(failure: GuardFailure) -> Text:
    return Text(textwrap.indent(str(failure), "  "))


def _regions(regions: Sequence[capture.UnkeptRegion]) -> Table:
    table = _table("Branches and loops that are not kept in the graph", "place", "reason")
    for region in regions:
        table.add_row(Text(_place(region.location)), Text(region.reason))
    return table


def _stages(reports: Sequence[GraphReport]) -> Table:
    table = _table("Compiled graphs", "graph", "stages", numbers=("kernels", "library calls"))
    for report in reports:
        stages = ", ".join(f"{name} {seconds:.3f} s" for name, seconds in report.seconds.items())
        table.add_row(
            Text(_short(report.location.partition(", in ")[0])),
            Text(report.eager_reason or stages),
            str(report.kernel_count),
            str(report.extern_count),
        )
    return table


def _guards(frames: Sequence[capture.CaptureReport]) -> Table:
    table = _table("Guards", "value", "expected", "needed by")
    rows: dict[tuple[str, str], str] = {}
    for frame in frames:
        for guard in frame.guards:
            key = (guard.source.name(), guard.predicate.expected_text())
            rows.setdefault(
                key, f"{_short(guard.reason.file)}:{guard.reason.line}: {guard.reason.text}"
            )
    for (source, expected), reason in rows.items():
        table.add_row(Text(source), Text(expected), Text(reason))
    return table
