"""Exceptions that operators raise when the graph runs: handled where the program handles them."""

from __future__ import annotations

import contextlib
import time
import traceback

import pytest
import torch
from differential import check, run_graph, same
from weft_bytecode_capture import CaptureOptions, GraphBreakError, compile_frames

GOOD = torch.eye(3)
BAD = -torch.eye(3)
CALLS = [(GOOD,), (BAD,), (GOOD * 2,)]


def handled(x):
    try:
        return torch.linalg.cholesky(x) + 1
    except RuntimeError as error:
        return type(error).__name__, x * 2


def handled_in_a_callee(x):
    def inner(y):
        try:
            return torch.linalg.cholesky(y)
        except RuntimeError:
            return y - 1
        finally:
            log.append(len(log))

    log = []
    return inner(x), inner(x + 0), log


def suppressed(x):
    result = None
    with contextlib.suppress(RuntimeError):
        result = torch.linalg.cholesky(x)
    return result, x


def in_no_grad(x):
    try:
        with torch.no_grad():
            y = torch.linalg.cholesky(x * 1)
    except RuntimeError:
        return torch.is_grad_enabled(), x
    return torch.is_grad_enabled(), y


def in_autocast(x):
    try:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = torch.linalg.cholesky(x.float())
    except RuntimeError:
        return torch.is_autocast_enabled("cpu"), x
    return torch.is_autocast_enabled("cpu"), y


def every_kind_of_argument(x, /, a=2, *rest, b, **named):
    try:
        return torch.linalg.cholesky(x) * a * b + len(rest) + len(named)
    except RuntimeError:
        return [a, *rest, b, named]


def in_a_loop(x):
    results = []
    for factor in (1, -1, 2):
        try:
            results.append(torch.linalg.cholesky(x * factor))
        except RuntimeError:
            results.append(factor)
    return results


@pytest.mark.parametrize(
    "function", [handled, handled_in_a_callee, suppressed, in_no_grad, in_autocast, in_a_loop]
)
def test_handled_by_the_program(function):
    check(function, CALLS)


def written_before(x):
    total = torch.zeros(3, 3)
    x.add_(0.5)
    total[0] += x[0]
    try:
        x.mul_(2)
        return torch.linalg.cholesky(x) + total
    except RuntimeError:
        return total, x.sum()


def view_written_before(x):
    try:
        x[0].mul_(3)
        x[:, 1] = 1.0
        x.relu_()
        torch.nn.functional.dropout(x, 0.5, inplace=True)
        return torch.linalg.cholesky(x - 1)
    except RuntimeError:
        return torch.rand(2)


@torch.library.custom_op("weft_test::tripled", mutates_args=())
def tripled(x: torch.Tensor) -> torch.Tensor:
    return x * 3


@tripled.register_fake
def _(x):
    return torch.empty_like(x)


def library_operator_before(x):
    y = torch.ops.weft_test.tripled(x)
    y += tripled(y)
    try:
        return torch.linalg.cholesky(x) + y
    except RuntimeError:
        return y, "failed"


def drawn_before(x):
    y = torch.rand(3)
    try:
        return torch.linalg.cholesky(x) + y
    except RuntimeError:
        return y, torch.rand(2)


def data_written_before(x):
    try:
        x.data.add_(1)
        return torch.linalg.cholesky(x - 1)
    except RuntimeError:
        return x


@pytest.mark.parametrize(
    "function",
    [
        written_before,
        view_written_before,
        data_written_before,
        drawn_before,
        library_operator_before,
    ],
)
def test_what_was_written_and_drawn_is_put_back(function):
    check(function, CALLS, reset=lambda: torch.manual_seed(0))
    seeds = []
    for callee in (function, compile_frames(function, run_graph)):
        torch.manual_seed(0)
        callee(BAD.clone())
        seeds.append(torch.rand(3))
    assert torch.equal(*seeds)


NORM = torch.nn.BatchNorm1d(3)


def statistics_written_before(x):
    try:
        return torch.linalg.cholesky(NORM(x).detach() * 0 + x)
    except RuntimeError:
        return x


def test_running_statistics_are_put_back():
    first = {name: value.clone() for name, value in NORM.state_dict().items()}
    check(
        statistics_written_before,
        CALLS,
        reset=lambda: NORM.load_state_dict(first),
        state=lambda: {name: value.clone() for name, value in NORM.state_dict().items()},
    )


WEIGHT = torch.ones(3, 3, requires_grad=True)


def history_written_before(x):
    try:
        x.mul_(WEIGHT)
        return torch.linalg.cholesky(x)
    except RuntimeError:
        return x


def test_what_cannot_be_put_back_runs_as_written():
    check(history_written_before, CALLS, fullgraph=False)
    with pytest.raises(GraphBreakError, match="exception handler around writes"):
        compile_frames(history_written_before, run_graph, CaptureOptions(fullgraph=True))(
            GOOD.clone()
        )


def parameter_clamped_before(layer, x):
    """As Gemma 3n bounds its coefficients in training."""
    layer.weight.data[0].clamp_(-0.1, 0.1)
    try:
        layer.weight.data.mul_(2)
        return layer(torch.linalg.cholesky(x))
    except RuntimeError:
        return layer(x)


def test_parameters_written_as_data_are_put_back():
    """One graph; what autograd has saved of a parameter in an earlier call holds behind an error too."""
    results = []
    for compiled in (False, True):
        torch.manual_seed(0)
        layer = torch.nn.Linear(3, 3)
        version = layer.weight._version
        function = parameter_clamped_before
        if compiled:
            function = compile_frames(function, run_graph, CaptureOptions(fullgraph=True))
        held = (GOOD.clone().requires_grad_() @ layer.weight).sum()
        outs = [function(layer, GOOD.clone()), function(layer, BAD.clone())]
        sum(out.sum() for out in (*outs, held)).backward()
        results.append([*outs, layer.weight.grad, layer.weight.detach()])
        assert layer.weight._version == version
    assert same(*results)


def test_effects_before_an_operator_that_fails():
    seen = []

    def function(x, log):
        seen.append(x.shape)
        log["calls"] = log.get("calls", 0) + 1
        return torch.linalg.cholesky(x)

    check(function, [(GOOD, {}), (BAD, {})], state=lambda: list(seen), reset=seen.clear)


def test_interruptions_are_not_handled_by_running_again():
    runs = []

    def function(x):
        runs.append(1)
        try:
            return x + 1
        except RuntimeError:
            return x

    def interrupted(graph_module, example_inputs):
        def run(*inputs):
            raise KeyboardInterrupt

        return run

    with pytest.raises(KeyboardInterrupt):
        compile_frames(function, interrupted)(GOOD)
    assert runs == []


def test_every_kind_of_argument():
    check(lambda x: every_kind_of_argument(x, 3, 4, 5, b=6, c=7), CALLS)
    compiled = compile_frames(every_kind_of_argument, run_graph, CaptureOptions(fullgraph=True))
    for x in (GOOD, BAD):
        expected = every_kind_of_argument(x, 3, 4, 5, b=6, c=7)
        found = compiled(x, 3, 4, 5, b=6, c=7)
        assert type(found) is type(expected)
        assert found == expected if isinstance(found, list) else torch.equal(found, expected)


def test_handled_in_a_resumed_frame_and_with_cells():
    def function(x):
        count = 0

        def counted(y):
            nonlocal count
            count += 1
            return y

        x = counted(x) + 1
        time.sleep(0)
        try:
            return torch.linalg.cholesky(counted(x) - 1), count
        except RuntimeError:
            return count, x

    check(function, CALLS, fullgraph=False)


def test_not_handled():
    def function(x):
        with torch.no_grad():
            return torch.linalg.cholesky(x)

    compiled = compile_frames(function, run_graph, CaptureOptions(fullgraph=True))
    assert torch.equal(compiled(GOOD), GOOD)
    for _ in range(2):
        with pytest.raises(torch.linalg.LinAlgError) as caught:
            compiled(BAD)
        assert torch.is_grad_enabled()
        lines = [frame.line for frame in traceback.extract_tb(caught.value.__traceback__)]
        assert "return torch.linalg.cholesky(x)" in lines
        assert caught.value.__context__ is None


@pytest.mark.parametrize("enabled", [True, False])
def test_modes_restored_when_a_graph_with_effects_fails(enabled):
    total = torch.zeros(3, 3)

    def function(x):
        with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
            total.add_(x)
            return torch.linalg.cholesky(x)

    compiled = compile_frames(function, run_graph, CaptureOptions(fullgraph=True))
    with torch.set_grad_enabled(enabled):
        compiled(GOOD)
        with pytest.raises(torch.linalg.LinAlgError):
            compiled(BAD)
        assert torch.is_grad_enabled() is enabled
        assert not torch.is_autocast_enabled("cpu")
        assert torch.equal(total, GOOD + BAD)
        compiled(GOOD)


def test_rejected_arguments_are_not_logged(caplog):
    def function(x, y):
        try:
            return x @ y
        except RuntimeError:
            return x.sum()

    compiled = compile_frames(function, run_graph)
    x = torch.ones(2, 3)
    assert compiled(x, x) == 6
    assert not caplog.records
