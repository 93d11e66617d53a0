"""Functions with type parameters that a compiled function makes, beside plain execution (CPython 3.12)."""

import sys

import pytest
import torch

if sys.version_info < (3, 12):
    pytest.skip("no type parameters", allow_module_level=True)

from differential import check, run_graph
from weft_bytecode_capture import CaptureOptions, compile_frames

X = torch.arange(3.0)

SOURCE = """
def called(x):
    def doubled[T](y: T) -> T:
        return y * 2
    return doubled(x) + doubled(1)

def parameters(x):
    def plain[T, *Ts, **P](y: T) -> T:
        return y + len(plain.__type_params__)
    made = plain.__type_params__
    names = [one.__name__ for one in made]
    same = plain.__annotations__["y"] is made[0], made[0] is made[1], made[0].__bound__
    return plain(x), names, same, len((lambda: 1).__type_params__)

def default_and_closure(x):
    scale = 3
    def scaled[T](y: T, by: int = 2, *, more: T = 1) -> T:
        return y * by * scale + more
    return scaled(x), scaled(x, 4, more=2), scaled.__name__, scaled.__qualname__

def bounded(x):
    def with_bound[T: (int, float)](y: T) -> T:
        return y + 1
    return with_bound(x), with_bound(2)

def given(x):
    def doubled[T](y: T) -> T:
        return y * 2
    return doubled(x), doubled

def raising(x):
    def refused[T](y: T) -> T:
        raise ValueError("no")
    try:
        return refused(x)
    except ValueError as error:
        return x + 1, str(error)
"""
PROGRAMS: dict = {"__name__": __name__}
exec(SOURCE, PROGRAMS)


@pytest.mark.parametrize("name", ["called", "parameters", "default_and_closure", "raising"])
def test_in_one_graph(name):
    check(PROGRAMS[name], [(X,), (X,)])


def test_bounds_break():
    check(PROGRAMS["bounded"], [(X,), (X,)], fullgraph=False)


def test_a_function_that_is_given_back():
    given = PROGRAMS["given"]
    compiled = compile_frames(given, run_graph, CaptureOptions(fullgraph=False))
    for _ in range(2):
        result, doubled = compiled(X)
        assert torch.equal(result, X * 2)
        (parameter,) = doubled.__type_params__
        assert doubled.__annotations__ == {"y": parameter, "return": parameter}
        assert parameter.__name__ == "T"
        assert doubled(3) == 6
