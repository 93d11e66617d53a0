"""Every kind of view, written inside branches and loops: one graph, eager's results and effects.

So are programs that change a tensor's metadata there: right, or broken on.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from weft_bytecode_capture import capture

from .test_random_programs import ROLLED, Line

View = Callable[[torch.Tensor], torch.Tensor]

VIEWS: dict[str, View] = {
    "select": lambda x: x[1],
    "select from the end": lambda x: x[-1],
    "slice": lambda x: x[1:3],
    "slice with a step": lambda x: x[:, ::2],
    "narrow": lambda x: x.narrow(0, 1, 2),
    "view": lambda x: x.view(2, 8)[1],
    "reshape": lambda x: x.reshape(-1)[3:9],
    "flatten": lambda x: x.flatten()[::3],
    "permute": lambda x: x.permute(1, 0)[2],
    "transpose": lambda x: x.transpose(0, 1)[1:],
    "t": lambda x: x.t()[0],
    "movedim": lambda x: x.movedim(0, 1)[3],
    "unsqueeze": lambda x: x.unsqueeze(1)[0],
    "squeeze": lambda x: x[:1].squeeze(0),
    "diagonal": lambda x: x.diagonal(),
    "diagonal beside": lambda x: x.diagonal(-1),
    "unfold": lambda x: x.unfold(0, 2, 2),
    "as_strided": lambda x: x.as_strided((2, 2), (4, 1), 1),
    "split": lambda x: x.split(3)[1],
    "split by sizes": lambda x: x.split([1, 3], 1)[1],
    "chunk": lambda x: x.chunk(2, 1)[0],
    "unbind": lambda x: x.unbind(1)[2],
    "tensor_split": lambda x: x.tensor_split(3)[0],
    "expand of what it adds": lambda x: x.expand(1, 4, 4)[0],
    "detach": lambda x: x.detach()[2],
    "alias": lambda x: x[:],
    "real": lambda x: torch.view_as_complex(x.view(4, 2, 2)).real,
    "imag": lambda x: torch.view_as_complex(x.view(4, 2, 2)).imag[1:],
    "view_as_real": lambda x: torch.view_as_real(torch.view_as_complex(x.view(4, 2, 2)))[0],
    "another type": lambda x: x.view(torch.int64).view(torch.float64)[2],
    "chain": lambda x: x.t()[1:].unsqueeze(0)[:, :, ::2].view(3, 2).diagonal(),
}


# What functionalize does not keep: weft then captures the frame without that region.
REFUSED = {"as_strided": {"write in a region to a strided view of a tensor"}}


def in_a_branch(view: View, x: torch.Tensor) -> Any:
    seen = view(x)
    if x.sum() > 0:
        view(x).mul_(2)
        other = x.t()[0] + 1
    else:
        seen.add_(3)
        other = x.t()[0] - 1
    return seen + 1, other


def in_a_loop(view: View, x: torch.Tensor) -> Any:
    y = x * 1
    seen = view(y)
    for i in range(4):
        view(y).add_(i)
        seen.mul_(2)
        x[i] = y[i] + view(x).sum()
    return seen + 1, y


def in_a_while(view: View, x: torch.Tensor) -> Any:
    y, n = x + 0, torch.zeros((), dtype=torch.float64)
    while n < 5:
        view(y).add_(1)
        n = n + 1 + view(y).sum().abs().clamp(max=1)
    return y, n


def in_nested_regions(view: View, x: torch.Tensor) -> Any:
    for _ in range(3):
        if x[0, 0] > 0:
            view(x).sub_(1)
        else:
            x.copy_(x.flip(0) + 2)
    return view(x) * 2


def outcome(function: Callable[..., Any], x: torch.Tensor) -> Any:
    """Results and the input after it, or the exception's class."""
    x = x.clone()
    try:
        with torch.no_grad():
            return function(x), x
    except RuntimeError as error:
        return type(error)


INPUTS = [torch.arange(-5.0, 11.0).double().view(4, 4), -torch.arange(16.0).double().view(4, 4)]


@pytest.mark.parametrize("around", [in_a_branch, in_a_loop, in_a_while, in_nested_regions])
@pytest.mark.parametrize("kind", VIEWS)
def test_writes_through_views(kind: str, around: Callable[..., Any]) -> None:
    view, line = VIEWS[kind], Line()

    def function(x: torch.Tensor) -> Any:
        return around(view, x)

    compiled = capture(function, options=ROLLED, backend=line)
    for x in INPUTS:
        mine = outcome(lambda x: compiled(x).result, x)
        torch.testing.assert_close(mine, outcome(function, x), rtol=0, atol=0, equal_nan=True)
    # as_strided counts from the beginning of a storage, and where an input begins is asked outside of regions
    assert line.regions == int(kind != "as_strided" or around is not in_a_loop)
    assert set(line.refused) <= REFUSED.get(kind, set())


def masked(x: torch.Tensor) -> torch.Tensor:
    for _ in range(4):
        x[x > 3] = 0
        x[x < 0] *= -1
        x += 1
    return x * 1


def by_index_tensors(x: torch.Tensor) -> torch.Tensor:
    rows = torch.tensor([2, 0])
    for i in range(3):
        x[rows, i] = x[rows, i + 1] * 2
        x[:, rows] += 1
        x.index_add_(0, rows, x[:2].clone())
    return x * 1


def accumulated(x: torch.Tensor) -> torch.Tensor:
    same = torch.tensor([1, 1, 3])
    if x.sum() > 0:
        x.index_put_((same,), x[:3].clone(), accumulate=True)
    return x * 1


@pytest.mark.parametrize(
    ("function", "regions"), [(masked, 1), (by_index_tensors, 0), (accumulated, 1)]
)
def test_writes_at_masks_and_index_tensors(function: Callable[..., Any], regions: int) -> None:
    line = Line()
    compiled = capture(function, options=ROLLED, backend=line)
    for x in INPUTS:
        mine = outcome(lambda x: compiled(x).result, x)
        torch.testing.assert_close(mine, outcome(function, x), rtol=0, atol=0)
    assert line.regions == regions


def expanded(x: torch.Tensor) -> Any:
    for _ in range(4):
        x[:1].expand(4, 4).add_(1)
    return x * 1


def expanded_in_a_branch(x: torch.Tensor) -> Any:
    if x.sum() > 0:
        x[:, :1].expand(4, 4).mul_(2)
    return x * 1


def negative_step(x: torch.Tensor) -> Any:
    if x.sum() > 0:
        return x[::-1]
    return x * 1


@pytest.mark.parametrize("function", [expanded, expanded_in_a_branch])
def test_writes_to_several_elements_at_one_place_raise(function: Callable[..., Any]) -> None:
    compiled = capture(function, options=ROLLED)
    for x in INPUTS:
        assert_same(outcome(lambda x: compiled(x).result, x), outcome(function, x))


def test_a_negative_step_raises() -> None:
    compiled = capture(negative_step)
    for x in INPUTS:
        theirs: Any = None
        try:
            theirs = negative_step(x)
        except ValueError:
            with pytest.raises(ValueError, match="step must be greater than zero"):
                compiled(x)
        else:
            assert_same(compiled(x).result, theirs)


def assert_same(mine: Any, theirs: Any) -> None:
    if isinstance(theirs, type):
        assert mine is theirs
    else:
        torch.testing.assert_close(mine, theirs, rtol=0, atol=0)


METADATA: dict[str, Callable[[torch.Tensor], Any]] = {
    "t_": lambda x: x.t_(),
    "transpose_": lambda x: x.transpose_(0, 1),
    "squeeze_": lambda x: x.unsqueeze(0).squeeze_(0),
    "unsqueeze_": lambda x: x.unsqueeze_(0),
    "swapaxes_": lambda x: x.swapaxes_(0, 1),
    "resize_": lambda x: x.resize_(2, 2),
    "resize_as_": lambda x: x.resize_as_(torch.zeros(2, 3)),
    "set_": lambda x: x.set_(torch.ones(2).double()),
    "requires_grad_": lambda x: x.requires_grad_(),
}


def metadata_of_what_is_new(change: Callable[..., Any], x: torch.Tensor) -> Any:
    y = x * 2
    if x.sum() > 0:
        change(y)
    return y * 1


def metadata_of_an_input(change: Callable[..., Any], x: torch.Tensor) -> Any:
    if x.sum() > 0:
        change(x)
    return x * 1


def metadata_in_a_loop(change: Callable[..., Any], x: torch.Tensor) -> Any:
    total = x.sum()
    for _ in range(4):
        y = x * 2
        total = total + change(y).sum()
    return total


def metadata_outside(change: Callable[..., Any], x: torch.Tensor) -> Any:
    y = x + 1
    change(y)
    return y * 1, x


@pytest.mark.parametrize(
    "around",
    [metadata_of_what_is_new, metadata_of_an_input, metadata_in_a_loop, metadata_outside],
)
@pytest.mark.parametrize("name", METADATA)
def test_changes_of_metadata(name: str, around: Callable[..., Any]) -> None:
    change = METADATA[name]

    def function(x: torch.Tensor) -> Any:
        return around(change, x)

    compiled = capture(function, options=ROLLED, backend=Line())
    for x in INPUTS:
        mine, theirs = outcome(lambda x: compiled(x).result, x), outcome(function, x)
        assert_same(mine, theirs)
