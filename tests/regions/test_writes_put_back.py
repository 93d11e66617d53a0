"""Loops that write, and an operator that fails after them: the handler finds everything as in eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import weft
from torch import Tensor
from weft.report import observe
from weft_bytecode_capture import capture

pytestmark = pytest.mark.native

MATRICES = [torch.eye(2), torch.zeros(2, 2), torch.eye(2) * 2]  # the second has no inverse


def rows_written(x: Tensor, matrix: Tensor) -> Any:
    try:
        for i in range(20):
            x[i] = x[i] * 2 + 1
        return torch.linalg.inv(matrix), x + 1
    except RuntimeError:
        return x * 10, x


def buffer_written(x: Tensor, matrix: Tensor) -> Any:
    buffer = torch.zeros(20, 3)
    try:
        for i in range(20):
            buffer[i] = x[i] * 2 + 1
        return torch.linalg.inv(matrix), buffer + 1
    finally:
        x.add_(1)


def view_written(x: Tensor, matrix: Tensor) -> Any:
    y = x[1:]
    try:
        for i in range(19):
            y[i] += 1
        return torch.linalg.inv(matrix), x + 1
    except RuntimeError:
        return x * 10, x


def branch_in_a_loop(x: Tensor, matrix: Tensor) -> Any:
    try:
        while x.sum() < 100:
            x += 1
            if x[0, 0] > 3:
                x[0] -= 1
        return torch.linalg.inv(matrix), x + 1
    except RuntimeError:
        return x * 10, x


def loop_in_a_loop(x: Tensor, matrix: Tensor) -> Any:
    y = x
    try:
        while y.sum() < 100:
            for i in range(20):
                y[i] += 1
        return torch.linalg.inv(matrix), x + 1
    except RuntimeError:
        return x * 10, x


def result_written(x: Tensor, matrix: Tensor) -> Any:
    z = x
    try:
        for i in range(20):
            if matrix[0, 0] > -5:
                z[i] += 1
        z += 1
        for i in range(20):
            x[i] += 1
        return torch.linalg.inv(matrix), z
    except RuntimeError:
        return x * 10, x


def chosen_written(x: Tensor, matrix: Tensor) -> Any:
    z = x
    if matrix.sum() < 1:
        z = x + 1
    try:
        for i in range(20):
            z[i] += 1
        return torch.linalg.inv(matrix), z
    except RuntimeError:
        return x * 10, x


def chosen_written_at_once(x: Tensor, matrix: Tensor) -> Any:
    z = x
    if matrix.sum() < 1:
        z = x + 1
    try:
        z += 1
        return torch.linalg.inv(matrix), z
    except RuntimeError:
        return x * 10, x


def carried_written(x: Tensor, matrix: Tensor) -> Any:
    z = x
    try:
        for i in range(20):
            z[i] += 1
            z = z * 2
        return torch.linalg.inv(matrix), z
    except RuntimeError:
        return x * 10, x


PROGRAMS = [
    carried_written,
    chosen_written_at_once,
    *(rows_written, buffer_written, view_written, branch_in_a_loop, loop_in_a_loop),
    *(result_written, chosen_written),
]


def outcome(function: Callable[..., Any], x: Tensor, matrix: Tensor) -> Any:
    try:
        return function(x, matrix)
    except RuntimeError as error:
        return (type(error).__name__,)


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_what_a_loop_wrote_is_put_back(program: Callable[..., Any]) -> None:
    with observe(weft.CompileLog()) as log, torch.no_grad():
        compiled = weft.compile(program)
        for matrix in MATRICES:
            mine, theirs = torch.ones(20, 3), torch.ones(20, 3)
            found, wanted = outcome(compiled, mine, matrix), outcome(program, theirs, matrix)
            assert len(found) == len(wanted)
            for left, right in zip((*found, mine), (*wanted, theirs), strict=True):
                if isinstance(right, Tensor):
                    torch.testing.assert_close(left, right)
                else:
                    assert left == right
    assert not log.graph_breaks


def scribbling(graph_module: torch.fx.GraphModule, example_inputs: list[Any]) -> Any:
    """A backend whose program writes to what has 20 rows before it fails."""

    def run(*inputs: Any) -> Any:
        for value in inputs:
            if isinstance(value, Tensor) and value.shape == (20, 3):
                value.fill_(99)
        raise RuntimeError("late")

    return run


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_whatever_may_have_been_written_is_put_back(program: Callable[..., Any]) -> None:
    x, wanted = torch.ones(20, 3), torch.ones(20, 3)
    with torch.no_grad():
        result = capture(program, backend=scribbling)(x, MATRICES[0])
        program(wanted, MATRICES[0])
    assert not result.breaks
    torch.testing.assert_close(x, wanted)
