"""Resizing and pooling of no images, with sizes that vary."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
import weft

PROGRAMS: dict[str, Callable[[torch.Tensor, int], torch.Tensor]] = {
    "nearest": lambda x, n: F.interpolate(x + n, scale_factor=2),
    "nearest-exact": lambda x, n: F.interpolate(x + n, size=(n + 2, 5), mode="nearest-exact"),
    "bilinear": lambda x, n: F.interpolate(x + n, scale_factor=1.5, mode="bilinear"),
    "bicubic": lambda x, n: F.interpolate(x + n, size=(4, n + 2), mode="bicubic"),
    "rows": lambda x, n: F.interpolate((x + n).flatten(2), scale_factor=3.0),
    "average": lambda x, n: F.avg_pool2d(x + n, 2),
    "adaptive": lambda x, n: F.adaptive_avg_pool2d(x + n, (2, 1)),
}


@pytest.mark.parametrize("requires_grad", [False, True])
@pytest.mark.parametrize("name", PROGRAMS)
def test_no_images(name: str, requires_grad: bool) -> None:
    program = PROGRAMS[name]
    compiled = weft.compile(program, dynamic=True)
    for batch, height in ((0, 8), (2, 8), (0, 6)):
        x = torch.randn(batch, 3, height, 4, requires_grad=requires_grad)
        results = [function(x, 2) for function in (compiled, program)]
        torch.testing.assert_close(*results)
        assert results[0].stride() == results[1].stride()
        if requires_grad:
            torch.testing.assert_close(*(torch.autograd.grad(r.sum(), x) for r in results))
