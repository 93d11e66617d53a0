"""Operators of torch's database with ``numerics="eager"``, all samples of one in one compiled function."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import weft
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.opinfo.core import OpInfo
from torch.utils import _pytree as pytree

from tests.numerics.bits import same_bits, tensors_of

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
LENGTH = 67
"""Of what is computed element by element: more than the vectors of any dtype, and no multiple of them."""

UNREPEATED = frozenset(
    "bernoulli multinomial normal uniform rand randn randint dropout cauchy empty jiterator sparse".split()
)
"""Parts of names of operators whose values differ from call to call, or that the CPU or loops don't have."""


@dataclass(frozen=True)
class Case:
    operator: OpInfo
    dtype: torch.dtype

    def __str__(self) -> str:
        return f"{self.operator.full_name}-{str(self.dtype).removeprefix('torch.')}"


def cases() -> Iterator[Case]:
    """Every operator in each of the dtypes that it takes, but :data:`UNREPEATED`."""
    for operator in op_db:
        name = operator.full_name
        if any(word in name for word in UNREPEATED):
            continue
        for dtype in DTYPES:
            if dtype in operator.dtypes:
                yield Case(operator, dtype)


@dataclass(frozen=True)
class Outcome:
    compared: int
    differing: list[str]
    loops: int
    """How many kernels there were: the others are eager's own."""


def check(case: Case, limit: int = 4) -> Outcome:
    """Compare bits of ``limit`` samples, each contiguous, transposed and with gaps, and larger ones."""
    torch.manual_seed(0)
    calls = [call for call in _calls(case, limit) if _runs(case, call)]
    expected = [_run(case, call) for call in calls]

    def every() -> list[Any]:
        return [operator(*args, **kwargs) for args, kwargs in calls]

    operator = case.operator.op
    log = weft.CompileLog()
    with torch.no_grad(), weft.observe(log), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = weft.compile(every, numerics="eager", options={"strict": False})()
    differing = [
        f"{[tuple(t.shape) for t in tensors_of(call)]} {call[1]}"
        for call, one, other in zip(calls, found, expected, strict=True)
        if not same_bits(one, other)
    ]
    return Outcome(len(calls), differing, sum(graph.kernel_count for graph in log.graphs))


Call = tuple[tuple[Any, ...], dict[str, Any]]


def _calls(case: Case, limit: int) -> Iterator[Call]:
    samples = list(case.operator.sample_inputs("cpu", case.dtype))
    step = max(1, len(samples) // limit)
    for sample in samples[::step][:limit]:
        call = (sample.input, *sample.args), dict(sample.kwargs)
        yield call
        yield pytree.tree_map_only(torch.Tensor, transposed, call)
        yield pytree.tree_map_only(torch.Tensor, with_gaps, call)
    yield from _elementwise(case)


def _elementwise(case: Case) -> Iterator[Call]:
    """Calls with tensors alone, with special values among them."""
    arity = {"UnaryUfuncInfo": 1, "BinaryUfuncInfo": 2}.get(type(case.operator).__name__)
    if arity is None:
        return
    operands = [special_values(case.dtype, position) for position in range(arity)]
    for change in (torch.Tensor.clone, transposed, with_gaps):
        yield tuple(map(change, operands)), {}


def special_values(dtype: torch.dtype, position: int) -> torch.Tensor:
    """A square of numbers small and large, with zeros, infinities, NaN and subnormal numbers in all pairs."""
    values = torch.randn(LENGTH, LENGTH, dtype=torch.float64) * 10 ** torch.randint(
        -3, 4, (LENGTH, 1)
    )
    special = [0.0, -0.0, 1.0, -1.0, 2.5, -2.5, 0.5, torch.inf, -torch.inf, torch.nan]
    special += [
        torch.finfo(dtype).tiny,
        torch.finfo(dtype).max,
        torch.finfo(dtype).smallest_normal / 4,
    ]
    row = torch.tensor(special, dtype=torch.float64)
    values[0, : len(row)] = row.roll(position)
    for shift in range(len(row)):
        values[shift + 1, : len(row)] = row.roll(shift * position)
    return values.to(dtype)


def transposed(tensor: torch.Tensor) -> torch.Tensor:
    """The same values, with the first dimension's side by side in memory."""
    return tensor.transpose(0, -1).contiguous().transpose(0, -1) if tensor.dim() > 1 else tensor


def with_gaps(tensor: torch.Tensor) -> torch.Tensor:
    """The same values, each with an unused one behind it in memory."""
    if tensor.dim() == 0:
        return tensor
    wide = torch.zeros(*tensor.shape[:-1], 2 * tensor.shape[-1], dtype=tensor.dtype)
    wide[..., ::2] = tensor
    return wide[..., ::2]


def _runs(case: Case, call: Call) -> bool:
    """Whether eager takes the call and gives the same bits twice."""
    try:
        first, second = _run(case, call), _run(case, call)
    except (RuntimeError, ValueError, IndexError, TypeError, NotImplementedError):
        return False
    strided = all(t.layout == torch.strided for t in tensors_of((call, first)))
    return strided and same_bits(first, second)


def _run(case: Case, call: Call) -> Any:
    args, kwargs = call
    with torch.no_grad():
        return case.operator.op(*args, **kwargs)
