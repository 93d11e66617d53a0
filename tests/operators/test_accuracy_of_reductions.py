"""Reductions and norms, forward and backward, over the range of floats: errors beside eager's, by float64.

Each program is compiled once for a layout and called with data of several scales and offsets.  weft's error
may be a small multiple of eager's, or some units in the last place; where eager's result is finite, so is
weft's.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterator

import pytest
import torch
import weft
from torch.nn import functional as F

pytestmark = pytest.mark.native

Function = Callable[[torch.Tensor], object]

SCALES = (
    *((10.0**power, 0.0) for power in (0, -45, -38, -30, -20, 20, 30, 36)),
    *((1.0, offset) for offset in (1e3, 1e5, 1e7)),
)
"""Standard deviations and means of the data."""

MANY_TIMES, LAST_PLACES = 4, 16


def _along(function: Callable[..., object], *arguments: object) -> Function:
    return lambda x: function(x, *arguments)


def _beside(loss: Callable[..., object]) -> Function:
    """``loss`` between a tensor and its rows in reverse."""
    return lambda x: loss(x, x.flip(0))


MOMENTS: dict[str, Function] = {
    "var": lambda x: x.var(-1),
    "var of columns": lambda x: x.var(0, correction=0),
    "var of all": lambda x: x.var(),
    "std": lambda x: x.std(-1),
    "std of columns": lambda x: x.std(0),
    "var_mean": lambda x: torch.var_mean(x, -1),
    "std_mean": lambda x: torch.std_mean(x, -1, correction=0),
    "layer_norm": lambda x: F.layer_norm(x, x.shape[-1:]),
    "group_norm": lambda x: F.group_norm(x.unsqueeze(0), 2),
    "batch_norm": lambda x: F.batch_norm(x, None, None, training=True),
    "batch_norm of rows": lambda x: F.batch_norm(x.t(), None, None, training=True),
    "instance_norm": lambda x: F.instance_norm(x.unsqueeze(0)),
}

SUMS: dict[str, Function] = {
    "sum": lambda x: x.sum(-1),
    "sum of columns": lambda x: x.sum(0),
    "mean": lambda x: x.mean(-1),
    "nanmean": lambda x: x.nanmean(-1),
    "prod": lambda x: x.prod(-1),
    "cumsum": lambda x: x.cumsum(-1),
    "cumprod": lambda x: x.cumprod(-1),
    "logcumsumexp": lambda x: x.logcumsumexp(-1),
    "logsumexp": lambda x: x.logsumexp(-1),
    "softmax": lambda x: x.softmax(-1),
    "softmax of columns": lambda x: x.softmax(0),
    "log_softmax": lambda x: x.log_softmax(-1),
    "rms_norm": lambda x: F.rms_norm(x, x.shape[-1:]),
    "local_response_norm": lambda x: F.local_response_norm(x.unsqueeze(0), 3),
    "normalize": lambda x: F.normalize(x, dim=-1),
    "trapezoid": lambda x: torch.trapezoid(x, dim=-1),
    "avg_pool": lambda x: F.avg_pool1d(x.unsqueeze(0), 2, ceil_mode=True),
    "adaptive_avg_pool": lambda x: F.adaptive_avg_pool1d(x.unsqueeze(0), 1),
    "interpolate": lambda x: F.interpolate(x.unsqueeze(0), scale_factor=2, mode="linear"),
    "matrix_norm": lambda x: torch.linalg.matrix_norm(x),
    "matrix_norm 1": lambda x: torch.linalg.matrix_norm(x, 1),
    "lp_pool": lambda x: F.lp_pool1d(x.unsqueeze(0), 2.0, 2, ceil_mode=True),
    **{
        f"vector_norm {order}": functools.partial(torch.linalg.vector_norm, ord=order, dim=-1)
        for order in (0, 0.5, 1, 2, 3, -1, math.inf, -math.inf)
    },
}

LOSSES: dict[str, Function] = {
    "mse_loss": _beside(F.mse_loss),
    "l1_loss": _beside(F.l1_loss),
    "smooth_l1_loss": _beside(F.smooth_l1_loss),
    "huber_loss": _beside(F.huber_loss),
    "pairwise_distance": _beside(F.pairwise_distance),
    "cosine_similarity": _beside(lambda x, y: F.cosine_similarity(x, y.roll(1, -1), -1)),
    "dist": _beside(torch.dist),
    "cdist": _beside(lambda x, y: torch.cdist(x, y * 0.5)),
    "cdist 1": _beside(lambda x, y: torch.cdist(x, y * 0.5, p=1.0)),
    "kl_div": _beside(
        lambda x, y: F.kl_div(x.log_softmax(-1), y.softmax(-1), reduction="batchmean")
    ),
    "cross_entropy": lambda x: F.cross_entropy(x, torch.zeros(x.shape[0], dtype=torch.long)),
    "bce": lambda x: F.binary_cross_entropy(x.sigmoid(), torch.full_like(x, 0.5)),
    "bce_with_logits": lambda x: F.binary_cross_entropy_with_logits(x, torch.full_like(x, 0.5)),
}

ALL = MOMENTS | SUMS | LOSSES
"""Functions of a matrix."""

LAYOUTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "rows": lambda x: x,
    "columns": lambda x: x.t().contiguous().t(),
    "gaps": lambda x: torch.stack([x, x], -1)[..., 0],
}


def _data(length: int, scale: float, offset: float, dtype: torch.dtype) -> torch.Tensor:
    generator = torch.Generator().manual_seed(length)
    x = torch.randn(6, length, dtype=torch.float64, generator=generator)
    return (x * scale + offset).to(dtype)


def _results(function: Function, x: torch.Tensor, backward: bool) -> list[torch.Tensor]:
    """What ``function`` gives, or the gradient of a weighted sum of it."""
    x = x.detach().requires_grad_(backward)
    made = function(x)
    tensors: list[torch.Tensor] = list(made) if isinstance(made, tuple) else [made]  # type: ignore[list-item]
    if not backward:
        return tensors
    weights = [torch.linspace(-0.7, 1.3, t.numel()).reshape(t.shape).to(t.dtype) for t in tensors]
    return list(torch.autograd.grad(tensors, x, weights))


def _largest(values: torch.Tensor) -> float:
    values = values.abs()[values.isfinite()]
    return values.max().item() if values.numel() else 0.0


def _complaint(got: torch.Tensor, eager: torch.Tensor, exact: torch.Tensor) -> str | None:
    """What is worse about ``got`` than about ``eager``."""
    limits = torch.finfo(eager.dtype)
    assert got.dtype == eager.dtype and got.shape == eager.shape
    if not bool(got.isfinite()[eager.isfinite()].all()):
        return "not finite where eager is"
    if bool((got.isfinite() & exact.isnan()).any()):
        return "finite where there is no result"
    error = (got.double() - exact)[eager.isfinite() & exact.isfinite()]
    others = (eager.double() - exact)[eager.isfinite() & exact.isfinite()]
    scale = _largest(exact[exact.abs() < limits.max])
    allowed = max(
        MANY_TIMES * _largest(others),
        LAST_PLACES * limits.eps * scale,
        4 * limits.smallest_normal * limits.eps,
    )
    if _largest(error) > allowed:
        return f"off by {_largest(error):.3g} of {scale:.3g}, eager by {_largest(others):.3g}"
    return None


def _complaints(
    name: str, length: int, dtype: torch.dtype, layout: str, backward: bool
) -> Iterator[str]:
    function = ALL[name]
    compiled = weft.compile(function, fullgraph=True, dynamic=False)
    for scale, offset in SCALES:
        x = LAYOUTS[layout](_data(length, scale, offset, dtype))
        results = [
            _results(compiled, x, backward),
            _results(function, x, backward),
            _results(function, x.double(), backward),
        ]
        for position, (got, eager, exact) in enumerate(zip(*results, strict=True)):
            complaint = _complaint(got.detach(), eager.detach(), exact.detach())
            if complaint is not None:
                yield f"result {position} of N({offset:g}, {scale:g}): {complaint}"


def _refusal(function: Function, x: torch.Tensor, backward: bool) -> tuple[type, str] | None:
    """The error of a call that is refused, as that of distances in 16 bits, or of one element's deviation."""
    try:
        _results(function, x, backward)
    except (ValueError, NotImplementedError) as error:
        return type(error), str(error)
    return None


def _check(name: str, length: int, dtype: torch.dtype, layout: str, backward: bool) -> None:
    if name == "vector_norm 0" and backward:
        pytest.skip("it has no gradient")
    if length == 1 and "_norm" in name and "batch" in name + layout:
        pytest.skip("eager refuses statistics of one number")
    x = LAYOUTS[layout](_data(length, 1.0, 0.0, dtype))
    refusal = _refusal(ALL[name], x, backward)
    if refusal is not None:
        assert _refusal(weft.compile(ALL[name], dynamic=False), x, backward) == refusal
        return
    assert list(_complaints(name, length, dtype, layout, backward)) == []


QUICK = [
    *((name, 1000, torch.float32, "rows", False) for name in list(MOMENTS)[::2]),
    ("var", 7, torch.float32, "columns", False),
    ("std", 100_000, torch.float32, "rows", False),
    ("std", 1000, torch.bfloat16, "rows", False),
    ("std_mean", 130, torch.float32, "gaps", False),
    ("layer_norm", 1000, torch.float32, "rows", True),
    ("vector_norm 2", 1000, torch.float32, "rows", True),
    *((f"vector_norm {order}", 1, torch.float32, "rows", True) for order in (0.5, 2, -1)),
    *((f"vector_norm {order}", 1, torch.float32, "columns", False) for order in (0, 3)),
    ("cosine_similarity", 1, torch.float32, "rows", False),
    ("softmax", 1000, torch.float32, "rows", True),
    ("batch_norm", 7, torch.float32, "gaps", True),
    ("batch_norm", 1000, torch.float32, "columns", True),
]


@pytest.mark.parametrize(("name", "length", "dtype", "layout", "backward"), QUICK)
def test_errors_are_no_larger_than_eagers(
    name: str, length: int, dtype: torch.dtype, layout: str, backward: bool
) -> None:
    _check(name, length, dtype, layout, backward)


@pytest.mark.slow
@pytest.mark.parametrize("backward", [False, True], ids=["forward", "backward"])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("length", [1, 2, 7, 1000, 100_000])
@pytest.mark.parametrize("name", ALL)
def test_errors_of_all_reductions(
    name: str, length: int, dtype: torch.dtype, layout: str, backward: bool
) -> None:
    _check(name, length, dtype, layout, backward)


@pytest.mark.parametrize("column", [False, True])
@pytest.mark.parametrize("length", [40, 3000])
def test_moments_of_data_that_changes_its_scale(length: int, column: bool) -> None:
    """Runs of one scale after runs of another; zeros beside, before and after numbers."""
    compiled = weft.compile(lambda x, d: (x.var(d), x.std(d)), dynamic=False)
    small, large = (torch.randn(5, length) * scale for scale in (1e-30, 1e30))
    zeros, ones = torch.zeros(5, length), torch.randn(5, length) + 1e6
    parts = [small, zeros, ones, large]
    for first, second in itertools.permutations(parts, 2):
        x = torch.cat([first, second], 1)
        x = x.t().contiguous() if column else x
        dimension = 0 if column else 1
        exact = x.double().std(dimension)
        variance, deviation = compiled(x, dimension)
        torch.testing.assert_close(deviation, exact.float(), rtol=2e-6, atol=1e-45)
        torch.testing.assert_close(variance, exact.square().float(), rtol=4e-6, atol=1e-45)


def test_sums_of_lanes_that_are_too_large() -> None:
    """Of four rows the one half adds up to 4e38, and all of it to 1e38."""
    x = torch.full((4, 64), 1.25e37).index_fill(1, torch.arange(0, 64, 2), -9.375e36)
    for function in (lambda x: x.sum(-1), lambda x: x.mean(-1)):
        exact = function(x.double()).float()
        torch.testing.assert_close(weft.compile(function)(x), exact)


def test_moments_of_what_is_written_beside_them() -> None:
    """Steps that store can't be repeated: the same values, and the input is written once."""

    def function(x: torch.Tensor) -> torch.Tensor:
        x.add_(1e-30)
        return x.std(-1)

    x = torch.randn(4, 5000) * 1e-30
    y = x.clone()
    torch.testing.assert_close(weft.compile(function)(x), function(y), rtol=1e-5, atol=0)
    assert torch.equal(x, y)
