"""Writing each stage's result to a directory, the FX graphs as Python files that run by themselves."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.fx
import weft_functionalize
import weft_loop_ir

from .dump_facts import graph_facts, report_facts, schedule_facts
from .graph_report import GraphReport
from .locations import UNKNOWN, describe_frames, frames_of_trace

FACTS = "report.json"
"""The file in a graph's folder that has what the others have, as data."""


class GraphDump:
    """The folder of one graph; without a folder nothing is written and nothing is formatted."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._facts: dict[str, Any] = {"graphs": {}, "schedules": {}}

    def text(self, name: str, content: str | Callable[[], str]) -> None:
        if self._folder is not None:
            text = content if isinstance(content, str) else content()
            (self._folder / name).write_text(text)

    def steps(self, name: str) -> weft_functionalize.StepObserver | None:
        """What appends each step of a conversion to one file; None without a folder."""
        if self._folder is None:
            return None
        path = self._folder / f"{name}.txt"

        def append(step: str, graph: torch.fx.Graph) -> None:
            lines = [f"# {step}", *weft_functionalize.format_block(graph), "", ""]
            with path.open("a") as file:
                file.write("\n".join(lines))

        return append

    def graph(self, name: str, graph_module: torch.fx.GraphModule) -> None:
        if self._folder is not None:
            self.text(f"{name}.py", runnable_python(graph_module))
            self._facts["graphs"][name] = graph_facts(graph_module)

    def schedule(self, name: str, schedule: weft_loop_ir.Schedule) -> None:
        if self._folder is not None:
            self.text(f"{name}.txt", weft_loop_ir.format_schedule(schedule))
            self._facts["schedules"][name] = schedule_facts(schedule)

    def finish(self, report: GraphReport, timeline: Sequence[tuple[str, float, float]]) -> None:
        """Write all of it as data too, for ``weft report``."""
        facts = {**report_facts(report, timeline), **self._facts}
        self.text(FACTS, lambda: json.dumps(facts))


def open_dump(directory: Path | None, location: str) -> GraphDump:
    """A new numbered folder under ``directory`` for the graph of ``location``."""
    if directory is None:
        return GraphDump(None)
    directory.mkdir(parents=True, exist_ok=True)
    place = location.partition(", through ")[0]
    label = re.sub(r"[^A-Za-z0-9_.-]+", "_", place.rsplit("/", 1)[-1])
    number = sum(path.is_dir() for path in directory.iterdir())
    while True:
        folder = directory / f"{number:03d}_{label}"
        try:
            folder.mkdir()
        except FileExistsError:
            number += 1
            continue
        return GraphDump(folder)


def runnable_python(graph_module: torch.fx.GraphModule) -> str:
    """A module that defines the graph as a class and, run as a program, calls it on random inputs."""
    python = graph_module.graph.python_code("self", verbose=False)
    lines = ["import torch", *_imports(python.globals), "", "", "class Graph(torch.nn.Module):"]
    lines += ["    def __init__(self) -> None:", "        super().__init__()"]
    lines += [f"        {line}" for line in _attributes(graph_module)]
    lines += [""]
    lines += ["    " + line if line else "" for line in _with_places(graph_module, python.src)]
    inputs = [_example(node) for node in graph_module.graph.nodes if node.op == "placeholder"]
    lines += ["", "", 'if __name__ == "__main__":']
    lines += ["    inputs = ["] + [f"        {item}," for item in inputs] + ["    ]"]
    lines += ["    with torch.no_grad():", "        print(Graph()(*inputs))", ""]
    return "\n".join(lines)


def _with_places(graph_module: torch.fx.GraphModule, source: str) -> Iterator[str]:
    """The lines of the graph's ``forward``, with a comment where another line of the program begins."""
    places = {node.name: node.meta.get("stack_trace") for node in graph_module.graph.nodes}
    last = None
    for line in source.strip().splitlines():
        trace = places.get(line.partition(" = ")[0].strip())
        place = describe_frames(frames_of_trace(trace)) if trace else UNKNOWN
        if place not in (UNKNOWN, last):
            last = place
            yield f"    # {place}"
        yield line


_PLACE = re.compile(r"^ {8}# (?P<file>.+?):(?P<line>\d+) in (?P<function>[^,]+)")
_CALL = re.compile(r"^ {8}(?P<name>\w+) = ")


def traces_in(source: str) -> dict[str, str]:
    """What :func:`runnable_python` noted of the program's lines, as stack traces by the nodes' names."""
    found: dict[str, str] = {}
    trace = None
    for line in source.splitlines():
        if place := _PLACE.match(line):
            trace = f'  File "{place["file"]}", line {place["line"]}, in {place["function"]}\n'
        elif trace and (call := _CALL.match(line)):
            found[call["name"]] = trace
    return found


def _imports(names: dict[str, Any]) -> list[str]:
    lines = []
    for name, value in sorted(names.items()):
        if name == "torch":
            continue
        if value is type(None):
            lines.append(f"{name} = type(None)")
            continue
        if type(value).__name__ == "module":
            lines.append(f"import {value.__name__} as {name}")
        elif hasattr(value, "__module__") and hasattr(value, "__qualname__"):
            lines.append(f"from {value.__module__} import {value.__qualname__} as {name}")
        elif isinstance(value, float):
            lines.append(f"{name} = float('{value}')")
        else:
            lines.append(f"{name} = {value!r}")
    return lines


def _attributes(graph_module: torch.fx.GraphModule) -> list[str]:
    lines = []
    seen: set[str] = set()
    for node in graph_module.graph.nodes:
        if node.op != "get_attr" or node.target in seen:
            continue
        seen.add(node.target)
        value: Any = graph_module
        for part in node.target.split("."):
            value = getattr(value, part)
        if isinstance(value, torch.Tensor):
            *parents, name = node.target.split(".")
            owner = "self" + "".join(f".{parent}" for parent in parents)
            for depth in range(len(parents)):
                path = "self" + "".join(f".{parent}" for parent in parents[: depth + 1])
                if path not in seen:
                    seen.add(path)
                    lines.append(f"{path} = torch.nn.Module()")
            lines.append(f'{owner}.register_buffer("{name}", {_tensor(value)})')
    return lines


def _example(node: torch.fx.Node) -> str:
    value = node.meta.get("val", node.meta.get("example_value"))
    return _tensor(value) if isinstance(value, torch.Tensor) else repr(value)


def _tensor(value: torch.Tensor) -> str:
    size, dtype, device = list(value.shape), value.dtype, str(value.device)
    if dtype.is_floating_point or dtype.is_complex:
        return f"torch.randn({size}, dtype={dtype}, device={device!r})"
    return f"torch.zeros({size}, dtype={dtype}, device={device!r})"
