"""Normalized images lie as in eager, which programs read: torch's fakes of some releases lie otherwise."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
import weft

NORMS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "batch": lambda x: F.batch_norm(x, x.new_zeros(8), x.new_ones(8)),
    "batch in training": lambda x: F.batch_norm(x, None, None, training=True),
    "group": lambda x: F.group_norm(x, 2),
    "scaled group": lambda x: F.group_norm(x, 4, x.new_ones(8), x.new_zeros(8)),
    "instance": F.instance_norm,
    "layer": lambda x: F.layer_norm(x, x.shape[2:]),
    "rms": lambda x: F.rms_norm(x, x.shape[2:]),
}
_RANDOM = torch.Generator().manual_seed(0)
IMAGES = {
    "channels last": torch.randn(2, 8, 5, 5, generator=_RANDOM).to(
        memory_format=torch.channels_last
    ),
    "contiguous": torch.randn(2, 8, 5, 5, generator=_RANDOM),
    "part of one": torch.randn(2, 16, 5, 5, generator=_RANDOM).to(
        memory_format=torch.channels_last
    )[:, ::2],
    "channels last in 3 dimensions": torch.randn(2, 8, 3, 5, 5, generator=_RANDOM).to(
        memory_format=torch.channels_last_3d
    ),
}


@pytest.mark.parametrize("gradient", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("image", IMAGES)
def test_norms_lie_as_in_eager(image: str, gradient: bool) -> None:
    def program(x: torch.Tensor) -> list[tuple[torch.Tensor, tuple[int, ...], bool]]:
        normalized = [normalize(x) for normalize in NORMS.values()]
        return [(y * 2, y.stride(), y.is_contiguous()) for y in normalized]

    # Gradients in float32 are apart by more than the tolerance, by threads and image.
    dtype = torch.float64 if gradient else torch.float32
    xs = [IMAGES[image].to(dtype).detach().requires_grad_(gradient) for _ in range(2)]
    want, got = program(xs[0]), weft.compile(program, fullgraph=True)(xs[1])
    for name, (y, *layout), (expected, *expected_layout) in zip(NORMS, got, want, strict=True):
        torch.testing.assert_close(y, expected)
        assert layout == expected_layout, name
        assert y.stride() == expected.stride(), name
    if gradient:
        sums = [sum(y.sin().sum() for y, *_ in results) for results in (got, want)]
        found, wanted = (torch.autograd.grad(y, x) for y, x in zip(sums, xs[::-1], strict=True))
        torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize("keepdim", [False, True])
@pytest.mark.parametrize("size", [(1, 1), (2, 1), (1, 3), (1,), (2, 1, 1)], ids=str)
def test_norms_over_one_element_have_eagers_sizes(size: tuple[int, ...], keepdim: bool) -> None:
    def program(x: torch.Tensor) -> list[torch.Tensor]:
        norms = [x.norm(dim=d, keepdim=keepdim) for d in range(-x.dim(), x.dim())]
        norms += [torch.linalg.vector_norm(x, 1, d, keepdim) for d in range(-x.dim(), x.dim())]
        return [norm * 2 for norm in norms]

    x = torch.randn(size)
    torch.testing.assert_close(weft.compile(program, fullgraph=True)(x), program(x))
