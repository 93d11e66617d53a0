"""Compilers as users name them, and those that hang, fail or print anything."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path

import pytest
import torch
import weft_loop_ir
from torch.fx.experimental.proxy_tensor import make_fx
from weft_codegen_cpp import (
    CompileError,
    CompilerNotFound,
    CompilerTimeout,
    CppCodegen,
    CppOptions,
    toolchain,
)
from weft_codegen_cpp.cache import cache_directory, cached_library
from weft_codegen_cpp.cpu import Cpu, cpu_of
from weft_codegen_cpp.toolchain import find_toolchain, run_compiler

REAL = shutil.which("g++") or shutil.which("clang++") or ""
pytestmark = pytest.mark.skipif(not REAL or os.name != "posix", reason="no compiler to wrap")


def script(path: Path, *lines: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(("#!/bin/sh", *lines)) + "\n")
    path.chmod(0o755)
    return path


def wrapper(path: Path, when_compiling: str, version: str = f'exec "{REAL}" "$@"') -> str:
    """A compiler that answers ``--version`` and runs ``when_compiling`` else, the path in quotes."""
    case = f'case "$1" in --version) {version};; esac'
    return f'"{script(path, case, when_compiling)}"'


def run(folder: Path, compiler: str, **options: object) -> None:
    graph = make_fx(torch.exp, tracing_mode="fake")(torch.randn(321))
    schedule = weft_loop_ir.schedule(weft_loop_ir.lower(graph))
    codegen = CppCodegen(CppOptions(cache_directory=folder, compiler=compiler, **options))  # type: ignore[arg-type]
    x = torch.randn(321)
    torch.testing.assert_close(codegen.compile(schedule, {})(x)[0], x.exp())


def test_commands_of_several_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    through = script(tmp_path / "a folder" / "ccache", 'exec "$@"')
    for number, named in enumerate((
        f"env {REAL}",
        f'"{through}" {REAL} -DSOMETHING="a b"',
        wrapper(tmp_path / "with blanks" / "g++", f'exec "{REAL}" "$@"').strip('"'),
        f"  {REAL}\t",
    )):  # fmt: skip
        run(tmp_path / str(number), named)
        monkeypatch.setenv("CXX", named)
        assert find_toolchain(CppOptions()) == find_toolchain(CppOptions(compiler=named))
    assert (
        find_toolchain(CppOptions(compiler=f"env {REAL}")).precompiles
        == find_toolchain(CppOptions(compiler=REAL)).precompiles
    )
    monkeypatch.setenv("CXX", " ")  # names nothing
    assert find_toolchain(CppOptions()).compiler


@pytest.mark.parametrize("named", ["no-such-compiler", "no-such-compiler -O1", 'g++ "', "false"])
def test_what_is_no_compiler(named: str) -> None:
    with pytest.raises(CompilerNotFound, match="install"):
        find_toolchain(CppOptions(compiler=named))


def test_a_compiler_that_never_ends(tmp_path: Path) -> None:
    """It is stopped, and the processes that it has started with it."""
    child = tmp_path / "child"
    compiler = wrapper(tmp_path / "g++", f'sleep 1000 & echo $! > "{child}"; wait')
    for options in ({"compiler_seconds": 0.3}, {"compiler_seconds": 0.3, "processes": 2}):
        with pytest.raises(CompilerTimeout, match=r"did not end in 0.3 seconds"):
            run(tmp_path / "cache", compiler, **options)
        started = int(child.read_text())
        state = Path(f"/proc/{started}/stat")
        for _ in range(200):  # until it is reaped by whoever its parent is now
            if not state.exists() or " Z " in state.read_text():
                break
            time.sleep(0.05)
        else:
            raise AssertionError("the compiler's own process goes on")


@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="the system tells of no process's end")
def test_a_compilers_end_is_waited_for_without_looking_again(monkeypatch) -> None:
    def looks_later(seconds: float) -> None:
        raise AssertionError("sleeps between looks")

    monkeypatch.setattr(time, "sleep", looks_later)
    for seconds in (100.0, float("inf")):
        assert run_compiler(["sh", "-c", "sleep 0.1; echo printed; exit 3"], seconds) == (
            3,
            "printed\n",
        )


def test_systems_that_do_not_tell_of_a_compilers_end(monkeypatch) -> None:
    monkeypatch.delattr(os, "pidfd_open", raising=False)
    assert run_compiler(["sh", "-c", "echo printed; exit 3"], 100.0) == (3, "printed\n")
    assert run_compiler(["sleep", "1000"], 0.1) == (None, "")


def test_the_limit_is_set_by_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_COMPILER_SECONDS", "12.5")
    assert find_toolchain(CppOptions()).seconds == 12.5
    assert find_toolchain(CppOptions(compiler_seconds=3)).seconds == 3


def test_a_version_that_never_comes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(toolchain, "VERSION_SECONDS", 0.3)
    compiler = wrapper(tmp_path / "g++", "exit 1", "sleep 1000")
    for _ in range(2):  # it is asked once
        with pytest.raises(CompilerNotFound, match="did not answer --version"):
            find_toolchain(CppOptions(compiler=compiler))
        monkeypatch.setattr(toolchain, "VERSION_SECONDS", 1e9)


def test_text_of_no_encoding(tmp_path: Path) -> None:
    garbage = r"printf '\377\376 gar\200bage\n'"
    version = f'{garbage}; {garbage} >&2; exec "{REAL}" "$@"'
    compiler = wrapper(tmp_path / "g++", f'{garbage} >&2; {garbage}; exec "{REAL}" "$@"', version)
    run(tmp_path / "cache", compiler)
    with pytest.raises(CompileError, match=r"gar.bage"):
        run(tmp_path / "cache", wrapper(tmp_path / "fails", f"{garbage} >&2; exit 1"))


def test_a_compiler_that_makes_no_file(tmp_path: Path) -> None:
    made = 'for a; do [ "$p" = -o ] && o="$a"; p="$a"; done; rm "$o"; mkfifo "$o"'
    with pytest.raises(OSError, match="made no file"):
        cached_library(
            cache_directory(tmp_path / "cache"),
            "0" * 32,
            "",
            find_toolchain(CppOptions(compiler=wrapper(tmp_path / "g++", made))).compile,
            keep_source=False,
        )


def test_what_stays_in_the_nearest_cache() -> None:
    """A power of two, so that processors whose caches differ a little have one program."""
    kept = [Cpu(16, cache_bytes=kib << 10).near_bytes >> 10 for kib in (32, 48, 64, 128)]
    assert kept == [16, 16, 32, 64]
    assert cpu_of(CppOptions(lanes=8)).operations_a_nanosecond == 40


def test_a_process_that_a_compiler_leaves_behind(tmp_path: Path) -> None:
    """It holds what the compiler printed to; nobody waits for it."""
    left = f'sleep 30 & exec "{REAL}" "$@"'
    run(tmp_path / "cache", wrapper(tmp_path / "g++", left), compiler_seconds=600)
