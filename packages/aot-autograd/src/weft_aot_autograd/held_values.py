"""What eager's autograd holds for backward, and so lets nobody write to.

A graph may have kept something else.  A write to what is held is an error of eager's only where backward gets
to the operator that holds it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from .saved_values import check_version, is_unchanged, versions_of, written_over
from .separate_edges import leads_to_any
from .training_plan import Plan


@dataclass
class _Watch:
    """The version of a tensor, without its memory, and what that is when the call is over."""

    value: torch.Tensor
    version: int
    shape: torch.Size


def watch(tensor: torch.Tensor, writes: int, without_memory: torch.Tensor) -> _Watch:
    """Watch a tensor to which the call has yet to write so often."""
    value = tensor.detach()
    value.data = without_memory  # the count of writes stays the tensor's
    return _Watch(value, value._version + writes, tensor.shape)


def watch_held(
    plan: Plan, arguments: Sequence[Any], results: Sequence[Any]
) -> dict[tuple[bool, int], _Watch]:
    """By whether it is an argument, and position: what backward has to know the versions of.

    Without those of the arguments that are kept as they are.
    """
    watched = {}
    empty: dict[torch.device, torch.Tensor] = {}
    for is_argument, position in plan.held.watched:
        tensor = arguments[position] if is_argument else results[position]
        if not tensor.is_inference():
            writes = plan.held.writes_to_come.get(position, 0) if is_argument else 0
            device = tensor.device
            if device not in empty:
                empty[device] = torch.empty(0, device=device)
            watched[is_argument, position] = watch(tensor, writes, empty[device])
    return watched


def check_held(ctx: Any, present: frozenset[int]) -> None:
    """Raise eager's error where the backward that is running needs what was written to.

    ``present``: the tangents that are there, by position.
    """
    plan: Plan = ctx.plan
    held = plan.held
    if ctx.watched is None:  # hooks were given what was saved: eager does not look at versions then
        return
    changed: set[tuple[bool, int]] = set()
    if versions_of(held.take_kept(ctx.kept)) != [*held.take_kept(ctx.versions)]:
        changed = {
            (True, plan.kept[position])
            for position in held.kept
            if not is_unchanged(ctx.kept[position], ctx.versions[position])
        }
    changed |= {key for key, w in ctx.watched.items() if w.value._version != w.version}
    if not changed and not held.has_errors:
        return
    for position in sorted(present):
        for values in held.by_output.get(plan.tangents[position].output_index, ()):
            written = changed & values.tensors
            if (written or values.error) and leads_to_any(ctx, values.arguments):
                _raise(ctx, values.error, written)


def _raise(ctx: Any, error: str, written: set[tuple[bool, int]]) -> None:
    if error:
        raise RuntimeError(error)
    key = min(written)
    if key in ctx.watched:
        watched: _Watch = ctx.watched[key]
        raise written_over(watched.value, watched.shape, watched.value._version, watched.version)
    position = ctx.plan.position_kept[key[1]]
    check_version(ctx.kept[position], ctx.versions[position])
