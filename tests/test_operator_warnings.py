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


TOO_FEW = {
    "std": (lambda x: x.std(), (1,)),
    "var of one dim": (lambda x: x.var(0), (1, 3)),
    "std_mean of one dim": (lambda x: torch.std_mean(x, 1, keepdim=True)[0], (3, 1)),
    "var_mean of two dims": (lambda x: torch.var_mean(x, (0, 2))[0], (1, 4, 1)),
    "of none": (lambda x: x.var(1), (3, 0)),
    "of enough": (lambda x: x.std(0), (2, 1)),
}


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("case", TOO_FEW)
def test_each_compilation_warns_of_too_few_elements(case, dynamic):
    function, shape = TOO_FEW[case]
    arguments = (torch.rand(shape),)
    wanted = given(function, arguments, "always")
    for _ in range(2):
        weft.reset()
        found = given(weft.compile(function, dynamic=dynamic), arguments, "always")
        assert [warned for _, warned in found] == [warned for _, warned in wanted]


def test_a_correction_may_be_as_large_as_the_number_of_elements():
    def program(x):
        return torch.std_mean(x, correction=3)[0]

    wanted = given(program, (torch.rand(3),), "always")
    for _ in range(2):
        weft.reset()
        found = given(weft.compile(program), (torch.rand(3),), "always")
        assert [warned for _, warned in found] == [warned for _, warned in wanted]


def test_a_warning_names_the_sizes_of_its_call():
    def program(x, y):
        return F.mse_loss(x, y) + 1

    compiled = weft.compile(program, dynamic=True)
    for size in (3, 4, 5):
        arguments = torch.rand(size, size + 1), torch.rand(size, 1)
        wanted = given(program, arguments, "always")
        found = given(compiled, arguments, "always")
        assert [warned for _, warned in found] == [warned for _, warned in wanted]


@pytest.mark.parametrize("made", [lambda p: p, lambda p: p * 2])
def test_reading_the_gradient_of_no_leaf_warns_once_a_read(made):
    def program(x):
        return x.grad is None, x + 1

    x = made(torch.ones(2, requires_grad=True))
    told = []
    for function in (program, weft.compile(program)):
        for _ in range(3):
            with warnings.catch_warnings(record=True) as found:
                warnings.simplefilter("always")
                assert function(x)[0]
            told.append([(w.category, w.filename, w.lineno) for w in found])
    assert told == [told[0]] * 6
    assert len(told[0]) == (not x.is_leaf)
