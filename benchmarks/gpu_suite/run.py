"""Sixteen models on a GPU: ``python -m benchmarks.gpu_suite.run --results FILE [--train] [MODEL ...]``.

A process a measurement, with empty caches.  The processes of a few models build and compile side by side;
when all of them are ready, they are timed one after another, so that nothing else uses the GPU meanwhile.
Results are appended to FILE, and what is there already isn't measured again; ``--seconds`` ends the run after
the batch during which they pass.  Prints a model's row of a Markdown table as soon as it is whole, and the
table of all that FILE holds in the end.
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
import time
from pathlib import Path
from typing import Any

from benchmarks.gpu_suite.models import SUITE

COMPILERS = ("eager", "torch.compile", "torch.compile:reduce-overhead", "weft")
Result = dict[str, Any]
Key = tuple[str, str, str, str]
"""Model, compiler, dtype, and ``infer`` or ``train``."""


class Measurement:
    """The process of one measurement."""

    def __init__(self, key: Key) -> None:
        self.key = key
        self._caches = tempfile.TemporaryDirectory()
        folder = self._caches.name
        environment = {
            **os.environ,
            "WEFT_CACHE_DIR": f"{folder}/weft",
            "TORCHINDUCTOR_CACHE_DIR": f"{folder}/torch",
            "TRITON_CACHE_DIR": f"{folder}/triton",
        }
        self._errors = Path(folder) / "errors"
        with self._errors.open("wb") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "benchmarks.gpu_suite.measure", *key],
                env=environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )

    def wait_until_ready(self) -> bool:
        """Whether everything was built, compiled and run once."""
        assert self._process.stdout is not None
        return any(line.strip() == "ready" for line in self._process.stdout)

    def result(self, is_ready: bool) -> Result:
        """Let the process time itself; its result, or its last words as ``failure``."""
        output = self._process.communicate("go\n" if is_ready else None)[0]
        if self._process.returncode == 0 and output:
            found: Result = json.loads(output.splitlines()[-1])
        else:
            found = {"failure": self._errors.read_text()[-600:]}
        self._caches.cleanup()
        return dict(zip(("model", "compiler", "dtype", "what"), self.key, strict=True)) | found


def read(path: Path) -> dict[Key, Result]:
    """The results in ``path`` that are none of failures."""
    lines = path.read_text().splitlines() if path.exists() else []
    found = [json.loads(line) for line in lines]
    return {(r["model"], r["compiler"], r["dtype"], r["what"]): r for r in found if "ms" in r}


def geometric_mean(ratios: list[float]) -> float:
    return math.exp(statistics.fmean(map(math.log, ratios)))


def row(model: str, of_compilers: list[Result | None]) -> str:
    """A model's row: milliseconds with their spread, speed-up over eager (the first), and the rest."""
    eager = of_compilers[0]
    cells = [
        "-"
        if found is None or eager is None
        else f"{found['ms']:.2f} ±{found['spread'] / 2:.2f} ms, {eager['ms'] / found['ms']:.2f}x, "
        f"{found['kernels']} kernels, {found['peak_bytes'] / 2**30:.2f} GiB, "
        f"{found['first_call_seconds']:.0f} s, error {found['error']:.0e}"
        for found in of_compilers
    ]
    return f"| {model} | " + " | ".join(cells) + " |"


def table(results: dict[Key, Result], dtype: str, what: str, compilers: list[str]) -> str:
    """The rows of the models that eager was measured on, and geometric means of the speed-ups over it."""
    lines = ["| model | " + " | ".join(compilers) + " |", "|---|" + "---|" * len(compilers)]
    ratios: dict[str, list[float]] = {c: [] for c in compilers}
    for model in SUITE:
        found = [results.get((model, c, dtype, what)) for c in compilers]
        eager = found[0]
        if eager is None:
            continue
        lines.append(row(model, found))
        for compiler, result in zip(compilers, found, strict=True):
            if result is not None:
                ratios[compiler].append(eager["ms"] / result["ms"])
    means = [f"{geometric_mean(r):.2f}x of {len(r)}" if r else "-" for r in ratios.values()]
    lines.append("| geometric mean | " + " | ".join(means) + " |")
    return "\n".join(lines)


def print_whole_rows(
    results: dict[Key, Result], batch: list[Key], missing: list[Key], compilers: list[str]
) -> None:
    """Print the rows of the models of ``batch`` of which nothing is ``missing`` any more."""
    waiting = {key[0] for key in missing}
    for model, _, dtype, what in dict.fromkeys((k[0], "", k[2], k[3]) for k in batch):
        if model not in waiting:
            print(row(model, [results.get((model, c, dtype, what)) for c in compilers]), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*", default=list(SUITE))
    parser.add_argument("--results", type=Path, required=True)
    parser.add_argument("--compilers", default=",".join(COMPILERS))
    parser.add_argument("--dtype", default="float16")
    parser.add_argument("--train", action="store_true", help="a step of training under autocast")
    parser.add_argument("--jobs", type=int, default=16, help="processes that compile at once")
    parser.add_argument("--seconds", type=float, default=540)
    arguments = parser.parse_args()
    compilers, what = arguments.compilers.split(","), "train" if arguments.train else "infer"
    start = time.perf_counter()
    known = read(arguments.results)
    wanted = [(m, c, arguments.dtype, what) for m in arguments.models for c in compilers]
    missing = [key for key in wanted if key not in known]
    while missing and time.perf_counter() - start < arguments.seconds:
        batch, missing = missing[: arguments.jobs], missing[arguments.jobs :]
        measurements = [Measurement(key) for key in batch]
        ready = [m.wait_until_ready() for m in measurements]
        with arguments.results.open("a") as file:
            for measurement, is_ready in zip(measurements, ready, strict=True):
                result = measurement.result(is_ready)
                print(json.dumps(result), file=file, flush=True)
                if "failure" in result:
                    print(f"{measurement.key} failed: {result['failure']}", file=sys.stderr)
        print_whole_rows(read(arguments.results), batch, missing, compilers)
        print(f"{len(missing)} left after {time.perf_counter() - start:.0f} s", file=sys.stderr)
    print(table(read(arguments.results), arguments.dtype, what, compilers))


if __name__ == "__main__":
    main()
