"""Calls that make a tensor another view of its storage: ``x.squeeze_()``, ``x.t_()``, ``x.detach_()``."""

from __future__ import annotations

from typing import Any

import torch

from ..._torch import OpOverloadPacket
from ...unsupported import Unsupported
from ..protocol import Evaluator


def _changing() -> frozenset[str]:
    """The names of ATen's operators that change no element, but what a tensor is."""
    found = set()
    for name in dir(torch.Tensor):
        packet = getattr(torch.ops.aten, name, None) if name.endswith("_") else None
        if isinstance(packet, OpOverloadPacket) and any(
            torch.Tag.inplace_view in getattr(packet, overload).tags
            for overload in packet.overloads()
        ):
            found.add(name)
    return frozenset(found)


CHANGES_OF_METADATA = _changing()


def refuse_change_by_eager(evaluator: Evaluator, target: Any, fakes: tuple[Any, ...]) -> None:
    """Leave to eager what changes a tensor of the caller, or its history.

    A graph gives new tensors.  The one that the caller has can only be changed between two of them, since
    backward of the first still reads it as it was, and backward of the second as it is.  A tensor that
    leaves autograd's graph in place has a history until then; one of ``no_grad`` keeps that of its old shape.
    """
    name = target if isinstance(target, str) else getattr(target, "__name__", "")
    name = name.partition(".")[0]
    if name not in CHANGES_OF_METADATA or not fakes or not isinstance(fakes[0], torch.Tensor):
        return
    if any(fake is fakes[0] for _, _, fake in evaluator.graph.given):
        raise Unsupported("change of a tensor's metadata", f"{name} of a tensor from outside")
    if fakes[0].requires_grad and (name == "detach_" or not torch.is_grad_enabled()):
        raise Unsupported("change of a tensor's metadata", f"{name} of a tensor with a history")
