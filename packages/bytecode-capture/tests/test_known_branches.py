"""Branches on random numbers that always go the same way: no break, the same numbers drawn."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch
from differential import check

SIGNS: dict[str, Callable[[Any, Any], Any]] = {
    name: getattr(operator, name) for name in ("lt", "le", "gt", "ge")
}


def seeded() -> None:
    torch.manual_seed(3)


def drawn_next() -> torch.Tensor:
    """A number that follows from how many the function has drawn."""
    state = torch.get_rng_state()
    drawn = torch.rand(())
    torch.set_rng_state(state)
    return drawn


def layers_left_out(x: torch.Tensor, share: float) -> torch.Tensor:
    """As transformers' OPT leaves layers out in training."""
    for factor in (2.0, 3.0, 5.0):
        chance = torch.rand([])
        if chance < share:
            continue
        x = (x * factor).sin()
    return x


@pytest.mark.parametrize("share", [-1.0, 0.0, 1.0, 1.5])
def test_layers_that_are_always_or_never_left_out(share: float) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return layers_left_out(x, share)

    check(function, [(torch.ones(3),)], reset=seeded, state=drawn_next)


def test_layers_that_are_left_out_by_chance() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return layers_left_out(x, 0.5)

    check(function, [(torch.ones(3),)], fullgraph=False, reset=seeded, state=drawn_next)


@pytest.mark.parametrize("name", SIGNS)
@pytest.mark.parametrize("bound", [-0.5, 0, 1, 1.5])
@pytest.mark.parametrize("is_reversed", [False, True])
def test_every_comparison(name: str, bound: float, is_reversed: bool) -> None:
    sign = SIGNS[name]

    def function(x: torch.Tensor) -> torch.Tensor:
        drawn = torch.rand(1)
        if sign(bound, drawn) if is_reversed else sign(drawn, bound):
            return x + 1
        return x - 1

    at_an_end = bound in (0, 1)
    check(function, [(torch.ones(3),)], fullgraph=not at_an_end, reset=seeded, state=drawn_next)


def written_to(x: torch.Tensor) -> torch.Tensor:
    chance = torch.rand([])
    chance.add_(2)
    return x.sin() if chance < 1.0 else x.cos()


def written_through_a_view(x: torch.Tensor) -> torch.Tensor:
    chance = torch.rand([])
    chance.view(1).sub_(2)
    return x.sin() if chance >= 0.0 else x.cos()


def outcome_written_to(x: torch.Tensor) -> torch.Tensor:
    is_small = torch.rand([]) < 1.0
    is_small.logical_not_()
    return x.sin() if is_small else x.cos()


def compared_with_not_a_number(x: torch.Tensor) -> torch.Tensor:
    return x.sin() if torch.rand([]) < float("nan") else x.cos()


@pytest.mark.parametrize(
    "function", [written_to, written_through_a_view, outcome_written_to, compared_with_not_a_number]
)
def test_what_is_not_known(function: Callable[[torch.Tensor], torch.Tensor]) -> None:
    check(function, [(torch.ones(3),)], fullgraph=False, reset=seeded, state=drawn_next)
