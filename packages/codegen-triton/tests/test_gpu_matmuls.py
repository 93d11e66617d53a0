"""Matrix products in kernels of our own on a GPU, beside eager in float64.  ``nox -s gpu``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from compiled_beside_eager import schedule_of
from matmul_cases import ALL
from weft_codegen_triton import TritonCodegen, TritonOptions

pytestmark = pytest.mark.gpu

ERROR = {torch.float16: 2e-3, torch.bfloat16: 1.5e-2, torch.float32: 1e-5}


@pytest.mark.parametrize("dtype", ERROR, ids=str)
def test_matmuls(dtype: torch.dtype) -> None:
    """All cases in one program, so that their kernels are compiled side by side."""
    given = {
        name: [t.to("cuda", dtype) if t.is_floating_point() else t.to("cuda") for t in inputs]
        for name, (_, inputs, _) in ALL.items()
    }

    def function(*inputs: torch.Tensor) -> list[torch.Tensor]:
        left, results = list(inputs), []
        for name, own in given.items():
            result = ALL[name][0](*left[: len(own)])
            results += _tuple(result)
            del left[: len(own)]
        return results

    inputs = [t for own in given.values() for t in own]
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        codegen = TritonCodegen(TritonOptions(fuse_matmuls=True))
        program = codegen.compile(schedule_of(function, inputs, codegen), {})
        assert program.extern_count == 0
        for _ in range(3):
            results = list(program(*inputs))
            for name, own in given.items():
                double = (t.double() if t.is_floating_point() else t for t in own)
                for exact in _tuple(ALL[name][0](*double)):
                    _assert_close(name, results.pop(0), exact, ERROR[dtype])


def _tuple(result: Any) -> tuple[torch.Tensor, ...]:
    return result if isinstance(result, tuple) else (result,)


def _assert_close(name: str, result: torch.Tensor, exact: torch.Tensor, bound: float) -> None:
    finite = exact.isfinite()
    assert torch.equal(result.isfinite(), finite), name
    error = (result.double() - exact)[finite].norm() / exact[finite].norm()
    assert error <= bound, f"{name}: {error:.1e}"


def test_a_choice_is_kept_on_disk(tmp_path: Path) -> None:
    codegen = TritonCodegen(TritonOptions(cache_directory=tmp_path, autotune=True))
    inputs = (
        torch.randn(512, 256, device="cuda").half(),
        torch.randn(256, 512, device="cuda").half(),
    )
    schedule = schedule_of(lambda x, w: (x @ w).relu(), inputs, codegen)
    first = codegen.compile(schedule, {})
    (path,) = tmp_path.glob("*.matmul")
    stamp = path.stat().st_mtime_ns
    again = codegen.compile(schedule, {})
    assert path.stat().st_mtime_ns == stamp
    assert first.extern_count == again.extern_count
    torch.testing.assert_close(first(*inputs), again(*inputs), rtol=2e-3, atol=2e-2)
