"""Sixteen models on GPUs: ``python -m benchmarks.gpu_suite.run --results FILE [--tasks TASK,...]``.

A TASK is ``infer:DTYPE`` or ``train:DTYPE``.  A process a measurement, with empty caches.  The processes of a
few models build and compile side by side; when all of them are ready, they are timed one after another, so
that nothing else uses the GPU meanwhile.  With ``--gpus N`` each GPU has its share of the processors, and
takes the next few models when it has done with some.

Whole rows come first: all compilers on a model, and only after all models those of ``--last``, which take
minutes to compile.  A measurement that isn't ready after ``--seconds-per-measurement`` is ended, and counts
as unfinished; the run ends after ``--seconds``.  Results are appended to FILE, and what is there already
isn't measured again.  In the end the tables of all that FILE holds are printed (see
``benchmarks.gpu_suite.report``).

``--dry`` tries all this on the processor, with tiny variants of the models.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Iterable
from pathlib import Path

from benchmarks.gpu_suite.models import SUITE
from benchmarks.gpu_suite.process import Measurement
from benchmarks.gpu_suite.report import report
from benchmarks.gpu_suite.results import COMPILERS, Key, Result, Task, is_done, read_results

Row = list[Key]
"""Measurements of one model and task."""


def rows(
    models: Iterable[str], tasks: list[Task], compilers: list[str], last: list[str]
) -> list[Row]:
    """All measurements in the order in which they are made."""
    first = [c for c in compilers if c not in last]
    passes = [first, *([c] for c in compilers if c in last)]
    models = list(models)
    return [
        [Key(model, compiler, task) for compiler in chosen]
        for chosen in passes
        if chosen
        for task in tasks
        for model in models
    ]


class Suite:
    """The measurements that are left, which GPUs take, and the file of those made, to which they add."""

    def __init__(self, left: list[Row], options: argparse.Namespace, references: Path) -> None:
        self._left = deque(left)
        self._options = options
        self._references = references
        self._lock = threading.Lock()
        self._start = time.perf_counter()
        self._running: list[Measurement] = []

    def measure_on(self, gpu: int) -> None:
        """Batch after batch on the GPU of this number, until nothing or no time is left."""
        while batch := self._begin(gpu):
            self._finish(batch)

    def end(self) -> None:
        """End all processes, now."""
        with self._lock:
            self._left.clear()
            for measurement in self._running:
                measurement.kill()

    def _seconds_left(self) -> float:
        return float(self._options.seconds) - (time.perf_counter() - self._start)

    def _begin(self, gpu: int) -> list[Measurement]:
        """Processes of whole rows, about as many as may compile at once."""
        options = self._options
        with self._lock:
            keys: Row = []
            while self._left and self._seconds_left() > 0:
                if keys and len(keys) + len(self._left[0]) > options.jobs:
                    break
                keys += self._left.popleft()
            batch = [
                Measurement(key, self._references, gpu, options.gpus, options.dry) for key in keys
            ]
            self._running += batch
        return batch

    def _finish(self, batch: list[Measurement]) -> None:
        """Wait until all are ready, then let one after another time itself."""
        limit = float(self._options.seconds_per_measurement)
        ready_by = time.perf_counter() + min(limit, self._seconds_left())
        for measurement in batch:
            measurement.wait_until_ready(ready_by)
        for measurement in batch:
            result = measurement.result(time.perf_counter() + self._options.seconds_to_time)
            # What is cut short by the end of the run may be finished by the next.
            if result.get("unfinished", math.inf) >= round(limit):
                self._add(result)
        with self._lock:
            self._running = [m for m in self._running if m not in batch]

    def _add(self, result: Result) -> None:
        with self._lock, self._options.results.open("a") as file:
            print(json.dumps(result), file=file, flush=True)
        figure = next(f"{k} {result[k]}" for k in ("ms", "unfinished", "failure") if k in result)
        name = " ".join(str(result[k]) for k in ("model", "compiler", "what", "dtype"))
        print(f"{time.perf_counter() - self._start:.0f} s: {name}: {figure}", file=sys.stderr)


def parse(arguments: list[str]) -> argparse.Namespace:
    """The options; SystemExit where they don't make sense."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*", default=list(SUITE))
    parser.add_argument("--results", type=Path, required=True)
    parser.add_argument(
        "--tasks",
        type=lambda text: [Task.parse(part) for part in text.split(",")],
        default="infer:float16,infer:bfloat16,train:float16",
    )
    parser.add_argument("--compilers", type=_names, default=",".join(COMPILERS))
    parser.add_argument("--last", type=_names, default="torch.compile:max-autotune")
    parser.add_argument("--gpus", type=int, default=1)
    parser.add_argument(
        "--jobs", type=int, default=16, help="processes that compile at once, a GPU"
    )
    parser.add_argument("--seconds", type=float, default=540)
    parser.add_argument("--seconds-per-measurement", type=float, default=180, help="to get ready")
    parser.add_argument("--seconds-to-time", type=float, default=30, help="of one that is ready")
    parser.add_argument("--dry", action="store_true")
    options = parser.parse_args(arguments)
    if unknown := {*options.models} - {*SUITE} | {*options.compilers} - {*COMPILERS}:
        parser.error(f"unknown: {', '.join(sorted(unknown))}")
    return options


def _names(text: str) -> list[str]:
    return text.split(",")


def main(arguments: list[str]) -> None:
    options = parse(arguments)
    known = read_results([options.results])
    wanted = rows(options.models, options.tasks, options.compilers, options.last)
    missing = (
        [key for key in row if not is_done(known.get(key), options.seconds_per_measurement)]
        for row in wanted
    )
    with tempfile.TemporaryDirectory() as references:
        suite = Suite([row for row in missing if row], options, Path(references))
        threads = [
            threading.Thread(target=suite.measure_on, args=(gpu,)) for gpu in range(options.gpus)
        ]
        try:
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        except KeyboardInterrupt:
            print("interrupted", file=sys.stderr)
        finally:
            suite.end()
            for thread in threads:
                thread.join()
    print(report(read_results([options.results]), options.models))


if __name__ == "__main__":
    main(sys.argv[1:])
