"""Thirty-two threads call compiled functions for the first time at once: all get what eager gives."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
import torch
import weft
from weft_codegen_cpp.toolchain import Toolchain

THREADS = 32


def at_once(work: Callable[[int], None]) -> None:
    """``work(number)`` on each thread, begun together; the first error of any is raised."""
    errors: list[BaseException] = []
    barrier = threading.Barrier(THREADS)

    def run(number: int) -> None:
        barrier.wait()
        try:
            work(number)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(n,)) for n in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(300)
        assert not thread.is_alive()
    if errors:
        raise errors[0]


def softened(x: torch.Tensor) -> torch.Tensor:
    return (x.sin() * 2 + 1).softmax(-1)


@pytest.mark.parametrize("backend", ["weft", "eager"])
def test_of_one_function_it_is_compiled_once(backend) -> None:
    log = weft.CompileLog()
    compiled = weft.compile(softened, backend=backend)
    x = torch.randn(4, 8)
    expected = softened(x)

    def work(number: int) -> None:
        with weft.observe(log):
            torch.testing.assert_close(compiled(x), expected)

    at_once(work)
    assert len(log.conversions) == 1


def test_of_one_function_with_sizes_of_their_own() -> None:
    model = torch.nn.Linear(8, 8)
    compiled = weft.compile(model)

    def work(number: int) -> None:
        x = torch.randn(number % 5 + 1, 8)
        torch.testing.assert_close(compiled(x), model(x))

    at_once(work)


def made(number: int) -> Callable[[torch.Tensor], torch.Tensor]:
    def even(x: torch.Tensor) -> torch.Tensor:
        return (x - number).sigmoid().mean(-1)

    def odd(x: torch.Tensor) -> torch.Tensor:
        return (x * number + 1).exp().cumsum(0)

    return odd if number % 2 else even


@pytest.mark.kept
def test_of_functions_of_their_own() -> None:
    def work(number: int) -> None:
        function = made(number % 4)
        x = torch.randn(4, 8)
        torch.testing.assert_close(weft.compile(function)(x), function(x))

    at_once(work)


def test_of_training_each_thread_gets_its_gradients() -> None:
    compiled = weft.compile(softened)

    def work(number: int) -> None:
        x = torch.full((3, 4), number / 10) + torch.arange(4.0)
        leaves = [x.clone().requires_grad_() for _ in range(2)]
        for leaf, function in zip(leaves, (compiled, softened), strict=True):
            (function(leaf) * torch.arange(4.0)).sum().backward()
        torch.testing.assert_close(leaves[0].grad, leaves[1].grad)

    at_once(work)


def test_compilers_of_several_functions_run_at_once(monkeypatch, tmp_path) -> None:
    """Each waits for the others while it runs: a lock of all would have them wait for ever."""
    count = 4
    meeting = threading.Barrier(count)
    compile_library = Toolchain.compile

    def meet(self, *arguments, **options):
        meeting.wait(120)
        return compile_library(self, *arguments, **options)

    monkeypatch.setenv("WEFT_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(Toolchain, "compile", meet)

    def work(number: int) -> None:
        x = torch.randn(4, 8)
        function = [torch.sin, torch.cos, torch.exp, torch.tanh][number % count]

        def own(x: torch.Tensor) -> torch.Tensor:
            return function(x) + number

        if number < count:
            torch.testing.assert_close(weft.compile(own)(x), own(x))

    at_once(work)


def test_captures_of_several_functions_run_at_once() -> None:
    meeting = threading.Barrier(THREADS)

    def backend(graph_module, example_inputs):
        meeting.wait(120)
        return graph_module.forward

    def work(number: int) -> None:
        function = made(number)
        x = torch.randn(4, 8)
        torch.testing.assert_close(weft.compile(function, backend=backend)(x), function(x))

    at_once(work)
