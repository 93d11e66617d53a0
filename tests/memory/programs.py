"""Every allocation of a compile and of a call fails once; the argument is the library of `failing_malloc.c`.

Each program has an error or its right result, and its right result in the call after that.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
import weft
from torch import Tensor
from weft_codegen_cpp import _torch
from weft_codegen_cpp.cache import cache_directory
from weft_codegen_cpp.host.api import PYTHON_FUNCTIONS

LIBRARIES = (
    "weft_guards/_native",
    "weft_bytecode_capture/_frame_hook",
    "weft_codegen_triton/_launcher",
)
TORCH = (
    "aoti_torch_empty_strided",
    "aoti_torch_create_tensor_from_blob",
    "aoti_torch__reinterpret_tensor",
    "wrap",
)
MOST = 400
"""More allocations than a program here asks for."""


def pointwise(x: Tensor) -> Tensor:
    return (x.exp() + 1).sin()


def products(x: Tensor) -> Tensor:
    return ((x @ x.t()).relu() @ x).softmax(-1)


def rows_in_memory(x: Tensor) -> Tensor:
    wide = x.reshape(1, -1).expand(3, x.numel()).repeat(1, 40)
    return wide.exp().softmax(-1).cos().sum(-1)


def by_python(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    values, order = (x * 2).sort(-1)
    return values + 1, order, x[:, 1:]


def attention(x: Tensor) -> Tensor:
    q = x.reshape(1, 1, -1, 16).expand(2, 3, -1, 16)
    return F.scaled_dot_product_attention(q, q * 2, q + 1)


def branch(x: Tensor) -> Tensor:
    for _ in range(3):
        if x.sum() > 0:
            x = x @ x.t()[:, : x.shape[1]] - 1
        else:
            x = x + 2
    return x


def sizes_of_data(x: Tensor) -> Tensor:
    return x[x > 0].exp().cumsum(0) * 2


def many_results(x: Tensor) -> list[Any]:
    return [x + k for k in range(10)] + [x.shape[0]]


PROGRAMS = (
    pointwise, products, rows_in_memory, by_python, attention, branch, sizes_of_data, many_results,
)  # fmt: skip
COMPILED = (pointwise, by_python, many_results)
"""Those of which the compile fails as well."""


def fail_in_generated_code(library: ctypes.CDLL) -> None:
    """Let the functions of torch and CPython that allocate fail too, which generated code has in a table."""
    functions = dict(_torch.torch_functions())
    for name in TORCH:
        ctypes.c_void_p.in_dll(library, f"real_{name}").value = functions[name]
        failing = ctypes.cast(getattr(library, f"failing_{name}"), ctypes.c_void_p).value
        assert failing is not None
        functions[name] = failing
    _torch.torch_functions = lambda: functions
    for name in PYTHON_FUNCTIONS:
        if hasattr(library, f"failing_{name}"):
            setattr(ctypes.pythonapi, name, getattr(library, f"failing_{name}"))


def outcome(function: Callable[..., Any], x: Tensor, expected: Any) -> str:
    try:
        found = function(x)
    except (RuntimeError, MemoryError) as error:
        return type(error).__name__
    # what is asked here is whether memory was there, not how products are rounded
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-3)
    return "right"


def failures(
    library: ctypes.CDLL, make: Callable[[], Callable[..., Any]], x: Tensor, expected: Any
) -> list[str]:
    """What becomes of a call where each allocation in turn fails; right where none is left."""
    outcomes: list[str] = []
    for number in range(1, MOST):
        function = make()
        library.fail_at(number)
        try:
            found = outcome(function, x, expected)
        finally:
            count = library.fail_no_more()
        assert outcome(function, x, expected) == "right", f"the call after number {number} failed"
        if count < number:
            assert found == "right"
            return outcomes
        outcomes.append(found)
    raise AssertionError(f"{MOST} allocations and no end")


def report(text: str) -> None:
    sys.stdout.write(text + "\n")


def main() -> None:
    library = ctypes.CDLL(sys.argv[1])
    library.fail_no_more.restype = ctypes.c_long
    for part in (*LIBRARIES, str(cache_directory(None))):
        library.failing_in(part.encode())
    fail_in_generated_code(library)
    x = torch.randn(16, 16)
    for program in PROGRAMS:
        compiled = weft.compile(program)
        expected = program(x)
        assert outcome(compiled, x, expected) == "right"
        calls = failures(library, lambda c=compiled: c, x, expected)
        assert calls, f"{program.__name__} allocates nothing"
        report(f"{program.__name__} call {calls}")
    for program in COMPILED:

        def fresh(program: Callable[..., Any] = program) -> Callable[..., Any]:
            weft.reset()
            return weft.compile(program)

        report(f"{program.__name__} compile {failures(library, fresh, x, program(x))}")
    report("done")


if __name__ == "__main__":
    main()
