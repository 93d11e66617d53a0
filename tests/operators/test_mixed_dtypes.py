"""Operands of two floating-point dtypes: losses whose result has the first one's, backward included."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import weft
from torch.nn import functional as F

LOSSES = (
    *(F.mse_loss, F.l1_loss, F.smooth_l1_loss, F.huber_loss, F.soft_margin_loss),
    *(F.binary_cross_entropy_with_logits, F.kl_div, F.poisson_nll_loss),
)
DTYPES = [
    *[(torch.float32, torch.float64), (torch.float64, torch.float32)],
    *[(torch.float32, torch.float32), (torch.float32, torch.int64)],
]


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("dtypes", DTYPES)
def test_losses(loss: Callable[..., Any], dtypes: tuple[torch.dtype, torch.dtype]) -> None:
    def program(x: torch.Tensor, y: torch.Tensor) -> Any:
        return loss(x, y, reduction="none"), loss(x, y), loss(x, y, reduction="sum")

    def outcome(function: Callable[..., Any]) -> Any:
        x = torch.linspace(0.1, 0.9, 6, dtype=dtypes[0]).view(2, 3).requires_grad_()
        y = torch.linspace(0.9, 0.2, 6, dtype=dtypes[1]).view(2, 3)
        try:
            results = function(x, y)
        except RuntimeError as error:
            return (), type(error), str(error)
        try:
            (results[0].sum() + results[1]).backward()
        except RuntimeError as error:
            return results, type(error), str(error)
        return results, x.grad

    expected = outcome(program)
    found = outcome(weft.compile(program))
    torch.testing.assert_close(found[0], expected[0])
    if isinstance(expected[1], type):  # eager refuses two dtypes
        assert found[1:] == expected[1:]
    else:
        torch.testing.assert_close(found[1], expected[1])


def test_cross_entropy_with_logits_has_the_dtype_of_its_targets() -> None:
    """Of narrower ones, too, whatever that of weights is."""
    loss = F.binary_cross_entropy_with_logits
    x = torch.linspace(-2, 2, 6).view(2, 3)
    y = torch.linspace(0.9, 0.2, 6).view(2, 3)
    weights = torch.tensor([0.5, 1.0, 2.0], dtype=torch.float64)

    def program(x: torch.Tensor) -> list[torch.Tensor]:
        targets = [y.to(dtype) for dtype in (torch.bfloat16, torch.float16, torch.float64)]
        results = [loss(x, target) for target in targets]
        results += [loss(x, target, weight=weights, reduction="none") for target in targets]
        results += [loss(x, target, pos_weight=weights, reduction="sum") for target in targets]
        return results + list(torch.autograd.grad(sum(r.double().sum() for r in results), x))

    found, expected = (f(x.clone().requires_grad_()) for f in (weft.compile(program), program))
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize(
    "dtypes", [(torch.bool, torch.float32), (torch.int64, torch.float32, torch.float64)]
)
def test_vectors_without_elements_joined(dtypes: tuple[torch.dtype, ...]) -> None:
    def function(*parts: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.cat(parts), torch.hstack(parts)

    parts = [torch.zeros(0, dtype=dtype) for dtype in dtypes]
    for found, wanted in zip(weft.compile(function)(*parts), function(*parts), strict=True):
        assert (found.dtype, found.shape) == (wanted.dtype, wanted.shape)
