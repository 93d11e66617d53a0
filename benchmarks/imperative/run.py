"""Compare eager, torch.compile, TorchScript and weft: ``python -m benchmarks.imperative.run [PROGRAM ...]``.

One process a measurement, with caches of its own, the compilers in turn.  Prints a Markdown table; a
dash stands for a compiler that refuses the program or takes longer than ``--limit`` seconds.
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


def measure(program: str, compiler: str, seconds: float, limit: float) -> dict[str, float] | None:
    """One measurement in a fresh process; None where the compiler has no result in time."""
    with tempfile.TemporaryDirectory() as caches:
        environment = {
            **os.environ,
            "WEFT_CACHE_DIR": f"{caches}/weft",
            "TORCHINDUCTOR_CACHE_DIR": f"{caches}/torch",
        }
        command = [sys.executable, "-m", "benchmarks.imperative.measure", program, compiler]
        try:
            process = subprocess.run(
                [*command, "--seconds", str(seconds)],
                env=environment,
                cwd=Path(__file__).parent.parent.parent,
                capture_output=True,
                text=True,
                check=False,
                timeout=limit,
            )
        except subprocess.TimeoutExpired:
            return None
    if process.returncode:
        print(process.stderr[-600:], file=sys.stderr)
        return None
    result: dict[str, float] = json.loads(process.stdout.strip().splitlines()[-1])
    return result


def _cell(result: dict[str, float] | None, figure: str, digits: int) -> str:
    return "-" if result is None else f"{result[figure]:.{digits}f}"


def table(rows: dict[str, Row]) -> str:
    """The Markdown table; the last column is over the best of the others."""
    lines = [
        (
            "| program | eager ms | torch.compile ms | TorchScript ms | weft ms | over the best "
            "| first call, s: torch.compile | weft | weft's graphs |"
        ),
        "|---|---|---|---|---|---|---|---|---|",
    ]
    logarithms = []
    for program, row in rows.items():
        mine = row["weft"]
        others = [r["steady_ms"] for c, r in row.items() if c != "weft" and r is not None]
        ratio = "-"
        if mine is not None:
            value = min(others) / mine["steady_ms"]
            logarithms.append(math.log(value))
            ratio = f"{value:.2f}x"
        times = " | ".join(_cell(row[compiler], "steady_ms", 3) for compiler in COMPILERS)
        first = [_cell(row[c], "first_call_seconds", 1) for c in ("torch.compile", "weft")]
        graphs = _cell(mine, "graphs", 0)
        lines.append(f"| {program} | {times} | {ratio} | {first[0]} | {first[1]} | {graphs} |")
    if logarithms:
        mean = math.exp(statistics.fmean(logarithms))
        lines.append(f"| geometric mean | | | | | {mean:.2f}x | | | |")
    return "\n".join(lines)


def main() -> None:
    """Measure every program with every compiler and print the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("programs", nargs="*", default=list(PROGRAMS))
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--limit", type=float, default=120.0)
    options = parser.parse_args()
    rows: dict[str, Row] = {}
    for program in options.programs:
        rows[program] = {}
        for compiler in COMPILERS:
            result = measure(program, compiler, options.seconds, options.limit)
            rows[program][compiler] = result
            print(program, compiler, result, file=sys.stderr, flush=True)
    print(table(rows))


if __name__ == "__main__":
    main()
