"""Matrix products in kernels of our own on a GPU, beside eager in float64.  ``nox -s gpu``."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from compiled_beside_eager import schedule_of
from product_cases import ALL
from weft_codegen_triton import TritonCodegen, TritonOptions

pytestmark = pytest.mark.gpu

ERROR = {torch.float16: 2e-3, torch.bfloat16: 1.5e-2, torch.float32: 1e-5}


@pytest.mark.parametrize("autotune", [False, True])
@pytest.mark.parametrize("dtype", ERROR, ids=str)
@pytest.mark.parametrize("name", [n for n in ALL if n not in ("another dtype", "before, a cast")])
def test_products(tmp_path: Path, name: str, dtype: torch.dtype, autotune: bool) -> None:
    function, inputs, _ = ALL[name]
    given = [t.to("cuda", dtype if t.is_floating_point() else t.dtype) for t in inputs]
    codegen = TritonCodegen(
        TritonOptions(fuse_products=True, autotune=autotune and name in ("odd sizes", "heads"))
    )
    program = codegen.compile(schedule_of(function, given, codegen), {})
    assert program.extern_count == 0
    wanted = function(*(t.double() if t.is_floating_point() else t for t in given))
    expected = wanted if isinstance(wanted, tuple) else (wanted,)
    for _ in range(3):
        for result, exact in zip(program(*given), expected, strict=True):
            finite = exact.isfinite()
            assert torch.equal(result.isfinite(), finite)
            error = (result.double() - exact)[finite].norm() / exact[finite].norm()
            assert error <= ERROR[dtype]


def test_a_choice_is_kept_on_disk(tmp_path: Path) -> None:
    codegen = TritonCodegen(TritonOptions(cache_directory=tmp_path, autotune=True))
    inputs = (
        torch.randn(512, 256, device="cuda").half(),
        torch.randn(256, 512, device="cuda").half(),
    )
    schedule = schedule_of(lambda x, w: (x @ w).relu(), inputs, codegen)
    first = codegen.compile(schedule, {})
    (path,) = tmp_path.glob("*.product")
    stamp = path.stat().st_mtime_ns
    again = codegen.compile(schedule, {})
    assert path.stat().st_mtime_ns == stamp
    assert first.extern_count == again.extern_count
    torch.testing.assert_close(first(*inputs), again(*inputs), rtol=2e-3, atol=2e-2)
