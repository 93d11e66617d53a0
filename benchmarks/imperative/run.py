"""Compare eager, torch.compile, TorchScript and weft: ``python -m benchmarks.imperative.run [PROGRAM ...]``.

One process a measurement, with caches of its own, the compilers in turn.  Prints a Markdown table.  "over
60 s" stands for a compiler that takes longer than ``--limit`` seconds, imports included, a dash for one that
refuses the program.  All 13 programs take about 12 minutes on two cores that do nothing else.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.imperative.measure import COMPILERS
from benchmarks.imperative.programs import PROGRAMS

Row = dict[str, dict[str, float] | None]
TIMED_OUT: dict[str, float] = {}


def measure(
    program: str, compiler: str, seconds: float, limit: float, device: str = "cpu"
) -> dict[str, float] | None:
    """One measurement in a fresh process; None where the compiler refuses the program.

    :data:`TIMED_OUT` where it has no result after ``limit`` seconds.
    """
    with tempfile.TemporaryDirectory() as caches:
        environment = {
            **os.environ,
            "WEFT_CACHE_DIR": f"{caches}/weft",
            "TORCHINDUCTOR_CACHE_DIR": f"{caches}/torch",
        }
        command = [sys.executable, "-m", "benchmarks.imperative.measure", program, compiler]
        try:
            process = subprocess.run(
                [*command, "--seconds", str(seconds), "--device", device],
                env=environment,
                cwd=Path(__file__).parent.parent.parent,
                capture_output=True,
                text=True,
                check=False,
                timeout=limit,
            )
        except subprocess.TimeoutExpired:
            return TIMED_OUT
    if process.returncode:
        print(process.stderr[-600:], file=sys.stderr)
        return None
    result: dict[str, float] = json.loads(process.stdout.strip().splitlines()[-1])
    return result


def _cell(result: dict[str, float] | None, figure: str, digits: int, limit: float) -> str:
    if result is None or (result and figure not in result):
        return "-"
    return f"{result[figure]:.{digits}f}" if result else f"over {limit:.0f} s"


def _counts(result: dict[str, float] | None) -> str:
    """Graphs, breaks and kernels."""
    names = ("graphs", "breaks", "kernels")
    return " / ".join(_cell(result, name, 0, 0) for name in names) if result else "-"


def table(rows: dict[str, Row], limit: float) -> str:
    """The Markdown table; weft's times are compared with those of the best of the others."""
    compiled = ("torch.compile", "torch.jit.script", "weft")
    heads = [
        *(f"{compiler} ms" for compiler in COMPILERS),
        "over the best",
        *(f"{compiler}: first call s" for compiler in compiled),
        *(f"{compiler}: graphs / breaks / kernels" for compiler in ("torch.compile", "weft")),
    ]
    lines = [f"| program | {' | '.join(heads)} |", "|---" * (len(heads) + 1) + "|"]
    logarithms = []
    for program, row in rows.items():
        mine = row["weft"]
        others = [r["steady_ms"] for c, r in row.items() if c != "weft" and r]
        ratio = "-"
        if mine:
            value = min(others) / mine["steady_ms"]
            logarithms.append(math.log(value))
            ratio = f"{value:.2f}x"
        cells = [
            *(_cell(row[compiler], "steady_ms", 3, limit) for compiler in COMPILERS),
            ratio,
            *(_cell(row[compiler], "first_call_seconds", 1, limit) for compiler in compiled),
            *(_counts(row[compiler]) for compiler in ("torch.compile", "weft")),
        ]
        lines.append(f"| {program} | {' | '.join(cells)} |")
    if logarithms:
        mean = math.exp(statistics.fmean(logarithms))
        lines.append(f"\nGeometric mean over the best of the others: {mean:.2f}x")
    return "\n".join(lines)


def main() -> None:
    """Measure every program with every compiler and print the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("programs", nargs="*", default=list(PROGRAMS))
    parser.add_argument("--seconds", type=float, default=0.5)
    parser.add_argument("--limit", type=float, default=60.0)
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    rows: dict[str, Row] = {}
    for program in options.programs:
        rows[program] = {}
        for compiler in COMPILERS:
            result = measure(program, compiler, options.seconds, options.limit, options.device)
            rows[program][compiler] = result
            print(program, compiler, result, file=sys.stderr, flush=True)
    print(table(rows, options.limit))


if __name__ == "__main__":
    main()
