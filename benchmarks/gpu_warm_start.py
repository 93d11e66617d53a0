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
    models = parser.parse_args().models
    print("| first call, s: empty / filled caches | " + " | ".join(COMPILERS) + " |")
    print("|---|" + "---|" * len(COMPILERS), flush=True)
    for model in models:
        cells = ["{:.1f} / {:.1f}".format(*cold_and_warm(model, c)) for c in COMPILERS]
        print(f"| {model} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
