"""Warnings that torch's functions give in Python are given in each call, for the line that eager names."""

import warnings

import pytest
import torch
import torch.nn.functional as F
import weft


def program(x, y):
    loss = F.mse_loss(x, y) + torch.nn.L1Loss()(x, y)
    return F.softmax(x) + loss + F.kl_div(x, y)


def handled(x, y):
    try:
        loss = F.mse_loss(x, y)
    except UserWarning:
        return x * 3
    return x + loss


def given(function, arguments, action):
    """What each of three calls gives and raises, and where."""
    seen = []
    for _ in range(3):
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter(action)
            try:
                result = function(*arguments)
            except UserWarning as error:
                result = str(error)
        places = [(str(w.message), w.category, w.filename, w.lineno) for w in found]
        seen.append((result, places))
    return seen


@pytest.mark.parametrize("function", [program, handled])
def test_each_call_warns_as_eager_does(function):
    arguments = torch.rand(3, 2) + 1, torch.rand(1, 2) + 1
    compiled = weft.compile(function)
    for action in ("always", "error", "ignore", "always"):
        wanted, found = given(function, arguments, action), given(compiled, arguments, action)
        for (mine, warned), (eager, places) in zip(found, wanted, strict=True):
            assert warned == places
            assert mine == eager if isinstance(eager, str) else torch.allclose(mine, eager)
    assert len(places) == (4 if function is program else 1)
