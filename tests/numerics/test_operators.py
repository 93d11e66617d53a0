"""Operators with ``numerics="eager"`` are eager's to the last bit: some in every run, all when slow."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import weft
from torch.nn import functional as F

pytest.importorskip("expecttest", reason="torch's operator database imports it")

from tests.numerics.bits import same_bits
from tests.numerics.operators import (
    CHANGES,
    DTYPES,
    FURTHER_DTYPES,
    Case,
    cases,
    check,
    special_values,
    transposed,
    with_gaps,
)

IN_LOOPS = frozenset(
    """
    abs neg sign reciprocal square add sub mul div where floor ceil round trunc eq lt ge isnan
    logical_and logical_not masked_fill nn.functional.relu nn.functional.leaky_relu nn.functional.threshold
    nn.functional.embedding cat stack flip tril gather index_select clone full_like
    """.split()
)
OTHERWISE_ELSEWHERE = frozenset(
    "sqrt exp tanh sigmoid softmax log_softmax sum mean var cumsum addcmul lerp rsqrt maximum pow "
    "nn.functional.gelu nn.functional.silu nn.functional.layer_norm nn.functional.batch_norm "
    "nn.functional.cross_entropy nn.functional.linear addmm".split()
)
"""Operators that loops of ours would round or sum in another way."""

SAMPLE = {name: number for number, name in enumerate(sorted(IN_LOOPS | OTHERWISE_ELSEWHERE))}
WITH_VECTORS = frozenset("norm.nuc linalg.cond linalg.eigvalsh linalg.svdvals".split())
"""Eager computes these values without their vectors where no gradient is needed, which fakes don't tell."""


def is_sample(case: Case) -> bool:
    """Whether every run has it: operators take turns with one of the wide dtypes and one of 16 bits."""
    number = SAMPLE.get(case.operator.full_name)
    if number is None:
        return False
    wide, narrow = DTYPES[:2], DTYPES[2:]
    return case.dtype in (wide[number % 2], narrow[number // 2 % 2])


CASES = [case for case in cases() if case.operator.full_name not in WITH_VECTORS]


@pytest.mark.parametrize("case", [c for c in CASES if is_sample(c)], ids=str)
def test_samples(case: Case) -> None:
    outcome = check(case)
    assert not outcome.differing
    if case.operator.full_name in IN_LOOPS and outcome.compared:
        assert outcome.loops, "nothing is fused"


@pytest.mark.slow
@pytest.mark.parametrize("case", [c for c in CASES if not is_sample(c)], ids=str)
def test_every_sample(case: Case) -> None:
    test_samples(case)


FURTHER_SAMPLE = frozenset(
    "abs sign add sub mul div where eq floor_divide remainder fill ldexp sum prod amax cumsum clamp pow "
    "bitwise_and logical_not masked_fill sqrt mean angle".split()
)
FURTHER_CASES = [
    case
    for case in cases(FURTHER_DTYPES)
    if case.operator.full_name
    not in (*WITH_VECTORS, "_chunk_cat", "lcm")  # eager's end the process
]


def is_further_sample(case: Case) -> bool:
    return case.operator.full_name in FURTHER_SAMPLE and case.dtype in FURTHER_DTYPES[:3]


@pytest.mark.parametrize("case", [c for c in FURTHER_CASES if is_further_sample(c)], ids=str)
def test_integers_and_complex_numbers(case: Case) -> None:
    """Strides too; also without elements, without dimensions, expanded and conjugated."""
    assert not check(case, limit=2, changes=CHANGES).differing


@pytest.mark.slow
@pytest.mark.parametrize("case", [c for c in FURTHER_CASES if not is_further_sample(c)], ids=str)
def test_all_integers_and_complex_numbers(case: Case) -> None:
    test_integers_and_complex_numbers(case)


X = torch.Tensor
OF_NUMBERS: tuple[Callable[[X], X], ...] = (
    *(lambda x, b=b: x.clamp(*b) for b in ((0, None), (None, -0.0), (-1, 0.0), (-1, 2))),
    lambda x: F.hardtanh(x, 0.0, 6),
    F.relu6,
    F.relu,
    lambda x: F.threshold(x, 0, -0.0),
    lambda x: x * 0.1,
    lambda x: x / 0.3,
    lambda x: 0.1 - x,
    lambda x: 0.1 / x,
    lambda x: torch.add(x, x, alpha=0.3),
    lambda x: torch.sub(x, 0.7, alpha=0.3),
    lambda x: x * torch.tensor(0.1, dtype=torch.float64),
    lambda x: torch.tensor(0.1) - x,
    lambda x: x + torch.tensor(0.1, dtype=torch.float64),
    lambda x: x == torch.tensor(0.1),
    lambda x: x * torch.ones(67, dtype=torch.float32) * 0.1,
    lambda x: torch.where(x > 0, x, 0.1),
    lambda x: x**2,
    lambda x: x**3,
    lambda x: x**-0.5,
    lambda x: x.round(decimals=2),
    lambda x: (x * x + x) * x - x / 3,
    lambda x: torch.addcmul(x, x, x, value=0.3),
    lambda x: x.bfloat16() + x.half(),
    lambda x: x.to(torch.float32) + 1e-8,
)
"""Beside numbers, tensors without dimensions and tensors of other dtypes."""


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_numbers_and_special_values(dtype: torch.dtype) -> None:
    """Each rounded as eager rounds it; of zeros with either sign and NaN too."""
    torch.manual_seed(0)
    values = special_values(dtype, 0)
    layouts = values, transposed(values), with_gaps(values)

    def every(*tensors: X) -> list[X]:
        return [function(x) for function in OF_NUMBERS for x in tensors]

    compiled = weft.compile(every, numerics="eager", fullgraph=True)
    with torch.no_grad():
        for position, (one, other) in enumerate(
            zip(compiled(*layouts), every(*layouts), strict=True)
        ):
            assert same_bits(one, other), f"function {position // 3} of layout {position % 3}"


def _chain(x: X, y: X) -> tuple[X, ...]:
    a = (x * y + 1.5) / (y.abs() + 0.1)
    b = torch.where(a > 0, a, x.exp())
    return b.softmax(-1), F.gelu(a) * x - y, b.sum(0), (x @ y.t()).relu()


def test_what_it_costs_and_what_fast_does() -> None:
    """The chain is fused around eager's operators; without the option its bits differ."""
    torch.manual_seed(0)
    inputs = torch.randn(37, 67), torch.randn(37, 67)
    log = weft.CompileLog()
    with torch.no_grad(), weft.observe(log):
        expected = _chain(*inputs)
        assert same_bits(weft.compile(_chain, numerics="eager")(*inputs), expected)
        assert not same_bits(weft.compile(_chain)(*inputs), expected)
    eager, fast = log.graphs
    assert 0 < eager.kernel_count < 10
    assert eager.fallbacks and not fast.fallbacks


VIEW_COPIES: tuple[Callable[[X], X], ...] = (
    *(torch.diag, torch.diagonal_copy, torch.t_copy, torch.alias_copy, torch.detach_copy),
    *(torch.corrcoef, torch.squeeze_copy, lambda x: torch.transpose_copy(x, 0, 1)),
    lambda x: torch.permute_copy(x, (1, 0)),
    lambda x: torch.select_copy(x, 1, 2),
    lambda x: torch.slice_copy(x, 1, 0, 5, 2),
    lambda x: torch.unsqueeze_copy(x, 1),
    lambda x: torch.expand_copy(x[:1], (7, 7)),
    lambda x: torch.view_copy(x, (49,)),
    lambda x: torch.unfold_copy(x, 0, 3, 2),
    lambda x: torch.narrow_copy(x, 1, 2, 3),
    lambda x: x.t().contiguous(),
)
"""Views that are copied."""


@pytest.mark.parametrize("dtype", [*FURTHER_DTYPES, torch.float32], ids=str)
def test_copies_of_views(dtype: torch.dtype) -> None:
    """Of complex numbers too, which loops don't hold."""
    torch.manual_seed(0)
    x = torch.randn(7, 7).mul(9).to(dtype)
    functions = [
        f
        for f in VIEW_COPIES
        if f is not torch.corrcoef or dtype in (torch.complex64, torch.float32)
    ]

    def every(x: X) -> list[X]:
        return [function(x) for function in functions]

    with torch.no_grad():
        found, expected = weft.compile(every, numerics="eager")(x), every(x)
    for position, (one, other) in enumerate(zip(found, expected, strict=True)):
        assert same_bits(one, other), f"function {position}"
