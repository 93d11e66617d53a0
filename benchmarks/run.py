"""Compare eager, torch.compile and weft: ``python -m benchmarks.run [--rounds N] [SUBJECT ...]``.

One process a measurement, the compilers in turn within each round so that a drift of the machine hits all
alike, empty caches for every process, medians over the rounds.  Prints a Markdown table.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

import torch

COMPILERS = ("eager", "torch.compile", "weft")
SUBJECTS = ("trivial", "bert", "gpt2", "t5", "vit", "llama", "resnet", "unet", "lstm")

Results = dict[tuple[str, str], dict[str, list[float]]]


def measure(subject: str, compiler: str, seconds: float) -> dict[str, float]:
    """One measurement in a fresh process with caches of its own."""
    with tempfile.TemporaryDirectory() as caches:
        environment = {
            **os.environ,
            "WEFT_CACHE_DIR": f"{caches}/weft",
            "TORCHINDUCTOR_CACHE_DIR": f"{caches}/torch",
        }
        process = subprocess.run(
            [
                *(sys.executable, "-m", "benchmarks.measure", subject, compiler),
                *("--seconds", str(seconds)),
            ],
            env=environment,
            cwd=Path(__file__).parent.parent,
            capture_output=True,
            text=True,
            check=False,
        )
    if process.returncode:
        print(process.stderr[-3000:], file=sys.stderr)
        raise SystemExit(f"{compiler} failed on {subject}")
    result: dict[str, float] = json.loads(process.stdout.strip().splitlines()[-1])
    return result


def table(results: Results, subjects: list[str]) -> str:
    """The Markdown tables of models and of the trivial function; the peer is torch.compile."""
    median = {
        key: {figure: statistics.median(values) for figure, values in figures.items()}
        for key, figures in results.items()
    }
    lines = [
        "| model | eager ms | peer ms | weft ms | over eager | over peer | first s: peer | weft | ratio |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    logs = []
    for subject in subjects:
        if subject == "trivial":
            continue
        eager, peer, weft = (median[subject, compiler] for compiler in COMPILERS)
        ratios = (
            eager["steady_ms"] / weft["steady_ms"],
            peer["steady_ms"] / weft["steady_ms"],
            weft["first_call_seconds"] / peer["first_call_seconds"],
        )
        logs.append([math.log(ratio) for ratio in ratios])
        lines.append(
            f"| {subject} | {eager['steady_ms']:.2f} | {peer['steady_ms']:.2f} "
            f"| {weft['steady_ms']:.2f} | {ratios[0]:.2f}x | {ratios[1]:.2f}x "
            f"| {peer['first_call_seconds']:.1f} | {weft['first_call_seconds']:.1f} "
            f"| {ratios[2]:.2f} |"
        )
    if logs:
        means = [math.exp(statistics.fmean(column)) for column in zip(*logs, strict=True)]
        lines.append(
            f"| geometric mean | | | | {means[0]:.2f}x | {means[1]:.2f}x | | | {means[2]:.2f} |"
        )
    if "trivial" in subjects:
        lines += ["", "| trivial function | first call s | a call, µs | over eager, µs |"]
        lines += ["|---|---|---|---|"]
        base = median["trivial", "eager"]["call_us"]
        for compiler in COMPILERS:
            row = median["trivial", compiler]
            lines.append(
                f"| {compiler} | {row['first_call_seconds']:.2f} | {row['call_us']:.2f} "
                f"| {row['call_us'] - base:+.2f} |"
            )
    return "\n".join(lines)


def machine() -> str:
    """A line on versions and machine."""
    return (
        f"Python {platform.python_version()}, torch {torch.__version__}, "
        f"{torch.get_num_threads()} threads, {torch.backends.cpu.get_cpu_capability()}"
    )


def main() -> None:
    """Measure every subject with every compiler and print the tables."""
    parser = argparse.ArgumentParser()
    parser.add_argument("subjects", nargs="*", default=list(SUBJECTS))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=5.0)
    options = parser.parse_args()
    results: Results = defaultdict(lambda: defaultdict(list))
    for _ in range(options.rounds):
        for subject in options.subjects:
            for compiler in COMPILERS:
                for figure, value in measure(subject, compiler, options.seconds).items():
                    results[subject, compiler][figure].append(value)
                print(subject, compiler, dict(results[subject, compiler]), file=sys.stderr)
    print(machine() + "\n")
    print(table(results, options.subjects))


if __name__ == "__main__":
    main()
