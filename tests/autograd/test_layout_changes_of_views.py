"""``x[0].unsqueeze_(0)`` and its like write to nothing, and count as changes of ``x`` as in eager."""

from __future__ import annotations

import time

import pytest
import torch
import weft

from tests.staged_backend import by_operators

VIEWS = {
    "view": lambda x: x.view(x.shape),
    "row": lambda x: x[0:1],
    "detach": lambda x: x.detach(),
    "data": lambda x: x.data,
    "of a view": lambda x: x.t()[1:],
}
CHANGES = {
    "unsqueeze_": lambda v: v.unsqueeze_(0),
    "t_": lambda v: v.t_(),
    "transpose_": lambda v: v.transpose_(0, 1),
    "swapaxes_": lambda v: v.swapaxes_(0, 1),
    "squeeze_": lambda v: v.squeeze_(0),
    "as_strided_": lambda v: v.as_strided_(v.shape[::-1], v.stride()[::-1]),
    "twice": lambda v: v.unsqueeze_(0).squeeze_(0),
}


def of_the_view(view, change, x):
    v = view(x)
    change(v)
    return v, x._version, v._version


def computed_of_it(view, change, x):
    v = view(x)
    change(v)
    return v * v, x + 1


def beside_a_write(view, change, x):
    y = x.mul_(2)
    v = view(y)
    change(v)
    return v + 1, y * 1, y._version


def of_a_result(view, change, x):
    y = x * 2
    v = view(y)
    change(v)
    return y, v * 3


def behind_a_break(view, change, x):
    y = x.sin()
    v = view(y)
    time.sleep(0)
    change(v)
    return y, v * v


def answer(program, view, change, requires_grad):
    leaf = torch.arange(1.0, 7.0).reshape(2, 3).requires_grad_(requires_grad)
    x = leaf * 1
    results = program(view, change, x)
    found = [x._version, x.shape, x.stride()]
    for result in results:
        if isinstance(result, torch.Tensor):
            found += [result._version, result.shape, result.stride(), result.tolist()]
        else:
            found.append(result)
    if requires_grad:
        recorded = [r for r in results if isinstance(r, torch.Tensor) and r.requires_grad]
        try:
            sum((r.sum() for r in recorded), (leaf * leaf).sum()).backward()
        except RuntimeError:
            return None  # what is saved before a view's layout changes is out of date
        found.append(leaf.grad.tolist())
    return found


@pytest.mark.parametrize("requires_grad", [False, True])
@pytest.mark.parametrize(
    ("view", "change"),
    [
        (v, c) for v in VIEWS for c in CHANGES if (v, c) != ("of a view", "as_strided_")
    ],  # no gradient
)
@pytest.mark.parametrize(
    "program", [of_the_view, computed_of_it, beside_a_write, of_a_result, behind_a_break]
)
def test_changes_count(program, view, change, requires_grad):
    given = VIEWS[view], CHANGES[change], requires_grad
    expected = answer(program, *given)
    found = answer(weft.compile(program, backend=by_operators), *given)
    assert found == expected or expected is None  # weft's gradients are right there


def returned_and_computed_of(view, change, x):
    v = view(x)
    change(v)
    return v, v * v, x * x


def of_another_beside_it(view, change, x):
    v, w = view(x), x.view_as(x)
    change(v)
    return w, w * w


@pytest.mark.parametrize(
    ("view", "change"),
    [
        (v, c) for v in VIEWS for c in CHANGES if (v, c) != ("of a view", "as_strided_")
    ],  # no gradient
)
@pytest.mark.parametrize("program", [returned_and_computed_of, of_another_beside_it])
def test_gradients_that_are_asked_for(program, view, change):
    """Results are computed again to learn whose gradients lead through others: that is no change."""
    answers = []
    for function in (program, weft.compile(program, backend=by_operators)):
        leaf = torch.arange(1.0, 7.0).reshape(2, 3).requires_grad_()
        x = leaf * 1
        results = function(VIEWS[view], CHANGES[change], x)
        asked = [result.sum() for result in results if result.requires_grad]
        (gradient,) = torch.autograd.grad(asked, leaf)
        answers.append((gradient.tolist(), x._version, [r._version for r in results]))
    assert answers[0] == answers[1]


def test_a_view_of_a_buffer():
    module = torch.nn.BatchNorm1d(3)

    def function(x):
        row = module.running_mean.view(1, 3)
        row.t_()
        return x + row.sum()

    before = module.running_mean._version
    expected = function(torch.ones(3))
    changes = module.running_mean._version - before
    torch.testing.assert_close(
        weft.compile(function, backend=by_operators)(torch.ones(3)), expected
    )
    assert module.running_mean._version == before + 2 * changes


def test_what_is_saved_is_not_out_of_date():
    """A leaf that is saved for another's gradient, behind a change of a view of it."""

    def function(x, w):
        v = x.view(2, 3)
        v.t_()
        return (v * w).sum(), x._version

    grads = []
    for program in (function, weft.compile(function, backend=by_operators)):
        x, w = torch.arange(6.0), torch.ones(3, 2, requires_grad=True)
        loss, version = program(x, w)
        loss.backward()
        grads.append((w.grad.tolist(), version, x._version))
    assert grads[0] == grads[1]


DATA = {
    "of an argument": lambda x: x.data,
    "of a view": lambda x: x[0].data,
    "of a result": lambda x: (x * 2).data,
    "view of it": lambda x: x.data[0],
}


@pytest.mark.parametrize("requires_grad", [False, True])
@pytest.mark.parametrize("way", DATA)
def test_writes_to_a_returned_data(way, requires_grad):
    """It counts for itself, from 0."""

    def function(x):
        y = x * 1
        data = DATA[way](x)
        other = DATA[way](y)
        data.add_(1).mul_(2)
        other.add_(1)
        other.unsqueeze_(0)
        return data, other, y

    found = []
    for program in (function, weft.compile(function, backend=by_operators)):
        x = torch.arange(6.0).reshape(2, 3).requires_grad_(requires_grad)
        results = program(x)
        found.append([(t._version, t.tolist(), t.requires_grad) for t in (x, *results)])
    assert found[0] == found[1]
