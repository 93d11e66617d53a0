"""The memory that a program keeps between calls is bounded by what its last calls have needed."""

from __future__ import annotations

import threading

import pytest
import torch
from comparison import schedule_of
from weft_codegen_cpp import CppCodegen
from weft_codegen_cpp.program import CppProgram

CALLS = 16
CALLS_OF_OTHERS = 4096
SPARE = 1 << 20
LARGE = 1 << 21


def columns(x: torch.Tensor) -> torch.Tensor:
    return (x * 2).sort(0)[0].flip(0) + 1


@pytest.fixture
def program(codegen: CppCodegen) -> CppProgram:
    return codegen.compile(schedule_of(columns, [torch.rand(9)], symbolic=True), {})


def call(program: CppProgram, size: int) -> None:
    x = torch.rand(size)
    torch.testing.assert_close(program(x)[0], columns(x))


@pytest.mark.kept
def test_smaller_calls_give_the_memory_of_a_large_one_back(program: CppProgram) -> None:
    call(program, LARGE)
    assert program.held_bytes >= 4 * LARGE
    for _ in range(2 * CALLS):
        call(program, 100)
    assert 400 <= program.held_bytes <= SPARE
    call(program, LARGE)


def test_memory_that_calls_use_now_and_then_is_kept(program: CppProgram) -> None:
    call(program, LARGE)
    held = program.held_bytes
    for k in range(4 * CALLS):
        call(program, LARGE if k % (CALLS // 2) == 0 else 100)
        assert program.held_bytes == held


def test_memory_of_threads_that_have_ended_is_given_back(program: CppProgram) -> None:
    size, count = 1 << 18, 6
    one_at_a_time = 4 * size
    for _ in range(20):  # until several have run at once
        threads = [threading.Thread(target=call, args=(program, size)) for _ in range(count)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if program.held_bytes >= 2 * one_at_a_time:
            break
    else:
        pytest.skip("no two threads ran at once")
    for _ in range(2 * count * CALLS):
        call(program, size)
    assert one_at_a_time <= program.held_bytes < 2 * one_at_a_time


def test_a_program_that_is_not_called_gives_its_memory_back(codegen: CppCodegen) -> None:
    """While others are called, which keep theirs; it takes memory anew when it is called again."""

    def compiled(factor: float) -> CppProgram:
        schedule = schedule_of(lambda x: columns(x) * factor, [torch.rand(9)], symbolic=True)
        return codegen.compile(schedule, {})

    first, other = compiled(1), compiled(3)
    for _ in range(2):
        call(first, LARGE)
        compiled(5)(torch.rand(LARGE))  # it is gone then, and no longer looked at
        x = torch.rand(100_000)
        other(x)
        for _ in range(CALLS_OF_OTHERS - CALLS):
            other(x[:10])
        assert first.held_bytes >= 4 * LARGE
        for _ in range(3 * CALLS):
            other(x[:10])
        assert first.held_bytes == 0 < other.held_bytes
