"""Strided windows by slices and views: values and gradients of torch's own operators."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from weft_aot_autograd.strided_windows import as_strided, as_strided_scatter


@st.composite
def windows(draw, overlap=False):
    """(size, stride, start, numel of the memory) of windows whose elements lie apart, or may ``overlap``."""
    size, stride, reach = [], [], 1
    for _ in range(draw(st.integers(0, 3))):
        count = draw(st.integers(1, 3))
        step = draw(st.integers(1 if overlap else reach, reach + 2))
        size.insert(0, count)
        stride.insert(0, step)
        reach += (count - 1) * step
    order = draw(st.permutations(range(len(size))))
    start = draw(st.integers(0, 3))
    total = start + reach + draw(st.integers(0, 3))
    return [size[d] for d in order], [stride[d] for d in order], start, total


@settings(max_examples=200, deadline=None)
@given(windows(overlap=True), st.integers(0, 2))
def test_windows(window, own):
    size, stride, start, total = window
    storage = torch.arange(float(total + own), dtype=torch.float64, requires_grad=True)
    memory = storage[own:]
    got = as_strided(memory, size, stride, start + own)
    want = torch.as_strided(storage, size, stride, start + own)
    assert torch.equal(got, want)
    weights = torch.randn(size, dtype=torch.float64)
    gradients = [torch.autograd.grad((t * weights).sum(), storage)[0] for t in (got, want)]
    torch.testing.assert_close(*gradients)


@settings(max_examples=200, deadline=None)
@given(windows())
def test_replaced_windows(window):
    size, stride, start, total = window
    memory = torch.randn(total, dtype=torch.float64, requires_grad=True)
    new = torch.randn(size, dtype=torch.float64, requires_grad=True)
    got = as_strided_scatter(memory, new, size, stride, start)
    want = memory * 1
    torch.as_strided(want, size, stride, start).copy_(new)
    assert torch.equal(got, want)
    weights = torch.randn(total, dtype=torch.float64)
    found = [torch.autograd.grad((t * weights).sum(), (memory, new)) for t in (got, want)]
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize(
    ("memory", "size", "stride", "start"),
    [
        (torch.zeros(6), [2, 2], [0, 1], 0),
        (torch.zeros(6), [0, 2], [2, 1], 0),
        (torch.zeros(3, 2).t(), [2], [1], 0),
        (torch.zeros(6)[2:], [3], [1], 1),
        (torch.zeros(6)[:2], [3], [1], 0),
    ],
    ids=["expanded", "empty", "not contiguous", "before", "behind"],
)
def test_windows_without_such_a_form(memory, size, stride, start):
    assert as_strided(memory, size, stride, start) is NotImplemented
    assert as_strided_scatter(memory, torch.zeros(size), size, stride, start) is NotImplemented


def test_no_write_to_windows_that_overlap():
    assert (
        as_strided_scatter(torch.zeros(6), torch.zeros(3, 3), [3, 3], [1, 1], 0) is NotImplemented
    )
