"""Warnings of torch's functions are given in each call, for the line that eager names.

Those of C++ are so where the kernels are weft's own.
"""

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


def spread(x, y):
    return y.std(0) + torch.var_mean(x[:1], 0)[1] + x


def of_observations(x, y):
    return torch.cov(x[:, :1]).sum() + torch.corrcoef(x[:, :1]).sum() + y


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


@pytest.mark.parametrize("function", [program, handled, spread, of_observations])
def test_each_call_warns_as_eager_does(function):
    arguments = torch.rand(3, 2) + 1, torch.rand(1, 2) + 1
    compiled = weft.compile(function)
    for action in ("always", "error", "ignore", "always"):
        wanted, found = given(function, arguments, action), given(compiled, arguments, action)
        for (mine, warned), (eager, places) in zip(found, wanted, strict=True):
            assert warned == places
            assert (
                mine == eager
                if isinstance(eager, str)
                else torch.allclose(mine, eager, equal_nan=True)
            )
    assert len(places) == {program: 4, handled: 1, spread: 2, of_observations: 2}[function]
