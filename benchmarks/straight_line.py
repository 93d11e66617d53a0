"""How long it takes to compile programs without loops, by how long they are.

    python -m benchmarks.straight_line [--kinds chain ...] [--lengths 300 1000 ...] [--training] [--warm]

Each program is compiled and called once in a process of its own, with an empty cache.  The time is the first
call's; processor time is that of this process, by stages, and of the C++ compilers.  ``--training`` runs
backward too, ``--warm`` measures a second process, which finds the first one's cache.
"""

from __future__ import annotations

import argparse
import os
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

import torch
import weft
from weft.report import CompileLog, observe

KINDS = ("chain", "network", "wide", "rows", "products", "kernels", "views")
STAGES = ("capture", "functionalize", "aot-autograd", "loop-ir", "codegen")
SIZE = 64
FUNCTIONS = ("exp", "tanh", "sin", "sigmoid", "cos", "erf", "atan", "expm1")
OPERATORS = ("x + y", "x * y", "torch.where(x > 0.1, x, y)", "torch.maximum(x, y)", "x - 0.3 * y")
ROWS = ("x.exp()", "x - x.amax(-1, keepdim=True)", "x.tanh()", "x * y", "x.softmax(-1)", "x + y")
VIEWS = (
    "x = x.t() * y",
    "x[1:, 2] = y[1:, 3]",
    "x = x + y[0]",
    "x.mul_(y)",
    "x = x.reshape(8, -1).sin().view_as(y)",
    "y = torch.cat([x[:32], y[32:]])",
    "x[:, :1] += 1",
    "x = torch.maximum(x, y[:, 1:2])",
)
PRODUCTS = ("x.tanh()", "x @ y", "x * y", "x - x.mean(-1, keepdim=True)", "x.sin()", "x + y")


def statements(kind: str, length: int) -> list[str]:
    """``length`` operators, about, on ``x`` and ``y``; the result is ``x``."""
    chosen = random.Random(1)
    if kind == "chain":  # mixed operators, each on the last result
        functions = [f"torch.{name}(x) * 0.5" for name in FUNCTIONS]
        return [f"x = {chosen.choice((*functions, *OPERATORS))}" for _ in range(length)]
    if kind == "network":  # each on two of the last 50 results
        lines = ["v = [x, y]"]
        for k in range(length // 2):
            a, b = (chosen.randrange(max(0, k - 50), k + 2) for _ in range(2))
            lines.append(f"v.append(torch.sin(v[{a}] + v[{b}]))")
        return [*lines, "x = v[-1]"]
    if kind == "wide":  # every third is a result
        return [
            "results = []",
            *(f"results.append((x.exp() * {k / 7} + y).cos())" for k in range(length // 4)),
            "x = results",
        ]
    if kind == "kernels":  # many small kernels, no two alike
        parts = (f"(x[:, :{3 + k % 61}] * {k}).sin().sum(-1).exp()" for k in range(length // 4))
        return ["results = []", *(f"results.append({part})" for part in parts), "x = results"]
    if kind == "views":  # and writes to them, and broadcasts
        return ["x, y = x * 1, y * 1", *(VIEWS[k % len(VIEWS)] for k in range(length))]
    cycle = ROWS if kind == "rows" else PRODUCTS
    return [f"x = {cycle[k % len(cycle)]}" for k in range(length)]


def program(kind: str, length: int) -> Callable[..., Any]:
    lines = ["def program(x, y):", *statements(kind, length), "return x"]
    scope: dict[str, Any] = {"torch": torch}
    exec("\n    ".join(lines), scope)
    function: Callable[..., Any] = scope["program"]
    return function


def processor_seconds(who: int) -> float:
    used = resource.getrusage(who)
    return used.ru_utime + used.ru_stime


class StageClock(CompileLog):
    """Adds up this process's time by the stage that began last."""

    def __init__(self) -> None:
        super().__init__()
        self.spent = dict.fromkeys(STAGES, 0.0)
        self._name, self._since = "capture", processor_seconds(resource.RUSAGE_SELF)

    def stage_started(self, location: str, stage_name: str) -> None:
        now = processor_seconds(resource.RUSAGE_SELF)
        self.spent[self._name] += now - self._since
        self._since = now
        if stage_name in self.spent:  # what keeps programs counts with the stage before
            self._name = stage_name


def measure(kind: str, length: int, training: bool) -> str:
    """A row of the table, of one program in this process."""
    x, y = torch.rand(SIZE, SIZE), torch.rand(SIZE, SIZE)
    weft.compile(lambda x: x + 1)(x)  # what is imported and found out once
    weft.compile(lambda x: x + 2)(x)
    function = program(kind, length)
    if training:
        x.requires_grad_()
    compilers = -processor_seconds(resource.RUSAGE_CHILDREN)
    began = time.perf_counter()
    with observe(StageClock()) as clock:
        result = weft.compile(function)(x, y)
        if training:
            results = result if isinstance(result, list) else [result]
            sum(r.sum() for r in results).backward()
        wall = time.perf_counter() - began
        clock.stage_started("", "end")
    compilers += processor_seconds(resource.RUSAGE_CHILDREN)
    times = (wall, sum(clock.spent.values()), *clock.spent.values(), compilers)
    memory = [
        resource.getrusage(who).ru_maxrss // 1024
        for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    ]
    name = f"{kind}, training" if training else kind
    cells = (name, length, *(f"{t:.1f}" for t in times), *memory)
    return f"| {' | '.join(map(str, cells))} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kinds", nargs="*", default=KINDS, choices=KINDS)
    parser.add_argument("--lengths", nargs="*", type=int, default=[300, 1000, 5000])
    parser.add_argument("--training", action="store_true", help="backward too")
    parser.add_argument("--warm", action="store_true", help="a second process with the same cache")
    parser.add_argument("--one", action="store_true", help="in this process")
    arguments = parser.parse_args()
    if arguments.one:
        print(measure(arguments.kinds[0], arguments.lengths[0], arguments.training), flush=True)
        return
    columns = ("program", "operators", "s", "weft's own CPU s", *STAGES, "compilers' CPU s")
    print(f"| {' | '.join((*columns, 'MB at most', 'of a compiler'))} |")
    print("|---|" + "---:|" * (len(columns) + 1), flush=True)
    for kind in arguments.kinds:
        for length in arguments.lengths:
            command = [sys.executable, "-m", "benchmarks.straight_line", "--one"]
            command += ["--kinds", kind, "--lengths", str(length)]
            command += ["--training"] if arguments.training else []
            with tempfile.TemporaryDirectory() as cache:
                environment = os.environ | {"WEFT_CACHE_DIR": cache, "WEFT_STRICT": "1"}
                if arguments.warm:
                    quiet = subprocess.DEVNULL
                    subprocess.run(command, env=environment, check=True, stdout=quiet)
                subprocess.run(command, env=environment, check=True)


if __name__ == "__main__":
    main()
