"""Functions that the program makes anew for each call: two compilations serve all of one code."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from test_symbolic_sizes import Compiled, assert_same


def apply(function: Callable[..., object], x: torch.Tensor) -> object:
    return function(x), function(x + 1)


def adding(number: object) -> Callable[[torch.Tensor], object]:
    return lambda x: x + number


def with_defaults(*numbers: float) -> Callable[..., object]:
    def function(x: torch.Tensor, *more: float, k: object = numbers) -> object:
        return [x * number for number in k]

    return function


def scaled(a: float, b: float = 2.0) -> Callable[..., object]:
    def function(x: torch.Tensor, factor: float = a + b) -> object:
        return x * factor

    return function


def counting() -> Callable[[torch.Tensor], object]:
    count = 0

    def function(x: torch.Tensor) -> object:
        nonlocal count
        count += 1
        return x * count

    return function


def test_two_compilations_serve_all_lambdas() -> None:
    compiled = Compiled(apply)
    for _ in range(2):
        for tensor in torch.randn(6, 3):
            compiled.check(adding(tensor), torch.ones(3))
    assert compiled.count == 2


def test_numbers_in_closures_become_symbols() -> None:
    compiled = Compiled(apply)
    for number in range(2, 9):
        compiled.check(adding(number), torch.ones(3))
    assert compiled.count <= 3


@pytest.mark.parametrize("make", [adding, scaled, with_defaults])
def test_what_a_function_is_made_of_is_guarded(make: Callable[..., Callable[..., object]]) -> None:
    compiled = Compiled(apply)
    for number in (1.5, 2.5, 1.5, 3.5, -0.0, 4.5):
        compiled.check(make(number), torch.ones(3))
    for other in (
        lambda x: x - 1,
        torch.sin,
        with_defaults(1.0, 2.0),
        scaled(1.0, 0.5),
        adding(True),
    ):
        compiled.check(other, torch.ones(3))
        compiled.check(make(1.5), torch.ones(3))


def test_changed_defaults_are_seen() -> None:
    compiled = Compiled(apply, fullgraph=False)
    functions = [scaled(float(n)) for n in range(3)]
    for defaults in ((3.0,), (4.0,), (5.0, 6.0), (torch.full((3,), 7.0),)):
        for function in functions:
            compiled.check(function, torch.ones(3))
            function.__defaults__ = defaults
            compiled.check(function, torch.ones(3))
    functions[0].__defaults__ = None
    with pytest.raises(TypeError, match="missing 1 required positional argument"):
        compiled.compiled(functions[0], torch.ones(3))


def test_cells_of_functions_are_written() -> None:
    compiled = Compiled(apply, fullgraph=False)
    for _ in range(4):
        found, wanted = counting(), counting()
        for _ in range(3):
            assert_same(compiled.compiled(found, torch.ones(2)), apply(wanted, torch.ones(2)))


def test_a_cell_that_two_functions_share_is_told_from_two() -> None:
    def pair(shared: bool) -> tuple[Callable[[], None], Callable[[torch.Tensor], object]]:
        def make() -> tuple[Callable[[], None], Callable[[torch.Tensor], object]]:
            count = 1

            def step() -> None:
                nonlocal count
                count += 1

            return step, lambda x: x * count

        (step, scale), (_, other) = make(), make()
        return step, scale if shared else other

    def function(
        step: Callable[[], None], scale: Callable[[torch.Tensor], object], x: torch.Tensor
    ) -> object:
        step()
        return scale(x)

    compiled = Compiled(function)
    for shared in (True, True, False, True, False, False):
        found, wanted = pair(shared), pair(shared)
        x = torch.ones(2)
        assert_same(compiled.compiled(*found, x), function(*wanted, x))


def test_a_function_is_a_key_by_identity() -> None:
    def function(table: dict[object, int], key: object, x: torch.Tensor) -> object:
        return x * table.get(key, 0)

    compiled = Compiled(function)
    functions = [adding(n) for n in range(4)]
    table = {functions[0]: 2, functions[2]: 3}
    for key in functions * 2:
        compiled.check(table, key, torch.ones(2))


def test_globals_of_code_run_twice_are_told_apart() -> None:
    code = compile("def function(x):\n    return x * FACTOR\n", "program.py", "exec")
    compiled = Compiled(apply)
    spaces: list[dict[str, object]] = [{"FACTOR": factor} for factor in (1.0, 2.0, 3.0)]
    for space in spaces:
        exec(code, space)
    shared = spaces[0]["function"]
    assert isinstance(shared, type(apply))
    for space in spaces * 2:
        compiled.check(type(apply)(shared.__code__, space), torch.ones(2))
        compiled.check(type(apply)(shared.__code__, space), torch.ones(2))
