"""Compilation while ``torch.autograd.set_detect_anomaly`` is on."""

from __future__ import annotations

import pytest
import torch
import weft


def test_graphs_are_compiled_and_gradients_looked_at() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return x.sqrt().sum()

    compiled = weft.compile(function, fullgraph=True)
    with torch.autograd.set_detect_anomaly(True):
        x = torch.ones(3, requires_grad=True)
        compiled(x).backward()
        torch.testing.assert_close(x.grad, torch.full((3,), 0.5))
        negative = torch.full((3,), -1.0, requires_grad=True)
        with pytest.raises(RuntimeError, match="returned nan values"):
            compiled(negative).backward()
