"""Strides of fake results beside eager's, for operands that lie otherwise than row by row and broadcast."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor
from weft_bytecode_capture.symbolic.graph.fake_mode import RememberingFakeMode

BY_TWO: tuple[Callable[[Tensor, Tensor], Any], ...] = (
    torch.add, torch.complex, torch.polar, torch.logaddexp, torch.logaddexp2, torch.logical_and,
    torch.logical_or, torch.logical_xor, torch.heaviside, torch.copysign, torch.xlogy, torch.atan2,
    torch.hypot, torch.floor_divide, torch.maximum, torch.isin, torch.where,
    torch.ldexp, lambda x, y: torch.ldexp(x, y.long()),
    lambda x, y: torch.ldexp(x.long(), y.long()),
)  # fmt: skip

BY_ONE: tuple[Callable[[Tensor], Any], ...] = (
    torch.nn.functional.rrelu,
    torch.nn.functional.logsigmoid,
    torch.fft.fftshift,
    torch.nan_to_num,
    lambda x: torch.pow(2.0, x),
    lambda x: torch._standard_gamma(x + 1),
    lambda x: torch.isin(x, 0.5),
    lambda x: torch.roll(x, 2, 0),
    lambda x: torch.roll(x, 1, -1),
    lambda x: torch.fft.fft(x).abs(),
    lambda x: torch.sort(x)[1],
)


def images() -> list[Tensor]:
    """Row by row, channels-last, with a last size of 1, in another order, with gaps, broadcast."""
    values = torch.arange(1.0, 241.0) % 3
    return [
        values[:120].view(2, 3, 5, 4),
        values[:120].view(2, 5, 4, 3).permute(0, 3, 1, 2),
        values[:30].view(2, 1, 5, 3).permute(0, 3, 2, 1),
        values[:120].view(4, 5, 3, 2).permute(3, 2, 1, 0),
        values[:240].view(2, 3, 5, 8)[..., ::2],
        values[:4],
        values[:5].view(5, 1),
    ]


def laid_out(value: Any) -> list[Any]:
    """Of each result; where a dim has one element its stride means nothing."""
    results: Sequence[Tensor] = value if isinstance(value, tuple) else (value,)
    return [
        (r.shape, [s for n, s in zip(r.shape, r.stride(), strict=True) if n > 1]) for r in results
    ]


def compared(function: Callable[..., Any], *operands: Tensor) -> tuple[Any, Any]:
    fake_mode = RememberingFakeMode(allow_non_fake_inputs=False)
    fakes = [fake_mode.from_tensor(operand) for operand in operands]
    with fake_mode:
        found = function(*fakes)
    return laid_out(found), laid_out(function(*operands))


@pytest.mark.parametrize("operator", BY_TWO, ids=lambda f: f.__name__.strip("<>"))
def test_of_two_operands(operator: Callable[..., Any]) -> None:
    function = operator
    if operator is torch.where:
        function = lambda x, y: torch.where(x > 1, x, y)  # noqa: E731
    for first in images():
        for second in images():
            found, expected = compared(function, first, second)
            assert found == expected, (first.stride(), second.stride())


@pytest.mark.parametrize("dtype", [torch.bool, torch.int32, torch.float16], ids=str)
@pytest.mark.parametrize("number", [True, 2, 0.5], ids=str)
@pytest.mark.parametrize(
    "operator",
    [torch.add, torch.mul, torch.pow, torch.div, torch.eq, torch.fmod, torch.bitwise_or],
)
def test_dtypes_of_a_tensor_and_a_number(
    operator: Callable[..., Tensor], number: float, dtype: torch.dtype
) -> None:
    for operand in (torch.ones(2, dtype=dtype), torch.ones((), dtype=dtype)):
        try:
            expected = operator(operand, number)
        except RuntimeError:
            return
        with RememberingFakeMode(allow_non_fake_inputs=False) as fake_mode:
            for _ in range(2):
                found = operator(fake_mode.from_tensor(operand), number)
                assert (found.dtype, found.shape) == (expected.dtype, expected.shape)


@pytest.mark.parametrize("number", range(len(BY_ONE)))
def test_of_one_operand(number: int) -> None:
    for operand in images():
        found, expected = compared(BY_ONE[number], operand)
        assert found == expected, operand.stride()


TRANSFORMS: tuple[Callable[[Tensor], Tensor], ...] = (
    lambda x: torch.fft.fft(x, dim=0),
    lambda x: torch.fft.fft2(x),
    lambda x: torch.fft.fftn(x, dim=(0, 1, 2)),
    lambda x: torch.fft.fftn(torch.complex(x, x), dim=(0, 2)),
    lambda x: torch.fft.fft2(torch.complex(x, x)),
    lambda x: torch.fft.rfft(x, dim=1),
    lambda x: torch.fft.rfftn(x, dim=(2, 0)),
    lambda x: torch.fft.irfft(torch.complex(x, x), 4),
    lambda x: torch.fft.irfftn(torch.complex(x, x), (4, 2), (0, 2)),
    lambda x: torch.fft.ihfft(x, dim=0),
)

SCATTERS: tuple[Callable[[Tensor], Tensor], ...] = (
    lambda x: x.select_scatter(x.select(1, 0), 1, -1),
    lambda x: x.slice_scatter(x.narrow(0, 0, 1), 0, 0, 1),
    lambda x: x.diagonal_scatter(x.diagonal()),
)


@pytest.mark.parametrize("operator", TRANSFORMS + SCATTERS)
def test_of_one_operand_in_any_order_of_dims(operator: Callable[[Tensor], Tensor]) -> None:
    values = torch.arange(1.0, 61.0)
    rows = [
        values.view(3, 4, 5),
        values[:20].view(4, 5).expand(3, 4, 5),
        values[:15].view(3, 1, 5).expand(3, 4, 5),
        values[:12].view(3, 4, 1),
        values[:12].view(3, 1, 4).expand(3, 2, 4),
    ]
    for operand in rows:
        for dims in itertools.permutations(range(3)):
            found, expected = compared(operator, operand.permute(dims))
            assert found == expected, operand.permute(dims).stride()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_row_statistics_of_attention_have_the_dtype_that_eager_computes(dtype: torch.dtype) -> None:
    attend = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    operand = torch.ones(1, 2, 3, 4, dtype=dtype)
    with RememberingFakeMode(allow_non_fake_inputs=False) as fake_mode:
        fake = fake_mode.from_tensor(operand)
        found = [value.dtype for value in attend(fake, fake, fake)]
    assert found == [value.dtype for value in attend(operand, operand, operand)]


OF_LAYOUT: tuple[Callable[[Tensor], Tensor], ...] = (
    torch.empty_like,
    torch.zeros_like,
    torch.ops.aten.zero,
    lambda x: torch.full_like(x, 2),
    lambda x: torch.fill(x, 2),
    lambda x: torch.fill(x, x.sum()),
    torch.rand_like,
    lambda x: torch.randint_like(x, 3),
    lambda x: x.roll(1, 0),
    lambda x: x.log_softmax(-1),
    lambda x: x.sum(0, True),
    lambda x: x.renorm(2, 0, 1.0),
    lambda x: torch.nn.functional.prelu(x, x.new_ones(1)),
    lambda x: torch.nn.functional.binary_cross_entropy_with_logits(x, x, reduction="none"),
    lambda x: x.index_add(0, x.new_zeros(len(x), dtype=torch.long), x),
    lambda x: x.index_copy(0, x.new_zeros(len(x), dtype=torch.long), x),
)


@pytest.mark.parametrize("number", range(len(OF_LAYOUT)))
@pytest.mark.parametrize("shape", [(1, 0, 6), (0, 6), (3, 0, 6), (1, 3, 6), (5, 2)], ids=str)
def test_without_elements_or_with_one_in_a_row(number: int, shape: tuple[int, ...]) -> None:
    """Where there is no element, kernels decide otherwise than meta functions; every stride counts."""
    operand = torch.ones(shape)[..., ::2]
    if shape == (5, 2):
        operand = torch.ones(5, 1).t()
    fake_mode = RememberingFakeMode(allow_non_fake_inputs=False)
    fake = fake_mode.from_tensor(operand)
    with fake_mode:
        found = OF_LAYOUT[number](fake)
    assert found.stride() == OF_LAYOUT[number](operand).stride()


DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.bool, torch.complex64)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("other", DTYPES, ids=str)
def test_ldexp_of_two_dtypes(dtype: torch.dtype, other: torch.dtype) -> None:
    if dtype.is_floating_point and other is torch.bool:
        pytest.skip("eager refuses these")
    if dtype.is_complex and other is torch.bfloat16 and hasattr(torch, "bcomplex32"):
        pytest.skip("eager computes these in a dtype for which it has no kernel")  # 2.15
    first = torch.ones(10, 4, 5).permute(1, 2, 0).to(dtype)
    second = torch.ones(10, 1, 5).permute(1, 2, 0).to(other)
    found, expected = compared(torch.ldexp, first[:, :1], second)
    assert found == expected


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.int64, torch.float32])
def test_of_an_expanded_operand_of_another_dtype(dtype: torch.dtype) -> None:
    """It is dense once it has been converted; 16 bits, which torch's rules convert, eager's kernels read."""
    columns = torch.ones(2, 8).t()
    operators = (
        torch.add, torch.mul, torch.atan2, torch.maximum, torch.remainder, torch.le, torch.div,
        torch.copysign, torch.logical_and, torch.xlogy, torch.floor_divide,
    )  # fmt: skip
    expanded = (torch.ones(2, dtype=dtype).expand(8, 2), torch.ones(8, 1, dtype=dtype).expand(8, 2))
    others = [columns.to(other) for other in (torch.bfloat16, torch.bool, torch.int64)]
    for operator, x, y in itertools.product(operators, expanded, others):
        for operands in ((x, y), (y, x)):
            found, expected = compared(operator, *operands)
            assert found == expected, (operator, x.stride(), y.dtype)


def test_scatters_into_an_expanded_vector_are_dense() -> None:
    """Torch 2.11 promises the stride of the operand, by which a write would reach every element."""
    vector, part = torch.ones(1).expand(5), torch.ones(1)
    for scatter in (
        lambda x, y: x.select_scatter(y[0], 0, -1),
        lambda x, y: x.slice_scatter(y, 0, 0, 1),
    ):
        found, expected = compared(scatter, vector, part)
        assert found == expected
