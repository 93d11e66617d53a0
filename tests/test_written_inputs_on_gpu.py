"""Inputs that programs for GPUs write to, in Triton's interpreter: values, versions, places, recordings."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import weft
import weft.registry
from torch import Tensor, nn
from weft_codegen_triton import TritonCodegen, TritonOptions
from weft_codegen_triton.runtime import replays
from weft_codegen_triton.runtime.interpreter import InterpretedDevice

from tests.test_written_inputs import (
    INPUTS,
    PROGRAMS,
    Kept,
    Normalised,
    copied,
)
from tests.test_written_inputs import (
    test_what_training_writes_to as check_training,
)
from tests.triton_interpreter import require_interpreter

require_interpreter()


class Recording:
    """Stands for a CUDA graph: reads and writes what lay at an address when it was made."""

    made = 0

    def __init__(self, compute: Any, inputs: Sequence[Any], *others: Any, **_: Any) -> None:
        constants, _, fixed, self._returned, _ = others
        Recording.made += 1
        self._compute, self._constants, self._fixed = compute, constants, fixed
        self._held = {k: inputs[k] for k in fixed}

    def is_donated(self) -> bool:
        return False

    def are_results_out(self) -> bool:
        return False

    def may_reuse(self, inputs_donated: bool) -> bool:
        return True

    def holds_for(self, constants: Sequence[Tensor]) -> bool:
        return [c.data_ptr() for c in constants] == [c.data_ptr() for c in self._constants]

    def moved(self, inputs: Sequence[Any]) -> frozenset[int]:
        return frozenset(k for k, t in self._held.items() if t.data_ptr() != inputs[k].data_ptr())

    def replay(self, inputs: Sequence[Any]) -> Any:
        given = [copied(t) if isinstance(t, Tensor) else t for t in inputs]
        for k, tensor in self._held.items():
            given[k] = tensor
        buffers = self._compute(given, self._constants, 0)
        return (*(t.clone() for t in buffers[: self._returned]), *buffers[self._returned :])


@pytest.fixture(autouse=True)
def recordings(monkeypatch: pytest.MonkeyPatch) -> None:
    Recording.made = 0
    monkeypatch.setattr(replays, "GraphRecording", Recording)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(InterpretedDevice, "records", True)
    codegen = TritonCodegen(TritonOptions(interpret=True, min_recorded_steps=1))
    monkeypatch.setitem(weft.registry.codegens, "cpu", lambda: copy.copy(codegen))


def check(compiled: Any, program: Any, got: list[Tensor], want: list[Tensor], close: float) -> None:
    """A call gives, and leaves in its inputs, what eager does, and moves versions as it does."""
    before = [tensor._version for tensor in (*want, *got)]
    with torch.no_grad():
        want_result, got_result = program(*want), compiled(*got)
    for expected, actual in zip((want_result, *want), (got_result, *got), strict=True):
        torch.testing.assert_close(actual, expected, rtol=close, atol=close)
    assert (want_result is want[0]) == (got_result is got[0])
    changed = [t._version > v for t, v in zip((*want, *got), before, strict=True)]
    assert changed[: len(want)] == changed[len(want) :]


@pytest.mark.parametrize("kind", INPUTS)
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_written_inputs(program: Any, kind: str) -> None:
    """Called with the same tensors again and again, then with others."""
    torch.manual_seed(0)
    compiled = weft.compile(program, fullgraph=True)
    close = 1e-12 if kind != "half" else 3e-2
    for _ in range(2):
        want = INPUTS[kind]()
        got = [copied(tensor) for tensor in want]
        for _ in range(3):
            check(compiled, program, got, want, close)
            for mine, theirs in zip(got, want, strict=True):
                mine.copy_(theirs)


def stored(cache: Tensor, position: Tensor, row: Tensor) -> Tensor:
    cache[:, position] = row
    return (cache * 2).sum(1)


def index_copied(cache: Tensor, position: Tensor, row: Tensor) -> Tensor:
    cache.index_copy_(1, position, row)
    return (cache * 2).sum(1)


def counted(cache: Tensor, position: Tensor, row: Tensor) -> Tensor:
    position += 1
    cache.index_copy_(1, position, row)
    return cache @ row[0].t()


CACHES = [stored, index_copied, counted]


def rows(offset: int = 0) -> Tensor:
    """A cache that begins ``offset`` elements into its memory."""
    return torch.randn(3 * 8 * 4 + offset)[offset:].view(3, 8, 4)


@pytest.mark.parametrize("offset", [0, 1])
@pytest.mark.parametrize("program", CACHES, ids=lambda program: program.__name__)
def test_rows_are_stored_where_the_cache_is(program: Callable[..., Tensor], offset: int) -> None:
    """Several caches in turns: each is recorded once, none is copied to be replayed."""
    compiled = weft.compile(program, fullgraph=True)
    caches = [rows(offset) for _ in range(3)]
    twins = [cache.clone() for cache in caches]
    for step in range(12):
        cache, twin = caches[step // 2 % 3], twins[step // 2 % 3]
        position, row = torch.tensor([step % 7]), torch.randn(3, 1, 4)
        address = cache.data_ptr()
        given = [cache, position.clone(), row]
        check(compiled, program, given, [twin, position, row.clone()], 1e-5)
        assert cache.data_ptr() == address
    if program is not counted:  # whose position is another tensor each time
        assert Recording.made == 3


@pytest.mark.parametrize("calls", [4, 12])
def test_a_program_that_is_replayed_is_recorded_at_once_elsewhere(calls: int) -> None:
    """With few calls for each cache it is first run step by step for each."""
    compiled = weft.compile(stored, fullgraph=True)
    caches = [rows() for _ in range(5)]
    made, held = [], []
    for cache in caches:
        for step in range(calls):
            position, row = torch.tensor([step % 7]), torch.randn(3, 1, 4)
            held.append((position, row))  # so that the next ones are elsewhere
            check(compiled, stored, [cache, position, row], [cache.clone(), position, row], 1e-5)
            made.append(Recording.made)
    firsts = made[calls::calls]
    assert firsts == ([2, 3, 4, 5] if calls == 12 else [1, 2, 3, 4])
    assert made[-1] == 5


class Attention(nn.Module):
    """Keeps keys and values of the tokens so far in buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(8, 24)
        self.register_buffer("keys", torch.zeros(1, 2, 16, 4))
        self.register_buffer("values", torch.zeros(1, 2, 16, 4))

    def forward(self, x: Tensor, at: Tensor) -> Tensor:
        q, k, v = self.qkv(x).view(1, -1, 3, 2, 4).permute(2, 0, 3, 1, 4)
        self.keys[:, :, at] = k
        self.values[:, :, at] = v
        mask = torch.arange(16)[None] <= at[:, None]
        y = nn.functional.scaled_dot_product_attention(q, self.keys, self.values, attn_mask=mask)
        return y.transpose(1, 2).reshape(1, -1, 8)


def test_buffers_of_a_module_are_written_in_place() -> None:
    torch.manual_seed(0)
    model, twin = Attention(), Attention()
    twin.load_state_dict(model.state_dict())
    compiled = weft.compile(model, fullgraph=True)
    for step in range(6):
        x, at = torch.randn(1, 1, 8), torch.tensor([step])
        with torch.no_grad():
            torch.testing.assert_close(compiled(x, at), twin(x, at), rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(model.keys, twin.keys, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(model.values, twin.values, rtol=1e-4, atol=1e-5)
    assert Recording.made == 1


def in_handled_code(cache: Tensor, row: Tensor) -> Tensor:
    try:
        cache.mul_(0.5).add_(row)
        return cache.sum(1)
    except ValueError:
        return row


def test_writes_in_handled_code_are_captured() -> None:
    """Nothing in the program raises, so that nothing has to be put back."""
    compiled = weft.compile(in_handled_code, fullgraph=True)
    cache = torch.randn(3, 4)
    check(compiled, in_handled_code, [cache.clone(), torch.ones(4)], [cache, torch.ones(4)], 1e-6)


@pytest.mark.parametrize("make", [Normalised, Kept])
def test_what_training_writes_to_on_gpu(make: Callable[[], nn.Module]) -> None:
    check_training(make)
