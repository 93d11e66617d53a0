"""When a program is recorded, with a recording that only notes what it is made of."""

from __future__ import annotations

import gc
import weakref
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from compiled_beside_eager import assert_equals_eager, compiled
from weft_codegen_triton import TritonCodegen, TritonOptions
from weft_codegen_triton.runtime import replays
from weft_codegen_triton.runtime.interpreter import InterpretedDevice
from weft_codegen_triton.runtime.replays import Replays

MILLION = 1 << 20
MOST = 256 * MILLION


class Recording:
    """Stands for a CUDA graph: runs the program anew."""

    made: list[frozenset[int]]

    def __init__(
        self,
        compute: Any,
        inputs: Sequence[Any],
        constants: Sequence[torch.Tensor],
        stream: int,
        fixed: frozenset[int],
        returned_count: int,
        donated_count: int,
        donated_inputs: Any = None,
        result_memory: Sequence[torch.Tensor] = (),
    ) -> None:
        Recording.made.append(fixed)
        self._compute = compute
        self._addresses = {k: inputs[k].data_ptr() for k in fixed}
        self._constants = [tensor.data_ptr() for tensor in constants]

    def is_donated(self) -> bool:
        return False

    def are_results_out(self) -> bool:
        return False

    def may_reuse(self, inputs_donated: bool) -> bool:
        return True

    def holds_for(self, constants: Sequence[torch.Tensor]) -> bool:
        return self._constants == [tensor.data_ptr() for tensor in constants]

    def moved(self, inputs: Sequence[Any]) -> frozenset[int]:
        elsewhere = (k for k, a in self._addresses.items() if inputs[k].data_ptr() != a)
        return frozenset(elsewhere)

    def replay(self, inputs: Sequence[Any]) -> Any:
        return self._compute(inputs, (), 0)


@pytest.fixture(autouse=True)
def recordings(monkeypatch: pytest.MonkeyPatch) -> None:
    Recording.made = []
    monkeypatch.setattr(replays, "GraphRecording", Recording)
    monkeypatch.setattr(replays, "has_room", lambda nbytes: True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)


def total(inputs: Sequence[Any], constants: Sequence[torch.Tensor], stream: int) -> Any:
    return (sum(x.sum() for x in inputs),)


def test_inputs_that_stay_are_read_where_they_are() -> None:
    x = torch.ones(64 * MILLION // 4)
    program = Replays(
        total, steps=10, returned_count=1, donated_count=0, is_dynamic=False, copied_bytes=MOST
    )
    for _ in range(4):
        assert program.run((x,), (), 0)[0] == x.numel()
    assert Recording.made == [frozenset((0,))]
    assert program.refusal is None


def test_small_inputs_that_move_are_copied() -> None:
    held = [torch.full((8,), float(k)) for k in range(6)]
    program = Replays(
        total, steps=10, returned_count=1, donated_count=0, is_dynamic=False, copied_bytes=MOST
    )
    for x in held:
        assert program.run((x,), (), 0)[0] == x.sum()
    assert Recording.made == [frozenset()]


def test_large_inputs_that_move_are_not_recorded() -> None:
    held = [torch.full((16 * MILLION,), float(k)) for k in range(2)]
    program = Replays(
        total, steps=10, returned_count=1, donated_count=0, is_dynamic=False, copied_bytes=MOST
    )
    for x in held * 5:
        assert program.run((x,), (), 0)[0] == x.sum()
    assert Recording.made == []
    assert program.refusal is not None and "too large" in program.refusal


def test_parameters_that_are_elsewhere_each_time_are_given_up() -> None:
    """As those that FSDP2 gathers for each step."""
    x, held = torch.ones(8), [[torch.ones(8)] for _ in range(9)]
    program = Replays(
        total, steps=10, returned_count=1, donated_count=0, is_dynamic=False, copied_bytes=MOST
    )
    for constants in held[:2] + held:
        assert program.run((x,), constants, 0)[0] == 8
    assert Recording.made == []
    assert program.refusal is not None


def test_parameters_that_come_and_go_are_replayed_where_they_were() -> None:
    x, held = torch.ones(8), [[torch.ones(8)] for _ in range(2)]
    program = Replays(
        total, steps=10, returned_count=1, donated_count=0, is_dynamic=False, copied_bytes=MOST
    )
    for constants in held[:1] * 2 + held * 10:
        assert program.run((x,), constants, 0)[0] == 8
    assert len(Recording.made) == 1
    assert program.refusal is None


def test_parameters_that_are_loaded_anew_are_read_where_they_are() -> None:
    x, held = torch.ones(8), [[torch.ones(8)] for _ in range(2)]
    program = Replays(
        total, steps=10, returned_count=1, donated_count=0, is_dynamic=False, copied_bytes=MOST
    )
    for constants in held[:1] * 3 + held[1:] * 4:
        assert program.run((x,), constants, 0)[0] == 8
    assert len(Recording.made) == 2
    assert program.refusal is None


def test_large_results_are_not_recorded() -> None:
    def doubled(inputs: Sequence[Any], constants: Sequence[torch.Tensor], stream: int) -> Any:
        return (inputs[0] * 2,)

    x = torch.ones(16 * MILLION)
    program = Replays(
        doubled, steps=10, returned_count=1, donated_count=0, is_dynamic=False, copied_bytes=MOST
    )
    for _ in range(3):
        program.run((x,), (), 0)
    assert Recording.made == []
    assert program.refusal is not None and "results" in program.refusal


def first(inputs: list[Any], constants: Sequence[torch.Tensor], stream: int) -> Any:
    taken, inputs[0] = inputs[0], None
    return (taken[:1] + 1,)


def test_what_is_saved_is_read_where_forward_donates_it() -> None:
    """Once it comes from the same place twice; a call whose large inputs are elsewhere runs step by step."""
    donated, own = (torch.ones(1).expand(80 * MILLION) for _ in range(2))
    program = Replays(
        first, steps=1000, returned_count=1, donated_count=0, is_dynamic=False, copied_bytes=MOST
    )
    for saved in (own, donated, donated, donated, own, donated, own, own, donated):
        assert program.run([saved], (), 0)[0] == 2
    assert program.refusal is None
    assert Recording.made == [frozenset((0,))]


def test_what_always_moves_is_given_up() -> None:
    places = [torch.ones(1).expand(80 * MILLION) for _ in range(2)]
    program = Replays(
        first, steps=1000, returned_count=1, donated_count=0, is_dynamic=False, copied_bytes=MOST
    )
    for saved in places * 5:
        assert program.run([saved], (), 0)[0] == 2
    assert Recording.made == []
    assert program.refusal is not None and "too large" in program.refusal


def test_nothing_is_recorded_without_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replays, "has_room", lambda nbytes: False)
    x = torch.ones(8)
    program = Replays(
        total, steps=10, returned_count=1, donated_count=0, is_dynamic=False, copied_bytes=MOST
    )
    for _ in range(4):
        assert program.run((x,), (), 0)[0] == 8
    assert Recording.made == []
    assert program.refusal is not None and "memory" in program.refusal


def test_nothing_large_is_kept_for_each_size() -> None:
    large = torch.ones(1).expand(80 * MILLION)
    program = Replays(
        first, steps=1000, returned_count=1, donated_count=0, is_dynamic=True, copied_bytes=MOST
    )
    for _ in range(4):
        assert program.run([large], (), 0)[0] == 2
    assert Recording.made == []
    assert program.refusal is None


def test_kernels_for_larger_sizes_have_recordings_of_their_own(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x.exp() + y

    monkeypatch.setattr(InterpretedDevice, "records", True)
    options = TritonOptions(cache_directory=cache, narrow_below=1000, min_recorded_steps=1)
    y = torch.randn(40)
    program = compiled(TritonCodegen(options), function, torch.randn(5, 40), y, dynamic=True)
    held = [(torch.randn(rows, 40), y) for rows in (5, 60, 5, 60, 9, 5, 60, 9)]  # all elsewhere
    for inputs in held:
        assert_equals_eager(program(*inputs), function, inputs)
    assert len(Recording.made) == 3
    assert program.not_recorded is None


class SharingRecording(Recording):
    """Writes its results to memory that callers hold meanwhile."""

    alive: weakref.WeakSet[SharingRecording] = weakref.WeakSet()

    def __init__(
        self, *arguments: Any, result_memory: Sequence[torch.Tensor] = (), **others: Any
    ) -> None:
        super().__init__(*arguments, **others)
        self._memory = [*result_memory]
        self._given: list[weakref.ref[torch.Tensor]] = []
        SharingRecording.alive.add(self)

    def are_results_out(self) -> bool:
        return any(reference() is not None for reference in self._given)

    def replay(self, inputs: Sequence[Any]) -> Any:
        assert not self.are_results_out()
        results = self._compute(inputs, (), 0)
        if not self._memory:
            return results
        for memory, result in zip(self._memory, results, strict=True):
            memory.copy_(result)
        shared = tuple(memory.data for memory in self._memory)
        self._given = [weakref.ref(tensor) for tensor in shared]
        return shared


@pytest.fixture
def sharing(monkeypatch: pytest.MonkeyPatch) -> Replays:
    monkeypatch.setattr(replays, "GraphRecording", SharingRecording)

    def doubled(inputs: Sequence[Any], constants: Sequence[torch.Tensor], stream: int) -> Any:
        return (inputs[0] * 2,)

    return Replays(
        doubled, steps=10, returned_count=1, donated_count=0, is_dynamic=False, copied_bytes=MOST
    )


@pytest.mark.parametrize(("held", "made"), [(0, 1), (1, 2), (2, 3), (3, 3)])
def test_results_that_callers_hold_stay_as_they_are(sharing: Replays, held: int, made: int) -> None:
    """Results of one step more are shared by a second recording, of more they are copied."""
    results: deque[tuple[torch.Tensor, float]] = deque(maxlen=max(held, 1))
    for number in range(8 + 8 * replays.MAX_WAITS):
        if not held:
            results.clear()
        given = [torch.full((8,), float(number))]
        results.append((sharing.run(given, (), 0, inputs_donated=True)[0], number * 2.0))
        assert all(bool((tensor == value).all()) for tensor, value in results)
    assert len(Recording.made) == made
    assert sharing.refusal is None


def test_second_recording_is_dropped_when_it_is_not_needed(sharing: Replays) -> None:
    x = torch.ones(8)
    held = [sharing.run([x], (), 0, inputs_donated=True) for _ in range(3 + replays.MAX_WAITS)]
    gc.collect()
    assert len(SharingRecording.alive) == 2  # the first call is no recording's
    del held
    for _ in range(2 * replays.MAX_IDLE):
        sharing.run([x], (), 0, inputs_donated=True)
    gc.collect()
    assert len(SharingRecording.alive) == 1
