"""Training whose programs are replayed: what is saved for backward is donated, and not overwritten too early.

Programs of a GPU run through Triton's interpreter, from recordings that run them anew and write what they
give to the memory that a CUDA graph would write to.
"""

from __future__ import annotations

import copy
import ctypes
import random
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import weft
from torch import nn
from weft_codegen_triton import TritonCodegen, TritonOptions
from weft_codegen_triton.runtime import donations, replays
from weft_codegen_triton.runtime.cuda_graph import GraphRecording
from weft_codegen_triton.runtime.interpreter import InterpretedDevice
from weft_guards import note_faithful_hook

from tests.triton_interpreter import require_interpreter

require_interpreter()

T = torch.Tensor


class RecordingOnProcessor(GraphRecording):
    """A recording without a GPU: computes anew, into the memory of the first time.

    ``counts`` are replays that donate, and others, of which ``reused`` overwrite what was donated.
    """

    counts = {True: 0, False: 0}
    reused = 0

    def _choose_pool(self, *, donates: bool) -> Any:
        return None

    def _run(self, compute: Any, inputs: list[Any], constants: Any, pool: Any) -> tuple[T, ...]:
        given = list(inputs)
        self._allocate_copies(inputs)
        copied = {k for k, _ in (*self._dense, *self._scattered)}
        for k in copied:
            inputs[k].copy_(given[k])
        self._program = compute, constants, {k: inputs[k] for k in copied}
        self._memory: tuple[T, ...] = compute(list(inputs), constants, 0)
        self._graph = SimpleNamespace(replay=lambda: None)  # type: ignore[assignment]
        return self._memory

    def replay(self, inputs: Sequence[Any]) -> tuple[T, ...]:
        assert not self.is_donated()
        self.counts[self._donation is not None] += 1
        compute, constants, own = self._program
        given = [own.get(k, value) for k, value in enumerate(inputs)]
        for k, target in own.items():
            target.copy_(inputs[k])
        for target, source in zip(self._memory, compute(given, constants, 0), strict=True):
            target.copy_(source)
        if self._donated_inputs is not None:
            RecordingOnProcessor.reused += 1
            for k in self._donated_inputs.positions:
                if given[k] is None:  # read for the last time: other values lie there now
                    inputs[k].data.fill_(0x7F)
        return super().replay(inputs)


def unowned(storage: torch.UntypedStorage, keeper: object) -> torch.UntypedStorage:
    """As for a GPU: the same memory, which the new storage does not own."""
    taken = (ctypes.c_uint8 * storage.nbytes()).from_address(storage.data_ptr())
    return torch.frombuffer(taken, dtype=torch.uint8).untyped_storage()


@pytest.fixture(autouse=True)
def recordings(monkeypatch: pytest.MonkeyPatch) -> None:
    RecordingOnProcessor.counts = {True: 0, False: 0}
    RecordingOnProcessor.reused = 0
    monkeypatch.setattr(replays, "GraphRecording", RecordingOnProcessor)
    monkeypatch.setattr(donations, "unowned", unowned)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", object)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(InterpretedDevice, "records", True)
    codegen = TritonCodegen(TritonOptions(interpret=True, min_recorded_steps=1))
    monkeypatch.setitem(weft.registry.codegens, "cpu", lambda: codegen)


class Model(nn.Module):
    """Saves results of kernels and of products, its input, and a view."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.norm = nn.Linear(5, 7), nn.Linear(7, 3), nn.LayerNorm(7)

    def forward(self, x: T) -> T:
        y = self.norm(self.first(x).tanh())
        return self.second(y.sin() * y.t().contiguous().t().sigmoid())


class Normalised(nn.Module):
    """Saves statistics that it also keeps as buffers, under several shapes."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Conv1d(1, 3, 2), nn.BatchNorm1d(3), nn.Linear(3, 2)

    def forward(self, x: T) -> T:
        return self.last(self.norm(self.first(x[:, None])).relu().mean(-1))


class Pair:
    """A compiled model and its twin, which do the same."""

    def __init__(self, make: Callable[[], nn.Module] = Model) -> None:
        torch.manual_seed(0)
        plain = make()
        self.models = copy.deepcopy(plain), plain
        self.runs = weft.compile(self.models[0], fullgraph=True), plain
        self.optimizers = [torch.optim.SGD(m.parameters(), 0.01) for m in self.models]

    def forward(self, x: T) -> tuple[T, T]:
        return self.runs[0](x), self.runs[1](x)

    def check(self) -> None:
        for mine, theirs in zip(*(m.parameters() for m in self.models), strict=True):
            torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)
            assert (mine.grad is None) == (theirs.grad is None)
            if mine.grad is not None:
                torch.testing.assert_close(mine.grad, theirs.grad, rtol=1e-4, atol=1e-5)


def backward(results: tuple[T, T], **options: Any) -> None:
    torch.testing.assert_close(*results, rtol=1e-4, atol=1e-5)
    for result in results:
        (result * result).sum().backward(**options)


def step(pair: Pair) -> None:
    for optimizer in pair.optimizers:
        optimizer.step()
        optimizer.zero_grad()


@pytest.mark.parametrize("make", [Model, Normalised])
def test_steps_of_training_donate_what_they_save(make: Callable[[], nn.Module]) -> None:
    """And backward's recording overwrites what it has read."""
    pair = Pair(make)
    for _ in range(6):
        backward(pair.forward(torch.randn(4, 5)))
        pair.check()
        step(pair)
    assert RecordingOnProcessor.counts[True] == 5  # forward, from the second call on
    assert RecordingOnProcessor.counts[False] >= 3  # backward
    assert RecordingOnProcessor.reused >= 3


def test_results_wait_while_they_are_held() -> None:
    """Two calls before either's backward, in both orders, and backward twice."""
    pair = Pair()
    for number in range(6):
        first, second = pair.forward(torch.randn(4, 5)), pair.forward(torch.randn(4, 5))
        pairs = (first, second) if number % 2 else (second, first)
        backward(pairs[0], retain_graph=True)
        backward(pairs[0])
        backward(pairs[1])
        del first, second, pairs
        pair.check()
        step(pair)
    assert RecordingOnProcessor.counts[True] > 0


@pytest.mark.parametrize("make", [Model, Normalised])
@pytest.mark.parametrize("seed", range(3))
def test_random_orders(seed: int, make: Callable[[], nn.Module]) -> None:
    """Calls, gradients of any call that waits, some twice, calls that are dropped, and steps."""
    chosen, pair, waiting = random.Random(seed), Pair(make), list[tuple[T, T]]()
    for _ in range(24):
        action = chosen.random()
        if action < 0.4 and len(waiting) < 3:
            waiting.append(pair.forward(torch.randn(4, 5)))
        elif action < 0.75 and waiting:
            results = waiting.pop(chosen.randrange(len(waiting)))
            if chosen.random() < 0.3:
                backward(results, retain_graph=True)
                waiting.append(results)
            else:
                backward(results)
            del results
            pair.check()
        elif action < 0.85 and waiting:
            del waiting[chosen.randrange(len(waiting))]
        elif not waiting:
            step(pair)
    assert RecordingOnProcessor.counts[True] > 0


class Forked(nn.Module):
    """Two results, each of which may be all that is differentiated."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.left, self.right = nn.Linear(5, 7), nn.Linear(7, 3), nn.Linear(7, 2)

    def forward(self, x: T) -> tuple[T, T]:
        y = self.first(x).tanh()
        return self.left(y.sin()), self.right(y.exp())


def test_two_programs_of_backward() -> None:
    """Where one reuses what is donated, the other reads it."""
    pair, kept = Pair(Forked), torch.randn(4, 5)
    for number, outputs in enumerate("BBBLLLBLBLRRRBBBB"):
        x = kept if number < 4 else torch.randn(4, 5)  # forward is recorded anew then
        for run in pair.runs:
            left, right = run(x)
            loss = {"B": left.sum() + right.square().sum(), "L": left.sum(), "R": right.sum()}
            loss[outputs].backward()
        pair.check()
        step(pair)
    assert RecordingOnProcessor.reused >= 3
    assert RecordingOnProcessor.counts[False] > RecordingOnProcessor.reused


def test_hooks_see_tensors_that_stay() -> None:
    """Whoever packs what is saved may keep it: nothing is donated."""
    kept: list[tuple[T, T]] = []

    def pack(tensor: T) -> T:
        kept.append((tensor, tensor.clone()))
        return tensor

    note_faithful_hook(pack)  # compiled code runs under it, as under a checkpoint's
    pair = Pair()
    for _ in range(4):
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            results = pair.forward(torch.randn(4, 5))
        backward(results)
        pair.check()
        kept = [(mine, copied) for mine, copied in kept if not isinstance(mine, nn.Parameter)]
        for mine, copied in kept:
            assert torch.equal(mine, copied)
        del results
    assert RecordingOnProcessor.counts[True] == 0


def test_gradients_of_gradients() -> None:
    pair = Pair()
    for _ in range(4):
        x = torch.randn(4, 5, requires_grad=True)
        results = pair.forward(x)
        found = []
        for result in results:
            (gradient,) = torch.autograd.grad((result * result).sum(), x, create_graph=True)
            gradient.pow(2).sum().backward()
            found.append(gradient)
        torch.testing.assert_close(*found, rtol=1e-4, atol=1e-5)
        pair.check()
