"""float16 in kernels with eager's rounding, and complex numbers through views and calls of torch."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import weft
from torch.nn import functional as F

pytestmark = pytest.mark.native

HALF: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "pointwise": lambda x: F.gelu(x * 2 + 1) * x.sigmoid() - x.tanh(),
    "overflow": lambda x: (x * 4e4 + x.exp() * 1e4) / 3,
    "denormals": lambda x: x * 1e-7 + x * 6e-8,
    "reductions": lambda x: torch.cat([x.sum(0), x.mean(0), x.amax(0), x.var(0), x.norm(dim=0)]),
    "a sum beyond its range": lambda x: (x.abs() * 1000).sum(1) / 64,
    "softmax": lambda x: x.softmax(-1) + x.log_softmax(0),
    "layer norm": lambda x: F.layer_norm(x, x.shape[-1:]),
    "matrices": lambda x: F.relu(x @ x.t()) @ x,
    "positions": lambda x: x.argmax(1) + x.sort(1)[1][:, 0],
}


@pytest.mark.parametrize("name", HALF)
def test_half(name: str) -> None:
    torch.manual_seed(0)
    x = torch.randn(9, 33).half()
    function = HALF[name]
    got, want = weft.compile(function, fullgraph=True)(x), function(x)
    assert got.dtype == want.dtype
    torch.testing.assert_close(got, want, rtol=4e-3, atol=4e-3, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("exponent", [0.5, -0.5, 2, 3, -1, -2, 1.5])
def test_powers_of_zeros_and_infinities(exponent: float, dtype: torch.dtype) -> None:
    """Eager takes square roots, but for float16 and exponents in tensors."""
    x = torch.tensor([torch.inf, -torch.inf, 0.0, -0.0, 2.25, torch.nan], dtype=dtype)
    for power in (lambda x: x**exponent, lambda x: x.pow(torch.full_like(x, exponent))):
        got, want = weft.compile(power, fullgraph=True)(x), power(x)
        torch.testing.assert_close(got, want, equal_nan=True)
        assert torch.equal(got.signbit() & (got == 0), want.signbit() & (want == 0))


COMPLEX: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "arithmetic": lambda z: (z * z + 2j * z) / (z + 3),
    "functions": lambda z: z.exp() + z.abs() * z.sqrt(),
    "parts": lambda z: z.real * 2 + z.imag.sin() + z.angle(),
    "conjugate": lambda z: z.conj() * z + z.mH @ z,
    "pairs": lambda z: torch.view_as_complex(torch.view_as_real(z) * 2 + 1),
    "sums": lambda z: z.sum(0) + z.mean() + z.prod(1),
    "matrices": lambda z: z @ z.t() - torch.linalg.inv(z),
    "transforms": lambda z: torch.fft.ifft(torch.fft.fft(z) * 0.5).real,
    "without NaN": lambda z: (z / z.real.relu()).nan_to_num(0.5, 3.0, -2.0),
    "views": lambda z: torch.cat([z[:, 1:], z.flip(1)], 1).reshape(-1)[::2],
}


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128])
@pytest.mark.parametrize("name", COMPLEX)
def test_complex(name: str, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    z = torch.randn(5, 5, dtype=dtype)
    function = COMPLEX[name]
    log = weft.CompileLog()
    with weft.observe(log):
        got = weft.compile(function, fullgraph=True)(z)
    torch.testing.assert_close(got, function(z))
    assert any(graph.fallbacks for graph in log.graphs), "complex numbers are in no kernel"


def test_gradients_of_complex_numbers() -> None:
    def function(z: torch.Tensor) -> torch.Tensor:
        return (torch.fft.fft(z * 2j).abs() ** 2).sum()

    z = torch.randn(6, dtype=torch.complex128, requires_grad=True)
    (want,) = torch.autograd.grad(function(z), z)
    (got,) = torch.autograd.grad(weft.compile(function)(z), z)
    torch.testing.assert_close(got, want)
