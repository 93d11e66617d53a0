"""One measurement of the suite, in this process: build, compile, wait to be told, and time.

Prints ``ready`` once everything is compiled, waits for a line on standard input, and prints a line of JSON:
``ms`` and ``spread`` (the quartiles' distance) of a call, ``first_call_seconds``, ``peak_bytes`` of memory
that is reserved over what model and inputs take, ``allocated_bytes`` of it, ``kernels`` on the GPU in a call,
and ``error`` beside eager.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import torch

from benchmarks.gpu import call_times, compile_with
from benchmarks.gpu_suite.models import SUITE
from benchmarks.models.comparison import relative_error, tensors

CALLS = 20
"""Timed calls, after five to warm up."""


def measure(name: str, compiler: str, dtype: torch.dtype, train: bool) -> None:
    """Measure the model ``name`` under ``compiler`` as the module's text says."""
    run = _Run(name, dtype, train)
    torch.cuda.synchronize()
    held = torch.cuda.memory_allocated()
    wanted = [t.cpu().double() for t in run(None)]
    compiled = compile_with(compiler, run.model)
    start = time.perf_counter()
    run(compiled)
    torch.cuda.synchronize()
    first = time.perf_counter() - start
    got: list[torch.Tensor] = []
    for _ in range(3):
        got = run(compiled)
    error = max(relative_error(a.cpu(), b) for a, b in zip(got, wanted, strict=True))
    del got, wanted
    print("ready", flush=True)
    sys.stdin.readline()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    times = call_times(lambda: run(compiled), CALLS)
    quartiles = statistics.quantiles(times)
    print(
        json.dumps(
            {
                "ms": statistics.median(times),
                "spread": quartiles[2] - quartiles[0],
                "first_call_seconds": first,
                "peak_bytes": torch.cuda.max_memory_reserved() - held,
                "allocated_bytes": torch.cuda.max_memory_allocated() - held,
                "kernels": _kernels(lambda: run(compiled)),
                "error": error,
            }
        )
    )


def print_first_call(name: str, compiler: str) -> None:
    """Print the seconds of the first call of the model ``name`` under ``compiler``, in float16."""
    run = _Run(name, torch.float16, False)
    run(None)
    torch.cuda.synchronize()
    compiled = compile_with(compiler, run.model)
    start = time.perf_counter()
    run(compiled)
    torch.cuda.synchronize()
    print(time.perf_counter() - start)


class _Run:
    """A call of the model, or a step of training under autocast."""

    def __init__(self, name: str, dtype: torch.dtype, train: bool) -> None:
        case = SUITE[name]
        torch.manual_seed(0)
        kept = torch.float32 if train else dtype
        self.model = case.build().cuda().to(kept).train(train)
        self.inputs = {
            key: value.cuda().to(kept) if value.is_floating_point() else value.cuda()
            for key, value in case.inputs(case.batch // 2 if train else case.batch).items()
        }
        for module in self.model.modules():
            if isinstance(module, torch.nn.Dropout):
                module.p = 0.0  # so that results can be compared
        self.dtype, self.train = dtype, train

    def __call__(self, compiled: Any) -> list[torch.Tensor]:
        function = self.model if compiled is None else compiled
        if not self.train:
            with torch.no_grad():
                return tensors(function(**self.inputs))
        self.model.zero_grad(set_to_none=True)
        with torch.autocast("cuda", dtype=self.dtype):
            results = tensors(function(**self.inputs))
        loss = torch.stack([t.float().square().mean() for t in results]).sum()
        loss.backward()
        return [loss.detach()]


def _kernels(call: Callable[[], Any]) -> int:
    """Kernels, copies and fills that a call runs on the GPU."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        call()
        torch.cuda.synchronize()
    return sum(e.device_type == torch.autograd.DeviceType.CUDA for e in profile.events())


if __name__ == "__main__":
    _, subject, chosen, dtype_name, training = sys.argv
    measure(subject, chosen, getattr(torch, dtype_name), training == "train")
