"""One measurement, in a process of its own: ``python -m benchmarks.imperative.measure PROGRAM COMPILER``.

Prints one line of JSON: seconds of the first call, median milliseconds of later ones, the greatest
difference from eager, and for the two compilers the numbers of graphs, graph breaks and compiled kernels.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import time
from collections.abc import Callable
from typing import Any

import torch
from torch.utils import _pytree as pytree

from benchmarks.imperative.programs import PROGRAMS
from benchmarks.measure import compile_with, median_ms

COMPILERS = ("eager", "torch.compile", "torch.jit.script", "weft")


def compiled_by(compiler: str, function: Callable[..., object]) -> Any:
    """``function`` compiled by the named compiler."""
    if compiler == "torch.jit.script":
        return torch.jit.script(function)
    if compiler == "weft":
        import weft

        return weft.compile(function)
    return compile_with(compiler, function)


def difference(got: object, wanted: object) -> float:
    """The greatest absolute difference of the tensors in two results."""
    pairs = zip(pytree.tree_leaves(got), pytree.tree_leaves(wanted), strict=True)
    return max((left.double() - right.double()).abs().max().item() for left, right in pairs)


def counts(compiler: str, log: Any) -> dict[str, int]:
    """Graphs, graph breaks and kernels of what was compiled; empty for the other two."""
    if compiler == "weft":
        breaks = len(log.graph_breaks)
        return {"graphs": len(log.graphs), "breaks": breaks, "kernels": log.kernel_count}
    if compiler == "torch.compile":
        from torch._dynamo.utils import counters
        from torch._inductor import metrics

        breaks = sum(counters["graph_break"].values())
        kernels = metrics.generated_kernel_count
        return {"graphs": counters["stats"]["unique_graphs"], "breaks": breaks, "kernels": kernels}
    return {}


def observed(compiler: str) -> Any:
    """A context that gives the log of weft's compilations; of nothing for other compilers."""
    if compiler != "weft":
        return contextlib.nullcontext()
    import weft

    return weft.observe(weft.CompileLog())


def _nothing() -> None:
    """The CPU has done its work when a call returns."""


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("program", choices=tuple(PROGRAMS))
    parser.add_argument("compiler", choices=COMPILERS)
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    program = PROGRAMS[options.program]
    inputs = tuple(x.to(options.device) for x in program.inputs())
    wait = torch.cuda.synchronize if options.device == "cuda" else _nothing
    with torch.no_grad(), observed(options.compiler) as log:
        wanted = program.function(*inputs)
        start = time.perf_counter()
        compiled = compiled_by(options.compiler, program.function)
        got = compiled(*inputs)
        wait()
        first = time.perf_counter() - start
        compiled(*inputs)  # TorchScript specialises at the second call
        result = {
            "first_call_seconds": first,
            "steady_ms": median_ms(lambda: (compiled(*inputs), wait()), options.seconds),
            "difference": difference(got, wanted),
        }
        result |= counts(options.compiler, log)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
