"""When a program is recorded, and which recording a call replays."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from weft_codegen_triton.gpu import REFERENCE, Gpu
from weft_codegen_triton.runtime.cuda_graph import (
    MAX_UNASKED_BYTES,
    Compute,
    GraphRecording,
    has_room,
    pays_off,
)
from weft_codegen_triton.runtime.donations import DonatedInputs, find_donated_inputs

MAX_SURPRISES = 2
"""Inputs that may turn out to move before only parameters are trusted to stay."""

MAX_SIZES = 16
"""Sizes (on each stream) for which a program has recordings; others run step by step."""

MAX_PLACES = 16
"""Places of inputs that a program writes to for which it has recordings: those recorded last."""

MIN_REPLAYS = 8
"""Replays of each recording so far from which a program is recorded at the first call for other places.

To record takes the host about as long as to run step by step, and the next call would do so as well.
"""

MAX_SHARING = 2
"""Recordings of one call that take turns, each with results of its own: gradients are held for two steps."""

MAX_WAITS = 4
"""Calls that run step by step, as callers hold the results, before there is another recording.

A second one holds memory for its gradients and for what it computes: much for a caller that only
compares the gradients of its first steps.
"""

MAX_IDLE = 16
"""Calls in a row that do without the second, before it is dropped with its memory."""

MAX_TRIES = 6
"""Calls in a row whose large inputs are elsewhere before a program is not recorded, or no longer replayed.

In training, backward is given new memory until forward is replayed.
"""


class Replays:
    """The recordings of one program, for each stream and, where sizes are symbolic, each size.

    The first call for a size runs step by step and so warms libraries up, the second records, later ones
    replay.  The inputs at the positions ``written`` are written to where they are: with those elsewhere it is
    recorded anew, and both recordings stay.  The first ``returned_count`` tensors that ``compute`` gives are
    copied for the caller, or shared with it, the next ``donated_count`` are donated (see
    :class:`GraphRecording`), others are read before the next call.
    ``refusal`` says why recording was given up, None if it wasn't.  ``copied_bytes`` is the option of that
    name, ``gpu`` what copies.
    """

    def __init__(
        self,
        compute: Compute,
        steps: int,
        returned_count: int,
        donated_count: int,
        is_dynamic: bool,
        copied_bytes: int,
        gpu: Gpu = REFERENCE,
        written: Sequence[int] = (),
    ) -> None:
        self.refusal: str | None = None
        self._compute = compute
        self._counts = returned_count, donated_count
        self._is_dynamic = is_dynamic
        self._limits = _Limits(steps, copied_bytes, gpu)
        self._written = tuple(written)
        self._known: dict[Any, _Replay] = {}
        self._replays = 0

    def run(
        self,
        inputs: list[Any],
        constants: Sequence[torch.Tensor],
        stream: int,
        *,
        inputs_donated: bool = False,
    ) -> tuple[torch.Tensor, ...]:
        """What the program computes, replayed if possible; nobody reads ``inputs_donated`` again."""
        key = self._key(inputs, stream)
        replay = self._known.get(key)
        if self.refusal is not None or (replay is None and not self._make_room()):
            return self._compute(inputs, constants, stream)
        if replay is None:
            replay = self._replay_elsewhere(key, inputs)
        if replay is None:
            return self._run_first(key, inputs, constants, stream, inputs_donated)
        if not torch.cuda.is_current_stream_capturing():  # or the caller records a graph of its own
            try:
                buffers = replay.run(self._compute, inputs, constants, stream, inputs_donated)
            except RecordingFailed as error:
                self._give_up(str(error))
            else:
                if buffers is not None:
                    self._replays += 1
                    return buffers
        return self._compute(inputs, constants, stream)

    def _replay_elsewhere(self, key: Any, inputs: Sequence[Any]) -> _Replay | None:
        """A new replay for other places of what is written to, where the program is known to be replayed."""
        if self._is_dynamic or not self._known or self._replays < MIN_REPLAYS * len(self._known):
            return None
        found = next(reversed(self._known.values())).elsewhere(_addresses(inputs))
        self._known[key] = found
        return found

    def _key(self, inputs: Sequence[Any], stream: int) -> Any:
        """What tells recordings apart: the stream, sizes, and where what is written to lies."""
        key = _sizes_and_stream(inputs, stream) if self._is_dynamic else stream
        if not self._written:
            return key
        return key, *(inputs[k].data_ptr() for k in self._written)

    def _make_room(self) -> bool:
        """Whether there may be one more recording: of those for other places the one used last stays."""
        if self._written:
            while len(self._known) >= MAX_PLACES:
                del self._known[next(iter(self._known))]
        return len(self._known) < MAX_SIZES

    def _run_first(
        self,
        key: Any,
        inputs: list[Any],
        constants: Sequence[torch.Tensor],
        stream: int,
        inputs_donated: bool,
    ) -> tuple[torch.Tensor, ...]:
        """Run step by step for the first time, and see whether replaying would be faster."""
        addresses, held = _addresses(inputs), _held_bytes(inputs)
        buffers = self._compute(inputs, constants, stream)
        returned_count, donated_count = self._counts
        returned = buffers[:returned_count]
        donated = _bytes(buffers[returned_count : returned_count + donated_count])
        if self._is_dynamic and max(held, donated) > MAX_UNASKED_BYTES:
            return buffers  # each size would keep as much
        limits, size = self._limits, _bytes(returned)
        if limits.allow(0, size, held, inputs_donated, shares_results=inputs_donated):
            written = frozenset(self._written)
            replay = _Replay(
                addresses, _addresses(constants), returned, donated_count, donated, limits, written
            )
            self._known[key] = replay
        elif not self._is_dynamic:
            self._give_up("results are too large to copy out of a recording")
        return buffers

    def _give_up(self, reason: str) -> None:
        self.refusal = reason
        self._known.clear()


class RecordingFailed(RuntimeError):
    """The program does something that can't be recorded, or its calls are never alike."""


@dataclass(frozen=True)
class _Limits:
    """What a replay of ``steps`` may copy: ``copied_bytes`` at most, or a part of what a call is given."""

    steps: int
    copied_bytes: int
    gpu: Gpu

    def allow(
        self, moved: int, returned: int, held: int, inputs_donated: bool, *, shares_results: bool
    ) -> bool:
        """Whether it may copy ``moved`` bytes of inputs, and those ``returned`` unless it shares them."""
        copied = moved if shares_results else moved + returned
        most = self.copied_bytes
        return pays_off(copied, self.steps, most, held, self.gpu, inputs_donated=inputs_donated)


class _Replay:
    """The recording for one size and stream, made at its first run and again when something has moved.

    ``addresses`` are those of a call's inputs, ``constants`` those of the parameters that it reads as such,
    ``returned`` its results, all like those that a replay copies.  It donates ``donated_count`` others, of
    ``donated_bytes``.  The inputs at the positions ``written`` never move.

    Backward's results are shared instead of copied: a step of training lets go of the gradients before the
    next.  Where calls find some in use, as where gradients are accumulated, a second recording takes turns
    with the first.  Once those of both are in use, they are copied from then on.
    """

    def __init__(
        self,
        addresses: list[int],
        constants: list[int],
        returned: Sequence[torch.Tensor],
        donated_count: int,
        donated_bytes: int,
        limits: _Limits,
        written: frozenset[int],
    ) -> None:
        self._written = written
        self._counts = len(returned), donated_count
        self._returned_bytes = _bytes(returned)
        self._returned_forms = [(t.size(), t.stride(), t.dtype, t.device) for t in returned]
        self._shares_results = True
        self._donated_bytes = donated_bytes
        self._limits = limits
        self._addresses = addresses
        self._constants = constants
        self._moving: set[int] = set()
        self._tries = 0  # calls in a row whose large inputs were elsewhere
        self._recordings: list[GraphRecording] = []
        self._idle = 0  # calls in a row that found more than one free
        self._waits = 0  # calls that found none free
        self._copied: frozenset[int] = frozenset()  # positions of inputs, by the last recording

    def elsewhere(self, addresses: list[int]) -> _Replay:
        """The same for calls whose inputs are at ``addresses``; what is copied here is copied there."""
        found = copy.copy(self)
        found._addresses = [0 if k in self._copied else a for k, a in enumerate(addresses)]
        found._tries, found._recordings = 0, []
        return found

    def run(
        self,
        compute: Compute,
        inputs: Sequence[Any],
        constants: Sequence[torch.Tensor],
        stream: int,
        inputs_donated: bool,
    ) -> tuple[torch.Tensor, ...] | None:
        """Replay; None where this call has to run step by step.

        Raises :class:`RecordingFailed` where replaying is to be given up.
        """
        free = [recording for recording in self._recordings if not recording.are_results_out()]
        if self._recordings and not free and not self._may_add():
            return None
        recording, donated = self._choose(free), None
        shares_results = inputs_donated and self._shares_results
        if recording is not None and recording.holds_for(constants):
            moved = recording.moved(inputs)
            in_use = recording.is_donated() or not recording.may_reuse(inputs_donated)
            if not moved and not in_use:
                self._tries, self._constants = 0, []
                return recording.replay(inputs)
            donated = find_donated_inputs(inputs, stream) if inputs_donated and not in_use else None
            moved = (
                moved if donated is None else moved - donated.positions
            )  # forward was recorded anew
            if in_use or not self._may_copy(inputs, moved, donated, shares_results):
                self._miss(in_use)
                return None
            self._moving |= moved
        elif not self._constants_stay(constants):
            self._miss(False)
            return None
        if recording is not None:
            self._recordings.remove(recording)
            recording = None  # its memory may serve the new one
        if donated is None and inputs_donated:
            donated = find_donated_inputs(inputs, stream)
        fixed = self._fixed(inputs, donated, shares_results)
        if not self._may_copy(inputs, {*range(len(inputs))} - fixed, donated, shares_results):
            self._addresses = _addresses(inputs)
            self._miss(False)
            return None
        self._copied = frozenset(range(len(inputs))) - fixed
        recording = self._record(compute, inputs, constants, stream, fixed, donated, shares_results)
        self._recordings.append(recording)
        return recording.replay(inputs)

    def _constants_stay(self, constants: Sequence[torch.Tensor]) -> bool:
        """Whether they are where the last call found them, if it was no replay: a recording is worth making.

        Parameters that are gathered for each step, as FSDP2 does, are elsewhere each time.
        """
        before, self._constants = self._constants, _addresses(constants)
        return self._constants == before

    def _may_add(self) -> bool:
        """Whether there is to be another recording, as callers hold the results of all.

        Not before some calls have run without one.  Instead of a third there is one that copies results.
        """
        self._waits += 1
        if self._waits <= MAX_WAITS:
            return False
        self._waits = 0
        if len(self._recordings) == MAX_SHARING:
            self._recordings.clear()
            self._shares_results = False
        return True

    def _choose(self, free: list[GraphRecording]) -> GraphRecording | None:
        """The first of those whose results nobody holds; a second that is not needed for long is dropped."""
        self._idle = self._idle + 1 if len(free) > 1 else 0
        if self._idle > MAX_IDLE:
            self._recordings.remove(free[-1])
        return free[0] if free else None

    def _record(
        self,
        compute: Compute,
        inputs: Sequence[Any],
        constants: Sequence[torch.Tensor],
        stream: int,
        fixed: frozenset[int],
        donated: DonatedInputs | None,
        shares_results: bool,
    ) -> GraphRecording:
        moving = _bytes(t for k, t in enumerate(inputs) if k not in fixed)
        if not has_room(self._donated_bytes + self._returned_bytes + moving):
            raise RecordingFailed("a recording would leave too little memory")
        donated_inputs = None if donated is None or donated.donation.is_handed_over else donated
        forms = self._returned_forms if shares_results else ()
        try:
            result_memory = [
                torch.empty_strided(size, stride, dtype=dtype, device=device)
                for size, stride, dtype, device in forms
            ]
            return GraphRecording(
                compute,
                inputs,
                constants,
                stream,
                fixed,
                *self._counts,
                donated_inputs=donated_inputs,
                result_memory=result_memory,
            )
        except RuntimeError as error:
            raise RecordingFailed(str(error)) from error

    def _miss(self, in_use: bool) -> None:
        """Count a call that can't be replayed, unless what was donated to another is in use."""
        self._tries += not in_use
        if self._tries > MAX_TRIES:
            raise RecordingFailed("inputs that move are too large to copy into a recording")

    def _may_copy(
        self,
        inputs: Sequence[Any],
        positions: Iterable[int],
        donated: DonatedInputs | None,
        shares_results: bool,
    ) -> bool:
        """Whether replaying pays where the inputs at ``positions`` are copied at each call."""
        return self._limits.allow(
            _bytes(inputs[k] for k in positions),
            self._returned_bytes,
            _held_bytes(inputs),
            donated is not None,
            shares_results=shares_results,
        )

    def _fixed(
        self, inputs: Sequence[Any], donated: DonatedInputs | None, shares_results: bool
    ) -> frozenset[int]:
        """Inputs that seem to stay where they are: parameters, and what has not moved so far.

        What is donated does, and may be reused by one recording only, so others are copied if that is worth
        it: they may yet move.
        """
        stay = frozenset(
            k
            for k, (address, tensor) in enumerate(zip(self._addresses, inputs, strict=True))
            if isinstance(tensor, torch.Tensor)
            and k not in self._moving
            and tensor.data_ptr() == address
        )
        certain = self._written | {k for k in stay if _is_parameter(inputs[k])}
        stay |= certain
        if donated is not None:
            certain |= donated.positions
            stay |= donated.positions
            if self._may_copy(inputs, {*range(len(inputs))} - certain, donated, shares_results):
                return certain
        return stay if len(self._moving) <= MAX_SURPRISES else certain


def _is_parameter(value: Any) -> bool:
    return isinstance(value, torch.nn.Parameter)


def _bytes(values: Iterable[Any]) -> int:
    """The bytes of those that are tensors, all together."""
    return sum(t.numel() * t.itemsize for t in values if isinstance(t, torch.Tensor))


def _held_bytes(inputs: Iterable[Any]) -> int:
    """The bytes of the inputs that may be elsewhere at the next call: parameters aren't."""
    return _bytes(t for t in inputs if not _is_parameter(t))


def _addresses(inputs: Sequence[Any]) -> list[int]:
    return [t.data_ptr() if isinstance(t, torch.Tensor) else 0 for t in inputs]


def _sizes_and_stream(inputs: Sequence[Any], stream: int) -> Any:
    """The stream, and every number that a symbol may stand for."""
    numbers = [(*t.shape, *t.stride()) if isinstance(t, torch.Tensor) else t for t in inputs]
    return stream, *numbers
