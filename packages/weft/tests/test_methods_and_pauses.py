"""What compiled nothing and said nothing once: methods that call the module, generators, other options."""

import asyncio
import inspect
import warnings

import pytest
import torch
import weft
from torch import nn


@pytest.fixture
def graphs() -> list:
    return []


@pytest.fixture
def counting(graphs):
    def backend(graph_module, example_inputs):
        graphs.append(graph_module)
        return graph_module.forward

    return backend


class Decoder(nn.Module):
    """Has a loop around its own call, as ``generate`` of a language model."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x):
        return torch.relu(self.layer(x)) + 1

    def generate(self, x, steps: int = 3):
        for _ in range(steps):
            x = self(x)
        return x

    def fails(self, x):
        raise ValueError(self(x).shape)


@torch.no_grad()
@pytest.mark.parametrize("fullgraph", [False, True])
def test_a_method_calls_the_compiled_module(graphs, counting, fullgraph) -> None:
    model = Decoder().eval()
    x = torch.randn(2, 4)
    wanted = model.generate(x)
    compiled = weft.compile(model, backend=counting, fullgraph=fullgraph)
    torch.testing.assert_close(compiled.generate(x), wanted)
    assert len(graphs) == 1
    torch.testing.assert_close(model.generate(x), wanted)
    assert model._compiled_call_impl is None
    with pytest.raises(ValueError, match="4"):
        compiled.fails(x)
    assert model._compiled_call_impl is None
    assert inspect.ismethod(compiled.generate) and compiled.generate.__self__ is model
    assert "steps" in inspect.signature(compiled.generate).parameters


@torch.no_grad()
def test_hooks_run_once_under_a_method(graphs, counting) -> None:
    model = Decoder().eval()
    seen: list[int] = []
    model.register_forward_hook(lambda module, args, result: seen.append(1))
    compiled = weft.compile(model, backend=counting)
    torch.testing.assert_close(
        compiled.generate(torch.ones(2, 4)), model.generate(torch.ones(2, 4))
    )
    assert len(seen) == 6


def test_a_compiled_module_takes_other_options(graphs, counting) -> None:
    model = Decoder().eval()
    plain = weft.compile(model, backend="eager")
    assert weft.compile(plain, backend="eager") is plain
    other = weft.compile(plain, backend=counting)
    assert other is not plain and other._orig_mod is model
    with torch.no_grad():
        other(torch.ones(2, 4))
    assert len(graphs) == 1


def test_a_compiled_function_takes_other_options(graphs, counting) -> None:
    def double(x):
        return x * 2

    other = weft.compile(weft.compile(double, backend="eager"), backend=counting)
    assert torch.equal(other(torch.ones(2)), torch.full((2,), 2.0))
    assert len(graphs) == 1


def scale(x, factor):
    return torch.relu(x) * factor


def rows(x):
    """Takes what is sent, handles what is thrown, returns a value."""
    factor = 1.0
    while factor < 4:
        try:
            sent = yield scale(x, factor)
        except KeyError:
            sent = 10.0
        factor = factor + 1 if sent is None else sent
    return factor


async def later(x):
    await asyncio.sleep(0)
    return scale(x, 2.0)


async def stream(x):
    for factor in range(3):
        await asyncio.sleep(0)
        yield scale(x, float(factor))


def quietly(function, backend):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        compiled = weft.compile(function, backend=backend)
    assert [w.category for w in caught] == [weft.WeftWarning]
    assert function.__name__ in str(caught[0].message)
    return compiled


def drive(generator, x) -> list:
    running = generator(x)
    seen = []
    seen.append(next(running))
    seen.append(running.send(2.0))
    try:
        running.throw(KeyError("other"))
    except StopIteration as stop:
        seen.append(stop.value)
    again = generator(x)
    next(again)
    again.close()
    again = generator(x)
    next(again)
    with pytest.raises(ZeroDivisionError):
        again.throw(ZeroDivisionError)
    return seen


def test_what_a_generator_calls_is_compiled(graphs, counting) -> None:
    compiled = quietly(rows, counting)
    assert inspect.isgeneratorfunction(compiled)
    x = torch.tensor([-1.0, 3.0])
    assert [str(part) for part in drive(compiled, x)] == [str(part) for part in drive(rows, x)]
    assert graphs


def test_what_coroutines_call_is_compiled(graphs, counting) -> None:
    x = torch.tensor([-1.0, 3.0])
    compiled = quietly(later, counting)
    assert torch.equal(asyncio.run(compiled(x)), asyncio.run(later(x)))
    assert len(graphs) == 1

    async def collect(function):
        return [part async for part in function(x)]

    streaming = quietly(stream, counting)
    found, wanted = asyncio.run(collect(streaming)), asyncio.run(collect(stream))
    assert [str(part) for part in found] == [str(part) for part in wanted]
    assert len(graphs) > 1


@pytest.mark.parametrize("function", [rows, later, stream])
def test_fullgraph_refuses_what_pauses(function) -> None:
    compiled = weft.compile(function, backend="eager", fullgraph=True)
    with pytest.raises(weft.StageError, match=function.__name__):
        compiled(torch.ones(2))
