"""Views that autograd refuses to use, of what was written to since: passed on, and its own error at a use."""

from __future__ import annotations

import pytest
import torch
from differential import run_graph
from weft_bytecode_capture import CaptureOptions, compile_frames


def one_of_several() -> torch.Tensor:
    base = torch.ones(3, 3, requires_grad=True) * 1
    view = base.unbind(0)[1]
    base.zero_()
    return view


def made_without_gradients() -> torch.Tensor:
    base = torch.ones(3, 3, requires_grad=True) * 1
    with torch.no_grad():
        view = base[1]
    base.zero_()
    return view


def passed_on(x):
    return x


def asked(x):
    return x.shape[0], x.requires_grad, x.dtype, x


def used(x):
    return x + 1


def written(x):
    return x.add_(1)


def asked_for_its_history(x):
    return x.is_leaf, x.grad_fn


def used_without_gradients(x):
    with torch.no_grad():
        return x * 2, x.detach() - 1


def outcome(function, make):
    given = make()
    try:
        result = function(given)
    except RuntimeError as error:
        return str(error)
    parts = result if isinstance(result, tuple) else (result,)
    return [
        (part is given, part.requires_grad, part.detach().tolist())
        if isinstance(part, torch.Tensor)
        else part
        for part in parts
    ]


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("make", [one_of_several, made_without_gradients])
@pytest.mark.parametrize(
    "function", [passed_on, asked, used, written, asked_for_its_history, used_without_gradients]
)
def test_eager_decides(function, make, dynamic):
    compiled = compile_frames(function, run_graph, CaptureOptions(dynamic=dynamic))
    assert outcome(compiled, make) == outcome(function, make)
