"""A few rows times weights of few bits on a GPU, whose instructions unpack them.  ``nox -s gpu``."""

from __future__ import annotations

import packed_layouts
import pytest
import torch
from compiled_beside_eager import schedule_of
from packed_layouts import LAYOUTS, T, stored
from torch.nn import functional as F
from weft_codegen_triton import TritonCodegen, TritonOptions

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("rows", [1, 3, 16])
@pytest.mark.parametrize("group", [32, 128])
def test_beside_float64(
    monkeypatch: pytest.MonkeyPatch, group: int, rows: int, dtype: torch.dtype
) -> None:
    """All layouts in one program, so that their kernels are compiled side by side."""
    monkeypatch.setattr(packed_layouts, "GROUP", group)
    counts = (16, 66) if group == 32 else (8, 32)
    weights = [stored(made, groups, dtype) for made in LAYOUTS for groups in counts]
    made = [one for one in LAYOUTS for _ in counts]
    rows_of = [
        torch.randn(rows, one(*w).shape[1]).to(dtype) for one, w in zip(made, weights, strict=True)
    ]
    inputs = [t.cuda() for x, w in zip(rows_of, weights, strict=True) for t in (x, *w)]

    def function(*given: T) -> list[T]:
        each = zip(given[::4], given[1::4], given[2::4], given[3::4], made, strict=True)
        return [F.linear(x, one(w, s, z)) for x, w, s, z, one in each]

    codegen = TritonCodegen(TritonOptions(fuse_matmuls=True))
    program = codegen.compile(schedule_of(function, inputs, codegen), {})
    assert program.extern_count == 0
    exact = function(*(t.double() if t.is_floating_point() else t for t in inputs))
    for result, eager, wanted, one in zip(
        program(*inputs), function(*inputs), exact, made, strict=True
    ):
        own, others = ((r.double() - wanted).norm() / wanted.norm() for r in (result, eager))
        assert own <= 2 * others + torch.finfo(dtype).eps, one.__name__
