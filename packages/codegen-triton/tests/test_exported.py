"""Programs for files: what they compute when they are loaded, of what, and what is compiled for them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from compiled_beside_eager import assert_equals_eager, compiled
from torch.nn import functional as F
from weft_codegen_triton import TritonCodegen, TritonOptions
from weft_codegen_triton.compilation.binary import KernelBinary
from weft_codegen_triton.errors import LaunchError
from weft_codegen_triton.exported import PortableProgram, export_program
from weft_codegen_triton.kernel.kernel_printer import Function
from weft_codegen_triton.runtime import cuda_device
from weft_codegen_triton.runtime.autotuning import TunedKernel
from weft_codegen_triton.runtime.cuda_device import CudaDevice
from weft_codegen_triton.runtime.interpreter import InterpretedDevice

T = torch.Tensor
LIMIT = 1000
"""Indices that have to be below this in narrow kernels, here."""


def mlp(x: T, w: T) -> tuple[T, ...]:
    return F.gelu(x @ w) + 1, x.softmax(-1), torch.topk(x, 2).indices


CASES: dict[str, tuple[Callable[..., Any], Callable[[int], tuple[Any, ...]], tuple[int, ...]]] = {
    "calls and kernels": (mlp, lambda n: (torch.randn(n, 8), torch.randn(8, 8)), ()),
    "one kernel": (lambda x: x.exp() + 1, lambda n: (torch.randn(n, 40),), ()),
    "sizes with wide indices": (lambda x: x.exp() + 1, lambda n: (torch.randn(n, 40),), (5, 61, 0)),
    "aligned sizes": (
        lambda x: (x.softmax(-1), x.sum(0)),
        lambda n: (torch.randn(3, n),),
        (16, 33, 640),
    ),
    "a scan": (lambda x: x.cumsum(1) * 2, lambda n: (torch.randn(3, n),), ()),
}


@pytest.fixture
def compiles_nothing(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """From its call on, nothing but kernels of files is loaded."""

    def refuse(self: InterpretedDevice, functions: Mapping[str, Function]) -> Any:
        pytest.fail(f"{list(functions)} would be compiled")

    def begin() -> None:
        monkeypatch.setattr(InterpretedDevice, "load", refuse)
        monkeypatch.setattr(InterpretedDevice, "compile_variants", refuse)

    return begin


@pytest.mark.parametrize("name", CASES)
def test_loaded_programs_compute_the_same(
    name: str, cache: Path, compiles_nothing: Callable[[], None]
) -> None:
    """Kernels for sizes that no call has had yet are in the file too."""
    function, sized, sizes = CASES[name]
    codegen = TritonCodegen(TritonOptions(cache_directory=cache, narrow_below=LIMIT))
    program = compiled(codegen, function, *sized(32), dynamic=bool(sizes))
    exported = codegen.export(program.generated)
    compiles_nothing()
    again = codegen.load_exported(exported.generated, exported.code)
    assert (again.kernel_count, again.extern_count) == (program.kernel_count, program.extern_count)
    for size in sizes or (32,):
        inputs = sized(size)
        assert_equals_eager(again(*inputs), function, inputs)


def test_the_plain_part_has_no_code(codegen: TritonCodegen) -> None:
    """All that is run is in the bytes, whose checksum a file has."""
    program = compiled(codegen, mlp, torch.randn(4, 8), torch.randn(8, 8))
    exported = codegen.export(program.generated)
    text = repr(dataclasses.asdict(exported.generated.generated.printed))
    assert "def compute" in program.source and "def compute" not in text
    assert "tl.load" in program.source and "tl.load" not in text
    code = b"".join(exported.code)
    assert b"def compute" in code and b"tl.load" in code
    assert exported.needs.items() <= codegen.target().items()
    assert not TritonCodegen(TritonOptions(interpret=False)).target().keys() & exported.needs.keys()


class Compiler:
    """Gives binaries that tell what they are compiled of; ``asked`` are their keys."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def compile_each(self, jobs: Any) -> dict[str, KernelBinary]:
        found = {
            job.key(): KernelBinary(job.name, job.key().encode(), 64, job.warps, 2) for job in jobs
        }
        self.asked += found
        return found

    compile = compile_each


@pytest.fixture
def device_of(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., CudaDevice]:
    """Makes devices whose kernels are their binaries; without a compiler there is none."""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda index: (9, 0))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda index: "a device")
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(cuda_device, "current_device", lambda: 0)
    monkeypatch.setattr(cuda_device, "make_context_current", lambda index: None)

    def make(compiler: Compiler | None, *, autotune: bool = False) -> CudaDevice:
        def server(folder: Path, processes: int) -> Compiler:
            assert compiler is not None, "a compiler is looked for"
            return compiler

        monkeypatch.setattr(cuda_device, "compile_server", server)
        return CudaDevice(None, tmp_path, TritonOptions(autotune=autotune))

    return make


def exported_for(
    device: CudaDevice, codegen: TritonCodegen, *inputs: T
) -> tuple[PortableProgram, bytes]:
    program = compiled(codegen, lambda x: (x.exp(), x.softmax(-1)), *inputs)
    return export_program(program.generated, device.compile_variants)


def test_machine_code_is_loaded_without_a_compiler(
    device_of: Callable[..., CudaDevice], codegen: TritonCodegen, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler = Compiler()
    portable, code = exported_for(device_of(compiler), codegen, torch.randn(64, 4096))
    loaded: list[tuple[KernelBinary, int]] = []
    monkeypatch.setattr(cuda_device, "load_kernel", lambda *given: loaded.append(given) or given)
    idle = device_of(None)
    for function, variants in portable.kernels.items():
        assert list(variants) == [0]
        launcher = idle.load_variants(
            "exp_0", function, {k: v.compiled(code) for k, v in variants.items()}
        )
        binary, count = loaded.pop()
        assert launcher == (binary, count) and count == len(function.parameters)
        assert (binary.shared_bytes, binary.warps, binary.scratch_parameters) == (
            64,
            function.warps,
            2,
        )
        assert binary.cubin.decode() in compiler.asked


def test_kernels_that_are_yet_to_be_timed_are_saved_with_their_variants(
    device_of: Callable[..., CudaDevice], codegen: TritonCodegen, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that does not fit the device is left out; of what was chosen before, nothing else is saved."""
    device = device_of(Compiler(), autotune=True)
    portable, code = exported_for(device, codegen, torch.randn(64, 4096))
    function, variants = max(portable.kernels.items(), key=lambda item: len(item[1]))
    numbers = list(variants)
    assert numbers[0] == 0 and len(numbers) > 2
    assert {v.function.template for v in variants.values()} == {function.template}
    compiled_ones = {k: v.compiled(code) for k, v in variants.items()}
    too_large = {compiled_ones[1][1].cubin}

    def load_kernel(binary: KernelBinary, count: int) -> Callable[..., None]:
        if binary.cubin in too_large:
            raise LaunchError("it is too large")
        return lambda *arguments: None

    monkeypatch.setattr(cuda_device, "load_kernel", load_kernel)
    kernel = device_of(None).load_variants("exp_0", function, compiled_ones)
    assert isinstance(kernel, TunedKernel)
    assert list(kernel._kernels) == [0, *numbers[2:]] and not kernel.is_decided
    too_large.add(compiled_ones[0][1].cubin)
    with pytest.raises(LaunchError, match="exp_0"):
        device_of(None).load_variants("exp_0", function, compiled_ones)

    device = device_of(Compiler(), autotune=True)
    (printed,) = [f for f in portable.kernels if f == function]
    chosen = device._several({"kernel": printed})["kernel"]
    chosen.choice.write(2)
    assert list(device.compile_variants({"kernel": printed})["kernel"]) == [2]
    kernel = device_of(None).load_variants("exp_0", function, {2: compiled_ones[2]})
    assert isinstance(kernel, TunedKernel) and kernel.is_decided
