"""Threads, memory, and other tools beside the hook.

Scaled down by default; ``WEFT_LONG_TESTS=1`` runs the threads for 60 s, 1,000 compilations and 100,000 calls.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import pdb
import resource
import sys
import threading
import time
import weakref
from io import StringIO

import pytest
import torch
from differential import run_graph
from weft_bytecode_capture import CaptureOptions, _frame_hook, compile_frames, reset

LONG = os.environ.get("WEFT_LONG_TESTS") == "1"
THREAD_SECONDS = 60.0 if LONG else 2.0
COMPILATIONS = 1000 if LONG else 60
CALLS = 100_000 if LONG else 5_000


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(3, 3)
        self.seen = 0

    def forward(self, x, factor):
        self.seen += 1
        y = self.linear(x) * factor
        time.sleep(0)
        return [y + 1, y.shape[0]]


def model_function():
    model = Model().requires_grad_(False)
    return model, lambda x, factor: model(x, factor)


# Threads.


@pytest.mark.kept
def test_threads_compile_and_call_one_function_with_changing_shapes():
    """Eight threads, each with its own shapes and numbers; entries run out, so that some run as written."""
    weight = torch.randn(3, 3)

    def function(x, factor):
        y = torch.relu(x @ weight) * factor
        time.sleep(0)  # a break: resumed frames are converted by all threads too
        return y.sum(0) + factor, y.shape[0]

    compiled = compile_frames(function, run_graph, CaptureOptions(recompile_limit=4, dynamic=False))
    errors: list[BaseException] = []
    counts = [0] * 8
    end = time.monotonic() + THREAD_SECONDS

    def work(number: int) -> None:
        generator = torch.Generator().manual_seed(number)
        try:
            while time.monotonic() < end or counts[number] < 5:
                rows = 1 + (counts[number] + number) % 5
                x = torch.randn(rows, 3, generator=generator)
                found, size = compiled(x, number % 3)
                expected, _ = function(x, number % 3)
                assert size == rows
                torch.testing.assert_close(found, expected)
                counts[number] += 1
                if counts[number] % 40 == 0 and number == 0:
                    reset()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    with (
        pytest.warns(UserWarning, match="compiled 4 times")
        if not LONG
        else contextlib.nullcontext()
    ):
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(THREAD_SECONDS + 120)
    assert not any(thread.is_alive() for thread in threads)
    assert not errors, errors[0]
    assert min(counts) > 0
    assert _frame_hook.installed_depth() == 0


def test_threads_compile_different_functions():
    errors: list[BaseException] = []

    def work(number: int) -> None:
        try:
            for step in range(5):
                compiled = compile_frames(lambda x, k=number + step: x * k, run_graph)
                assert torch.equal(compiled(torch.ones(2)), torch.full((2,), float(number + step)))
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors, errors[0]


# Memory.


def tracked_objects() -> int:
    gc.collect()
    gc.collect()
    return len(gc.get_objects())


def kilobytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def test_compilations_leave_nothing(monkeypatch):
    # pytest would keep every record of what torch logs of its symbols.
    monkeypatch.setattr(logging.getLogger("torch.__trace"), "handlers", [])

    def compile_once() -> weakref.ref:
        model, function = model_function()
        compiled = compile_frames(function, run_graph, CaptureOptions(dynamic=False))
        x = torch.ones(2, 3)
        for factor in (1, 2):
            compiled(x, factor)
        return weakref.ref(model)

    for _ in range(10):
        compile_once()
    before, memory = tracked_objects(), kilobytes()
    models = [compile_once() for _ in range(COMPILATIONS)]
    grown = tracked_objects() - before - len(models)
    assert grown < 50 + COMPILATIONS // 20, (
        f"{grown} objects more after {COMPILATIONS} compilations"
    )
    assert all(model() is None for model in models)
    assert kilobytes() - memory < 60_000


@pytest.mark.kept
def test_calls_leave_nothing():
    model, function = model_function()
    compiled = compile_frames(function, run_graph)
    inputs = [torch.ones(2, 3), torch.ones(4, 3)]
    for x in inputs * 50:
        compiled(x, 2)
    counted = [*inputs, model, model.linear.weight, compiled, None, Model.forward.__code__]
    before, memory, references = tracked_objects(), kilobytes(), [*map(sys.getrefcount, counted)]
    for step in range(CALLS):
        compiled(inputs[step & 1], 2)
    after = [*map(sys.getrefcount, counted)]
    assert tracked_objects() - before < 20
    assert all(abs(new - old) < 200 for new, old in zip(after, references, strict=True))
    assert kilobytes() - memory < 20_000


def test_failing_backend_leaves_nothing_half_installed():
    def function(x):
        return x * 2

    failures = 0

    def failing(graph_module, example_inputs):
        nonlocal failures
        failures += 1
        if failures <= 3:
            raise ValueError("backend")
        return graph_module.forward

    compiled = compile_frames(function, failing)
    x = torch.ones(2)
    for _ in range(3):
        with pytest.raises(ValueError, match="backend"):
            compiled(x)
        assert _frame_hook.installed_depth() == 0
        assert _frame_hook.current_context() is None
        assert not torch.is_inference_mode_enabled()
        assert torch.is_grad_enabled()
    assert torch.equal(compiled(x), x * 2)
    assert torch.equal(compiled(x), x * 2)
    assert failures == 4


def test_failing_backend_that_is_reported_runs_as_written():
    errors = []

    def failing(graph_module, example_inputs):
        raise ValueError("backend")

    compiled = compile_frames(
        lambda x: x * 2, failing, on_error=lambda error, place: errors.append(str(error))
    )
    for _ in range(3):
        assert torch.equal(compiled(torch.ones(2)), torch.full((2,), 2.0))
    assert errors == ["backend"]


# Beside other tools.


def with_break(x):
    y = x * 2
    time.sleep(0)
    return y + 1


def compiled_with_break():
    return compile_frames(with_break, run_graph)


@pytest.mark.parametrize("install", [sys.setprofile, sys.settrace])
def test_profilers_and_tracers_see_calls_and_the_result_stays(install):
    compiled = compiled_with_break()
    x = torch.ones(2)
    events = []

    def observe(frame, event, argument):
        if frame.f_code.co_name == "with_break":
            events.append(event)
        return observe

    before = sys.getprofile(), sys.gettrace()
    install(observe)
    try:
        results = [compiled(x) for _ in range(3)]
    finally:
        install(None)
        sys.setprofile(before[0])
        sys.settrace(before[1])
    assert all(torch.equal(result, x * 2 + 1) for result in results)
    assert events.count("call") >= 3
    assert events.count("call") == events.count("return")


def test_debugger_steps_through_a_compiled_call():
    compiled = compiled_with_break()
    x = torch.ones(2)
    compiled(x)
    output = StringIO()
    debugger = pdb.Pdb(stdin=StringIO("step\nnext\nnext\ncontinue\n"), stdout=output, nosigint=True)
    result = debugger.runcall(compiled, x)
    assert torch.equal(result, x * 2 + 1)
    assert "with_break" in output.getvalue()


def test_code_made_by_exec():
    scope = {"torch": torch}
    exec("def f(x, k):\n    y = torch.relu(x) * k\n    return y + k\n", scope)
    compiled = compile_frames(scope["f"], run_graph, CaptureOptions(fullgraph=True))
    x = torch.tensor([-1.0, 2.0])
    for k in (1, 2, 1):
        assert torch.equal(compiled(x, k), scope["f"](x, k))


def test_generators_and_coroutines_called_from_compiled_code():
    def numbers(x):
        for k in range(3):
            yield x * k

    async def later(x):
        return x + 1

    def function(x):
        coroutine = later(x)
        try:
            coroutine.send(None)
        except StopIteration as stop:
            return list(numbers(x)), stop.value

    compiled = compile_frames(function, run_graph)
    x = torch.ones(2)
    for _ in range(3):
        rows, last = compiled(x)
        assert [row[0].item() for row in rows] == [0, 1, 2]
        assert torch.equal(last, x + 1)


def test_compiled_call_inside_a_backend_and_inside_a_callback():
    inner = compile_frames(lambda x: x * 3, run_graph)

    def backend(graph_module, example_inputs):
        assert torch.equal(inner(torch.ones(2)), torch.full((2,), 3.0))
        return graph_module.forward

    def function(values):
        return sorted(values, key=lambda value: float(inner(value)[0]))

    compiled = compile_frames(function, backend)
    values = [torch.full((2,), float(k)) for k in (3, 1, 2)]
    for _ in range(2):
        assert [value[0].item() for value in compiled(values)] == [1, 2, 3]
    outer = compile_frames(lambda x: x + 1, backend)
    assert torch.equal(outer(torch.ones(2)), torch.full((2,), 2.0))


def test_compile_and_reset_while_a_call_runs():
    def function(x, depth):
        if depth == 0:
            reset()
            return x
        return function(x * 2, depth - 1) + 1

    compiled = compile_frames(function, run_graph)
    for depth in (0, 3, 2, 3):
        assert torch.equal(compiled(torch.ones(2), depth), function(torch.ones(2), depth))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_forked_child_runs_and_compiles():
    compiled = compiled_with_break()
    x = torch.ones(2)
    compiled(x)
    child = os.fork()
    if child == 0:
        status = 1
        try:
            same = torch.equal(compiled(x), x * 2 + 1)
            new = torch.equal(compiled(torch.ones(3, 2)), torch.full((3, 2), 3.0))
            status = 0 if same and new else 2
        finally:
            os._exit(status)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert torch.equal(compiled(x), x * 2 + 1)
