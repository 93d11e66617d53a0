"""Cases of something that changes between two calls of a compiled function, and how they are checked.

A case is a function that gives the function to compile, what changes, and, where needed, what undoes it.
"""

import sys
import types
from collections.abc import Callable

import torch
from weft_bytecode_capture import compile_frames

Case = Callable[[], tuple]

other = types.ModuleType("weft_tests_other_module")
"""A module of the user's own that functions under test read."""

exec("scale = 2.0\ndef helper(x):\n    return x * scale\n", other.__dict__)
sys.modules[other.__name__] = other


def collected() -> tuple[Callable[[Case], Case], list[Case]]:
    """A decorator, and the list that it puts cases in."""
    cases: list[Case] = []

    def case(make: Case) -> Case:
        cases.append(make)
        return make

    return case, cases


def check(make: Case) -> None:
    """Compiled and eager results are the same before the change, after it, and after it is undone."""
    function, change, *undo = make()
    graphs = []

    def backend(graph_module, inputs):
        graphs.append(graph_module)
        return graph_module.forward

    compiled = compile_frames(function, backend)
    _compare(compiled, function)
    try:
        change()
        _compare(compiled, function)
    finally:
        for restore in undo:
            restore()
    _compare(compiled, function)
    assert graphs, "nothing was compiled"
    assert len(graphs) <= 6, "more compilations than there are states, breaks included"


def _compare(compiled, function):
    for _ in range(2):
        results = []
        for called in (compiled, function):
            torch.manual_seed(1)
            try:
                results.append(called(torch.arange(6.0).reshape(2, 3) + 1))
            except Exception as error:
                results.append((type(error), str(error)))
        assert _same(*results), results


def _same(left, right):
    if isinstance(left, tuple):
        return len(left) == len(right) and all(map(_same, left, right))
    if not isinstance(left, torch.Tensor):
        return type(left) is type(right) and left == right
    alike = (left.dtype, left.shape, left.device, left.requires_grad) == (
        right.dtype, right.shape, right.device, right.requires_grad,
    )  # fmt: skip
    return alike and (left.device.type == "meta" or torch.allclose(left, right, equal_nan=True))
