"""Histories of what a write may reach by another name, as data says."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from .gradient_history import Sources
from .tensor_ssa.alias_graph import build_alias_graph
from .tensor_ssa.region_aliases import SharedValues
from .unsupported import Unsupported

if TYPE_CHECKING:
    from .aten_recorder import AtenRecorder


def hand_on_write(
    recorder: AtenRecorder, written: torch.Tensor, operands: Sequence[torch.Tensor]
) -> None:
    """An operator of ``operands`` writes to one: what may be one with that has the gradients written to it.

    :raises Unsupported: data would decide that of a caller's tensor, or whether another has gradients.
    """
    aliases = build_alias_graph(recorder.graph)
    shared = SharedValues(recorder.graph, aliases, recorder.region_aliases)
    origin = aliases.origin(recorder.node_of(written))
    sources = [o for o in operands if o.requires_grad] if torch.is_grad_enabled() else []
    gaining = []
    for node in shared.others(origin, len(shared.position)):
        other = node.meta["val"]
        recorder.check_uncertain_version(other)
        if not sources or shared.seen(origin, node) is False:
            continue
        if not other.requires_grad:
            raise Unsupported("write of what has gradients to a tensor without, as data says")
        gaining.append((other, Sources([], sources)))
    recorder.give_gradients(*gaining)
