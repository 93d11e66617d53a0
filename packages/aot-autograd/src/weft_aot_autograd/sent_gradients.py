"""What results have sent to others, and to arguments, in a backward, so that it is not counted twice."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from ._torch import backward_number, behind_backward


@dataclass
class _Sent:
    """What outputs are sent in one backward, and what of that is yet to go along an edge."""

    in_all: dict[int, torch.Tensor] = field(default_factory=dict)
    waiting: dict[int, torch.Tensor] = field(default_factory=dict)


class SentGradients:
    """What a call's results have sent to others that they lead through, in each backward that runs."""

    def __init__(self) -> None:
        self._running: dict[int, _Sent] = {}

    @property
    def are_any(self) -> bool:
        """Whether a backward that runs has sent some, which is seldom."""
        return bool(self._running)

    def note(self, output: int, gradient: torch.Tensor) -> None:
        """Output ``output`` is sent a gradient by another, in the backward that is running."""
        number = backward_number()
        if number not in self._running:
            self._running[number] = _Sent()
            behind_backward(functools.partial(self._forget, number))
        sent = self._running[number]
        for gradients in (sent.in_all, sent.waiting):
            known = gradients.get(output)
            gradients[output] = gradient if known is None else known + gradient

    def handed_on(self, outputs: Sequence[int]) -> list[torch.Tensor | None]:
        """What those of the ``outputs`` are sent that have not got it yet, None for the others."""
        sent = self._running.get(backward_number(), _Sent())
        return [sent.waiting.pop(output, None) for output in outputs]

    def _forget(self, number: int) -> None:
        del self._running[number]

    def taken_off(self, gradients: Mapping[int, Any]) -> dict[int, Any]:
        """The outputs' ``gradients`` without what was sent: who sent it has taken it further already."""
        rest = {**gradients}
        for output, sent in self._running.get(backward_number(), _Sent()).in_all.items():
            if rest.get(output) is not None:
                same = rest[output] == sent  # infinite ones too
                rest[output] = torch.where(same, 0, rest[output] - sent)
        return rest
