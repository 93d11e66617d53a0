"""What GCC compiles once for all programs: when it is made, read, refused and made again."""

from __future__ import annotations

import itertools
import subprocess
from pathlib import Path

import pytest
import torch
import weft_loop_ir
from torch.fx.experimental.proxy_tensor import make_fx
from weft_codegen_cpp import CppCodegen, CppOptions
from weft_codegen_cpp.cache import precompiled_headers
from weft_codegen_cpp.toolchain import HOST_OBJECT, LINKED_HOST, PRECOMPILED, find_toolchain

pytestmark = pytest.mark.skipif(
    not find_toolchain(CppOptions()).precompiles, reason="only GCC finds precompiled headers"
)


def schedule(size: int) -> weft_loop_ir.Schedule:
    graph = make_fx(torch.exp, tracing_mode="fake")(torch.randn(size))
    return weft_loop_ir.schedule(weft_loop_ir.lower(graph))


def write_program(path: Path, extra: str = "") -> Path:
    unit, _ = CppCodegen().print(schedule(123), {})
    path.write_text(unit.whole.replace('"weft_host.h"\n', f'"weft_host.h"\n{extra}'))
    return path


def run_program(folder: Path, size: int) -> Path | None:
    """Compile and check a program; where the precompiled headers are then."""
    program = CppCodegen(CppOptions(cache_directory=folder)).compile(schedule(size), {})
    x = torch.randn(size)
    torch.testing.assert_close(program(x)[0], x.exp())
    return next(folder.glob(f"headers-*/{PRECOMPILED}"), None)


def test_the_second_program_makes_them(tmp_path: Path) -> None:
    """Damaged ones are made again."""
    assert run_program(tmp_path, 123) is None
    headers = run_program(tmp_path, 124)
    assert headers is not None
    sizes = itertools.count(125)
    for made in (headers, headers.with_name(HOST_OBJECT)):
        good = made.stat().st_size
        for damage in (b"", made.read_bytes()[: good // 2], b"x" * 100):
            made.write_bytes(damage)
            assert run_program(tmp_path, next(sizes)) == headers
            assert made.stat().st_size > 0.9 * good
    assert not list(headers.parent.glob("tmp*"))


@pytest.mark.parametrize("damaged", [PRECOMPILED, HOST_OBJECT])
def test_what_the_compiler_refuses(tmp_path: Path, damaged: str) -> None:
    """A program compiles without them, and they are deleted."""
    toolchain = find_toolchain(CppOptions())
    headers = tmp_path / "headers"
    headers.mkdir()
    toolchain.precompile(headers / PRECOMPILED, headers / HOST_OBJECT)
    made = headers / damaged
    made.write_bytes(made.read_bytes()[: made.stat().st_size // 3])
    source = write_program(tmp_path / "program.cpp")
    toolchain.compile(source, tmp_path / "program.so", headers=headers)
    assert (tmp_path / "program.so").stat().st_size > 0 and not made.exists()


def test_they_stand_for_the_headers(tmp_path: Path) -> None:
    """No other header of the runtime is read, and machine code is what it is without."""
    toolchain = find_toolchain(CppOptions())
    assert run_program(tmp_path, 123) is None
    headers = precompiled_headers(tmp_path, toolchain)
    assert headers is not None
    source = write_program(tmp_path / "program.cpp", '#include "weft_loops.h"\n')
    made, reads = [], []
    for name, options in (("with.o", [f"-I{headers}"]), ("without.o", [])):
        command = toolchain.command(source, tmp_path / name)
        words = len(toolchain.compiler)
        command = [*command[:words], *options, *command[words:], LINKED_HOST, "-c", "-H"]
        reads.append(subprocess.run(command, capture_output=True, text=True, check=True).stderr)
        made.append((tmp_path / name).read_bytes())
    assert f"! {headers / PRECOMPILED}" in reads[0] and "weft_kernel.h" not in reads[0]
    assert "weft_kernel.h" in reads[1]
    assert made[0] == made[1]
