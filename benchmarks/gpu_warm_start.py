"""First calls with empty and with filled caches: ``python -m benchmarks.gpu_warm_start [MODEL ...]``.

Each of two processes builds a model, calls it once in eager, and times its first compiled call; the second
one finds the caches that the first left.  Prints a row of a Markdown table for each model.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor

COMPILERS = ("torch.compile", "torch.compile:reduce-overhead", "weft")
MEASURE = "from benchmarks.gpu_suite.measure import print_first_call; print_first_call({!r}, {!r})"


def cold_and_warm(model: str, compiler: str) -> tuple[float, float]:
    """Seconds of the first call of each of the two processes."""
    with tempfile.TemporaryDirectory() as folder:
        environment = {
            **os.environ,
            "WEFT_CACHE_DIR": f"{folder}/weft",
            "TORCHINDUCTOR_CACHE_DIR": f"{folder}/torch",
            "TRITON_CACHE_DIR": f"{folder}/triton",
        }
        times = []
        for _ in range(2):
            command = [sys.executable, "-c", MEASURE.format(model, compiler)]
            output = subprocess.run(
                command, env=environment, check=True, capture_output=True, text=True
            ).stdout
            times.append(float(output.splitlines()[-1]))
    return times[0], times[1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*", default=["BERT-base", "ResNet-50", "GPT-2"])
    parser.add_argument("--compilers", nargs="+", default=COMPILERS, choices=COMPILERS)
    parser.add_argument("--at-once", type=int, default=1, help="measurements side by side")
    chosen = parser.parse_args()
    print("| first call, s: empty / filled caches | " + " | ".join(chosen.compilers) + " |")
    print("|---|" + "---|" * len(chosen.compilers), flush=True)
    pairs = [(model, compiler) for model in chosen.models for compiler in chosen.compilers]
    with ThreadPoolExecutor(chosen.at_once) as pool:
        cells = pool.map(lambda pair: "{:.1f} / {:.1f}".format(*cold_and_warm(*pair)), pairs)
        for model in chosen.models:
            row = [next(cells) for _ in chosen.compilers]
            print(f"| {model} | " + " | ".join(row) + " |", flush=True)


if __name__ == "__main__":
    main()
