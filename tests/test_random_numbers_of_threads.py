"""Random numbers that other threads draw beside compiled code neither repeat nor change.

The default generators belong to the whole process, so that a thread which draws from one sees what others
have drawn, as in eager.  But each number goes to one thread.
"""

from __future__ import annotations

import contextlib
import random
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import torch.nn.functional as F
import weft

ROUNDS = 12


class Drawing(threading.Thread):
    """Draws one number after another from the default generators of torch and of Python."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.torchs: list[float] = []
        self.pythons: list[float] = []
        self.ended, self.began = threading.Event(), threading.Event()

    def run(self) -> None:
        while not self.ended.is_set():
            self.torchs += torch.rand(4, dtype=torch.float64).tolist()
            self.pythons.append(random.random())
            self.began.set()


@contextlib.contextmanager
def drawing_beside() -> Iterator[Drawing]:
    thread = Drawing()
    thread.start()
    thread.began.wait()
    try:
        yield thread
    finally:
        thread.ended.set()
        thread.join()


def plain(x: torch.Tensor) -> torch.Tensor:
    return torch.relu(x) * 2


def drawing(x: torch.Tensor) -> torch.Tensor:
    return x + torch.rand(4, dtype=torch.float64) + F.dropout(x, 0.5)


def drawing_in_a_loop(x: torch.Tensor) -> torch.Tensor:
    for _ in range(20):
        x = (x + torch.rand(4, dtype=torch.float64)).tanh()
    return x


def failing(x: torch.Tensor) -> torch.Tensor:
    drawn = torch.rand(4, dtype=torch.float64)
    try:
        return torch.linalg.cholesky(torch.diag(x)) + drawn
    except RuntimeError:
        return drawn + torch.rand(4, dtype=torch.float64)


def unhandled(x: torch.Tensor) -> torch.Tensor:
    return torch.rand(4, dtype=torch.float64)[(x - 9).long()]


PROGRAMS = (plain, drawing, drawing_in_a_loop, failing, unhandled)


def run_often(program: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """Compile and call it again and again."""
    x = torch.linspace(-1, 1, 4, dtype=torch.float64)
    for _ in range(ROUNDS):
        weft.reset()
        compiled = weft.compile(program)
        for _ in range(3):
            with contextlib.suppress(IndexError):
                compiled(x)


@pytest.mark.parametrize("program", PROGRAMS)
def test_nothing_is_drawn_twice(program: Callable[[torch.Tensor], torch.Tensor]) -> None:
    torch.manual_seed(0)
    with drawing_beside() as thread:
        run_often(program)
    assert len(set(thread.torchs)) == len(thread.torchs)
    assert len(set(thread.pythons)) == len(thread.pythons)


def test_programs_that_draw_nothing_change_nothing() -> None:
    """What another thread draws beside them is the generator's stream, without gaps."""
    torch.manual_seed(0)
    random.seed(0)
    with drawing_beside() as thread:
        run_often(plain)
    torch.manual_seed(0)
    random.seed(0)
    expected = [
        number for _ in thread.pythons for number in torch.rand(4, dtype=torch.float64).tolist()
    ]
    assert thread.torchs == expected
    assert thread.pythons == [random.random() for _ in thread.pythons]


@contextlib.contextmanager
def refused_as_unknown() -> Iterator[None]:
    """What is inside may raise that another thread drew, but nothing else."""
    try:
        yield
    except RuntimeError as error:
        if "another thread drew" not in str(error):
            raise


def gradients(
    function: Callable[[torch.Tensor], torch.Tensor],
) -> tuple[torch.Tensor, torch.Tensor]:
    """What ``tanh`` of a dropout gives, and its second derivative."""
    x = torch.linspace(1, 2, 4, dtype=torch.float64).requires_grad_()
    y = function(x)
    (first,) = torch.autograd.grad(y.sum(), x, create_graph=True)
    return y.detach(), torch.autograd.grad(first.sum(), x)[0]


def test_gradients_of_gradients_beside_others() -> None:
    """They are of the numbers that forward drew, or an error, and take nothing from anybody's stream."""
    compiled = weft.compile(lambda x: F.dropout(x, 0.5).tanh())
    torch.manual_seed(0)
    with drawing_beside() as thread:
        for _ in range(100):
            with refused_as_unknown():
                y, found = gradients(compiled)
                scale = 2.0 * (y != 0)
                torch.testing.assert_close(found, -2 * scale * scale * y * (1 - y * y))
    assert len(set(thread.torchs)) == len(thread.torchs)


ANOTHER = ThreadPoolExecutor(1)


@torch.library.custom_op("weft_test::while_another_draws", mutates_args=())
def while_another_draws(x: torch.Tensor) -> torch.Tensor:
    ANOTHER.submit(torch.rand, 1).result()
    return x.clone()


while_another_draws.register_fake(torch.empty_like)
while_another_draws.register_autograd(lambda ctx, gradient: gradient)


def test_forwards_numbers_that_are_not_known() -> None:
    compiled = weft.compile(
        lambda x: F.dropout(torch.ops.weft_test.while_another_draws(x), 0.5).tanh()
    )
    with pytest.raises(RuntimeError, match="another thread drew"):
        gradients(compiled)


@pytest.mark.parametrize("is_idle", [True, False])
def test_an_error_puts_back_what_nobody_else_drew(is_idle: bool) -> None:
    """A thread that waits keeps nothing from being eager's; one that has drawn keeps its numbers."""
    ended = threading.Event()
    waiting = threading.Thread(target=ended.wait, daemon=True)
    waiting.start()
    x = -torch.ones(4, dtype=torch.float64)
    program = failing if is_idle else failing_while_another_draws
    try:
        torch.manual_seed(0)
        expected = program(x)
        after = torch.rand(4)
        compiled = weft.compile(program)
        compiled(x.abs())
        torch.manual_seed(0)
        found = compiled(x)
        assert torch.equal(found, expected) == is_idle
        assert torch.equal(torch.rand(4), after) == is_idle
    finally:
        ended.set()


def failing_while_another_draws(x: torch.Tensor) -> torch.Tensor:
    drawn = torch.rand(4, dtype=torch.float64)
    try:
        x = torch.ops.weft_test.while_another_draws(x)
        return torch.linalg.cholesky(torch.diag(x)) + drawn
    except RuntimeError:
        return drawn + torch.rand(4, dtype=torch.float64)
