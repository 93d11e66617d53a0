"""Kernels compiled to machine code for a GPU that need not be here; and the cache of what was compiled."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from compiled_beside_eager import schedule_of
from weft_codegen_triton import CompileError, TritonCodegen, TritonOptions
from weft_codegen_triton.compilation import client
from weft_codegen_triton.compilation.binary import ENTRY, CompileJob, KernelBinary
from weft_codegen_triton.compilation.cache import read_binary, write_binary
from weft_codegen_triton.compilation.client import CompileServer, compile_server
from weft_codegen_triton.errors import LaunchError
from weft_codegen_triton.runtime import cuda_device
from weft_codegen_triton.runtime.cuda_device import CudaDevice, compile_job

HOPPER = 90


@pytest.fixture(scope="module")
def server(cache: Path) -> CompileServer:
    return CompileServer(cache / "compiled", 2)


@pytest.fixture(scope="module")
def jobs(codegen: TritonCodegen) -> list[CompileJob]:
    """Kernels that use every function of the runtime which Triton alone can check."""

    def program(x: torch.Tensor, i: torch.Tensor) -> tuple[torch.Tensor, ...]:
        rows = x.softmax(1), x.argmax(1), x.var(1), x.prod(1), (x > 2).any(1)
        points = torch.floor_divide(x, 0.3), torch.remainder(x, 0.7), torch.expm1(x), x.sign()
        small = i.to(torch.uint8) + 200, i.to(torch.int8) - 200, ~i.to(torch.uint8)
        return (
            *rows,
            *points,
            *small,
            i // 3,
            i % 5,
            i**3,
            x.clamp(0, 1),
            x.digamma(),
            -x,
            x[i[:, 0] % 4],
        )

    inputs = torch.randn(40, 70), torch.randint(0, 9, (40, 70))
    functions = codegen.print(schedule_of(program, inputs, codegen)).functions
    return [compile_job(f, HOPPER) for f in functions.values()]


def test_kernels_compile_for_hopper(server: CompileServer, jobs: list[CompileJob]) -> None:
    binaries = server.compile(jobs)
    assert set(binaries) == {job.key() for job in jobs}
    for job in jobs:
        binary = binaries[job.key()]
        assert binary.cubin.startswith(b"\x7fELF")
        assert binary.warps == job.warps
        assert binary.scratch_parameters >= 0


def test_loops_that_triton_fails_to_unroll(server: CompileServer, codegen: TritonCodegen) -> None:
    for dtype in (torch.float32, torch.bfloat16):
        x = torch.empty(8, 50257, dtype=dtype)
        printed = codegen.print(schedule_of(lambda x: x.log_softmax(-1), (x,), codegen))
        jobs = [compile_job(f, HOPPER) for f in printed.functions.values()]
        assert "loop_unroll_factor" in jobs[0].module
        assert server.compile(jobs).keys() == {job.key() for job in jobs}


def test_the_server_can_be_started_before_it_is_needed(
    tmp_path: Path, jobs: list[CompileJob]
) -> None:
    codegen = TritonCodegen(TritonOptions(cache_directory=tmp_path, interpret=False))
    codegen.start()
    server = compile_server(tmp_path, 0)
    process = server._process
    assert process is not None
    codegen.start()
    assert server.compile(jobs[:1])[jobs[0].key()].cubin.startswith(b"\x7fELF")
    assert server._process is process


def test_nothing_is_started_for_the_interpreter(tmp_path: Path) -> None:
    TritonCodegen(TritonOptions(cache_directory=tmp_path, interpret=True)).start()
    assert compile_server(tmp_path, 0)._process is None


IN_A_CHILD = """
import json, pathlib, sys
import weft_codegen_triton.runtime.device_functions
from weft_codegen_triton.compilation.build import build, prepare
from weft_codegen_triton.compilation.server import _job

prepare()
before = set(sys.modules)
binary = build(_job(sys.stdin.buffer.read()), pathlib.Path(sys.argv[1]))
assert binary.cubin.startswith(b"\\x7fELF")
print(json.dumps([sorted(before), sorted(set(sys.modules) - before)]))
"""


def test_the_server_imports_triton_whole_and_no_torch(
    tmp_path: Path, jobs: list[CompileJob]
) -> None:
    """Children share what it imports; what it does not need would make the first kernel wait."""
    job = dataclasses.replace(jobs[0], module=jobs[0].module + "\n")
    finished = subprocess.run(
        [sys.executable, "-c", IN_A_CHILD, str(tmp_path)],
        input=json.dumps(dataclasses.asdict(job)).encode(),
        capture_output=True,
        env={k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
        | {"TRITON_CACHE_DIR": str(tmp_path)},
    )
    assert finished.returncode == 0, finished.stderr.decode()
    before, after = json.loads(finished.stdout)
    assert "triton" in before
    assert not {"torch", "sympy", "numpy", "weft_loop_ir"} & {*before, *after}
    assert not [name for name in after if name.startswith("triton")]


def test_a_second_time_comes_from_the_cache(server: CompileServer, jobs: list[CompileJob]) -> None:
    first = server.compile(jobs[:1])
    idle = CompileServer(server.folder, 1)
    assert idle.compile(jobs[:1]) == first
    assert idle._process is None


def test_a_damaged_binary_is_compiled_again(server: CompileServer, jobs: list[CompileJob]) -> None:
    job = jobs[0]
    first = server.compile([job])
    (server.folder / f"{job.key()}.cubin").write_bytes(b"damaged")
    assert read_binary(server.folder, job.key()) is None
    assert server.compile([job]) == first


def test_a_sealed_binary_that_no_driver_loads(
    server: CompileServer, jobs: list[CompileJob], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It fits its checksum, and is compiled again; what a driver refuses of a new one is an error."""
    job = jobs[0]
    (good,) = server.compile([job]).values()
    loads: list[bytes] = []

    def load_kernel(binary: KernelBinary, count: int) -> Callable[..., None]:
        loads.append(binary.cubin)
        if not binary.cubin.startswith(b"\x7fELF") or count == 99:
            raise LaunchError("no image")
        return lambda: None

    monkeypatch.setattr(cuda_device, "load_kernel", load_kernel)
    device = object.__new__(CudaDevice)
    device._server = server
    monkeypatch.setattr(device, "guard", contextlib.nullcontext)
    monkeypatch.setattr(device, "_job", lambda function: job)
    function, refused = (SimpleNamespace(parameters=[None] * count) for count in (3, 99))
    write_binary(server.folder, job.key(), dataclasses.replace(good, cubin=b"garbage"))
    (garbage,) = server.compile([job]).values()
    device._load(ENTRY, function, {0: (function, garbage)}, None)
    assert loads == [b"garbage", good.cubin]
    assert read_binary(server.folder, job.key()) == good
    with pytest.raises(LaunchError):
        device._load(ENTRY, refused, {0: (refused, good)}, None)


@pytest.mark.parametrize(
    "script", ["import time; time.sleep(600)", "import os; os.close(0); os._exit(3)"]
)
def test_a_server_that_gives_no_answer(
    script: str, tmp_path: Path, jobs: list[CompileJob], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is stopped after a while, or has ended: that is an error, and the next call starts another."""
    monkeypatch.setenv("WEFT_COMPILER_SECONDS", "0.5")
    whole = client.START
    monkeypatch.setattr(client, "START", script)
    stuck = CompileServer(tmp_path / "cache", 1)
    with pytest.raises(CompileError, match=r"in 0\.5 seconds|server has ended"):
        stuck.compile(jobs[:1])
    process = stuck._process
    assert process is not None and process.wait() is not None
    monkeypatch.delenv("WEFT_COMPILER_SECONDS")
    monkeypatch.setattr(client, "START", whole)
    assert stuck.compile(jobs[:1])
    assert stuck._process is not process


def test_a_kernel_that_takes_for_ever(
    tmp_path: Path, jobs: list[CompileJob], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The child that compiles it ends with the server."""
    server = CompileServer(tmp_path / "cache", 1)
    server.compile(jobs[:1])
    note = tmp_path / "child"
    text = f"import os, time\nopen({str(note)!r}, 'w').write(str(os.getpid()))\ntime.sleep(600)\n"
    monkeypatch.setenv("WEFT_COMPILER_SECONDS", "5")
    with pytest.raises(CompileError, match="in 5 seconds"):
        server.compile([dataclasses.replace(jobs[0], module=text + jobs[0].module)])
    child = int(note.read_text())
    for _ in range(200):
        state = Path(f"/proc/{child}/stat")
        if not state.exists() or state.read_text().rsplit(")", 1)[1].split()[0] == "Z":
            break
        time.sleep(0.05)
    else:
        pytest.fail("the child goes on")


def test_an_error_names_the_source(server: CompileServer, jobs: list[CompileJob]) -> None:
    broken = dataclasses.replace(jobs[0], module=jobs[0].module.replace("tl.load", "tl.lode"))
    with pytest.raises(CompileError, match=r"Triton failed on .*\.py[\s\S]*lode"):
        server.compile([broken])


def test_answers_that_nobody_waited_for(server: CompileServer, jobs: list[CompileJob]) -> None:
    """A call that is interrupted leaves its answers in the pipe."""
    broken, other = (dataclasses.replace(jobs[0], module=f"x = {k} / 0\n") for k in (1, 2))
    assert server.compile_each([broken]) == {}
    process = server._running()
    assert process.stdin is not None
    process.stdin.write(json.dumps(dataclasses.asdict(broken)).encode() + b"\n")
    process.stdin.flush()
    with pytest.raises(CompileError, match=other.key()):
        server.compile([other])


def test_what_a_module_prints_is_no_answer(server: CompileServer, jobs: list[CompileJob]) -> None:
    loud = dataclasses.replace(jobs[0], module=f'print("loud")\n{jobs[0].module}')
    assert server.compile([loud])[loud.key()].cubin.startswith(b"\x7fELF")


def test_rounding_of_one_value_a_row(server: CompileServer, codegen: TritonCodegen) -> None:
    """Functions that take values by pairs take single ones too."""

    def program(x: torch.Tensor) -> torch.Tensor:
        scale = ((x.sum(1, keepdim=True) * 1.5).sigmoid().to(x.dtype) + 1) * 3
        return x * scale

    for dtype, shape in itertools.product((torch.float16, torch.bfloat16), ((5, 20000), (3, 2))):
        x = torch.randn(shape, dtype=dtype)
        functions = codegen.print(schedule_of(program, (x,), codegen)).functions.values()
        assert any("math.round_to" in f.template for f in functions)
        server.compile([compile_job(f, HOPPER) for f in functions])


def test_keys_depend_on_everything(jobs: list[CompileJob]) -> None:
    job = jobs[0]
    others = [
        dataclasses.replace(job, **{field: value})
        for field, value in {
            "module": job.module + "\n",
            "warps": 7,
            "capability": 100,
            "aligned": (),
            "checks": not job.checks,
        }.items()
    ]
    assert len({j.key() for j in (job, *others)}) == 6
