"""Loops over layers that break in each turn: right, and compiled as often for many layers as for a few."""

from __future__ import annotations

import copy
import time
import warnings
from collections.abc import Callable
from typing import Any

import broken_loops
import pytest
import torch
from weft_bytecode_capture import CaptureOptions, CaptureReport, compile_frames


def outputs(value: Any) -> list[Any]:
    """All that a result holds, in order."""
    if isinstance(value, broken_loops.Output):
        return [*outputs(value.last), *outputs(value.all_hidden_states)]
    if isinstance(value, (tuple, list)):
        return [type(value), *(part for item in value for part in outputs(item))]
    if isinstance(value, dict):
        return [part for pair in value.items() for part in outputs(pair)]
    return [value]


def assert_equal(found: Any, wanted: Any) -> None:
    left, right = outputs(found), outputs(wanted)
    assert len(left) == len(right)
    for a, b in zip(left, right, strict=True):
        if isinstance(b, torch.Tensor):
            torch.testing.assert_close(a, b, rtol=0, atol=0, equal_nan=True)
        else:
            assert a == b


def run(model: Any, function: Any, x: torch.Tensor) -> tuple[Any, list[Any]]:
    """A call's result, and what it did beside: what was seen, printed or logged, and the gradients."""
    broken_loops.SEEN.clear()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = function(x)
    seen = [*broken_loops.SEEN, *(str(warning.message) for warning in caught)]
    model.zero_grad()
    sum(v.sum() for v in outputs(result) if isinstance(v, torch.Tensor)).backward()
    return result, [*seen, *(p.grad for p in model.parameters())]


def reports_of(program: Callable[..., Any], count: int, breaks: bool) -> list[CaptureReport]:
    """What is compiled for two calls of a model of ``count`` layers; checks them."""
    torch.manual_seed(0)
    model = broken_loops.Model(program, count, breaks)
    plain = copy.deepcopy(model)
    reports: list[CaptureReport] = []
    compiled = compile_frames(
        model, lambda graph, inputs: graph.forward, CaptureOptions(), None, reports.append
    )
    for _ in range(2):
        x = torch.randn(2, 4)
        assert_equal(run(model, compiled, x), run(plain, plain, x))
    return [report for report in reports if "_pytest" not in report.location.file]


@pytest.mark.parametrize(
    "program", [*broken_loops.PROGRAMS, *broken_loops.INSIDE], ids=lambda program: program.__name__
)
def test_compilations_do_not_grow_with_the_layers(program: Callable[..., Any]) -> None:
    breaks = program in broken_loops.INSIDE
    few, many = (reports_of(program, count, breaks) for count in (5, 8))
    skipped = {report.skip_reason for report in many} - {None}
    assert skipped <= {"no version of it meets a tensor"}
    assert len(many) == len(few) <= 10
    graphs = [report.graph for report in many if report.graph is not None]
    assert len(graphs) <= 5


def test_functions_without_tensors_are_compiled_twice_at_the_most() -> None:
    def label(number: int, name: str) -> str:
        return f"{name} {number}"

    def function(x: torch.Tensor, names: list[str]) -> tuple[torch.Tensor, list[str]]:
        found = [broken_loops.foreign(x) and label(i, name) for i, name in enumerate(names)]
        return x * 2, found

    reports: list[CaptureReport] = []
    compiled = compile_frames(
        function, lambda graph, inputs: graph.forward, CaptureOptions(), None, reports.append
    )
    x, names = torch.ones(1), [f"name {i}" for i in range(12)]
    assert_equal(compiled(x, names), function(x, names))
    own = [report for report in reports if report.code is label.__code__]
    assert [report.skip_reason is None for report in own] == [True, True, False]


@pytest.mark.parametrize("program", broken_loops.GROWING, ids=lambda program: program.__name__)
def test_as_plain_python(program: Callable[..., Any]) -> None:
    reports_of(program, 3, False)


def generated(logits, tokens, end, length):
    """Tokens one after another, the last of which data or a length decides."""
    while True:
        following = (logits[tokens[:, -1]] + tokens.sum(1, keepdim=True)).argmax(-1, keepdim=True)
        tokens = torch.cat([tokens, following], 1)
        if tokens.shape[1] >= length or following[0].item() == end:
            return tokens


def suppressed(boxes, order, threshold):
    """The best of what is left, as long as something is: numbers of rows that data decides."""
    kept = []
    while order.numel() > 0:
        best = order[0].item()
        kept.append(best)
        order = order[(boxes[order] - boxes[best]).abs() > threshold]
    return torch.tensor(kept)


def counted(x, limit):
    """Numbers that grow in each iteration."""
    steps, total = 0, 0.0
    while x.abs().max() > limit:
        broken_loops.foreign(x)
        x, steps, total = x * 0.7, steps + 1, total + x.sum().item()
    return x, steps, total


def compilations(function: Callable[..., Any], *calls: tuple[Any, ...]) -> list[int]:
    """How many graphs each call compiles; checks its results."""
    reports: list[CaptureReport] = []
    compiled = compile_frames(
        function, lambda graph, inputs: graph.forward, CaptureOptions(), None, reports.append
    )
    counts = []
    for arguments in calls:
        assert_equal(compiled(*arguments), function(*arguments))
        counts.append(sum(report.graph is not None for report in reports))
        reports.clear()
    return counts


def test_loops_that_data_ends_are_compiled_as_often_for_many_iterations() -> None:
    logits = torch.randn(9, 9, generator=torch.Generator().manual_seed(1))
    start = torch.arange(6).view(2, 3)
    first, *later = compilations(
        generated, *((logits, start, -1, length) for length in (14, 24, 40, 41, 42))
    )
    assert first <= 4 and sum(later[1:]) == 0

    boxes = torch.arange(40.0)
    lengths = (30, 12, 22, 17, 26, 35, 38, 33)
    first, *later = compilations(suppressed, *((boxes[:n], torch.arange(n), 1.5) for n in lengths))
    assert first <= 5 and sum(later[-3:]) == 0

    numbers = torch.linspace(1.0, 9.0, 5)
    first, *later = compilations(counted, *((numbers, limit) for limit in (1.0, 0.1, 0.01)))
    assert first <= 5 and sum(later[1:]) == 0


def test_what_a_builtin_gave_is_no_constant() -> None:
    def timed(x):
        start = time.perf_counter()
        y = x * 2
        return y, (time.perf_counter() - start >= 0) + y.sum()

    x = torch.ones(3)
    assert compilations(timed, (x,), (x,), (x,))[1:] == [0, 0]
