"""When a program is recorded, and which recording a call replays."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch

from weft_codegen_triton.runtime.cuda_graph import (
    MOST_COPIED_BYTES,
    Compute,
    GraphRecording,
    pays_off,
)

MOST_SURPRISES = 2
"""Inputs that may turn out to move before only parameters are trusted to stay."""

MOST_SIZES = 16
"""Sizes (on each stream) for which a program has recordings; others run step by step."""


class Replays:
    """The recordings of one program, for each stream and, where sizes are symbolic, each size.

    The first call for a size runs step by step and so warms libraries up, the second records, later ones
    replay.  The first ``returned_count`` tensors that ``compute`` gives are the caller's, others are read
    before the next call.  ``refusal`` says why recording was given up, None if it wasn't.
    """

    def __init__(self, compute: Compute, steps: int, returned_count: int, is_dynamic: bool) -> None:
        self.refusal: str | None = None
        self._compute = compute
        self._steps = steps
        self._returned_count = returned_count
        self._is_dynamic = is_dynamic
        self._known: dict[Any, _Replay] = {}

    def run(
        self, inputs: list[Any], constants: Sequence[torch.Tensor], stream: int
    ) -> tuple[torch.Tensor, ...]:
        """What the program computes, replayed if possible."""
        key = _key(inputs, stream) if self._is_dynamic else stream
        replay = self._known.get(key)
        if self.refusal is None and replay is not None:
            if torch.cuda.is_current_stream_capturing():  # the caller records a graph of its own
                return self._compute(inputs, constants, stream)
            try:
                return replay.run(self._compute, inputs, constants, stream)
            except RecordingFailed as error:
                self._give_up(str(error))
        addresses, may_move = _addresses(inputs), _bytes(t for t in inputs if not _is_parameter(t))
        buffers = self._compute(inputs, constants, stream)
        if self.refusal is None and len(self._known) < MOST_SIZES:
            returned = buffers[: self._returned_count]
            if may_move > MOST_COPIED_BYTES:  # what was saved for backward, say
                if not self._is_dynamic:
                    self._give_up("inputs that may move are too large to copy into a recording")
            elif pays_off(_bytes(returned), self._steps):
                self._known[key] = _Replay(addresses, returned, self._steps)
            elif not self._is_dynamic:
                self._give_up("results are too large to copy out of a recording")
        return buffers

    def _give_up(self, reason: str) -> None:
        self.refusal = reason
        self._known.clear()


class RecordingFailed(RuntimeError):
    """The program does something that can't be recorded."""


class _Replay:
    """The recording for one size and stream, made at its first run and again when something has moved.

    ``addresses`` are those of a call's inputs, ``returned`` its results, all like those that a replay of
    ``steps`` copies.
    """

    def __init__(self, addresses: list[int], returned: Sequence[torch.Tensor], steps: int) -> None:
        self._returned_count = len(returned)
        self._like_returned = [t.to("meta") for t in returned]
        self._steps = steps
        self._addresses = addresses
        self._moving: set[int] = set()
        self._recording: GraphRecording | None = None

    def run(
        self,
        compute: Compute,
        inputs: Sequence[Any],
        constants: Sequence[torch.Tensor],
        stream: int,
    ) -> tuple[torch.Tensor, ...]:
        """Replay; raises :class:`RecordingFailed` if a recording was needed and could not be made."""
        recording, self._recording = self._recording, None
        if recording is not None and recording.holds_for(constants):
            moved = recording.moved(inputs)
            if not moved:
                self._recording = recording
                return recording.replay(inputs)
            self._moving.update(moved)
        recording = None  # its memory may serve the new one
        try:
            fixed = self._fixed(inputs)
            self._check_that_it_pays(inputs, fixed)
            recording = GraphRecording(
                compute, inputs, constants, stream, fixed, self._returned_count
            )
        except RuntimeError as error:
            raise RecordingFailed(str(error)) from error
        self._recording = recording
        return recording.replay(inputs)

    def _check_that_it_pays(self, inputs: Sequence[Any], fixed: frozenset[int]) -> None:
        """Raise where inputs that move would be held twice and copied at each call."""
        copied = _bytes(t for k, t in enumerate(inputs) if k not in fixed)
        if not pays_off(copied + _bytes(self._like_returned), self._steps):
            raise RecordingFailed("inputs that move are too large to copy into a recording")

    def _fixed(self, inputs: Sequence[Any]) -> frozenset[int]:
        """Inputs that seem to stay where they are: parameters, and what has not moved so far."""
        trusts_all = len(self._moving) <= MOST_SURPRISES
        return frozenset(
            k
            for k, (address, tensor) in enumerate(zip(self._addresses, inputs, strict=True))
            if isinstance(tensor, torch.Tensor)
            and k not in self._moving
            and tensor.data_ptr() == address
            and (trusts_all or _is_parameter(tensor))
        )


def _is_parameter(value: Any) -> bool:
    return isinstance(value, torch.nn.Parameter)


def _bytes(values: Iterable[Any]) -> int:
    """The bytes of those that are tensors, all together."""
    return sum(t.numel() * t.itemsize for t in values if isinstance(t, torch.Tensor))


def _addresses(inputs: Sequence[Any]) -> list[int]:
    return [t.data_ptr() if isinstance(t, torch.Tensor) else 0 for t in inputs]


def _key(inputs: Sequence[Any], stream: int) -> Any:
    """The stream, and every number that a symbol may stand for."""
    numbers = [(*t.shape, *t.stride()) if isinstance(t, torch.Tensor) else t for t in inputs]
    return stream, *numbers
