"""Arguments that a frame never reads are not guarded; what reads the frame as a whole has all of them."""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from weft_bytecode_capture import capture


def plain(x, unread, *rest, other=None, **named):
    return x + 1


def written_before_it_is_read(x, unread):
    unread = x.shape[0]
    return x * unread


def behind_a_break(x, unread):
    time.sleep(0)
    return x + 1


@pytest.mark.parametrize("function", [plain, written_before_it_is_read, behind_a_break])
def test_code_is_for_any_value(function: Callable[..., Any]) -> None:
    captured = capture(function)
    x = torch.ones(3)
    assert captured(x, 2.0).graphs
    for unread in (3.0, "text", None, torch.ones(2), [x], captured):
        again = captured(x, unread)
        assert not again.reports
        torch.testing.assert_close(again.result, function(x, unread))


def test_names_and_further_arguments() -> None:
    captured = capture(plain)
    x = torch.ones(3)
    assert captured(x, 1).graphs
    assert not captured(x, 1, 2, 3).reports
    assert not captured(x, 1, other=2, more=3).reports


class Named(torch.nn.Module):
    def forward(self, x: Any, unread: Any) -> Any:
        return x + 1, super()._get_name()


def of_the_frame(x: Any, unread: Any) -> Any:
    time.sleep(0)
    return x + 1, locals()


def deleted(x: Any, unread: Any) -> Any:
    del unread
    return x + 1


def in_a_cell(x: Any, unread: Any) -> Any:
    def inner() -> Any:
        return unread

    return x + 1, inner()


def as_written(x: Any, unread: Any) -> Any:
    x.view(7)
    return x


@pytest.mark.parametrize("function", [Named(), of_the_frame, deleted, in_a_cell, as_written])
def test_what_may_be_read_is_there(function: Callable[..., Any]) -> None:
    def outcome(called: Callable[..., Any], unread: Any) -> Any:
        try:
            return called(torch.ones(3), unread)
        except RuntimeError as error:
            return str(error)

    captured = capture(function)
    for unread in (2, 2.5, torch.ones(1)):
        found = outcome(lambda *arguments: captured(*arguments).result, unread)
        expected = outcome(function, unread)
        assert str(found) == str(expected)


def test_the_frame_keeps_them_alive() -> None:
    class Object:
        pass

    def outer(x: torch.Tensor) -> Any:
        held = Object()
        reference = weakref.ref(held)
        time.sleep(0)
        x = x + 1
        time.sleep(0 * len(type(held).__name__))
        x = x * 2
        time.sleep(0)
        return x, reference() is None

    for _ in range(2):
        x = torch.ones(3)
        torch.testing.assert_close(capture(outer)(x).result, outer(x))
        assert not outer(x)[1]


def test_nothing_is_asked_of_them() -> None:
    class Asked:
        @property
        def __class__(self) -> Any:
            raise ValueError("asked")

    gone = weakref.proxy(Asked())
    for unread in (Asked(), gone):
        assert torch.equal(
            capture(behind_a_break)(torch.ones(3), unread).result, torch.full((3,), 2.0)
        )
