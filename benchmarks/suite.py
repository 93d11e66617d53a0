"""Nineteen models, eager, torch.compile and weft: ``python -m benchmarks.suite [--only NAME ...]``.

Sixteen models of the ``transformers`` library in configurations that a small machine runs in milliseconds,
and a ResNet, a U-Net and an LSTM; float32 and bfloat16, inference.  With ``--train`` a step of training
(forward with the models' own dropout, a loss and backward) of the eight models of benchmarks/models, in
float32.  One process a measurement: those of two models build and compile side by side, then are timed in
turn, round by round, while nothing else runs.  Prints a Markdown table; ends after ``--minutes`` and names
the models that were left out; ``--resume FILE`` keeps what was measured, and measures the others only.
On a busy machine ``--processor`` times the processor on one thread instead of the clock on the wall.
Caches on disk are kept from run to run (steady times are measured here; benchmarks.run measures first calls).
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
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from benchmarks.measure import compile_with, median_ms
from benchmarks.run import machine

COMPILERS = ("eager", "torch.compile", "weft")
SUBJECTS = (
    *("bert", "gpt2", "t5", "vit", "llama", "roberta", "albert", "opt", "gpt-neox", "mistral"),
    *("qwen2", "qwen3", "gemma2", "bart", "whisper", "clip", "resnet", "unet", "lstm"),
)
TRAINED = ("bert", "gpt2", "t5", "vit", "llama", "resnet", "unet", "lstm")
DTYPES = ("float32", "bfloat16")
PREPARING_AT_ONCE = 3
PREPARATION_SECONDS = 300.0


# ---- one measurement, in a process of its own ------------------------------------------------------


@dataclass(frozen=True)
class Subject:
    """What is measured of a model: a call or a step of training, by the wall's or the processor's clock."""

    model: str
    dtype: str
    train: bool
    processor: bool

    def build(self, compiler: str) -> Callable[[], Any]:
        """The model with a compiler around it, as a function without arguments."""
        from benchmarks.models import MODELS
        from benchmarks.models.comparison import tensors
        from benchmarks.models.transformer_families import TRANSFORMER_FAMILIES

        case = {**TRANSFORMER_FAMILIES, **MODELS}[self.model]
        dtype = getattr(torch, self.dtype)
        torch.manual_seed(0)
        model = case.build(True).to(dtype).train(self.train)
        inputs = {
            name: value.to(dtype) if value.is_floating_point() else value
            for name, value in case.inputs(True, 0).items()
        }
        compiled = compile_with(compiler, model)

        def infer() -> None:
            with torch.no_grad():
                compiled(**inputs)

        def step() -> None:
            results = tensors(compiled(**inputs))
            torch.stack([t.float().square().mean() for t in results]).sum().backward()
            model.zero_grad(set_to_none=True)

        return step if self.train else infer


def work(subject: Subject, compiler: str) -> None:
    """Build, compile and call; then time calls for as many seconds as each line of standard input says."""
    if subject.processor:
        torch.set_num_threads(1)
    call = subject.build(compiler)
    for _ in range(3):
        call()
    print(json.dumps("ready"), flush=True)
    clock = time.process_time if subject.processor else time.perf_counter
    for line in sys.stdin:
        print(json.dumps(median_ms(call, float(line), clock)), flush=True)


@dataclass
class Worker:
    """A process that measures one model with one compiler."""

    subject: Subject
    compiler: str
    process: subprocess.Popen[str] | None = None
    times: list[float] = field(default_factory=list)
    failure: str = ""

    def prepare(self, caches: Path) -> None:
        """Start the process and wait until the model is compiled."""
        environment = {
            **os.environ,
            "WEFT_CACHE_DIR": str(caches / "weft"),
            "TORCHINDUCTOR_CACHE_DIR": str(caches / "torch"),
        }
        with tempfile.TemporaryFile("w+") as errors:
            self.process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "benchmarks.suite"),
                    *("--worker", json.dumps(asdict(self.subject)), self.compiler),
                ],
                env=environment,
                cwd=Path(__file__).parent.parent,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )
            limit = threading.Timer(PREPARATION_SECONDS, self.process.kill)
            limit.start()
            self._answer()
            limit.cancel()
            if self.failure:
                errors.seek(0)
                self.failure = "; ".join(errors.read().strip().splitlines()[-1:]) or self.failure

    def _answer(self) -> Any:
        """What the process printed; a failure if it ended instead."""
        assert self.process is not None and self.process.stdout is not None
        for line in self.process.stdout:
            try:
                return json.loads(line)
            except json.JSONDecodeError:
                continue  # something that a library prints
        self.failure = f"the process ended with {self.process.wait()}"
        return None

    def measure(self, seconds: float) -> None:
        """One round."""
        assert self.process is not None and self.process.stdin is not None
        if not self.failure:
            self.process.stdin.write(f"{seconds}\n")
            self.process.stdin.flush()
            answer = self._answer()
            if answer is not None:
                self.times.append(answer)

    def end(self) -> None:
        if self.process is not None and self.process.stdin is not None:
            self.process.stdin.close()
            self.process.wait()


# ---- all of them -------------------------------------------------------------------------------------


def measure_all(
    subjects: list[Subject], caches: Path, rounds: int, seconds: float
) -> list[list[Worker]]:
    """The workers of each subject, done."""
    sets = [[Worker(subject, c) for c in COMPILERS] for subject in subjects]
    everyone = [worker for workers in sets for worker in workers]
    with ThreadPoolExecutor(PREPARING_AT_ONCE) as pool:
        list(pool.map(lambda worker: worker.prepare(caches), everyone))
    for workers in sets:
        for _ in range(rounds):
            for worker in workers:
                worker.measure(seconds)
    for worker in everyone:
        worker.end()
    return sets


def row(workers: list[Worker]) -> str:
    """A line of the table."""
    eager, peer, weft = (_median(worker) for worker in workers)
    subject = workers[0].subject
    cells = [subject.model, subject.dtype, *(_text(v, "") for v in (eager, peer, weft))]
    cells += [_text(eager / weft, "x"), _text(peer / weft, "x")]
    failures = [f"{w.compiler}: {w.failure[:100]}" for w in workers if w.failure]
    return f"| {' | '.join(cells)} | {'; '.join(failures)} |"


def _median(worker: Worker) -> float:
    return statistics.median(worker.times) if worker.times else math.nan


def _text(value: float, unit: str) -> str:
    return "-" if math.isnan(value) else f"{value:.2f}{unit}"


def means(done: list[list[Worker]], dtype: str) -> str:
    """The geometric means of the ratios, over models that all three ran."""
    rows = [[_median(w) for w in workers] for workers in done if workers[0].subject.dtype == dtype]
    rows = [r for r in rows if not any(map(math.isnan, r))]
    if not rows:
        return ""
    over = [math.exp(statistics.fmean(math.log(r[k] / r[2]) for r in rows)) for k in (0, 1)]
    slower = [sum(r[2] > r[k] for r in rows) for k in (0, 1)]
    return (
        f"{dtype}: {over[0]:.2f}x over eager, {over[1]:.2f}x over torch.compile (geometric means of "
        f"{len(rows)} models; slower than eager on {slower[0]}, than torch.compile on {slower[1]})"
    )


class Record:
    """What was measured, a line of JSON for each worker, in a file that a later run goes on with."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._known: dict[tuple[Subject, str], Worker] = {}
        for line in path.read_text().splitlines() if path is not None and path.exists() else ():
            kept = json.loads(line)
            subject = Subject(**kept.pop("subject"))
            self._known[subject, kept["compiler"]] = Worker(subject, **kept)

    def add(self, workers: list[Worker]) -> None:
        """Keep the workers of a subject."""
        for worker in workers if self._path is not None else ():
            kept = {"subject": asdict(worker.subject), "compiler": worker.compiler}
            kept |= {"times": worker.times, "failure": worker.failure}
            with self._path.open("a") as file:
                file.write(json.dumps(kept) + "\n")

    def find(self, subject: Subject) -> list[Worker]:
        """The workers of a subject, none if one of them is not there or failed."""
        workers = [self._known[subject, c] for c in COMPILERS if (subject, c) in self._known]
        whole = len(workers) == len(COMPILERS) and not any(w.failure for w in workers)
        return workers if whole else []


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", nargs="*")
    parser.add_argument("--train", action="store_true", help="a step of training, in float32")
    parser.add_argument("--dtype", nargs="*", choices=DTYPES)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=0.4, help="of each round")
    parser.add_argument("--minutes", type=float, default=20.0)
    parser.add_argument("--resume", type=Path, help="file of what was measured already")
    parser.add_argument("--processor", action="store_true", help="the processor's time, one thread")
    parser.add_argument("--worker", nargs=2)
    options = parser.parse_args()
    if options.worker:
        work(Subject(**json.loads(options.worker[0])), options.worker[1])
        return
    dtypes = options.dtype or (DTYPES[:1] if options.train else DTYPES)
    models = options.only or (TRAINED if options.train else SUBJECTS)
    subjects = [Subject(m, d, options.train, options.processor) for m in models for d in dtypes]
    print(machine() + "\n")
    print(
        "| model | dtype | eager ms | torch.compile ms | weft ms | over eager | over torch.compile | failed |"
    )
    print("|---|---|---|---|---|---|---|---|")
    done, left = _measure_in_time(subjects, Record(options.resume), options)
    print()
    print("\n\n".join(text for dtype in dtypes if (text := means(done, dtype))))
    if left:
        print(f"\nLeft out for want of time: {', '.join(f'{s.model} {s.dtype}' for s in left)}.")


def _measure_in_time(
    subjects: list[Subject], record: Record, options: argparse.Namespace
) -> tuple[list[list[Worker]], list[Subject]]:
    """Measure and print what is not known yet, two at a time; the workers, and what was left out."""
    caches = Path(tempfile.gettempdir()) / "weft-benchmarks-suite"
    done = [workers for subject in subjects if (workers := record.find(subject))]
    for workers in done:
        print(row(workers))
    left = [subject for subject in subjects if not record.find(subject)]
    start, longest = time.monotonic(), 0.0
    while left and time.monotonic() - start + longest < options.minutes * 60:
        begin = time.monotonic()
        sets = measure_all(left[:2], caches, options.rounds, options.seconds)
        del left[:2]
        done += sets
        longest = max(longest, time.monotonic() - begin)
        for workers in sets:
            record.add(workers)
            print(row(workers), flush=True)
    return done, left


if __name__ == "__main__":
    main()
