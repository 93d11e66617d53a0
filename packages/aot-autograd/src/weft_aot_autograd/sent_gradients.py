"""What results have sent to others, and to arguments, in a backward, so that it is not counted twice."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import torch

from ._torch import backward_number, behind_backward


class SentGradients:
    """What a call's results have sent to others that they lead through, in each backward that runs."""

    def __init__(self) -> None:
        self._running: dict[int, dict[int, torch.Tensor]] = {}

    @property
    def are_any(self) -> bool:
        """Whether a backward that runs has sent some, which is seldom."""
        return bool(self._running)

    def note(self, output: int, gradient: torch.Tensor) -> None:
        """Output ``output`` was sent a gradient by another, in the backward that is running."""
        number = backward_number()
        if number not in self._running:
            self._running[number] = {}
            behind_backward(functools.partial(self._forget, number))
        sent = self._running[number]
        sent[output] = sent[output] + gradient if output in sent else gradient

    def _forget(self, number: int) -> None:
        del self._running[number]

    def taken_off(self, gradients: Mapping[int, Any]) -> dict[int, Any]:
        """The outputs' ``gradients`` without what was sent: who sent it has taken it further already."""
        rest = {**gradients}
        for output, sent in self._running.get(backward_number(), {}).items():
            if rest.get(output) is not None:
                same = rest[output] == sent  # infinite ones too
                rest[output] = torch.where(same, 0, rest[output] - sent)
        return rest
