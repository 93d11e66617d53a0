"""Functions behind ``functools.lru_cache``: the program's own run where the program calls them."""

import functools
import gc
import weakref

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


def test_answers_of_the_cache_are_in_the_graph() -> None:
    @functools.lru_cache(maxsize=8)
    def mask(n, dtype):
        return torch.ones(n, n, dtype=dtype).tril()

    @functools.cache
    def scale(name, power):
        return {"by": len(name) ** power}

    def function(x):
        return x @ mask(x.shape[-1], x.dtype) * scale("ab", 3)["by"]

    def run(called):
        mask.cache_clear()
        scale.cache_clear()
        found = [called(torch.ones(rows, 3)) for rows in (2, 2, 2, 4, 5)]
        return found, mask.cache_info(), scale.cache_info()

    captured, results = capture(function), []

    def last(x):
        results.append(captured(x))
        return results[-1].result

    found, wanted = run(last), run(function)
    assert found[1:] == wanted[1:]
    torch.testing.assert_close(found[0], wanted[0])
    assert [len(result.breaks) for result in results][1:] == [0, 0, 0, 0]
    assert not results[2].graphs and not results[4].graphs  # compiled before


def test_the_youngest_entry_of_a_small_cache() -> None:
    @functools.lru_cache(maxsize=2)
    def table(n):
        return [n]

    def function(x, n):
        return x * table(n)[0]

    def run(called):
        table.cache_clear()
        kept = []
        for n in (1, 1, 2, 1, 3, 1, 2, 2, 1):  # 2 is dropped for 3: a hit of 1 counts
            called(torch.ones(1), n)
            kept.append(table.cache_info())
        return kept

    captured = capture(function)
    assert run(lambda x, n: captured(x, n).result) == run(function)


def test_numbers_that_vary_are_asked_for_as_they_are() -> None:
    @functools.cache
    def positions(n, step):
        return torch.arange(0, n * step, step)

    def function(x):
        return x + positions(x.shape[0] + 1, 2)[1:]

    sizes = (2, 2, 4, 4, 5, 5, 6, 6, 2, 4, 5, 6)

    def run(called):
        positions.cache_clear()
        return [called(torch.zeros(n)) for n in sizes], positions.cache_info()

    captured, graphs = capture(function), []

    def last(x):
        result = captured(x)
        graphs.append(len(result.graphs))
        return result.result

    found, wanted = run(last), run(function)
    assert found[1] == wanted[1]
    torch.testing.assert_close(found[0], wanted[0])
    assert sum(graphs[6:]) == 0


def test_another_answer_is_seen() -> None:
    state = {"n": 1}

    @functools.cache
    def read():
        return state["n"]

    def function(x):
        return x * read()

    captured = capture(function)
    found = []
    for n in (1, 1, 5, 5):
        if n != state["n"]:
            state["n"] = n
            read.cache_clear()
            read()  # there is an answer whenever the function is called
        found.append(captured(torch.ones(1)).result.item())
    assert found == [1.0, 1.0, 5.0, 5.0]


def test_one_object_however_often_it_is_asked_for() -> None:
    @functools.cache
    def shared(name):
        return torch.ones(2)

    def function(x):
        first, second = shared("a"), shared("a")
        first.add_(1)
        return x * second, first is second

    captured = capture(function)
    for call in range(3):
        product, same = captured(torch.ones(2)).result
        assert same and product.tolist() == [2.0 + call] * 2


def test_arguments_that_are_no_keys_are_left_to_the_cache() -> None:
    @functools.lru_cache(typed=True)
    def typed(n):
        return type(n).__name__, n

    @functools.cache
    def named(n, by=1):
        return n * by

    @functools.cache
    def doubled(tensor):
        return tensor * 2

    def function(x):
        return typed(1)[1] * typed(1.0)[1] * x, named(2, by=3), doubled(x)

    def run(called):
        for cache in (typed, named, doubled):
            cache.cache_clear()
        x = torch.ones(2)
        found = [called(x) for _ in range(3)]
        return found, [cache.cache_info() for cache in (typed, named, doubled)]

    captured = capture(function)
    found, wanted = run(lambda x: captured(x).result), run(function)
    assert found[1] == wanted[1]
    torch.testing.assert_close(found[0], wanted[0])


def test_the_answer_for_an_object_goes_with_it() -> None:
    class Table:
        def __init__(self, scale):
            self.scale = scale

        @functools.lru_cache(maxsize=1)  # noqa: B019
        def factor(self, n):
            return self.scale * n

    def function(x, table):
        return x * table.factor(2)

    captured = capture(function)
    one, other = Table(3), Table(4)
    tables = [one, one, other, other, one, one]
    found = [captured(torch.ones(1), table).result.item() for table in tables]
    assert found == [6.0, 6.0, 8.0, 8.0, 6.0, 6.0]
    assert Table.factor.cache_info()[:2] == (3, 3)
    gone = weakref.ref(one)
    del one, tables
    Table.factor.cache_clear()
    gc.collect()
    assert gone() is None
