"""First calls with empty and with filled caches, on the CPU: ``python -m benchmarks.warm_start [MODEL ...]``.

Each process builds a model of :mod:`benchmarks.suite`, calls it once in eager, and takes the processor time,
its compilers' too, of the first compiled call.  A round is a process with empty caches and one after it that
finds what the first left; medians of the rounds count.  A later call's time, which is the model's own and not
the compiler's, is taken off.  Imports of weft and of the model's library are outside.  Python finds its
bytecode files, as in an installed package: a process before the rounds leaves them.  Under ``WEFT_STRICT`` no
program is kept for other processes, so that variable is left out.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from benchmarks.suite import SUBJECTS, TRAINED, Subject


def processor_seconds() -> float:
    """Of this process and of the children that have ended."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def first_call(subject: Subject) -> float:
    """Seconds of the first compiled call over those of the fastest of the next three."""
    import weft as weft

    torch.set_num_threads(1)
    subject.build("eager")()
    call = subject.build("weft")
    times = []
    for _ in range(4):
        start = processor_seconds()
        call()
        times.append(processor_seconds() - start)
    return times[0] - min(times[1:])


UNSET = frozenset({"WEFT_STRICT", "PYTHONDONTWRITEBYTECODE"})


def run_twice(command: list[str], folder: str, bytecode: str, **more: str) -> list[Any]:
    """What two processes in a row print as their last line, JSON, which share the caches in ``folder``.

    ``bytecode``: the folder of Python's files.  ``more``: variables of their environment.
    """
    environment = {name: value for name, value in os.environ.items() if name not in UNSET}
    environment |= {"WEFT_CACHE_DIR": folder, "PYTHONPYCACHEPREFIX": bytecode, **more}
    return [
        json.loads(
            subprocess.run(
                command,
                env=environment,
                cwd=Path(__file__).parent.parent,
                check=True,
                capture_output=True,
                text=True,
            ).stdout.splitlines()[-1]
        )
        for _ in range(2)
    ]


def cold_and_warm(model: str, train: bool, bytecode: str) -> tuple[float, float]:
    """Seconds of the first calls of two processes in a row; ``bytecode``: the folder of Python's files."""
    command = [sys.executable, "-m", "benchmarks.warm_start", model, "--worker"]
    command += ["--train"] * train
    with tempfile.TemporaryDirectory() as folder:
        cold, warm = run_twice(command, folder, bytecode)
    return cold, warm


def main() -> None:
    """Measure and print a row of a Markdown table for each model."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*")
    parser.add_argument("--train", action="store_true", help="a step of training")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--minutes", type=float, default=60, help="no model begins after these")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.worker:
        print(first_call(Subject(chosen.models[0], "float32", chosen.train, processor=True)))
        return
    with tempfile.TemporaryDirectory() as bytecode:
        measure(chosen, bytecode)


def measure(chosen: argparse.Namespace, bytecode: str) -> None:
    """Print the table; ``bytecode`` is an empty folder for Python's files."""
    end = time.monotonic() + 60 * chosen.minutes
    print("| model | empty caches, s | filled caches, s | ratio |\n|---|---|---|---|")
    for model in chosen.models or (TRAINED if chosen.train else SUBJECTS):
        if time.monotonic() > end:
            print(f"| {model} | not measured | | |")
            continue
        cold_and_warm(model, chosen.train, bytecode)
        rounds = [cold_and_warm(model, chosen.train, bytecode) for _ in range(chosen.rounds)]
        cold, warm = (statistics.median(times) for times in zip(*rounds, strict=True))
        print(f"| {model} | {cold:.2f} | {warm:.2f} | {warm / cold:.2f} |", flush=True)


if __name__ == "__main__":
    main()
