"""What the frame hook costs code outside compiled calls: ``python -m benchmarks.hook [--rounds N]``.

Three loops of plain Python (calls of functions, of methods, of a generator) are timed in a process without
weft and in one that has imported it and called compiled functions.  The two take turns within each round,
medians over the rounds are shown; seconds are of the processor.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from benchmarks.run import machine

SETTINGS = ("without", "with")
_COUNT = 400_000


class _Counter:
    def __init__(self) -> None:
        self.total = 0

    def add(self, number: int) -> None:
        self.total += number


def _increment(number: int) -> int:
    return number + 1


def _numbers() -> Iterator[int]:
    yield from range(_COUNT)


def _functions() -> None:
    number = 0
    for _ in range(_COUNT):
        number = _increment(number)


def _methods() -> None:
    counter = _Counter()
    for number in range(_COUNT):
        counter.add(number)


def _generators() -> None:
    for number in _numbers():
        _increment(number)


LOOPS: dict[str, Callable[[], None]] = {
    "functions": _functions,
    "methods": _methods,
    "generator": _generators,
}


def measure(setting: str) -> dict[str, float]:
    """Nanoseconds of the processor for an iteration of each loop, the least of five."""
    import torch

    if setting == "with":
        import weft

        compiled = weft.compile(lambda x: x * _increment(1))
        compiled(torch.ones(3))
        compiled(torch.ones(4))
    found = {}
    for name, loop in LOOPS.items():
        seconds = []
        for _ in range(5):
            start = time.process_time()
            loop()
            seconds.append(time.process_time() - start)
        found[name] = min(seconds) / _COUNT * 1e9
    return found


def _in_a_process(setting: str) -> dict[str, float]:
    command = [sys.executable, "-m", "benchmarks.hook", "--one", setting]
    folder = Path(__file__).parent.parent
    process = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)
    result: dict[str, float] = json.loads(process.stdout.strip().splitlines()[-1])
    return result


def main() -> None:
    """Measure and print a Markdown table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--one", choices=SETTINGS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(measure(options.one)))
        return
    print(machine() + "\n")
    rounds = [[_in_a_process(setting) for setting in SETTINGS] for _ in range(options.rounds)]
    print("| loop | ns without weft | ns with weft | ratio |")
    print("|---|---|---|---|")
    for name in LOOPS:
        plain, hooked = (statistics.median(row[i][name] for row in rounds) for i in (0, 1))
        ratios = [row[1][name] / row[0][name] for row in rounds]
        print(
            f"| {name} | {plain:.1f} | {hooked:.1f} | {statistics.median(ratios):.3f} "
            f"({min(ratios):.3f} to {max(ratios):.3f}) |"
        )


if __name__ == "__main__":
    main()
