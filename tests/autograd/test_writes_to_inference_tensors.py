"""Inference tensors outside inference mode: eager refuses writes to them and to their views."""

from __future__ import annotations

import pytest
import torch
import weft

from tests.staged_backend import by_operators


@torch.inference_mode()
def given():
    return torch.arange(6.0).reshape(2, 3)


WRITES = {
    "method": lambda x: x.mul_(2),
    "row": lambda x: x[0].mul_(2),
    "view": lambda x: x.view(-1).add_(1),
    "transposed": lambda x: x.t().zero_(),
    "item": lambda x: x.__setitem__(0, 1.0),
    "part": lambda x: x.unbind()[0].add_(1),
    "out": lambda x: torch.add(x, 1, out=x[0:2]),
    "layout": lambda x: x.unsqueeze_(0),
    "layout of a row": lambda x: x[0].unsqueeze_(0),
    "resized view": lambda x: x.view(-1).resize_(3),
    "copied": lambda x: x.copy_(x + 1),
    "indexed": lambda x: x.index_put_((torch.tensor([0]),), torch.ones(3)),
    "activation of a row": lambda x: torch.relu_(x[0]),
    "list": lambda x: torch._foreach_add_([x[0], x[1]], 1),
    "detached": lambda x: x.detach().add_(1),
    "data": lambda x: x.data.add_(1),
    "row of the detached": lambda x: x.detach()[0].add_(1),
    "caught": lambda x: caught(x),
}


def caught(x):
    try:
        x[0].add_(1)
    except RuntimeError as error:
        return x * 2, str(error)[:20]
    return x * 3


def outcome(function, *arguments):
    try:
        return function(*arguments)
    except RuntimeError as error:
        return type(error), str(error)


def plain(value):
    if isinstance(value, torch.Tensor):
        return value.tolist(), value.is_inference()
    return [plain(part) for part in value] if isinstance(value, (tuple, list)) else value


@pytest.mark.parametrize("mode", [torch.enable_grad, torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("name", WRITES)
def test_writes_inside(name, mode):
    write = WRITES[name]
    found = []
    for program in (write, weft.compile(write, backend=by_operators)):
        for _ in range(2):
            x = given()
            with mode():
                found.append((plain(outcome(program, x)), plain(x), x.shape))
    assert found[2:] == found[:2]


VIEWS = {
    "row": lambda x: x[0],
    "view": lambda x: x.view(-1),
    "strided": lambda x: x.as_strided((2,), (1,)),
    "expanded": lambda x: x.expand(2, 2, 3)[0],
    "alias": lambda x: x.view_as(x),
    "detach": lambda x: x.detach(),
    "detached row": lambda x: x[0].detach(),
    "row of the detached": lambda x: x.detach()[0],
    "data": lambda x: x.data,
    "several": lambda x: (x[0], x.t(), x.detach(), x * 2),
    "of a result": lambda x: (x * 2)[0],
}


@pytest.mark.parametrize("kind", [given, lambda: torch.arange(6.0).reshape(2, 3)])
@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize("name", VIEWS)
def test_writes_to_results_after_the_call(name, inside, kind):
    """The result is a view of an inference tensor, or was made in inference mode."""
    view = VIEWS[name]
    found = []
    for program in (view, weft.compile(view, backend=by_operators)):
        x = kind()
        with torch.inference_mode(inside):
            results = program(x)
        results = results if isinstance(results, tuple) else (results,)
        flags = [(r.is_inference(), r._is_view()) for r in results]
        found.append((flags, [plain(outcome(r.add_, 1)) for r in results], plain(x)))
    assert found[1] == found[0]
