"""One measurement, in a process of its own: ``python -m benchmarks.measure SUBJECT COMPILER``.

Prints one line of JSON.  SUBJECT is a model's name or ``trivial``.  COMPILER is eager,
torch.compile, weft, or torch-capture+weft (weft's stages behind torch's own capture).
``first_call_seconds`` starts after the imports that a user's program has anyway and includes the
compiler's own; ``steady_ms`` and ``call_us`` are medians.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch


def compile_with(compiler: str, model: Any) -> Any:
    """``model`` compiled by the named compiler; the compiler is imported only here."""
    if compiler == "torch.compile":
        return torch.compile(model)
    if compiler == "torch-capture+weft":
        return torch.compile(model, backend="weft", dynamic=False)
    if compiler == "weft":
        import weft

        return weft.compile(model)
    return model


def trivial(x: torch.Tensor) -> torch.Tensor:
    """One addition: what is measured is the cost of getting there."""
    return x + 1


def median_ms(
    function: Callable[[], Any], seconds: float, clock: Callable[[], float] = time.perf_counter
) -> float:
    """Median milliseconds of a call by ``clock``, over calls that fill ``seconds`` (at least five)."""
    function()
    times: list[float] = []
    end = time.perf_counter() + seconds
    while len(times) < 5 or time.perf_counter() < end:
        start = clock()
        function()
        times.append((clock() - start) * 1e3)
    return statistics.median(times)


def measure_model(name: str, compiler: str, seconds: float) -> dict[str, Any]:
    """First call and steady time of a model, and its error against eager."""
    from benchmarks.models import MODELS

    case = MODELS[name]
    torch.manual_seed(0)
    model = case.build(True)
    inputs = case.inputs(True, 0)
    with torch.no_grad():
        model(**inputs)  # what eager itself sets up at a first call is not the compiler's
        start = time.perf_counter()
        compiled = compile_with(compiler, model)
        compiled(**inputs)
        first = time.perf_counter() - start
        steady = median_ms(lambda: compiled(**inputs), seconds)
    return {"first_call_seconds": first, "steady_ms": steady}


def measure_trivial(compiler: str, seconds: float) -> dict[str, Any]:
    """First call of a one-kernel function and the time of a call on eight numbers."""
    x = torch.randn(8)
    with torch.no_grad():
        start = time.perf_counter()
        compiled = compile_with(compiler, trivial)
        compiled(x)
        first = time.perf_counter() - start
        calls = 2000
        times = []
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            start = time.perf_counter()
            for _ in range(calls):
                compiled(x)
            times.append((time.perf_counter() - start) / calls * 1e6)
    return {"first_call_seconds": first, "call_us": statistics.median(times)}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("subject")
    parser.add_argument(
        "compiler", choices=("eager", "torch.compile", "torch-capture+weft", "weft")
    )
    parser.add_argument("--seconds", type=float, default=5.0)
    options = parser.parse_args()
    if options.subject == "trivial":
        result = measure_trivial(options.compiler, options.seconds)
    else:
        result = measure_model(options.subject, options.compiler, options.seconds)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
