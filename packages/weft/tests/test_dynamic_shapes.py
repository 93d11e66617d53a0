"""Sizes and integers that change, through the whole line."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import weft


def compiled_and_log(function: Callable[..., Any], **options: Any) -> tuple[Any, weft.CompileLog]:
    return weft.compile(function, fullgraph=True, **options), weft.CompileLog()


def attention(x: torch.Tensor, step: int) -> Any:
    batch, length, width = x.shape
    heads = x.view(batch, length, 4, width // 4).transpose(1, 2)
    scores = (heads @ heads.transpose(-1, -2)) * (width // 4) ** -0.5
    mask = torch.ones(length, length, dtype=torch.bool).tril()
    scores = scores.masked_fill(~mask, float("-inf")).softmax(-1)
    mixed = (scores @ heads).transpose(1, 2).reshape(batch, length, width)
    return mixed[:, -1] + step, mixed.sum(1) / length, batch * length, x.transpose(0, 1)


def test_one_program_for_all_sizes_and_steps() -> None:
    compiled, log = compiled_and_log(attention)
    with torch.no_grad(), weft.observe(log):
        for step, (batch, length) in enumerate(((2, 5), (3, 8), (7, 2), (4, 31), (5, 5))):
            x = torch.randn(batch, length, 16)
            for found, wanted in zip(compiled(x, step), attention(x, step), strict=True):
                if isinstance(wanted, torch.Tensor):
                    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)
                    assert found.stride() == wanted.stride()
                else:
                    assert found == wanted
    assert len(log.graphs) == 2
    assert all(report.eager_reason is None for report in log.graphs)


def test_writes_and_views_for_all_sizes() -> None:
    def function(x: torch.Tensor) -> Any:
        x.mul_(2)
        x[:, : x.shape[1] // 2].add_(x.shape[0])
        return x.t(), x.view(-1)[1:]

    compiled, log = compiled_and_log(function)
    with torch.no_grad(), weft.observe(log):
        for size in ((2, 6), (3, 10), (5, 8), (4, 40)):
            x = torch.randn(size)
            y = x.clone()
            for found, wanted in zip(compiled(y), function(x), strict=True):
                torch.testing.assert_close(found, wanted)
                assert found.untyped_storage().data_ptr() == y.untyped_storage().data_ptr()
            torch.testing.assert_close(y, x)
    assert len(log.graphs) == 2


def blocks(x: torch.Tensor) -> torch.Tensor:
    """Sums of eight rows each: one row for up to eight."""
    padded = torch.nn.functional.pad(x, (0, 0, 0, -x.shape[0] % 8))
    return padded.view(-1, 8, x.shape[1]).sum(1)


@pytest.mark.parametrize(
    "function",
    [
        lambda x, y: blocks(x) + y,
        lambda x, y: blocks(x).squeeze(0) * y[0],
        lambda x, y: (blocks(x)[:, None] * y[0]).sum(0).squeeze(0),
    ],
)
def test_a_computed_size_of_one_is_broadcast_and_left_out(function) -> None:
    compiled, log = compiled_and_log(function)
    with weft.observe(log):
        for rows in (5, 6, 3, 8, 40, 33):
            x, y = torch.randn(rows, 4, requires_grad=True), torch.randn(5, 4, requires_grad=True)
            found, wanted = compiled(x, y), function(x, y)
            torch.testing.assert_close(found, wanted)
            weight = torch.randn_like(wanted)
            gradients = [torch.autograd.grad(r, [x, y], weight) for r in (found, wanted)]
            torch.testing.assert_close(*gradients)
    assert len(log.graphs) == 3  # the first call's, one block, several
    assert all(report.eager_reason is None for report in log.graphs)


def test_marks_and_dynamic_true_compile_once() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return (x.softmax(0) * x.shape[0]).sum(1)

    marked, first = compiled_and_log(function)
    dynamic, second = compiled_and_log(function, dynamic=True)
    with torch.no_grad():
        for rows in (4, 1, 9):
            x = torch.randn(rows, 3)
            weft.mark_dynamic(x, 0, min=1)
            with weft.observe(first):
                torch.testing.assert_close(marked(x), function(x))
        for size in ((4, 3), (9, 8), (2, 5)):
            x = torch.randn(size)
            with weft.observe(second):
                torch.testing.assert_close(dynamic(x), function(x))
    assert len(first.graphs) == len(second.graphs) == 1


def test_marked_sizes_train_with_one_graph() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.GELU(), torch.nn.Linear(4, 2))
    compiled, log = compiled_and_log(model)
    with weft.observe(log):
        for rows in (2, 5, 9, 5):
            x = torch.randn(rows, 3)
            weft.mark_dynamic(x, 0)
            compiled(x).square().mean().backward()
            found = [parameter.grad.clone() for parameter in model.parameters()]
            model.zero_grad()
            model(x).square().mean().backward()
            for gradient, parameter in zip(found, model.parameters(), strict=True):
                torch.testing.assert_close(gradient, parameter.grad)
            model.zero_grad()
    assert len(log.graphs) == 1


def test_a_wrong_mark_raises_and_is_not_hidden_by_the_fallback(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("WEFT_STRICT", "0")
    compiled = weft.compile(lambda x: x + 1 if x.shape[0] == 4 else x)
    x = torch.randn(4, 2)
    weft.mark_dynamic(x, 0)
    with pytest.raises(ValueError, match="marked dynamic"):
        compiled(x)


def test_a_recompilation_tells_the_line_that_needs_a_relation() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        if x.shape[0] > 4:
            return x + 1
        return x - 1

    compiled, log = compiled_and_log(function)
    with torch.no_grad(), weft.observe(log):
        for rows in (2, 3, 7):
            compiled(torch.randn(rows))
    text = str(log.conversions[-1].recompile_reason)
    assert "expected L['x'].size(0) <= 4, found L['x'].size(0) = 7" in text
    assert "if x.shape[0] > 4:" in text


def test_one_program_for_all_floats() -> None:
    def function(x: torch.Tensor, rate: float) -> Any:
        decay = 1 - rate * 0.9
        return (
            x * decay + rate,
            torch.add(x, x, alpha=-rate),
            torch.arange(3) * rate,
            x.half() * rate,
            x**rate,
            torch.full((3,), math.sqrt(rate)),
            torch.where(x > rate, x, rate),
            x.clamp(min=rate),
            torch.tensor(3) * rate,
            torch.nn.functional.leaky_relu(x, rate),
            x.addcmul(x, x, value=rate / x.size(0)),
            rate / 2,
        )

    x = torch.tensor([-1.5, 0.0, -0.0, 2.0, math.inf, math.nan])
    compiled, log = compiled_and_log(function)
    with weft.observe(log):
        for rate in (0.5, 0.3, 0.7, 1e-9, 41.0):
            for found, wanted in zip(compiled(x, rate), function(x, rate), strict=True):
                torch.testing.assert_close(found, wanted, equal_nan=True)
    assert len(log.graphs) == 2
    assert all(report.eager_reason is None for report in log.graphs)


@pytest.mark.parametrize(
    ("sizes", "graphs"),
    [
        ([(2, 5), (3, 7), (4, 9), (2, 5)], 2),  # both dimensions change at once
        ([(2, 5), (2, 7), (2, 9), (4, 9), (3, 8)], 3),  # one after the other
    ],
    ids=["at once", "one after the other"],
)
def test_compilations_are_as_many_as_torchs(sizes: list[tuple[int, int]], graphs: int) -> None:
    """A size is symbolic from its first change on, and only that size."""
    torch.compiler.reset()  # it remembers sizes by code object
    counts = []
    for compiler in (weft.compile, torch.compile):
        made: list[Any] = []

        def backend(graph: Any, inputs: Any, made: list[Any] = made) -> Any:
            made.append(graph)
            return graph.forward

        compiled = compiler(lambda x: x * 2 + x.shape[1], backend=backend)
        for size in sizes:
            torch.testing.assert_close(compiled(torch.ones(size)), torch.ones(size) * 2 + size[1])
        counts.append(len(made))
    assert counts == [graphs, graphs]


def test_a_size_that_is_computed_in_very_many_steps_is_a_number() -> None:
    """What torch asks of an expression 200 deep takes minutes; such a program is compiled for its sizes."""

    def halved(x: torch.Tensor) -> torch.Tensor:
        for _ in range(100):
            x = torch.softmax(x, 0)[..., ::2]
        return x

    compiled = weft.compile(halved, dynamic=True)
    for size in (9, 6):
        x = torch.rand(size)
        torch.testing.assert_close(compiled(x), halved(x))


@pytest.mark.parametrize("of_images", [False, True])
def test_what_padding_by_computed_amounts_leaves_lies_as_eagers(of_images: bool) -> None:
    """Where nothing is added, as 16 % 4 elements, it is a copy in the order of the operand's strides."""

    def function(x: torch.Tensor) -> torch.Tensor:
        width = x.shape[-1]
        return torch.nn.functional.pad(x, (-(width // 3), width % 4))

    compiled = weft.compile(function, fullgraph=True, dynamic=True)
    for rows, columns in ((6, 16), (5, 11), (8, 12)):
        x = torch.randn(columns, rows).t()
        if of_images:
            x = torch.randn(2, 3, rows, columns).contiguous(memory_format=torch.channels_last)
        found, wanted = compiled(x), function(x)
        assert torch.equal(found, wanted)
        assert found.stride() == wanted.stride()


@pytest.mark.parametrize("parts", [2, 3])
def test_gradients_of_chunks_of_any_size(parts: int) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.cat(x.chunk(parts, 1)[::-1], 1)

    compiled, log = compiled_and_log(function, dynamic=True)
    with weft.observe(log):
        for columns in (11, 14, 13):
            x = torch.randn(4, columns, requires_grad=True)
            factor = torch.randn(4, columns)
            results = [call(x) for call in (compiled, function)]
            found, wanted = (torch.autograd.grad(r, x, factor)[0] for r in results)
            assert torch.equal(*results)
            assert torch.equal(found, wanted)
            assert found.stride() == wanted.stride()
    assert all(report.eager_reason is None for report in log.graphs)
