"""The variants of a kernel that are timed, and what is made of the times."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import pytest
import torch
from compiled_beside_eager import schedule_of
from weft_codegen_triton import TritonCodegen, TritonOptions
from weft_codegen_triton.compilation.binary import CompileJob, KernelBinary
from weft_codegen_triton.errors import CompileError
from weft_codegen_triton.kernel.kernel_printer import Function
from weft_codegen_triton.runtime.autotuning import (
    MAX_KERNELS,
    Choice,
    TunedKernel,
    TunedLaunchList,
    max_variants,
    variants,
)
from weft_codegen_triton.runtime.cuda_device import CudaDevice
from weft_codegen_triton.runtime.launch_list import Launches, LaunchList


def functions_of(codegen: TritonCodegen, function: object, *inputs: torch.Tensor) -> list[Function]:
    return list(codegen.print(schedule_of(function, inputs, codegen)).functions.values())  # type: ignore[arg-type]


def test_pointwise_kernels_vary_in_block_and_warps(codegen: TritonCodegen) -> None:
    (function,) = functions_of(codegen, lambda x: x + 1, torch.empty(1 << 20))
    found = variants(function)
    assert found[0] == function
    assert len(found) > 3
    assert {f.template for f in found} == {function.template}
    assert len({dict(f.constants)["XBLOCK"] for f in found}) > 1
    assert len({f.warps for f in found}) > 1


def test_rows_in_registers_keep_their_length(codegen: TritonCodegen) -> None:
    (function,) = functions_of(codegen, lambda x: x.softmax(1), torch.empty(500, 1000))
    assert {dict(f.constants)["RBLOCK"] for f in variants(function)} == {1024}


def test_loops_vary_in_their_step(codegen: TritonCodegen) -> None:
    (function,) = functions_of(codegen, lambda x: x.softmax(1), torch.empty(500, 20000))
    assert len({dict(f.constants)["RBLOCK"] for f in variants(function)}) > 1


def test_what_accumulates_is_not_run_twice(codegen: TritonCodegen) -> None:
    inputs = torch.empty(9, 5), torch.zeros(4, 5, dtype=torch.int64), torch.empty(4, 5)
    functions = functions_of(codegen, lambda t, i, s: t.scatter_add(0, i, s), *inputs)
    assert [len(variants(f)) > 1 for f in functions] == [True, False]


def test_a_program_of_many_kernels_has_few_variants_of_each(codegen: TritonCodegen) -> None:
    (function,) = functions_of(codegen, lambda x: x + 1, torch.empty(1 << 20))
    found = variants(function)
    assert max_variants(1) >= len(found) > 3
    assert all(n * max_variants(n) <= max(n, MAX_KERNELS) for n in (0, 1, 10, 100, 1000))
    assert [len(variants(function, k)) for k in (1, 3)] == [1, 3]
    assert variants(function, 3) == found[:3]


class Recorder:
    """A kernel that notes its launches in ``launched``: its number, the columns, the arguments."""

    def __init__(self, number: int, launched: list[tuple[int, ...]]) -> None:
        self.number = number
        self.launched = launched

    def __call__(self, stream: int, columns: int, rows: int, *arguments: int) -> None:
        self.launched.append((self.number, columns, *arguments))


@pytest.fixture
def found(codegen: TritonCodegen, monkeypatch: pytest.MonkeyPatch) -> tuple[Function, ...]:
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    (function,) = functions_of(codegen, lambda x: x + 1, torch.empty(1 << 20))
    return variants(function)


def choice(folder: Path, found: tuple[Function, ...], device: str = "here") -> Choice:
    return Choice(folder, [str(f) for f in found], device)


def tuned(
    folder: Path, found: tuple[Function, ...], launched: list[tuple[int, ...]], *times: float
) -> TunedKernel:
    """The variants on a device on which they take ``times``."""
    left = list(times)

    def clock(runs: Sequence[Callable[[], None]], device: torch.device) -> float:
        runs[0]()
        return left.pop(0)

    known = choice(folder, found).read()
    numbers = range(len(found)) if known is None else [known]
    kernels = {k: Recorder(k, launched) for k in numbers}
    functions = dict(enumerate(found))
    return TunedKernel(kernels, functions, choice(folder, found), torch.device("cpu"), clock)


def columns_of(found: tuple[Function, ...], number: int, columns: int) -> int:
    block, first = (dict(f.constants)["XBLOCK"] for f in (found[number], found[0]))
    return -(-columns * first // block)


@pytest.mark.parametrize(("second", "chosen"), [(0.5, 1), (0.98, 0), (1.5, 0)])
def test_the_first_variant_stays_unless_another_is_clearly_faster(
    found: tuple[Function, ...], tmp_path: Path, second: float, chosen: int
) -> None:
    launched: list[tuple[int, ...]] = []
    kernel = tuned(tmp_path, found, launched, 1.0, second, *[2.0] * (len(found) - 2))
    kernel(0, 1024, 1, 77)
    assert [number for number, *_ in launched] == [*range(len(found)), chosen]
    del launched[:]
    kernel(0, 1024, 1, 77)
    # another process reads what was found, and has no other variant
    tuned(tmp_path, found, launched)(0, 1024, 1, 77)
    assert launched == [(chosen, columns_of(found, chosen, 1024), 77)] * 2


def test_nothing_is_timed_in_a_recording(
    found: tuple[Function, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    launched: list[tuple[int, ...]] = []
    kernel = tuned(tmp_path, found, launched, 2.0, 1.0, *[2.0] * (len(found) - 2))
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    kernel(0, 1024, 1, 77)
    assert launched == [(0, 1024, 77)] and not kernel.is_decided
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    kernel(0, 1024, 1, 77)
    assert kernel.is_decided


def test_the_grid_is_given_in_the_first_variants_blocks(
    found: tuple[Function, ...], tmp_path: Path
) -> None:
    launched: list[tuple[int, ...]] = []
    for number in range(len(found)):
        choice(tmp_path, found).write(number)
        tuned(tmp_path, found, launched)(0, 1024, 1, 77)
        assert launched[-1] == (number, columns_of(found, number, 1024), 77)


@pytest.mark.parametrize("text", ["", "[]x", '{"device": "there", "chosen": 1}', '{"chosen": 99}'])
def test_a_choice_made_elsewhere_is_not_taken(
    found: tuple[Function, ...], tmp_path: Path, text: str
) -> None:
    choice(tmp_path, found).write(1)
    (path,) = tmp_path.glob("*.tuned")
    assert choice(tmp_path, found).read() == 1
    assert choice(tmp_path, found[:-1]).read() is None
    path.write_text(text)
    assert choice(tmp_path, found).read() is None


def test_what_is_decided_is_launched_without_a_detour(
    found: tuple[Function, ...], tmp_path: Path
) -> None:
    launched: list[tuple[int, ...]] = []
    natively: list[Launches] = []
    times = [1.0, 0.5, *[2.0] * (len(found) - 2)]
    assert columns_of(found, 1, 1024) != 1024
    other = Recorder(-1, launched)
    launches = [
        (tuned(tmp_path, found, launched, *times), [(0, 1024), (0, 1), (1, 5)]),
        (other, [(0, 3), (0, 1), (1, 0)]),
    ]

    def native(launches: Launches) -> LaunchList:
        natively.append(launches)
        assert not any(isinstance(kernel, TunedKernel) for kernel, _ in launches)
        return LaunchList(launches)

    run = TunedLaunchList(launches, native)
    assert not natively
    expected = [(1, columns_of(found, 1, 1024), 45), (-1, 3, 40)]
    for _ in range(3):
        run(0, 40)
        assert launched[-2:] == expected
    assert len(natively) == 1
    # known before: at once
    launches[0] = (tuned(tmp_path, found, launched), launches[0][1])
    TunedLaunchList(launches, native)(0, 40)
    assert len(natively) == 2 and launched[-2:] == expected


def test_a_grid_that_varies_is_computed_at_each_launch(
    found: tuple[Function, ...], tmp_path: Path
) -> None:
    launched: list[tuple[int, ...]] = []
    choice(tmp_path, found).write(1)
    launches = [(tuned(tmp_path, found, launched), [(1, 0), (0, 1), (2, 0)])]
    run = TunedLaunchList(launches, lambda launches: pytest.fail("the grid is not known"))
    for columns in (1024, 64):
        run(0, columns, 9)
        assert launched[-1] == (1, columns_of(found, 1, columns), 9)


class Server:
    """Compiles nothing; ``asked`` are the warps of what it is asked for."""

    def __init__(self, fails: Callable[[CompileJob], bool]) -> None:
        self.fails = fails
        self.asked: list[int] = []

    def compile_each(self, jobs: Iterable[CompileJob]) -> dict[str, KernelBinary]:
        given = list(jobs)
        self.asked += [job.warps for job in given]
        return {
            job.key(): KernelBinary(job.name, b"", 0, job.warps, 0)
            for job in given
            if not self.fails(job)
        }

    def compile(self, jobs: Iterable[CompileJob]) -> dict[str, KernelBinary]:
        given = list(jobs)
        found = self.compile_each(given)
        if len(found) < len(given):
            raise CompileError("a kernel fails")
        return found

    def compile_again(self, job: CompileJob) -> KernelBinary:
        return self.compile([job])[job.key()]


def test_variants_that_do_not_fit_the_device_are_left_out(
    codegen: TritonCodegen,
    found: tuple[Function, ...],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server = Server(lambda job: job.warps != found[0].warps)
    device = cuda_device(tmp_path, server, monkeypatch)
    (kernel,) = device.load({"kernel": found[0]}).values()
    assert isinstance(kernel, TunedKernel)
    same = [k for k, f in enumerate(found) if f.warps == found[0].warps]
    assert list(kernel._kernels) == same and 1 < len(same) < len(found)
    server.fails = lambda job: True
    with pytest.raises(CompileError):
        device.load({"kernel": found[0]})


def test_another_process_compiles_what_was_chosen_alone(
    found: tuple[Function, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = Server(lambda job: False)
    device = cuda_device(tmp_path, server, monkeypatch)
    (kernel,) = device.load({"kernel": found[0]}).values()
    assert isinstance(kernel, TunedKernel) and len(kernel._kernels) == len(found)
    kernel._choice.write(2)
    del server.asked[:]
    (kernel,) = device.load({"kernel": found[0]}).values()
    assert isinstance(kernel, TunedKernel) and list(kernel._kernels) == [2]
    assert set(server.asked) == {found[2].warps}


def cuda_device(folder: Path, server: Server, monkeypatch: pytest.MonkeyPatch) -> CudaDevice:
    """A device that loads nothing."""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda index: (9, 0))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda index: "a device")
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    module = "weft_codegen_triton.runtime.cuda_device"
    monkeypatch.setattr(f"{module}.compile_server", lambda folder, processes: server)
    monkeypatch.setattr(f"{module}.current_device", lambda: 0)
    monkeypatch.setattr(f"{module}.make_context_current", lambda index: None)
    monkeypatch.setattr(f"{module}.load_kernel", lambda binary, count: Recorder(0, []))
    return CudaDevice(None, folder, TritonOptions(autotune=True))
