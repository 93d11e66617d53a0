"""Nineteen models, eager, torch.compile and weft: ``python -m benchmarks.suite [--only NAME ...]``.

Sixteen models of the ``transformers`` library in configurations that a small machine runs in milliseconds,
and a ResNet, a U-Net and an LSTM; float32 and bfloat16, inference.  One process a measurement: those of two
models build and compile side by side, then are timed in turn, round by round, while nothing else runs.
Prints a Markdown table; ends after ``--minutes`` and names the models that were left out.  Caches on disk are
kept from run to run (steady times are measured here; benchmarks.run measures first calls).
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
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
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
DTYPES = ("float32", "bfloat16")
PREPARING_AT_ONCE = 3
PREPARATION_SECONDS = 180.0


# ---- one measurement, in a process of its own ------------------------------------------------------


def work(subject: str, dtype: str, compiler: str) -> None:
    """Build, compile and call; then time calls for as many seconds as each line of standard input says."""
    from benchmarks.models import MODELS
    from benchmarks.models.transformer_families import TRANSFORMER_FAMILIES

    case = {**TRANSFORMER_FAMILIES, **MODELS}[subject]
    torch.manual_seed(0)
    model = case.build(True).to(getattr(torch, dtype))
    inputs = {
        name: value.to(getattr(torch, dtype)) if value.is_floating_point() else value
        for name, value in case.inputs(True, 0).items()
    }
    with torch.no_grad():
        compiled = compile_with(compiler, model)
        for _ in range(3):
            compiled(**inputs)
        print(json.dumps("ready"), flush=True)
        for line in sys.stdin:
            print(json.dumps(median_ms(lambda: compiled(**inputs), float(line))), flush=True)


@dataclass
class Worker:
    """A process that measures one model with one compiler."""

    subject: str
    dtype: str
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
                    *("--worker", self.subject, self.dtype, self.compiler),
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
    pairs: list[tuple[str, str]], caches: Path, rounds: int, seconds: float
) -> list[list[Worker]]:
    """The workers of each pair of model and dtype, done."""
    sets = [[Worker(subject, dtype, c) for c in COMPILERS] for subject, dtype in pairs]
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
    cells = [workers[0].subject, workers[0].dtype, *(_text(v, "") for v in (eager, peer, weft))]
    cells += [_text(eager / weft, "x"), _text(peer / weft, "x")]
    failures = [f"{w.compiler}: {w.failure[:100]}" for w in workers if w.failure]
    return f"| {' | '.join(cells)} | {'; '.join(failures)} |"


def _median(worker: Worker) -> float:
    return statistics.median(worker.times) if worker.times else math.nan


def _text(value: float, unit: str) -> str:
    return "-" if math.isnan(value) else f"{value:.2f}{unit}"


def means(done: list[list[Worker]], dtype: str) -> str:
    """The geometric means of the ratios, over models that all three ran."""
    rows = [[_median(w) for w in workers] for workers in done if workers[0].dtype == dtype]
    rows = [r for r in rows if not any(map(math.isnan, r))]
    if not rows:
        return ""
    over = [math.exp(statistics.fmean(math.log(r[k] / r[2]) for r in rows)) for k in (0, 1)]
    slower = [sum(r[2] > r[k] for r in rows) for k in (0, 1)]
    return (
        f"{dtype}: {over[0]:.2f}x over eager, {over[1]:.2f}x over torch.compile (geometric means of "
        f"{len(rows)} models; slower than eager on {slower[0]}, than torch.compile on {slower[1]})"
    )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", nargs="*", default=list(SUBJECTS))
    parser.add_argument("--dtype", nargs="*", default=list(DTYPES), choices=DTYPES)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=0.4, help="of each round")
    parser.add_argument("--minutes", type=float, default=20.0)
    parser.add_argument("--worker", nargs=3)
    options = parser.parse_args()
    if options.worker:
        work(*options.worker)
        return
    caches = Path(tempfile.gettempdir()) / "weft-benchmarks-suite"
    pairs = [(subject, dtype) for subject in options.only for dtype in options.dtype]
    print(machine() + "\n")
    print(
        "| model | dtype | eager ms | torch.compile ms | weft ms | over eager | over torch.compile | failed |"
    )
    print("|---|---|---|---|---|---|---|---|")
    done: list[list[Worker]] = []
    start, longest = time.monotonic(), 0.0
    while pairs and time.monotonic() - start + longest < options.minutes * 60:
        begin = time.monotonic()
        sets = measure_all(pairs[:2], caches, options.rounds, options.seconds)
        del pairs[:2]
        done += sets
        longest = max(longest, time.monotonic() - begin)
        print("\n".join(row(workers) for workers in sets), flush=True)
    print()
    print("\n\n".join(text for dtype in options.dtype if (text := means(done, dtype))))
    if pairs:
        print(f"\nLeft out for want of time: {', '.join(f'{s} {d}' for s, d in pairs)}.")


if __name__ == "__main__":
    main()
