"""One measurement of the suite, in this process: build, compile, compare with float64, wait, and time.

Prints ``ready`` once everything is compiled, waits for a line on standard input, and prints a line of JSON:
``ms`` and ``spread`` (the quartiles' distance) of a call, ``first_call_seconds``, ``peak_bytes`` of memory
that is reserved over what model and inputs take, ``kernels`` on the GPU in a call, ``errors`` beside float64,
and ``machine``.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from platform import python_version
from typing import Any

import torch

from benchmarks.gpu import compile_with
from benchmarks.gpu_suite.accuracy import Values, errors, on_some_device, reference
from benchmarks.gpu_suite.device import Device, Gpu, Processor, median_and_spread
from benchmarks.gpu_suite.models import SUITE
from benchmarks.gpu_suite.results import Task
from benchmarks.models.comparison import tensors

LOSS_SCALE = 2.0**16
"""What torch's GradScaler begins with: without it float16 holds hardly any gradient of a mean."""


def measure(name: str, compiler: str, task: Task, references: Path, device: Device) -> None:
    """Measure the model ``name`` under ``compiler`` as the module's text says."""
    run = Run(name, task, device)
    held = device.held_bytes()
    run(run.model)  # what eager sets up at a first call is no compiler's
    compiled = compile_with(compiler, run.model)
    first = _seconds_of_call(run, compiled, device)
    # Eager's process comes here first: the others are still compiling.
    exact = reference(
        references / f"{name.replace('/', '-')}-{task}",
        lambda: on_some_device(run.in_float64, run.model, run.inputs),
    )
    values: Values = {}
    for _ in range(3):
        values = run(compiled)
    found = errors(values, exact)
    del values, exact
    print("ready", flush=True)
    sys.stdin.readline()
    device.forget_peak()
    ms, spread = median_and_spread(device.times(lambda: run(compiled)))
    result = {
        "ms": ms,
        "spread": spread,
        "first_call_seconds": first,
        "peak_bytes": device.peak_bytes() - held,
        "kernels": device.kernels(lambda: run(compiled)),
        "errors": found,
        "machine": machine(device),
    }
    print(json.dumps(result))


def print_first_call(name: str, compiler: str) -> None:
    """Print the seconds of the first call of the model ``name`` under ``compiler``, in float16."""
    device = Gpu()
    run = Run(name, Task("infer", "float16"), device)
    run(run.model)
    print(_seconds_of_call(run, compile_with(compiler, run.model), device))


def _seconds_of_call(run: Run, compiled: Any, device: Device) -> float:
    device.synchronize()
    start = time.perf_counter()
    run(compiled)
    device.synchronize()
    return time.perf_counter() - start


def machine(device: Device) -> str:
    """The hardware, and the versions of what is measured."""
    parts = [device.describe(), f"Python {python_version()}"]
    for package in ("torch", "triton", "transformers", "timm"):
        try:
            parts.append(f"{package} {version(package)}")
        except PackageNotFoundError:
            continue  # the models of the others can be measured
    return ", ".join(parts)


class Run:
    """A call of the model, or a step of training under autocast; tiny variants on a processor."""

    def __init__(self, name: str, task: Task, device: Device) -> None:
        case, train, tiny = SUITE[name], task.what == "train", device.name == "cpu"
        self.task = task
        torch.manual_seed(0)
        dtype = getattr(torch, task.dtype)
        kept = torch.float32 if train else dtype
        self.model = case.build(tiny).to(device.name, kept).train(train)
        batch = 2 if tiny else case.batch // 2 if train else case.batch
        self.inputs: dict[str, torch.Tensor] = {
            key: value.to(device.name, kept if value.is_floating_point() else None)
            for key, value in case.inputs(batch, tiny).items()
        }
        self._autocast = torch.autocast(device.name, dtype=dtype, enabled=train)

    def __call__(self, function: Any) -> Values:
        """What the model gives when called as ``function``, which is the model itself or compiled from it."""
        if self.task.what == "infer":
            return self._infer(function, self.inputs)
        self.model.zero_grad(set_to_none=True)
        with self._autocast:
            results = tensors(function(**self.inputs))
        return self._backward(results, self.model)

    def in_float64(self, model: torch.nn.Module, inputs: dict[str, Any]) -> Values:
        """The same of a model and inputs in float64."""
        if self.task.what == "infer":
            return self._infer(model, inputs)
        return self._backward(tensors(model(**inputs)), model)

    def _infer(self, function: Any, inputs: dict[str, Any]) -> Values:
        with torch.no_grad():
            return {"outputs": tensors(function(**inputs))}

    def _backward(self, results: list[torch.Tensor], model: torch.nn.Module) -> Values:
        """The mean squares of what the model gives are the loss."""
        exact = (t.to(torch.promote_types(t.dtype, torch.float32)) for t in results)
        loss = torch.stack([t.square().mean() for t in exact]).sum()
        (loss * LOSS_SCALE).backward()
        gradients = [p.grad for p in model.parameters() if p.grad is not None]
        return {"loss": [loss.detach()], "gradients": gradients}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("compiler")
    parser.add_argument("task", type=Task.parse)
    parser.add_argument("references", type=Path, help="folder of the results in float64")
    parser.add_argument("--dry", action="store_true")
    options = parser.parse_args()
    device = Processor() if options.dry else Gpu()
    measure(options.model, options.compiler, options.task, options.references, device)


if __name__ == "__main__":
    main()
