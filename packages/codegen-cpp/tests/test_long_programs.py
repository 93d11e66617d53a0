"""What keeps the compiler's time in proportion to a program's length leaves its results as they are."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
import weft_codegen_cpp.codegen as codegen_module
import weft_codegen_cpp.printed_program as printed_program
from comparison import schedule_of
from weft_codegen_cpp import CompileError, CppCodegen, CppOptions
from weft_codegen_cpp.program import CppProgram
from weft_codegen_cpp.toolchain import Toolchain

LARGE = (
    *("exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sin", "cos", "tan", "sigmoid"),
    *("asin", "acos", "atan", "sinh", "cosh", "tanh", "asinh", "acosh", "erf", "erfc", "erfinv"),
    *("lgamma", "digamma"),
)
LARGE_OF_TWO = ("pow", "atan2", "hypot", "fmod", "remainder", "nextafter", "floor_divide")


def compiled(
    codegen: CppCodegen, function: Callable[..., object], *inputs: torch.Tensor
) -> CppProgram:
    return codegen.compile(schedule_of(function, inputs, symbolic=False), {})


def chain(x: torch.Tensor, length: int) -> torch.Tensor:
    for k in range(length):
        x = (x.sin() + 0.1 * k).tanh()
    return x


def test_functions_are_inlined_where_they_are_few(codegen: CppCodegen) -> None:
    x = torch.randn(70)
    for length, far in ((3, False), (40, True)):
        program = compiled(codegen, partial(chain, length=length), x)
        assert ("far::" in program.source) == far
        torch.testing.assert_close(program(x)[0], chain(x, length))


def test_functions_of_many_kernels_are_out_of_line(codegen: CppCodegen) -> None:
    x = torch.randn(40, 9)

    def sums(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple((x[:, : 1 + k % 9] * k).exp().sum(k % 2) for k in range(240))

    program = compiled(codegen, sums, x)
    assert len(re.findall("WEFT_KERNEL", program.source)) > 20
    torch.testing.assert_close(program(x), sums(x))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_functions_out_of_line_are_the_same(
    codegen: CppCodegen, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, y = (torch.rand(2, 37).to(dtype) + 0.1).unbind(0)

    def every(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        single = [getattr(torch.special, name, None) or getattr(torch, name) for name in LARGE]
        return (
            *(f(x * 0.9) for f in single),
            *(getattr(torch, name)(x, y) for name in LARGE_OF_TWO),
        )

    results = []
    for most in (0, 1 << 30):
        monkeypatch.setattr(printed_program, "INLINED", most)
        monkeypatch.setattr(printed_program, "INLINED_IN_ALL", most)
        program = compiled(codegen, every, x, y)
        assert ("far::tanh" in program.source) == (most == 0 or dtype == torch.float64)
        results.append(program(x, y))
    torch.testing.assert_close(*results, rtol=0, atol=0, equal_nan=True)


def test_a_long_program_is_compiled_in_parts(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(codegen_module, "LONG", 1000)
    monkeypatch.delenv("WEFT_UNOPTIMIZED_LENGTH", raising=False)
    commands: list[list[str]] = []
    run = Toolchain._run

    def recorded(self: Toolchain, command: list[str], source: Path) -> None:
        commands.append(command)
        run(self, command, source)

    monkeypatch.setattr(Toolchain, "_run", recorded)
    x = torch.randn(40, 9)

    def several(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple((x[:, : 1 + k] * k).exp().sum(k % 2) for k in range(9))

    codegen = CppCodegen(CppOptions(cache_directory=cache / "long", processes=2))
    program = compiled(codegen, several, x)
    torch.testing.assert_close(program(x), several(x))
    compiles = [command for command in commands if "-c" in command]
    assert len(compiles) == 2
    assert all(c.index("-O1") > c.index("-O2") for c in compiles)


def test_programs_from_a_length_on_are_not_optimized(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By an option or the environment; the others are, and none is taken for another's."""
    commands: list[list[str]] = []
    run = Toolchain._run

    def recorded(self: Toolchain, command: list[str], source: Path) -> None:
        commands.append([word for word in command if re.fullmatch("-O.", word)])
        run(self, command, source)

    monkeypatch.setattr(Toolchain, "_run", recorded)
    monkeypatch.delenv("WEFT_UNOPTIMIZED_LENGTH", raising=False)
    x = torch.randn(12)
    options = CppOptions(cache_directory=cache / "unoptimized")

    def levels(options: CppOptions) -> set[str]:
        commands.clear()
        program = compiled(CppCodegen(options), partial(chain, length=2), x)
        torch.testing.assert_close(program(x)[0], chain(x, 2))
        return {levels[-1] for levels in commands}

    assert levels(options) == {"-O2"}
    assert levels(replace(options, unoptimized_length=100)) == {"-O0"}
    assert not levels(options)
    monkeypatch.setenv("WEFT_UNOPTIMIZED_LENGTH", "100")
    assert not levels(options)
    assert not levels(replace(options, unoptimized_length=100_000))


def test_compilers_run_beside_the_caller(
    codegen: CppCodegen, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What they say comes when the program is asked for."""
    x = torch.randn(11)
    schedule = schedule_of(partial(chain, length=2), [x], symbolic=False)
    torch.testing.assert_close(codegen.begin(schedule, {})()(x)[0], chain(x, 2))

    def fails(self: Toolchain, command: list[str], source: Path) -> None:
        raise CompileError(command, str(source), "no")

    monkeypatch.setattr(Toolchain, "_run", fails)
    begun = CppCodegen(CppOptions(cache_directory=cache / "begun")).begin(schedule, {})
    with pytest.raises(CompileError):
        begun()


def test_kernels_that_begin_elsewhere_in_a_buffer_are_one_function(codegen: CppCodegen) -> None:
    def blocks(x: torch.Tensor, w: torch.Tensor, scales: torch.Tensor) -> tuple[torch.Tensor, ...]:
        results = []
        for k in range(5):
            part = x[8 * k : 8 * k + 8] @ w
            results.append((part * scales[8 * k : 8 * k + 8, None]).log_softmax(-1) @ w.t())
        return tuple(results)

    x, w, scales = torch.randn(40, 48), torch.randn(48, 96), torch.rand(40)
    program = compiled(codegen, blocks, x, w, scales)
    assert len(re.findall(r"WEFT_KERNEL void \w+\(.*\) \{", program.source)) == 1
    torch.testing.assert_close(program(x, w, scales), blocks(x, w, scales), rtol=1e-4, atol=1e-4)


def test_an_offset_that_differs_between_accesses_stays(codegen: CppCodegen) -> None:
    def windows(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        rows = [x[k : k + 8] for k in (0, 8, 20)]
        return tuple((r[:, :-1] * r[:, 1:]).softmax(-1) for r in rows)

    x = torch.randn(30, 12)
    torch.testing.assert_close(compiled(codegen, windows, x)(x), windows(x))
