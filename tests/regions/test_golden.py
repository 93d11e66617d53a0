"""The generated code of branches and loops, in files that ``pytest --update-golden`` writes anew.

Each file has the schedule, then the C++ program, then the Triton one.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.fx
import weft_aot_autograd
import weft_functionalize
import weft_loop_ir
from weft_bytecode_capture import capture
from weft_codegen_cpp import CppCodegen, CppOptions
from weft_codegen_triton import TritonCodegen, TritonOptions
from weft_codegen_triton.gpu import REFERENCE
from weft_codegen_triton.program_loops.find_loops import put_loops_into_programs
from weft_loop_ir import Schedule, ScheduleOptions, format_schedule

FOLDER = Path(__file__).parent / "golden"
CPP = CppCodegen(CppOptions(lanes=8, matmul_library="torch"))
TRITON = TritonCodegen(TritonOptions(interpret=True))


def counted_in_a_kernel(x: torch.Tensor) -> torch.Tensor:
    for _ in range(20):
        x = x - 0.1 * x * x
    return x


def until_in_a_kernel(n: torch.Tensor) -> torch.Tensor:
    steps = torch.zeros_like(n)
    while (n > 1).any():
        active = n > 1
        n = torch.where(active, torch.where(n % 2 == 0, n // 2, 3 * n + 1), n)
        steps = steps + active
    return steps


def branch(x: torch.Tensor) -> torch.Tensor:
    if x.sum() > 0:
        return torch.cumsum(x, 0)
    return x * 2


def rows_in_parallel(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for i in range(x.shape[0]):
        out[i] = torch.softmax(x[i], 0) * i
    return out


def loop_of_the_host(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    out = torch.zeros(30, 256)
    for i in range(30):
        x = torch.tanh(x @ w)
        if x[0, 0] > 0:
            out[i] = x[0]
        if x.sum() > 100:
            break
    return out


def loop_of_one_program(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    x, before = torch.zeros_like(b), torch.ones_like(b)
    while (x - before).abs().max() > 1e-5:
        before = x
        x = x + 0.5 * (b - a @ x)
    return x


CASES: dict[str, tuple[Callable[..., Any], tuple[torch.Tensor, ...]]] = {
    "counted_in_a_kernel": (counted_in_a_kernel, (torch.rand(300),)),
    "until_in_a_kernel": (until_in_a_kernel, (torch.arange(1, 301),)),
    "branch": (branch, (torch.rand(300),)),
    "rows_in_parallel": (rows_in_parallel, (torch.rand(24, 300),)),
    "loop_of_the_host": (loop_of_the_host, (torch.rand(256, 256), torch.rand(256, 256))),
    "loop_of_one_program": (loop_of_one_program, (torch.eye(100), torch.rand(100, 1))),
}


def scheduled(
    function: Callable[..., Any], inputs: tuple[torch.Tensor, ...], options: ScheduleOptions
) -> Schedule:
    """The schedule of ``function``, captured as one graph."""
    found: list[Schedule] = []

    def backend(module: torch.fx.GraphModule, given: list[Any]) -> Callable[..., Any]:
        functional = weft_functionalize.functionalize(module, given)
        forward = weft_aot_autograd.trace_inference(functional)
        lowered = weft_loop_ir.lower(forward.graph_module)
        found.append(weft_loop_ir.schedule(lowered, options))
        return module.forward

    with torch.no_grad():
        capture(function, backend=backend)(*inputs)
    (schedule,) = found
    return schedule


def generated(function: Callable[..., Any], inputs: tuple[torch.Tensor, ...]) -> str:
    """Everything that is generated of ``function``, as text."""
    schedule = scheduled(function, inputs, CPP.schedule_options)
    unit, _ = CPP.print(schedule, {})
    on_gpu = put_loops_into_programs(
        scheduled(function, inputs, TRITON.schedule_options), REFERENCE
    )
    parts = (format_schedule(schedule), unit.whole, TRITON.print(on_gpu).source)
    return "\n".join(part.rstrip() + "\n" for part in parts)


@pytest.mark.kept  # text that changes on purpose alone
@pytest.mark.parametrize("name", CASES)
def test_generated_code(name: str, request: pytest.FixtureRequest) -> None:
    text = generated(*CASES[name])
    path = FOLDER / f"{name}.txt"
    if request.config.getoption("--update-golden", default=False):
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    assert text == path.read_text()
