"""Gradients: which calls need them, and that training is refused by name."""

from __future__ import annotations

import pytest
import torch
import weft_aot_autograd
import weft_functionalize
from torch import nn
from weft_aot_autograd import Unsupported, needs_gradient


def test_needs_gradient() -> None:
    functional = weft_functionalize.functionalize(
        torch.fx.symbolic_trace(nn.Linear(3, 2)), [torch.ones(1, 3)]
    )
    x = torch.ones(1, 3)
    assert needs_gradient([x], functional.inputs)
    with torch.no_grad():
        assert not needs_gradient([x], functional.inputs)
    pure = weft_functionalize.functionalize(torch.fx.symbolic_trace(lambda x: x.sin()), [x])
    assert not needs_gradient([x, 3], pure.inputs)
    assert needs_gradient([x.requires_grad_()], pure.inputs)


def test_joint_graph_is_not_there_yet() -> None:
    functional = weft_functionalize.functionalize(
        torch.fx.symbolic_trace(lambda x: x.sin()), [torch.ones(3)]
    )
    with pytest.raises(Unsupported) as raised:
        weft_aot_autograd.trace_joint(functional)
    assert raised.value.kind == "training"
    assert "no_grad" in raised.value.hint
