"""Operators of torch's database with ``numerics="eager"``, all samples of one in one compiled function."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import weft
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.opinfo.core import OpInfo
from torch.utils import _pytree as pytree

from tests.numerics.bits import same_bits, same_strides, tensors_of

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
FURTHER_DTYPES = (
    *(torch.int64, torch.bool, torch.complex64, torch.uint8),
    *(torch.int32, torch.int16, torch.int8, torch.complex128),
)
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


def cases(dtypes: Sequence[torch.dtype] = DTYPES) -> Iterator[Case]:
    """Every operator in each of the dtypes that it takes, but :data:`UNREPEATED`."""
    for operator in op_db:
        name = operator.full_name
        if any(word in name for word in UNREPEATED):
            continue
        for dtype in dtypes:
            if dtype in operator.dtypes:
                yield Case(operator, dtype)


Change = Callable[[torch.Tensor], torch.Tensor]
"""Gives an operand that lies otherwise, or has another shape."""


@dataclass(frozen=True)
class Outcome:
    compared: int
    differing: list[str]
    loops: int
    """How many kernels there were: the others are eager's own."""


def check(case: Case, limit: int = 4, changes: Sequence[Change] | None = None) -> Outcome:
    """Compare bits of ``limit`` samples, each as it is and with each of ``changes``, and larger ones.

    Without ``changes`` these are transposed and with gaps; with them, strides are compared too.
    """
    torch.manual_seed(0)
    made = _calls(case, limit, changes or (transposed, with_gaps))
    calls = [call for call in made if _runs(case, call)]
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
        if not same_bits(one, other) or (changes and not same_strides(one, other))
    ]
    return Outcome(len(calls), differing, sum(graph.kernel_count for graph in log.graphs))


Call = tuple[tuple[Any, ...], dict[str, Any]]


def _calls(case: Case, limit: int, changes: Sequence[Change]) -> Iterator[Call]:
    samples = list(case.operator.sample_inputs("cpu", case.dtype))
    step = max(1, len(samples) // limit)
    for sample in samples[::step][:limit]:
        call = (sample.input, *sample.args), dict(sample.kwargs)
        yield call
        for change in changes:
            yield pytree.tree_map_only(torch.Tensor, change, call)
    yield from _elementwise(case, changes)


def _elementwise(case: Case, changes: Sequence[Change]) -> Iterator[Call]:
    """Calls with tensors alone, with special values among them."""
    arity = {"UnaryUfuncInfo": 1, "BinaryUfuncInfo": 2, "ReductionOpInfo": 1}.get(
        type(case.operator).__name__
    )
    if arity is None:
        return
    operands = [special_values(case.dtype, position) for position in range(arity)]
    for change in (torch.Tensor.clone, *changes):
        yield tuple(map(change, operands)), {}
    if arity == 2 and not (case.dtype.is_floating_point or case.dtype.is_complex):
        yield (operands[0], operands[1].masked_fill(operands[1] == 0, 1)), {}  # divisors


def special_values(dtype: torch.dtype, position: int) -> torch.Tensor:
    """A square of numbers small and large, with zeros, infinities, NaN and subnormal numbers in all pairs."""
    if dtype.is_complex:
        parts = [special_values(dtype.to_real(), n) for n in (position, position + 1)]
        return torch.complex(parts[0], parts[1])
    if not dtype.is_floating_point:
        return special_integers(dtype, position)
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


def special_integers(dtype: torch.dtype, position: int) -> torch.Tensor:
    """As :func:`special_values`; not the least by -1, at whose quotient eager's process ends."""
    if dtype == torch.bool:
        return torch.randint(0, 2, (LENGTH, LENGTH)).bool()
    limits = torch.iinfo(dtype)
    least, most = limits.min, limits.max
    values = torch.randint(max(least, -9), 10, (LENGTH, LENGTH)).to(dtype)
    special = [0, 1, most, least, most - 1, least + 1, 2, 3, 7, 8, 15, 31, 63]
    row = torch.tensor(special).to(dtype)
    for shift in range(len(row)):
        values[shift, : len(row)] = row.roll(shift * position)
    return values


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


def without_elements(tensor: torch.Tensor) -> torch.Tensor:
    return tensor[:0] if tensor.dim() else tensor


def without_dims(tensor: torch.Tensor) -> torch.Tensor:
    """The first element."""
    return tensor.flatten()[0].clone() if tensor.numel() else tensor


def expanded(tensor: torch.Tensor) -> torch.Tensor:
    """The first row, as often as there are rows."""
    return tensor[:1].expand(tensor.shape) if tensor.dim() and len(tensor) else tensor


def conjugated(tensor: torch.Tensor) -> torch.Tensor:
    """A view whose conjugation is still to do."""
    return tensor.conj()


CHANGES: tuple[Change, ...] = (
    *(transposed, with_gaps, without_elements, without_dims, expanded, conjugated),
)


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
