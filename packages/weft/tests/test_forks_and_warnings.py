"""Processes forked while another thread compiles, and programs for which every warning is an error."""

from __future__ import annotations

import faulthandler
import gc
import logging
import os
import sys
import threading
import time
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import weft
import weft_functionalize
from weft_bytecode_capture import _frame_hook
from weft_loop_ir.process_lock import ProcessLock

forks = pytest.mark.skipif(not hasattr(os, "fork"), reason="no processes are forked here")


def in_a_fork(check: Callable[[], None], seconds: int = 40) -> None:
    """Run ``check`` in a forked process, which is stopped after ``seconds``."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # 3.12 warns of forks with threads
        child = os.fork()
    if child == 0:
        status = 1
        try:
            faulthandler.dump_traceback_later(seconds, exit=True, file=sys.__stderr__)
            check()
            status = 0
        finally:
            os._exit(status)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0, "the child failed, or was stopped"


class SlowBackend:
    """Waits in its first graph until it is told to go on."""

    def __init__(self) -> None:
        self.began, self.goes_on, self.waits = threading.Event(), threading.Event(), True

    def __call__(self, graph_module: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
        if self.waits:
            self.waits = False
            self.began.set()
            assert self.goes_on.wait(300)
        return graph_module.forward


@forks
def test_a_fork_while_another_thread_compiles() -> None:
    backend = SlowBackend()
    compiled = weft.compile(lambda x: x * 2 + 1, backend=backend)
    found = []
    thread = threading.Thread(target=lambda: found.append(compiled(torch.ones(3))))
    thread.start()
    assert backend.began.wait(120)

    def check() -> None:
        assert _frame_hook.installed_depth() == 0
        assert gc.isenabled()
        x = torch.arange(4.0)
        assert torch.equal(compiled(x), x * 2 + 1)  # the very function, by the very converter
        assert torch.equal(weft.compile(lambda x: x - 3)(x), x - 3)
        assert _frame_hook.installed_depth() == 0

    in_a_fork(check)
    backend.goes_on.set()
    thread.join()
    assert torch.equal(found[0], torch.full((3,), 3.0))
    assert gc.isenabled()


@forks
def test_a_fork_by_the_thread_that_compiles() -> None:
    """It goes on compiling, there as here."""

    def backend(graph_module: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
        in_a_fork(lambda: None)
        return graph_module.forward

    compiled = weft.compile(lambda x: x * 5, backend=backend)
    assert torch.equal(compiled(torch.ones(2)), torch.full((2,), 5.0))
    assert torch.equal(compiled(torch.ones(2, 2)), torch.full((2, 2), 5.0))


@forks
@pytest.mark.slow
def test_forks_at_any_moment_of_compiling(tmp_path: Any, monkeypatch: Any) -> None:
    """With the real pipeline, its compiler and caches."""
    monkeypatch.setenv("WEFT_CACHE_DIR", str(tmp_path))
    function = weft.compile(lambda x, k: (x * k).exp().sum(-1), dynamic=False)
    running = True
    errors = []

    def work() -> None:
        size = 3
        while running:
            x = torch.ones(size)
            found = weft.compile(lambda x, k: (x * k).exp().sum(-1), dynamic=False)(x, 0.5)
            if not torch.allclose(found, (x * 0.5).exp().sum(-1)):
                errors.append(size)
            size += 1

    thread = threading.Thread(target=work)
    thread.start()
    for number in range(4):
        time.sleep(0.05 + 0.13 * number)
        x = torch.rand(2, 5 + number)

        def check(x: torch.Tensor = x) -> None:
            torch.testing.assert_close(function(x, 2.0), (x * 2.0).exp().sum(-1))

        in_a_fork(check)
    running = False
    thread.join()
    assert not errors


@forks
def test_locks_are_free_in_a_forked_process() -> None:
    lock, held, done = ProcessLock(), threading.Event(), threading.Event()

    def hold() -> None:
        with lock:
            held.set()
            done.wait(300)

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait()

    def check() -> None:
        with lock, lock:
            pass

    in_a_fork(check, 20)
    done.set()
    thread.join()
    with lock:
        in_a_fork(check, 20)  # by who holds it
    with lock:
        pass


# Warnings as errors.


def several_sizes(compiled: Callable[[torch.Tensor], torch.Tensor]) -> None:
    for size in range(2, 6):
        assert torch.equal(compiled(torch.ones(size)), torch.full((size,), 3.0))


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.WARNING)
    return caplog


def test_the_recompile_limit(log: pytest.LogCaptureFixture) -> None:
    compiled = weft.compile(lambda x: x * 3, dynamic=False, options={"recompile_limit": 2})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        several_sizes(compiled)
    assert "was compiled 2 times" in log.text


@pytest.mark.parametrize("fails", ["functionalize", "capture", "backend"])
def test_what_runs_eagerly(monkeypatch: Any, log: pytest.LogCaptureFixture, fails: str) -> None:
    monkeypatch.setenv("WEFT_STRICT", "0")

    def fail(*arguments: Any, **keywords: Any) -> Any:
        raise KeyError("planted")

    if fails == "functionalize":
        monkeypatch.setattr(weft_functionalize, "functionalize", fail)
    if fails == "capture":
        from weft_bytecode_capture.symbolic import root_frame

        monkeypatch.setattr(root_frame, "capture_root_frame", fail)
    compiled = weft.compile(lambda x: x * 3, backend=fail if fails == "backend" else "weft")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        several_sizes(compiled)
    assert "planted" in log.text


def test_gradients_of_gradients_by_operators(log: pytest.LogCaptureFixture) -> None:
    x = torch.ones(3, requires_grad=True)
    compiled = weft.compile(lambda x: torch.nn.functional.dropout(x, 0.5).square().sum())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        (first,) = torch.autograd.grad(compiled(x), x, create_graph=True)
        (second,) = torch.autograd.grad(first.sum(), x)
    torch.testing.assert_close(second, first.detach())
    assert "gradients of gradients" in log.text


def test_the_programs_own_warnings_are_errors_as_in_eager() -> None:
    def warns(x: torch.Tensor) -> torch.Tensor:
        y = x + 1
        warnings.warn("the user's own", stacklevel=1)
        return y * 2

    compiled = weft.compile(warns)
    for _ in range(2):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            with pytest.raises(UserWarning, match="the user's own"):
                compiled(torch.ones(2))
