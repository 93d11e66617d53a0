"""Wrong use of gradients: the errors are eager's, word for word, at the user's line."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from typing import Any

import pytest
import torch
import weft
from torch import Tensor, nn

Compile = Callable[[Any], Any]
Use = Callable[[Compile], Any]


def leaf(*shape: int) -> Tensor:
    return torch.ones(shape, requires_grad=True)


def square(x: Tensor) -> Tensor:
    return x * x.sin()


def two(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    return x * x.sin(), y * y.cos()


def write_to_a_leaf(wrap: Compile) -> None:
    def program(x: Tensor) -> Tensor:
        x.mul_(2)
        return x

    wrap(program)(leaf(3))


def write_to_a_view_of_a_leaf(wrap: Compile) -> None:
    def program(x: Tensor) -> Tensor:
        x[0].add_(1)
        return x * 2

    wrap(program)(leaf(3))


def write_to_a_parameter(wrap: Compile) -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(3))

        def forward(self, x: Tensor) -> Tensor:
            self.weight.mul_(0.5)
            return x * self.weight

    wrap(Scaled())(torch.ones(3))


def backward_twice(wrap: Compile) -> None:
    result = wrap(square)(leaf(3)).sum()
    result.backward()
    result.backward()


def backward_of_several_values(wrap: Compile) -> None:
    wrap(square)(leaf(3)).backward()


def backward_without_gradients(wrap: Compile) -> None:
    wrap(square)(torch.ones(3)).sum().backward()


def gradient_of_another_shape(wrap: Compile) -> None:
    wrap(square)(leaf(3)).backward(torch.ones(4))


def gradient_of_what_is_not_used(wrap: Compile) -> None:
    x, y = leaf(3), leaf(3)
    torch.autograd.grad(wrap(two)(x, y)[0].sum(), y)


def write_to_what_backward_needs(wrap: Compile) -> None:
    x = leaf(3) * 1
    result = wrap(square)(x)
    x.add_(1)
    result.sum().backward()


def backward_of_a_result_without_history(wrap: Compile) -> None:
    with torch.no_grad():
        result = wrap(square)(leaf(3))
    result.sum().backward()


def sizes_that_do_not_match(wrap: Compile) -> None:
    def program(x: Tensor) -> Tensor:
        return x @ torch.ones(4, 2)

    wrap(program)(leaf(2, 3)).sum().backward()


USES: list[Use] = [
    write_to_a_leaf,
    write_to_a_view_of_a_leaf,
    write_to_a_parameter,
    backward_twice,
    backward_of_several_values,
    backward_without_gradients,
    gradient_of_another_shape,
    gradient_of_what_is_not_used,
    write_to_what_backward_needs,
    backward_of_a_result_without_history,
    sizes_that_do_not_match,
]

# What differs in eager's words, by what comes before it: the name of autograd's node, and advice by it.
_NAMES_A_NODE = ("modified by an inplace operation",)


def failure(use: Use, wrap: Compile) -> tuple[type[BaseException], str, int | None]:
    """The error's type and words, and the last line of this file that it passed."""
    try:
        use(wrap)
    except RuntimeError as error:
        lines = [
            f.lineno for f in traceback.extract_tb(error.__traceback__) if f.filename == __file__
        ]
        message = next((part for part in _NAMES_A_NODE if part in str(error)), str(error))
        return type(error), message, lines[-1]
    raise AssertionError("no error")


@pytest.mark.parametrize("use", USES, ids=lambda use: str(use.__name__))
def test_errors_are_eagers(use: Use) -> None:
    assert failure(use, weft.compile) == failure(use, lambda function: function)


def test_integers_that_eager_lets_require_gradients() -> None:
    """A number that has gradients, written to a part of integers, makes these require some too."""

    def program(x: Tensor, y: Tensor) -> Tensor:
        x[..., 0] = y[0]
        return y + 1

    def outcome(function: Callable[..., Any]) -> list[Any]:
        x, y = torch.ones(2, 8, dtype=torch.long), torch.full((2,), 3.0, requires_grad=True)
        seen: list[Any] = []
        for _ in range(2):  # in the second call x itself requires gradients
            try:
                seen.append(function(x, y).tolist())
            except RuntimeError as error:
                seen.append(str(error))
            seen += [x.detach().tolist(), x.requires_grad]
        return seen

    compiled = weft.compile(program)
    expected = outcome(program)
    assert expected[2]
    for _ in range(2):
        assert outcome(compiled) == expected


@pytest.mark.parametrize("kind", ["masked_fill_", "index_fill_", "fill_"])
@pytest.mark.parametrize("dtype", [torch.int64, torch.bool])
def test_numbers_with_gradients_for_integers_are_refused(
    kind: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Eager gives integers a history for them, and its backward fails; a detached one is captured."""

    def program(x: Tensor, places: Tensor, detached: bool) -> Tensor:
        value = x.sum().detach() if detached else x.sum()
        y = places.to(dtype).clone()
        if kind == "masked_fill_":
            y.masked_fill_(places > 1, value)
        elif kind == "fill_":
            y.fill_(value)
        else:
            y.index_fill_(0, places[:1], value)
        return y * x

    x, places = torch.randn(3, requires_grad=True), torch.arange(3)
    compiled = weft.compile(program, fullgraph=True)
    torch.testing.assert_close(compiled(x, places, True), program(x, places, True))
    with pytest.raises(weft.StageError, match="written to integers"):
        compiled(x, places, False)
    with torch.no_grad():
        torch.testing.assert_close(compiled(x, places, False), program(x, places, False))
    monkeypatch.setenv("WEFT_STRICT", "0")
    with pytest.warns(weft.WeftWarning, match="written to integers"):
        found = weft.compile(program)(x, places, False)
    wanted = program(x, places, False)
    torch.testing.assert_close(found, wanted)
