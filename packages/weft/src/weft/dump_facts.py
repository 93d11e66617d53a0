"""What a dump says of graphs and schedules as data, for ``weft report``: nodes, kernels, buffers, frames."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.fx
from weft_bytecode_capture import CaptureReport
from weft_loop_ir import BufferKind, ExternCall, Kernel, Schedule, all_items

from .graph_report import GraphReport
from .locations import describe_frames, frames_of_trace

FRAMES = "frames.jsonl"
"""The file of a dump that has a line for each frame that was compiled."""

Facts = dict[str, Any]


def graph_facts(graph_module: torch.fx.GraphModule) -> list[Facts]:
    """The nodes in order: what each computes, of what, of which shape, for which line of the user's."""
    return [_node_facts(node) for node in graph_module.graph.nodes]


def _node_facts(node: torch.fx.Node) -> Facts:
    trace = node.meta.get("stack_trace") or ""
    lines = [line.strip() for line in trace.splitlines() if line.strip()]
    target = node.target if isinstance(node.target, str) else _name(node.target)
    return {
        "name": node.name,
        "op": node.op,
        "target": target,
        "inputs": [source.name for source in node.all_input_nodes],
        "value": _value(node.meta.get("val", node.meta.get("example_value"))),
        "place": describe_frames(frames_of_trace(trace)) if trace else "",
        "code": lines[-1] if lines else "",
    }


def _name(target: Any) -> str:
    """An operator as it calls itself, a function by its name."""
    if hasattr(target, "_schema"):
        return str(target)
    return str(getattr(target, "__qualname__", target))


def _value(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        dtype = str(value.dtype).removeprefix("torch.")
        return f"{dtype}[{', '.join(map(str, value.shape))}]"
    if isinstance(value, (tuple, list)):
        return f"({', '.join(map(_value, value))})"
    return "" if value is None else str(value)


def schedule_facts(schedule: Schedule) -> Facts:
    """The steps in order, and where the buffers lie: bytes and offsets where they are numbers."""
    steps = [fact for step in all_items(schedule.steps) for fact in _step_facts(step)]
    return {
        "steps": steps,
        "buffers": {name: _buffer_facts(schedule, name) for name in schedule.buffers},
        "arena_bytes": _number(schedule.memory.arena_bytes),
    }


def _step_facts(step: Any) -> Iterator[Facts]:
    if isinstance(step, Kernel):
        facts = {"reads": step.reads, "writes": step.writes, "origins": step.origins}
        yield {"kind": "kernel", "name": step.name, "note": "", **facts}
    elif isinstance(step, ExternCall):
        reads: list[str] = []
        for part in (step.arguments, tuple(step.keywords.values())):
            reads += _buffers_in(part)
        yield {
            "kind": "call",
            "name": step.name,
            "note": f"{step.operator}: {step.reason}",
            "reads": reads,
            "writes": [name for name in step.outputs if name is not None],
            "origins": [step.origin],
        }


def _buffers_in(value: Any) -> list[str]:
    if isinstance(value, (tuple, list)):
        return [name for part in value for name in _buffers_in(part)]
    buffer = getattr(value, "buffer", None)
    return [buffer] if isinstance(buffer, str) else []


def _buffer_facts(schedule: Schedule, name: str) -> Facts:
    buffer = schedule.buffers[name]
    layout = buffer.layout
    size = 1 + sum((n - 1) * s for n, s in zip(layout.size, layout.stride, strict=True))
    offset = schedule.memory.offsets.get(name)
    return {
        "kind": buffer.kind.value,
        "value": f"{str(layout.dtype).removeprefix('torch.')}[{', '.join(map(str, layout.size))}]",
        "bytes": _number(size * layout.dtype.itemsize),
        "offset": None if offset is None else _number(offset),
        "is_planned": buffer.kind is BufferKind.INTERMEDIATE and offset is not None,
    }


def _number(expression: Any) -> int | None:
    """An expression's value; None where sizes of a call decide."""
    try:
        return int(expression)
    except TypeError:
        return None


def report_facts(report: GraphReport, timeline: Sequence[tuple[str, float, float]]) -> Facts:
    """What became of a graph, and when it was in which stage: names, beginnings and seconds."""
    return {
        "location": report.location,
        "kernels": report.kernel_count,
        "library_calls": report.extern_count,
        "fallbacks": dict(report.fallbacks),
        "cache": report.cache,
        "eager_reason": report.eager_reason,
        "timeline": [list(part) for part in timeline],
    }


class FrameDump:
    """Appends a line to a dump for each frame that is compiled: its end, its guards, why it was again."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / FRAMES

    def frame_converted(self, report: CaptureReport) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("a") as file:
            file.write(f"{json.dumps(frame_facts(report))}\n")

    def stage_started(self, location: str, stage_name: str) -> None: ...

    def graph_finished(self, report: GraphReport) -> None: ...


def frame_facts(report: CaptureReport) -> Facts:
    """One frame: where it is, how it ended, under which guards its code serves."""
    found = report.graph_break
    return {
        "function": report.location.function,
        "place": describe_frames((report.location,), report.callers),
        "seconds": report.seconds,
        "has_graph": report.graph is not None,
        "skip_reason": report.skip_reason,
        "recompile_reason": report.recompile_reason and str(report.recompile_reason),
        "guards": [
            {
                "source": guard.source.name(),
                "expected": guard.predicate.expected_text(),
                "place": f"{guard.reason.file}:{guard.reason.line}",
                "code": guard.reason.text,
            }
            for guard in report.guards
        ],
        "break": found
        and {
            "kind": found.kind,
            "context": found.context,
            "explanation": found.explanation,
            "hints": list(found.hints),
            "place": describe_frames((*found.stack, found.location), report.callers),
            "stack": [line for p in (*found.stack, found.location) for line in p.quoted()],
        },
    }
