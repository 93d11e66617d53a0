"""Locals that only a handler binds, or unbinds, and that are read behind the loop whose turns break."""

import itertools

import pytest
import torch
from weft_bytecode_capture import capture


def last_of_a_turn(x, turns):
    for raises in turns:
        try:
            x.view(7 if raises else x.numel(), -1)
        except RuntimeError:
            found = x + 1
    return found


def before_more(x, turns):
    for raises in turns:
        try:
            y = x * 2
            y = y.view(7 if raises else x.numel(), -1)
            y = y + 1
        except RuntimeError:
            found = y + 1
            continue
        x = x + y.sum()
    return x, found


def in_finally(x, turns):
    try:
        for raises in turns:
            try:
                y = x.exp()
                x.view(7 if raises else x.numel(), -1)
            except (RuntimeError, IndexError):
                found = y.T.contiguous().T
    finally:
        x = found.mean(0, keepdim=True)
    return x


def in_with(x, turns):
    for raises in turns:
        try:
            x.view(7 if raises else x.numel(), -1)
        except RuntimeError:
            with torch.no_grad():
                found = torch.where(x > 0.5, x, 0)
    return found + x


def named_error(x, turns):
    error = None
    for raises in turns:
        try:
            x.view(7 if raises else x.numel(), -1)
        except RuntimeError as error:
            x = x + len(str(error)) * 0 + 1
    return x, error


def deleted(x, turns):
    found = x * 3
    for raises in turns:
        try:
            x.view(7 if raises else x.numel(), -1)
        except RuntimeError:
            del found
    return found


def not_in_a_loop(x, turns):
    try:
        x.view(7 if turns[0] else x.numel(), -1)
        y = x + 1
    except RuntimeError:
        found = x + 2
    else:
        found = y * 2
    return found


PROGRAMS = [
    last_of_a_turn, before_more, in_finally, in_with, named_error, deleted, not_in_a_loop,
]  # fmt: skip


def outcome(function, x, turns):
    try:
        result = function(x, turns)
    except (RuntimeError, NameError) as error:
        return type(error), str(error)
    return [part.tolist() if isinstance(part, torch.Tensor) else part for part in (*result,)]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_it_is_as_in_eager(program) -> None:
    captured = capture(program)
    for turns in itertools.product((False, True), repeat=3):
        x = torch.arange(1.0, 4.0).reshape(1, 3)
        found = outcome(lambda x, turns: captured(x, turns).result, x.clone(), turns)
        assert found == outcome(program, x.clone(), turns), turns
