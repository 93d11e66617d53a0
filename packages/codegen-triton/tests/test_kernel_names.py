"""Profilers show what kernels compute, although kernels that are alike are compiled once."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F
from weft_codegen_triton import TritonCodegen
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
@pytest.mark.parametrize("cuda_graphs", [False, True])
def test_names_in_profiles(cuda_graphs: bool, tmp_path: object) -> None:
    import weft

    @weft.compile(mode="reduce-overhead" if cuda_graphs else "default")
    def function(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return F.layer_norm(x + 1, (512,)), F.gelu(x * 2).softmax(0)

    x, w = torch.randn(256, 512, device="cuda"), torch.randn(512, 512, device="cuda")
    for _ in range(4):
        function(x, w)
    torch.cuda.synchronize()
    kinds = [torch.profiler.ProfilerActivity.CUDA, torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=kinds) as profile:
        function(x, w)
        torch.cuda.synchronize()
    names = {event.key for event in profile.key_averages()}
    assert any("layer_norm" in name for name in names), names
    assert any("softmax" in name and "gelu" in name for name in names), names
    assert not any(name.startswith("kernel") for name in names), names
    for got, want in zip(function(x, w), function.__wrapped__(x, w), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)


def test_kernels_that_are_alike_share_a_function(codegen: TritonCodegen) -> None:
    from compiled_beside_eager import schedule_of

    first = schedule_of(lambda x, y: x + y, (torch.randn(70), torch.randn(70)), codegen)
    second = schedule_of(lambda x, y: torch.add(y, x), (torch.randn(70), torch.randn(70)), codegen)
    (one,), (other,) = (codegen.print(s).functions.values() for s in (first, second))
    assert one == other
    assert one.module(ENTRY) == other.module(ENTRY)
