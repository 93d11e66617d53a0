"""Functions behind ``functools.lru_cache``: the program's own run where the program calls them."""

import functools

import pytest
import torch
from torch import nn
from weft_bytecode_capture import capture

asked = []


@functools.lru_cache
def table(n):
    asked.append(n)
    return tuple(range(n))


@functools.cache
def listed(n):
    asked.append(n)
    return [n] * 2


@functools.lru_cache
def positions(n, device):
    asked.append(n)
    return torch.arange(n, device=device)


class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.factor = 2

    @functools.cache  # noqa: B019
    def factors(self, n):
        asked.append(n)
        return {"by": self.factor * n}

    def forward(self, x):
        return self.linear(x) * self.factors(3)["by"]


def of_numbers(x):
    return x * sum(table(x.shape[0]))


def of_lists(x):
    found = listed(2)
    found.append(len(found))
    return x * sum(found), found


def of_tensors(x):
    return x + positions(x.shape[1], x.device)


@pytest.mark.parametrize("function", [of_numbers, of_lists, of_tensors, Scaled()])
def test_answers_are_those_of_the_cache(function) -> None:
    caches = [table, listed, positions, Scaled.factors]

    def run(called):
        for cache in caches:
            cache.cache_clear()
        asked.clear()
        found = [called(torch.full((rows, 3), 2.0)) for rows in (2, 2, 4, 5, 2)]
        return found, list(asked), [cache.cache_info() for cache in caches]

    captured = capture(function)
    found, wanted = run(lambda x: captured(x).result), run(function)
    assert found[1:] == wanted[1:]
    torch.testing.assert_close(found[0], wanted[0])


def test_what_the_program_changed_before_is_seen() -> None:
    state = {"n": 1}

    @functools.lru_cache
    def read(k):
        return state["n"] + k

    def function(x):
        state["n"] += 1
        return x * read(0)

    assert capture(function)(torch.ones(2)).result.tolist() == [2.0, 2.0]


def test_what_it_raises() -> None:
    @functools.lru_cache
    def fails(n):
        raise ValueError(f"{n}")

    def function(x):
        try:
            return x * fails(2)
        except ValueError as error:
            return x + int(str(error))

    assert capture(function)(torch.ones(2)).result.tolist() == [3.0, 3.0]


def test_a_cache_that_is_cleared_is_noticed() -> None:
    state = {"n": 1}

    @functools.lru_cache
    def read(k):
        return state["n"] + k

    def function(x):
        return x * read(1)

    captured = capture(function)
    found = [captured(torch.ones(1)).result.item() for _ in range(2)]
    state["n"] = 5
    found.append(captured(torch.ones(1)).result.item())
    read.cache_clear()
    found += [captured(torch.ones(1)).result.item() for _ in range(2)]
    assert found == [2.0, 2.0, 2.0, 6.0, 6.0]


def test_a_librarys_is_evaluated_where_arguments_vary() -> None:
    def halves(rows, by):
        return rows // by, by

    halves.__module__ = "einops.einops"
    cached = functools.lru_cache(halves)

    def function(x):
        return x.reshape(cached(x.shape[0], 2)) + 1

    captured = capture(function)
    for number, rows in enumerate((4, 6, 8, 10)):
        result = captured(torch.arange(rows))
        assert torch.equal(result.result, function(torch.arange(rows))) and not result.breaks
        assert len(result.graphs) == (number < 2)
