"""Profilers show what kernels compute, although kernels that are alike are compiled once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from compiled_beside_eager import schedule_of
from torch.nn import functional as F
from weft_codegen_triton import TritonCodegen, TritonOptions
from weft_codegen_triton.compilation.binary import ENTRY, KernelBinary


def test_a_binary_is_given_a_name_when_it_is_loaded() -> None:
    table = b"\0" + ENTRY.encode() + b"\0.text." + ENTRY.encode() + b"\0end\0"
    binary = KernelBinary(ENTRY, b"\x7fELF" + table, 0, 4, 0)
    called = binary.called("add_layer_norm_12")
    assert called.name == "add_layer_norm"
    assert len(called.cubin) == len(binary.cubin)
    strings = [text for text in called.cubin.split(b"\0") if text]
    assert strings == [b"\x7fELF", b"add_layer_norm", b".text.add_layer_norm", b"end"]
    assert binary.called("matmul_extern3").name == "matmul"
    assert binary.called("x" * 200).name == "x" * len(ENTRY)
    assert KernelBinary("other", b"other\0", 0, 4, 0).called("add_1").name == "other"


@pytest.mark.gpu
@pytest.mark.parametrize("options", [{}, {"min_recorded_steps": 1}, {"autotune": True}], ids=str)
def test_names_in_profiles(options: dict[str, Any], cache: Path) -> None:
    """Launched one by one, from a CUDA graph, and of several variants the one that was chosen."""

    def function(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return F.layer_norm(x + 1, (512,)), F.gelu(x * 2).softmax(0)

    choice = TritonOptions(cache_directory=cache / "gpu", interpret=False, **options)
    codegen = TritonCodegen(choice)
    inputs = (torch.randn(256, 512, device="cuda"),)
    program = codegen.compile(schedule_of(function, inputs, codegen), {})
    for _ in range(4):
        program(*inputs)
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        results = program(*inputs)
        torch.cuda.synchronize()
    names = {event.key for event in profile.key_averages()}
    assert any("layer_norm" in name for name in names), names
    assert any("gelu" in name for name in names), names
    assert not any(name.startswith("kernel") for name in names), names
    for result, value in zip(results, function(*inputs), strict=True):
        torch.testing.assert_close(result, value, rtol=1e-4, atol=1e-4)


def test_kernels_that_are_alike_share_a_function(codegen: TritonCodegen) -> None:
    first = schedule_of(lambda x, y: x + y, (torch.randn(70), torch.randn(70)), codegen)
    second = schedule_of(lambda x, y: torch.add(y, x), (torch.randn(70), torch.randn(70)), codegen)
    (one,), (other,) = (codegen.print(s).functions.values() for s in (first, second))
    assert one == other
    assert one.module(ENTRY) == other.module(ENTRY)
