"""The tables that :func:`weft.explain` prints."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING

import weft_bytecode_capture as capture
from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text
from weft_guards import GuardFailure

from .graph_report import GraphReport
from .locations import LIBRARY, describe_frames, owner_of, short_path

if TYPE_CHECKING:
    from .explain import Explanation


def tables_of(explanation: Explanation, *, guards: bool) -> RenderableType:
    """What there is to say of ``explanation``, its guards only if asked."""
    parts: list[RenderableType] = [_summary(explanation), _frames(explanation.frames)]
    if explanation.failed_guards:
        title = "\nWhy what was compiled before does not fit"
        parts += [Text(title, style="bold"), *map(_failure, explanation.failed_guards)]
    if explanation.recompiles:
        title = "\nCompiled again"
        parts += [Text(title, style="bold"), *map(_recompile, explanation.recompiles)]
    if explanation.breaks:
        parts.append(Text("\nGraph breaks", style="bold"))
        parts += [_break(f.graph_break, f.callers) for f in explanation.frames if f.graph_break]
    if explanation.unkept_regions:
        parts.append(_regions(explanation.unkept_regions))
    if explanation.compiled_graphs:
        parts.append(_stages(explanation.compiled_graphs))
    if guards and any(frame.guards for frame in explanation.frames):
        parts.append(_guards(explanation.frames))
    return Group(*parts)


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
    return f"{location.function} ({short_path(location.file)}:{location.line})"


def _frame_place(frame: capture.CaptureReport) -> str:
    """A frame by its function, and where it is a library's by the user's line that led to it."""
    place = _place(frame.location)
    if owner_of(frame.location.file) < LIBRARY:
        return place
    return f"{place}, called at {describe_frames((), frame.callers)}"


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
            Text(_frame_place(frame)),
            Text(ending),
            operations,
            str(len(frame.guards)),
            f"{frame.seconds:.3f}",
        )
    return table


def _recompile(frame: capture.CaptureReport) -> Text:
    return Text(f"  {_frame_place(frame)}\n{textwrap.indent(str(frame.recompile_reason), '    ')}")


def _break(graph_break: capture.GraphBreak, callers: tuple[capture.UserLocation, ...]) -> Text:
    stack = (*graph_break.stack, graph_break.location)
    text = Text(f"  {graph_break.kind} at {describe_frames(stack, callers)}\n", style="")
    for place in stack:
        for line in place.quoted():
            text.append(f"  {line}\n")
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
    numbers = ("kernels", "library calls", "fallbacks")
    table = _table("Compiled graphs", "graph", "stages", numbers=numbers)
    for report in reports:
        stages = ", ".join(f"{name} {seconds:.3f} s" for name, seconds in report.seconds.items())
        table.add_row(
            Text(report.location),
            Text(report.eager_reason or stages),
            str(report.kernel_count),
            str(report.extern_count),
            str(sum(report.fallbacks.values())),
        )
    return table


def _guards(frames: Sequence[capture.CaptureReport]) -> Table:
    table = _table("Guards", "value", "expected", "needed by")
    rows: dict[tuple[str, str], str] = {}
    for frame in frames:
        for guard in frame.guards:
            key = (guard.source.name(), guard.predicate.expected_text())
            rows.setdefault(
                key, f"{short_path(guard.reason.file)}:{guard.reason.line}: {guard.reason.text}"
            )
    for (source, expected), reason in rows.items():
        table.add_row(Text(source), Text(expected), Text(reason))
    return table
