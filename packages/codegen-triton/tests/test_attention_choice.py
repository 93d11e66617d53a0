"""Whether attention becomes a kernel of our own, by times that the tests give; kernels are interpreted."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from compiled_beside_eager import schedule_of
from test_attention import attention, operands, soft_cap
from test_matmul_choice import LIMITS, Clock, Device
from weft_codegen_triton import TritonCodegen
from weft_codegen_triton.attention.choose_attention import AttentionChooser
from weft_codegen_triton.attention.print_attention import print_attention
from weft_codegen_triton.gpu import REFERENCE
from weft_codegen_triton.kernel.index_bounds import ALWAYS_WIDE
from weft_loop_ir import AttentionKernel, Schedule, fuse_attention


@pytest.fixture
def schedule(codegen: TritonCodegen) -> Schedule:
    return schedule_of(attention(soft_cap), operands(torch.float32, 20, 24), codegen)


def found(schedule: Schedule) -> AttentionKernel:
    kernels: list[AttentionKernel] = []
    fuse_attention(schedule, lambda a: kernels.append(a) is not None)
    (kernel,) = kernels
    return kernel


def tiles(kernel: AttentionKernel, schedule: Schedule) -> int:
    return 1 + len(
        print_attention(kernel, schedule.buffers, ALWAYS_WIDE, REFERENCE).function.alternatives
    )


def chooser(device: Device, folder: Path, schedule: Schedule, clock: Clock) -> AttentionChooser:
    return AttentionChooser(device, folder, schedule.buffers, LIMITS, clock)


@pytest.mark.parametrize(("best", "expected"), [(3.0, True), (4.9, False), (6.0, False)])
def test_the_fastest_tile_is_compared(
    schedule: Schedule, tmp_path: Path, best: float, expected: bool
) -> None:
    """It has to be clearly faster; what was found is read from disk, and nothing is compiled then."""
    kernel = found(schedule)
    device, count = Device(tmp_path), tiles(kernel, schedule)
    clock = Clock(5.0, *[7.0] * (count - 1), best)
    assert chooser(device, tmp_path, schedule, clock)(kernel) is expected
    assert clock.times == [] and device.loaded == [count + 1]
    assert chooser(device, tmp_path, schedule, Clock())(kernel) is expected
    assert device.loaded == [count + 1]


def test_kernels_that_fail(schedule: Schedule, tmp_path: Path) -> None:
    """Tiles that don't compile are left out; without any, nothing is known."""
    kernel = found(schedule)
    count = tiles(kernel, schedule)
    some = Device(tmp_path / "some", lambda function: dict(function.constants).get("YBLOCK") == 32)
    clock = Clock(5.0, *[2.0] * (count - 1))
    assert chooser(some, tmp_path / "some", schedule, clock)(kernel) is True
    assert clock.times == []
    none = Device(tmp_path / "none", lambda function: "tl.dot" in function.template)
    assert chooser(none, tmp_path / "none", schedule, Clock(5.0))(kernel) is None


def test_sizes_that_vary_are_not_timed(codegen: TritonCodegen, tmp_path: Path) -> None:
    def function(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        heads = (t.unflatten(-1, (3, 16)).transpose(1, 2) for t in (q, k, v))
        return attention(soft_cap)(*heads)

    inputs = tuple(torch.randn(2, n, 48) for n in (20, 24, 24))
    schedule = schedule_of(function, inputs, codegen, True)
    choose = chooser(Device(tmp_path), tmp_path, schedule, Clock())
    assert schedule.symbols and choose(found(schedule)) is None
