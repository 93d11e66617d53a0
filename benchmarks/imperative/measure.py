"""One measurement, in a process of its own: ``python -m benchmarks.imperative.measure PROGRAM COMPILER``.

Prints one line of JSON: seconds of the first call, median milliseconds of later ones, the greatest
difference from eager, and for weft the number of graphs.
"""

from __future__ import annotations

import argparse
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

        return weft.compile(function, options={"keep_control_flow": True})
    return compile_with(compiler, function)


def difference(got: object, wanted: object) -> float:
    """The greatest absolute difference of the tensors in two results."""
    pairs = zip(pytree.tree_leaves(got), pytree.tree_leaves(wanted), strict=True)
    return max((left.double() - right.double()).abs().max().item() for left, right in pairs)


def graph_count(function: Callable[..., object], inputs: tuple[torch.Tensor, ...]) -> int:
    """How many graphs weft's capture makes of a program."""
    from weft_bytecode_capture import capture

    return len(capture(function)(*inputs).graphs)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("program", choices=tuple(PROGRAMS))
    parser.add_argument("compiler", choices=COMPILERS)
    parser.add_argument("--seconds", type=float, default=1.0)
    options = parser.parse_args()
    program = PROGRAMS[options.program]
    inputs = program.inputs()
    with torch.no_grad():
        wanted = program.function(*inputs)
        start = time.perf_counter()
        compiled = compiled_by(options.compiler, program.function)
        got = compiled(*inputs)
        first = time.perf_counter() - start
        compiled(*inputs)  # TorchScript specialises at the second call
        result = {
            "first_call_seconds": first,
            "steady_ms": median_ms(lambda: compiled(*inputs), options.seconds),
            "difference": difference(got, wanted),
        }
        if options.compiler == "weft":
            result["graphs"] = graph_count(program.function, inputs)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
