"""Losses in blocks of rows with the GPU's kernels, in Triton's interpreter."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
import weft
from torch import Tensor
from weft_codegen_triton import TritonCodegen, TritonOptions

from tests.triton_interpreter import require_interpreter

require_interpreter()

ROWS, HIDDEN, COLUMNS = 64, 16, 96


def loss(h: Tensor, w: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(F.linear(h, w).float(), targets)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_loss_and_its_gradients(
    dtype: torch.dtype, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    codegen = TritonCodegen(TritonOptions(interpret=True))
    monkeypatch.setitem(weft.registry.codegens, "cpu", lambda: codegen)
    h = torch.randn(ROWS, HIDDEN, dtype=dtype, requires_grad=True)
    w = torch.randn(COLUMNS, HIDDEN, dtype=dtype, requires_grad=True)
    targets = torch.randint(0, COLUMNS, (ROWS,))
    targets[::7] = -100
    options = {"row_block_bytes": 1, "dump_directory": tmp_path}
    compiled = weft.compile(loss, options=options, fullgraph=True)
    close = {} if dtype is torch.float32 else {"rtol": 2e-2, "atol": 2e-3}
    results = [call(h, w, targets) for call in (loss, compiled)]
    torch.testing.assert_close(results[1], results[0], rtol=1e-3, atol=1e-4)
    gradients = [torch.autograd.grad(r, (h, w), torch.tensor(0.3)) for r in results]
    torch.testing.assert_close(gradients[1], gradients[0], **close)
    (graph,) = tmp_path.glob("*/3_forward.py")
    matmuls = re.findall(r"aten\.(?:add)?mm\.default\(", graph.read_text())
    assert len(matmuls) == (4 if dtype is torch.float16 else 12)
    assert f"[{ROWS}, {COLUMNS}]" not in next(tmp_path.glob("*/5_schedule.txt")).read_text()
