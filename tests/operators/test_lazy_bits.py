"""Conjugates and negatives that torch computes lazily, with a bit of the tensor, in graphs and as inputs.

A program reads memory, which then holds other values than the tensor.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import weft

pytestmark = pytest.mark.native

T = torch.Tensor


def _added_to_a_part(z: T) -> T:
    y = z.clone().conj()
    y.imag[0] = 5
    return y.resolve_conj()


def _written_by_rows(z: T) -> T:
    y = z.mT * 2j
    y[0] = y[1] * 1j
    y[:, 1:2] *= 3
    y.conj()[-1].add_(2 + 1j)
    y[1:] = y[1:].conj()
    y.imag[:, 0].mul_(z.real[0, 0])
    return y


WRITTEN: dict[str, Callable[[T], object]] = {
    "conjugate": lambda z: z.conj().add_(1 + 2j),
    "row of the adjoint": lambda z: z.mH[1].mul_(2j),
    "conjugate's conjugate": lambda z: z.conj()[1:].conj().add_(1j),
    "parts of the conjugate": lambda z: (z.conj().imag.add_(2), z.conj().real[0].mul_(3)),
    "by a mask": lambda z: z.conj().masked_fill_(z.real > 0, 2 + 1j),
    "of itself": lambda z: z.mH.copy_(z.mH * 2j),
    "negative": lambda z: torch._neg_view(z)[0].add_(3 + 1j),
}


@pytest.mark.parametrize("view", [lambda z: z * 1, lambda z: z, torch.Tensor.conj])
@pytest.mark.parametrize("name", WRITTEN)
def test_writes_through_views(name: str, view: Callable[[T], T]) -> None:
    def program(z: T) -> tuple[T, T, bool]:
        y = view(z)
        WRITTEN[name](y)
        return y, y * 2, y.is_conj()

    found = torch.randn(3, 4, dtype=torch.complex128)
    want = found.clone()
    got = weft.compile(program, fullgraph=True)(found)
    torch.testing.assert_close((*got, found), (*program(want), want))


COMPLEX: dict[str, Callable[[T], T]] = {
    "imaginary part": lambda z: z.conj().imag * 2,
    "of a row": lambda z: (z * 2).conj()[0].imag * 3,
    "real part": lambda z: z.conj().real * 2,
    "both": lambda z: torch.complex(z.conj().imag * 1, z.real * 1),
    "adjoint": lambda z: (z.mH @ z).exp() @ z.mH,
    "negative": lambda z: torch._neg_view(z.conj())[0] * 2,
    "expanded": lambda z: z[:1].expand(5, 3).conj() * 2,
    "returned": lambda z: (z[:1] * 2).expand(5, 3).conj(),
    "written": _added_to_a_part,
    "view of the input": lambda z: z.conj().imag,
    "transform": lambda z: torch.fft.fft(z.conj(), dim=0).imag.exp(),
}
REAL: dict[str, Callable[[T], T]] = {
    "transform": lambda x: torch.fft.ifft(x).imag,
    "computed": lambda x: torch._neg_view(x) * 2,
    "returned": lambda x: torch._neg_view(x),
    "transposed": lambda x: torch._neg_view(x + 1).t(),
    "expanded": lambda x: torch._neg_view(x[:1].exp().expand(5, 3)) + 1,
    "read": lambda x: -x,
    "summed": lambda x: x.sum(0),
}


@pytest.fixture
def in_eager_where_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WEFT_STRICT")


@pytest.mark.filterwarnings("ignore:weft.*(lazy|returned view)")
@pytest.mark.usefixtures("in_eager_where_refused")
@pytest.mark.parametrize("is_input", [False, True])
@pytest.mark.parametrize("name", [*COMPLEX, *("real: " + name for name in REAL)])
def test_values(name: str, is_input: bool) -> None:
    function = REAL[name[6:]] if name.startswith("real: ") else COMPLEX[name]
    z = torch.randn(4, 3, dtype=torch.complex128)
    value: T = z.conj().imag if name.startswith("real: ") else z.conj()
    value = value if is_input else value.resolve_conj().resolve_neg()
    assert is_input == (value.is_conj() or value.is_neg())
    torch.testing.assert_close(weft.compile(function)(value), function(value))


@pytest.mark.parametrize(
    "function",
    [
        lambda z: (z * 2).conj() * z * z,
        lambda z: (z * 2).conj().imag.exp() * z.real,
        lambda z: torch.fft.ifft(z.real).imag.exp() * torch.fft.fft(z.imag).real,
        lambda z: (z.mH @ z).exp() @ z.mH,
        lambda z: torch._neg_view(z.real * 2).exp().sin() * z.imag,
        _written_by_rows,
    ],
)
def test_gradients(function: Callable[[T], T]) -> None:
    z = torch.randn(3, 4, dtype=torch.complex128, requires_grad=True)
    (expected,) = torch.autograd.grad(function(z).abs().square().sum(), z)
    (found,) = torch.autograd.grad(weft.compile(function)(z).abs().square().sum(), z)
    torch.testing.assert_close(found, expected)


def _written_in_place(x: T) -> T:
    x.mul_(3)
    x[0] += 1
    return x * 2


def test_arguments_are_compiled_and_may_be_written() -> None:
    """In strict mode; what is written is the memory of the caller's tensor, with its bit."""
    compiled = weft.compile(_written_in_place)
    for dtype in (torch.complex64, torch.complex128):
        for view in (torch.Tensor.conj, lambda z: z.conj().imag, lambda z: z.mH[1:]):
            z = torch.randn(3, 4, dtype=dtype)
            found = z.clone()
            torch.testing.assert_close(compiled(view(found)), _written_in_place(view(z)))
            torch.testing.assert_close(found, z)


def test_gradients_of_arguments() -> None:
    def program(x: T, w: T) -> T:
        return (x.exp() * w).abs().sum()

    compiled = weft.compile(program)
    for view in (torch.Tensor.conj, lambda z: z.conj().imag):
        z = torch.randn(3, 4, dtype=torch.complex128, requires_grad=True)
        w = torch.randn(4, dtype=torch.complex128, requires_grad=True)
        expected = torch.autograd.grad(program(view(z), view(w)), (z, w))
        found = torch.autograd.grad(compiled(view(z), view(w)), (z, w))
        torch.testing.assert_close(found, expected)
