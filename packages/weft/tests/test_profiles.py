"""torch's profiler sees each run of a graph, and in it kernels and library calls, by their names."""

from __future__ import annotations

import pytest
import torch
import weft


def events(function, *arguments) -> list:
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        function(*arguments)
    return list(profile.events())


def named(found, text: str) -> list:
    return [event for event in found if text in event.name]


def breaking(x: torch.Tensor) -> torch.Tensor:
    y = x.sin() + 1
    torch._dynamo.graph_break()
    return (y @ y).softmax(-1)


def test_graphs_hold_their_kernels_and_library_calls() -> None:
    compiled = weft.compile(breaking)
    x = torch.randn(64, 64)
    compiled(x)
    found = events(compiled, x)
    first, second = named(found, "weft: breaking")
    assert "(test_profiles.py:" in first.name
    (sin,) = named(found, "sin")
    (softmax,) = named(found, "softmax")
    (matmul,) = [event for event in found if event.name.startswith(("aten::mm", "mkldnn::"))]
    for event, graph in ((sin, first), (matmul, second), (softmax, second)):
        assert graph.time_range.start <= event.time_range.start
        assert event.time_range.end <= graph.time_range.end


def test_kernels_of_backward_are_seen() -> None:
    compiled = weft.compile(lambda x: (x.sin() * 2).sum())
    x = torch.randn(64, requires_grad=True)
    compiled(x).backward()
    found = events(lambda: compiled(x).backward())
    assert any(named(found, "cos"))


@pytest.mark.parametrize("count", [3, 60])
def test_kernels_of_one_region_are_named_together(count) -> None:
    """As statements, and as rows of a table."""
    compiled = weft.compile(lambda *tensors: [t.sin().sum(-1).cos() for t in tensors])
    inputs = [torch.randn(8, n) for n in range(40, 40 + count)]
    compiled(*inputs)
    found = events(compiled, *inputs)
    assert len([e for e in found if "sin" in e.name]) >= 1
    assert all(event.name for event in found)


def test_an_event_ends_with_an_error_and_stays_out_of_its_way() -> None:
    def failing(x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        return x.sin()[index] + 1

    compiled = weft.compile(failing)
    x = torch.randn(4)
    compiled(x, torch.tensor([1, 2]))
    with torch.profiler.profile() as profile:
        with pytest.raises(IndexError):
            compiled(x, torch.tensor([1, 9]))
        compiled(x, torch.tensor([1, 2]))
    first, second = named(profile.events(), "failing")
    assert first.time_range.end <= second.time_range.start


def test_nothing_is_told_after_the_profiler() -> None:
    compiled = weft.compile(breaking)
    x = torch.randn(8, 8)
    expected = compiled(x)
    events(compiled, x)
    torch.testing.assert_close(compiled(x), expected)
    with torch.autograd.profiler.profile() as profile:
        torch.ones(3).add(1)
    assert not named(profile.function_events, "weft")
