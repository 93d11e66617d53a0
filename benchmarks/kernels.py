"""Six kernels beside eager and torch.compile: ``python -m benchmarks.kernels [--rounds N] [--threads N]``.

All three run in one process, in turn within each round, so that a drift of the machine hits all alike; the
figures are medians over the rounds, and the ratios medians of the rounds' ratios.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
import weft
from torch.nn import functional as F

ROWS = 1024


def pointwise(x: torch.Tensor, a: torch.Tensor, b: torch.Tensor, r: torch.Tensor) -> torch.Tensor:
    return F.gelu(x * a + b) + r


def softmax(x: torch.Tensor) -> torch.Tensor:
    return torch.softmax(x, -1)


def layer_norm(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return F.layer_norm(x, x.shape[-1:], weight, bias)


def lstm_cell(gates: torch.Tensor, cell: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    i, f, z, o = gates.chunk(4, 1)
    cell = torch.sigmoid(f) * cell + torch.sigmoid(i) * torch.tanh(z)
    return torch.sigmoid(o) * torch.tanh(cell), cell


def column_sum(x: torch.Tensor) -> torch.Tensor:
    return x.sum(0)


def transposed_sum(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return x.t() + y


Shape = tuple[int, ...]
SQUARE: Shape = (ROWS, ROWS)
KERNELS: tuple[tuple[str, Callable[..., Any], tuple[Shape, ...]], ...] = (
    # name, function, shapes of its inputs
    ("gelu(x*a+b)+r", pointwise, (SQUARE, (ROWS,), (ROWS,), SQUARE)),
    ("softmax", softmax, (SQUARE,)),
    ("layer norm", layer_norm, (SQUARE, (ROWS,), (ROWS,))),
    ("LSTM cell", lstm_cell, ((256, 4096), (256, ROWS))),
    ("sum(dim=0)", column_sum, (SQUARE,)),
    ("x.t()+y", transposed_sum, (SQUARE, SQUARE)),
)


def microseconds(function: Callable[[], Any], seconds: float) -> float:
    """The median time of a call over about ``seconds``."""
    times = []
    end = time.perf_counter() + seconds
    while len(times) < 5 or time.perf_counter() < end:
        start = time.perf_counter()
        function()
        times.append((time.perf_counter() - start) * 1e6)
    return statistics.median(times)


def measure(
    function: Callable[..., Any], inputs: tuple[torch.Tensor, ...], rounds: int
) -> dict[str, list[float]]:
    """Microseconds a call by compiler, one figure a round."""
    torch.compiler.reset()
    weft.reset()
    programs = {
        "eager": function,
        "torch.compile": torch.compile(function),
        "weft": weft.compile(function),
    }
    expected = function(*inputs)
    for program in programs.values():
        torch.testing.assert_close(program(*inputs), expected, rtol=6e-2, atol=6e-2)
    results: dict[str, list[float]] = {name: [] for name in programs}
    for _ in range(rounds):
        for name, program in programs.items():
            results[name].append(microseconds(lambda program=program: program(*inputs), 0.1))  # type: ignore[misc]
    return results


def ratio(results: dict[str, list[float]], base: str) -> float:
    """weft's time over that of ``base``, the median over the rounds."""
    return statistics.median(
        mine / other for mine, other in zip(results["weft"], results[base], strict=True)
    )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--only", nargs="*", default=[""], help="parts of kernels' names")
    parser.add_argument("--dtype", nargs="*", default=["float32", "bfloat16"])
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    print(f"| kernel, {options.threads} thread(s) | dtype | eager µs | torch.compile µs | weft µs "
          "| weft over eager | weft over torch.compile |")  # fmt: skip
    print("|---|---|---|---|---|---|---|")
    with torch.no_grad():
        for dtype in (getattr(torch, name) for name in options.dtype):
            for name, function, shapes in KERNELS:
                if not any(part in name for part in options.only):
                    continue
                torch.manual_seed(0)
                inputs = tuple(torch.randn(shape).to(dtype) for shape in shapes)
                results = measure(function, inputs, options.rounds)
                times = " | ".join(f"{statistics.median(t):.0f}" for t in results.values())
                print(
                    f"| {name} | {str(dtype).removeprefix('torch.')} | {times} "
                    f"| {ratio(results, 'eager'):.2f} | {ratio(results, 'torch.compile'):.2f} |",
                    flush=True,
                )


if __name__ == "__main__":
    main()
