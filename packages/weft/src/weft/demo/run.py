"""``weft demo``: compile two networks, time them beside eager and print a table."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from rich import box
from rich.console import Console
from rich.status import Status
from rich.table import Table

from ..api import compile as weft_compile
from ..report import CompileLog, observe
from .models import ConvolutionalNetwork, Transformer


@dataclass(frozen=True)
class Measurement:
    """One row; times in milliseconds a call (medians), compile time in seconds."""

    name: str
    eager_ms: float
    weft_ms: float
    relative_error: float
    compile_seconds: float
    kernels: int
    externs: int
    graph_breaks: int


@dataclass
class ProgressLog(CompileLog):
    """Shows the stage that the compiler is in."""

    status: Status | None = None
    model: str = ""

    def stage_started(self, location: str, stage_name: str) -> None:
        if self.status is not None:
            self.status.update(f"{self.model}: {stage_name} ({location})")


def run_demo(runs: int) -> int:
    """Print the table; returns 0, or 1 when a result differs from eager's."""
    console = Console()
    torch.manual_seed(0)
    models: list[tuple[str, torch.nn.Module, torch.Tensor]] = [
        ("transformer", Transformer(), torch.randint(0, 1000, (4, 128))),
        ("convnet", ConvolutionalNetwork(), torch.randn(4, 3, 64, 64)),
    ]
    console.print(
        f"weft demo: torch {torch.__version__}, {torch.get_num_threads()} threads, float32 inference"
    )
    rows = []
    for name, model, argument in models:
        with console.status(f"{name}: capturing") as status:
            rows.append(_measure(name, model.eval(), argument, runs, status))
        console.print(f"[green]done[/] {name}: compiled in {rows[-1].compile_seconds:.1f} s")
    console.print(_table(rows))
    return 0 if all(row.relative_error < 1e-4 for row in rows) else 1


def _measure(
    name: str, model: torch.nn.Module, argument: torch.Tensor, runs: int, status: Status
) -> Measurement:
    with torch.no_grad():
        reference = model(argument)
        log = ProgressLog(status=status, model=name)
        compiled = weft_compile(model)
        start = time.perf_counter()
        with observe(log):
            result = compiled(argument)
        compile_seconds = time.perf_counter() - start
        status.update(f"{name}: timing")
        eager_ms, weft_ms = _interleaved_medians(
            lambda: model(argument), lambda: compiled(argument), runs
        )
    error = ((result - reference).norm() / reference.norm()).item()
    return Measurement(
        name,
        eager_ms,
        weft_ms,
        error,
        compile_seconds,
        log.kernel_count,
        sum(report.extern_count for report in log.graphs),
        len(log.graph_breaks),
    )


def _interleaved_medians(
    first: Callable[[], Any], second: Callable[[], Any], runs: int
) -> tuple[float, float]:
    """Median milliseconds of each, called in turn so that a drift of the machine hits both alike."""
    times: tuple[list[float], list[float]] = ([], [])
    for turn in range(runs + 2):
        for function, collected in zip((first, second), times, strict=True):
            start = time.perf_counter()
            function()
            if turn >= 2:  # the first two turns warm caches and are not counted
                collected.append((time.perf_counter() - start) * 1e3)
    return statistics.median(times[0]), statistics.median(times[1])


def _table(rows: list[Measurement]) -> Table:
    # Narrow enough for a terminal of 80 columns.
    table = Table(
        title="eager PyTorch and weft, medians",
        box=box.MINIMAL,
        padding=0,
        show_edge=False,
    )
    table.add_column("model", no_wrap=True, min_width=11)
    for heading in (
        "eager\nms",
        "weft\nms",
        "speed-up",
        "relative\nerror",
        "compile\nseconds",
        "kernels",
        "library\ncalls",
        "graph\nbreaks",
    ):
        table.add_column(heading, justify="right")
    for row in rows:
        table.add_row(
            row.name,
            f"{row.eager_ms:.2f}",
            f"{row.weft_ms:.2f}",
            f"{row.eager_ms / row.weft_ms:.2f}x",
            f"{row.relative_error:.1e}",
            f"{row.compile_seconds:.1f}",
            str(row.kernels),
            str(row.externs),
            str(row.graph_breaks),
        )
    return table
