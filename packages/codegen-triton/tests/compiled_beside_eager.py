"""Functions compiled by loop-ir and this package, beside eager."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import torch
import weft_loop_ir
from torch.fx.experimental.proxy_tensor import make_fx
from weft_codegen_triton import TritonCodegen, TritonProgram
from weft_loop_ir import Schedule

TOLERANCE = {
    torch.float16: 2e-3,
    torch.bfloat16: 2e-2,
    torch.float32: 2e-5,
    torch.float64: 1e-10,
}


def schedule_of(
    function: Callable[..., Any],
    inputs: Sequence[Any],
    codegen: TritonCodegen,
    dynamic: bool = False,
) -> Schedule:
    """The schedule of ``function``, all sizes symbolic with ``dynamic``."""
    mode = "symbolic" if dynamic else "fake"
    with torch.no_grad():
        graph = make_fx(function, tracing_mode=mode)(*inputs)
    lowered = weft_loop_ir.lower(graph, options=codegen.lowering_options)
    return weft_loop_ir.schedule(lowered, codegen.schedule_options)


def compiled(
    codegen: TritonCodegen, function: Callable[..., Any], *inputs: Any, dynamic: bool = False
) -> TritonProgram:
    """``function``, compiled for tensors like ``inputs``."""
    program = codegen.compile(schedule_of(function, inputs, codegen, dynamic), {})
    assert_settled(program.source)
    return program


def assert_settled(source: str) -> None:
    """No kernel loads what another thread of its block may have stored, and not waited since."""
    stored: set[str] = set()
    for line in source.splitlines():
        if "debug_barrier" in line or line.startswith("def "):
            stored.clear()
        loaded = re.search(r"tl\.load\((\w+)", line)
        assert loaded is None or loaded.group(1) not in stored, line
        stored |= set(re.findall(r"tl\.store\((\w+)", line))


def assert_equals_eager(
    results: Sequence[Any], function: Callable[..., Any], inputs: Sequence[Any]
) -> None:
    """Compare with what ``function`` gives: values, dtypes and strides."""
    with torch.no_grad():
        wanted = function(*inputs)
    expected = wanted if isinstance(wanted, tuple | list) else (wanted,)
    assert len(results) == len(expected)
    for got, want in zip(results, expected, strict=True):
        tolerance = max(
            TOLERANCE.get(t.dtype, 0.0)
            for t in (want, *inputs)
            if isinstance(t, torch.Tensor) and not (t is not want and want.dtype not in TOLERANCE)
        )
        torch.testing.assert_close(got, want, rtol=tolerance, atol=tolerance, equal_nan=True)
        assert got.stride() == want.stride()


def check(codegen: TritonCodegen, function: Callable[..., Any], *inputs: Any) -> TritonProgram:
    """Compile ``function`` and compare it with eager on ``inputs``; gives the program."""
    program = compiled(codegen, function, *inputs)
    assert_equals_eager(program(*inputs), function, inputs)
    return program
