"""Compare eager, torch.compile and weft on a GPU: ``python -m benchmarks.gpu [--train] [MODEL ...]``.

One process a measurement with empty caches.  Processes build and compile side by side, and take turns on the
GPU to be timed: medians of single calls, from the host's first launch to the last kernel's end.  Prints a
Markdown table of milliseconds, and of each compiler's speed-up over eager.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch

COMPILERS = ("eager", "torch.compile", "torch.compile:reduce-overhead", "weft")
SUBJECTS = ("bert", "gpt2", "t5", "vit", "llama", "resnet", "unet", "lstm")
CALLS = 30
"""Timed calls, after five to warm up."""

Results = dict[tuple[str, str, str], dict[str, float]]


def compile_with(compiler: str, model: Callable[..., Any]) -> Any:
    """``model`` compiled by ``compiler``, which may end in ``:mode``."""
    name, _, mode = compiler.partition(":")
    if name == "torch.compile":
        return torch.compile(model, mode=mode or None)
    if name == "weft":
        import weft

        return weft.compile(model, mode=mode or None)
    return model


def call_times(call: Callable[[], Any], calls: int) -> list[float]:
    """Milliseconds of each of ``calls`` calls on the GPU, launches included, after five that don't count."""
    for _ in range(5):
        call()
    times = []
    for _ in range(calls):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        start.record()
        call()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end))
    return times


def median_ms(call: Callable[[], Any]) -> float:
    """Median milliseconds of a call on the GPU."""
    return statistics.median(call_times(call, CALLS))


def measure(subject: str, compiler: str, dtype: torch.dtype, train: bool, lock: str) -> None:
    """One measurement, as a line of JSON: ``ms``, ``first_call_seconds`` and the ``error`` beside eager."""
    from benchmarks.models import MODELS
    from benchmarks.models.comparison import relative_error, tensors

    case = MODELS[subject]
    torch.manual_seed(0)
    mixed = train and dtype != torch.float32
    model = case.build(True).cuda().to(torch.float32 if mixed else dtype)
    inputs = {
        key: value.cuda().to(torch.float32 if mixed else dtype)
        if value.is_floating_point()
        else value.cuda()
        for key, value in case.inputs(True, 0).items()
    }

    def run(function: Any) -> list[torch.Tensor]:
        if not train:
            with torch.no_grad():
                return tensors(function(**inputs))
        model.zero_grad(set_to_none=True)
        with torch.autocast("cuda", dtype=dtype, enabled=mixed):
            results = tensors(function(**inputs))
        loss = torch.stack([t.float().square().mean() for t in results]).sum()
        loss.backward()
        return [loss.detach()]

    wanted = run(model)
    compiled = compile_with(compiler, model)
    torch.cuda.synchronize()
    start = time.perf_counter()
    run(compiled)
    torch.cuda.synchronize()
    first = time.perf_counter() - start
    for _ in range(3):
        got = run(compiled)
    error = max(relative_error(a, b.double()) for a, b in zip(got, wanted, strict=True))
    with open(lock, "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        ms = median_ms(lambda: run(compiled))
    print(json.dumps({"ms": ms, "first_call_seconds": first, "error": error}))


def run_process(
    subject: str, compiler: str, dtype: str, train: bool, lock: str
) -> dict[str, float] | None:
    """:func:`measure` in a process of its own; None, and its last words, where it fails."""
    with tempfile.TemporaryDirectory() as caches:
        environment = {
            **os.environ,
            "WEFT_CACHE_DIR": f"{caches}/weft",
            "TORCHINDUCTOR_CACHE_DIR": f"{caches}/torch",
            "TRITON_CACHE_DIR": f"{caches}/triton",
        }
        process = subprocess.run(
            [
                *(sys.executable, "-m", "benchmarks.gpu", "--measure", compiler),
                *("--dtypes", dtype, "--lock", lock, *(["--train"] if train else []), subject),
            ],
            env=environment,
            capture_output=True,
            text=True,
        )
    if process.returncode:
        print(f"{subject} {compiler} {dtype} failed:\n{process.stderr[-1500:]}", file=sys.stderr)
        return None
    result: dict[str, float] = json.loads(process.stdout.splitlines()[-1])
    return result


def table(results: Results, dtypes: list[str], subjects: list[str], compilers: list[str]) -> str:
    """The results as Markdown: milliseconds, speed-up over eager, and their geometric means."""
    lines = [
        "| model | dtype | " + " | ".join(compilers) + " |",
        "|---|---|" + "---|" * len(compilers),
    ]
    for dtype in dtypes:
        ratios: dict[str, list[float]] = {c: [] for c in compilers}
        for subject in subjects:
            eager = results.get((subject, "eager", dtype))
            cells = []
            for compiler in compilers:
                found = results.get((subject, compiler, dtype))
                if found is None or eager is None:
                    cells.append("failed")
                    continue
                ratio = eager["ms"] / found["ms"]
                ratios[compiler].append(ratio)
                cells.append(
                    f"{found['ms']:.3f} ms, {ratio:.2f}x, first call {found['first_call_seconds']:.1f} s"
                )
            lines.append(f"| {subject} | {dtype} | " + " | ".join(cells) + " |")
        means = [
            f"{math.exp(statistics.fmean(map(math.log, r))):.2f}x of {len(r)}" if r else "-"
            for r in ratios.values()
        ]
        lines.append(f"| geometric mean | {dtype} | " + " | ".join(means) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("subjects", nargs="*", default=list(SUBJECTS))
    parser.add_argument("--compilers", default=",".join(COMPILERS))
    parser.add_argument("--dtypes", default="float32,bfloat16")
    parser.add_argument(
        "--train", action="store_true", help="a step of training, mixed for bfloat16"
    )
    parser.add_argument("--jobs", type=int, default=6, help="processes at once")
    parser.add_argument("--measure", help="one measurement in this process, with this compiler")
    parser.add_argument("--lock", default="")
    arguments = parser.parse_args()
    dtypes = arguments.dtypes.split(",")
    if arguments.measure:
        dtype = getattr(torch, dtypes[0])
        measure(arguments.subjects[0], arguments.measure, dtype, arguments.train, arguments.lock)
        return
    compilers = arguments.compilers.split(",")
    names = [(s, c, d) for d in dtypes for s in arguments.subjects for c in compilers]
    results: Results = {}
    with tempfile.NamedTemporaryFile() as lock, ThreadPoolExecutor(arguments.jobs) as pool:
        found = pool.map(lambda n: run_process(*n, arguments.train, lock.name), names)
        for name, result in zip(names, found, strict=True):
            if result is not None:
                results[name] = result
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}")
    print(table(results, dtypes, arguments.subjects, compilers))
    errors = {n: r["error"] for n, r in results.items() if n[1] == "weft"}
    print("weft's largest relative difference from eager: ", end="")
    print(", ".join(f"{s} {d} {e:.1e}" for (s, _, d), e in errors.items()))


if __name__ == "__main__":
    main()
