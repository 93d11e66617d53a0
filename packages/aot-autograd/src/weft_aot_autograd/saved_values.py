"""What a call keeps for its backward: in autograd, in the context, and what is left after one backward."""

from __future__ import annotations

import operator
from collections.abc import Collection, Sequence, Set
from dataclasses import dataclass
from typing import Any

import torch

from ._torch import keeps_graph, packed_saved_tensors, unpacked
from .training_plan import Plan

_VERSION = operator.attrgetter("_version")


def version_of(value: Any) -> int:
    """How often a tensor was written to; 0 for what does not count writes."""
    if not isinstance(value, torch.Tensor) or value.is_inference():
        return 0
    return value._version


def versions_of(values: Sequence[Any]) -> list[int]:
    """How often each was written to."""
    try:
        return [*map(_VERSION, values)]  # of hundreds, at each call
    except (AttributeError, RuntimeError):  # a number, or a tensor that does not count
        return [version_of(value) for value in values]


@dataclass(frozen=True)
class _Remaining:
    """What is left for backward of other tangents than those ``released``.

    Saved values with their versions, by position.  They have no history, which may hold the context itself.
    """

    values: dict[int, tuple[Any, int]]
    released: frozenset[int]


def take_saved(ctx: Any, present: frozenset[int], needed: Collection[int] | None) -> list[Any]:
    """The saved values; None may stand for others than those at the positions ``needed``, if that is given.

    ``ctx`` holds what only backward reads no longer, unless backward may run again: autograd would hold it
    until all gradients are computed.
    """
    if ctx.remaining is not None:
        saved = _take_remaining(ctx, present, needed)
    else:
        saved = _take_first(ctx, needed)
        if _is_packed(ctx) and not keeps_graph():
            ctx.taken = saved  # a hook need not give a tensor twice
    if not is_kept(ctx):
        release(ctx, present)
    return saved


def is_kept(ctx: Any) -> bool:
    """Whether the saved values may be read again after the backward that is running, or later in it."""
    return ctx.values.is_kept or keeps_graph()


def _is_packed(ctx: Any) -> bool:
    """Whether hooks were given what autograd has saved: what it holds is theirs, be it a tensor or not."""
    return ctx.watched is None


def _take_first(ctx: Any, needed: Collection[int] | None) -> list[Any]:
    """The saved values where no backward has let go of any."""
    try:
        tensors = ctx.saved_tensors
    except RuntimeError:
        if needed is None or _is_packed(ctx):
            raise
        tensors = _needed_tensors(ctx, frozenset(needed))
    apart = ctx.apart
    if apart is None:  # an earlier backward came to an error
        raise RuntimeError("Trying to backward through the graph a second time")
    plan: Plan = ctx.plan
    return plan.saved_layout(is_packed=_is_packed(ctx)).together(apart, tensors)


def _take_remaining(ctx: Any, present: frozenset[int], needed: Collection[int] | None) -> list[Any]:
    """The saved values that an earlier backward has left; eager's error where it left too little."""
    plan: Plan = ctx.plan
    left: _Remaining = ctx.remaining
    saved = range(len(plan.saved))
    is_left = needed is not None and all(k in left.values for k in needed if k in saved)
    if needed is None or not is_left or plan.repeated.meets(left.released, present):
        raise RuntimeError(SECOND_TIME)
    for k in needed:
        if k in saved:
            check_version(*left.values[k])
    return [left.values[k][0] if k in left.values else None for k in saved]


SECOND_TIME = """\
Trying to backward through the graph a second time (or directly access saved tensors after they have already \
been freed). Saved intermediate values of the graph are freed when you call .backward() or autograd.grad(). \
Specify retain_graph=True if you need to backward through the graph a second time or if you need to access \
saved tensors after calling backward."""


def release(ctx: Any, present: frozenset[int]) -> None:
    """Let go of what backward of other tangents than ``present``, and those before, does not read."""
    plan: Plan = ctx.plan
    earlier: _Remaining | None = ctx.remaining
    released = present if earlier is None else present | earlier.released
    kept = plan.kept_for_others(released)
    if earlier is not None:
        values = {k: value for k, value in earlier.values.items() if k in kept}
    else:
        values = _held(ctx, kept)
    ctx.values.are_last_read = values.keys() <= plan.numbers
    ctx.remaining = _Remaining(values, released)
    ctx.apart = ctx.taken = None


def forget_inputs(ctx: Any) -> None:
    """Let go of what forward was given, once backward can run no more: autograd may hold ``ctx`` for long."""
    if ctx.remaining is not None and ctx.plan.is_over(ctx.remaining.released):
        ctx.kept = (None,) * len(ctx.kept)
        ctx.versions = [0] * len(ctx.kept)


def _held(ctx: Any, kept: Set[int]) -> dict[int, tuple[Any, int]]:
    """The saved values at the positions ``kept`` with their versions when they were saved, unchecked."""
    apart: dict[int, Any] = ctx.apart
    held = {k: (value, version_of(value)) for k, value in apart.items() if k in kept}
    if kept <= held.keys():
        return held
    positions = ctx.plan.saved_layout(is_packed=_is_packed(ctx)).in_autograd
    if _is_packed(ctx):
        taken = ctx.taken or _take_first(ctx, None)
        values = {k: taken[k].detach() for k in positions if k in kept}
        return held | {k: (value, version_of(value)) for k, value in values.items()}
    packed = packed_saved_tensors(ctx)
    for k, tensor, version in zip(positions, packed, ctx.saved_versions, strict=True):
        if k in kept:
            held[k] = unpacked(tensor, False).detach(), version
    return held


def _needed_tensors(ctx: Any, needed: frozenset[int]) -> list[torch.Tensor | None]:
    """The tensors that autograd saved, each checked by itself, None for those that nobody needs.

    Raises what eager does: for one that is needed and was written to, and where all are freed.
    """
    plan: Plan = ctx.plan
    positions = [k for k in range(len(plan.saved)) if k not in (ctx.apart or ())]
    tensors: list[torch.Tensor | None] = []
    for k, packed, version in zip(
        positions, packed_saved_tensors(ctx), ctx.saved_versions, strict=True
    ):
        is_argument, _ = plan.saved[k]
        tensor = None
        if k in needed:
            tensor = unpacked(packed, is_argument)
            check_version(tensor, version)
        tensors.append(tensor)
    return tensors


def is_unchanged(value: Any, expected: int) -> bool:
    """Whether a value is at the version that it had."""
    return version_of(value) == expected


def check_version(value: Any, expected: int) -> None:
    """Raise eager's error for a tensor that was written to."""
    if not is_unchanged(value, expected):
        raise written_over(value, value.shape, version_of(value), expected)


def written_over(
    tensor: torch.Tensor, shape: Sequence[int], version: int, expected: int
) -> RuntimeError:
    """Eager's error for what had this shape, and is at another version than backward expects."""
    hint = _AFTER_ANOMALY if torch.is_anomaly_enabled() else _ENABLE_ANOMALY
    return RuntimeError(
        "one of the variables needed for gradient computation has been modified by an inplace "
        f"operation: [{tensor.type()} {list(shape)}] is at version {version}; expected version "
        f"{expected} instead. Hint: {hint}"
    )


_ENABLE_ANOMALY = (
    "enable anomaly detection to find the operation that failed to compute its gradient, with "
    "torch.autograd.set_detect_anomaly(True, check_nan=False)."
)
_AFTER_ANOMALY = (
    "the backtrace further above shows the operation that failed to compute its gradient. "
    "The variable in question was changed in there or anywhere later. Good luck!"
)
