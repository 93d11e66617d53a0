"""How long it takes to compile programs without loops, by how long they are.

    python -m benchmarks.straight_line [--kinds chain ...] [--lengths 300 1000 ...]

Each program is compiled and called once in a process of its own, with an empty cache.  The time is the first
call's; processor time is that of this process, and of the C++ compilers.
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

KINDS = ("chain", "network", "wide", "rows", "products", "kernels", "training")
SIZE = 64
FUNCTIONS = ("exp", "tanh", "sin", "sigmoid", "cos", "erf", "atan", "expm1")
OPERATORS = ("x + y", "x * y", "torch.where(x > 0.1, x, y)", "torch.maximum(x, y)", "x - 0.3 * y")
ROWS = ("x.exp()", "x - x.amax(-1, keepdim=True)", "x.tanh()", "x * y", "x.softmax(-1)", "x + y")
PRODUCTS = ("x.tanh()", "x @ y", "x * y", "x - x.mean(-1, keepdim=True)", "x.sin()", "x + y")


def statements(kind: str, length: int) -> list[str]:
    """``length`` operators, about, on ``x`` and ``y``; the result is ``x``."""
    chosen = random.Random(1)
    if kind in ("chain", "training"):  # mixed operators, each on the last result
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


def measure(kind: str, length: int) -> str:
    """A row of the table, of one program in this process."""
    x, y = torch.rand(SIZE, SIZE), torch.rand(SIZE, SIZE)
    weft.compile(lambda x: x + 1)(x)  # what is imported and found out once
    weft.compile(lambda x: x + 2)(x)
    function = program(kind, length)
    if kind == "training":
        x.requires_grad_()
    whose = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    began = [time.perf_counter(), *map(processor_seconds, whose)]
    result = weft.compile(function)(x, y)
    if kind == "training":
        result.sum().backward()
    ended = [time.perf_counter(), *map(processor_seconds, whose)]
    wall, own, compilers = (e - b for b, e in zip(began, ended, strict=True))
    memory = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss // 1024
    return f"| {kind} | {length} | {wall:.1f} | {own:.1f} | {compilers:.1f} | {memory} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kinds", nargs="*", default=KINDS, choices=KINDS)
    parser.add_argument("--lengths", nargs="*", type=int, default=[300, 1000, 5000])
    parser.add_argument("--one", action="store_true", help="in this process")
    arguments = parser.parse_args()
    if arguments.one:
        print(measure(arguments.kinds[0], arguments.lengths[0]), flush=True)
        return
    print(
        "| program | operators | s | weft's own CPU s | compilers' CPU s | compiler's MB at most |"
    )
    print("|---|---:|---:|---:|---:|---:|", flush=True)
    for kind in arguments.kinds:
        for length in arguments.lengths:
            command = [sys.executable, "-m", "benchmarks.straight_line", "--one"]
            command += ["--kinds", kind, "--lengths", str(length)]
            with tempfile.TemporaryDirectory() as cache:
                environment = os.environ | {"WEFT_CACHE_DIR": cache, "WEFT_STRICT": "1"}
                subprocess.run(command, env=environment, check=True)


if __name__ == "__main__":
    main()
