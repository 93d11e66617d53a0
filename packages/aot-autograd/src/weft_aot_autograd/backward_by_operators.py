"""Backward by operators: gradients of gradients, and gradients that no program can read."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Sequence
from typing import Any

import torch

from ._torch import without_transforms
from .derivation import gradients_of
from .kept_inputs import kept_inputs
from .random_state import numbers_of_forward
from .replay import without_autocast
from .saved_values import (
    SECOND_TIME,
    check_version,
    is_kept,
    is_unchanged,
    release,
    take_saved,
)
from .training_plan import Plan, placed


def backward_by_operators(
    ctx: Any, gradients: Sequence[Any], present: frozenset[int]
) -> tuple[Any, ...]:
    """The gradients as differentiable results: the function runs again on the kept inputs.

    ``present`` are the tangents that are there among ``gradients``, by position.
    The inputs, and thus what forward computes, are not what a transform around backward is about.
    """
    plan: Plan = ctx.plan
    if not torch.is_grad_enabled() and not _can_run_again(ctx):
        return _backward_graph_by_operators(ctx, gradients, present)
    every = _inputs_again(ctx, present)
    arguments = [every[index] for index in plan.argument_indices]
    wanted = [arguments[k] for k in plan.gradients]
    with (
        torch.enable_grad(),
        without_autocast(plan.device_types),
        numbers_of_forward(ctx),
        without_transforms(),
    ):
        results = plan.derivation.run(every)
    given = [t.output_index for t in plan.tangents if gradients[t.output_index] is not None]
    tangents = [gradients[index] for index in given]
    keep = torch.is_grad_enabled()
    computed: Sequence[Any] = gradients_of(results, given, tangents, wanted, create_graph=keep)
    absent = plan.absent(gradients, ctx.flags)
    computed = [
        None if position in absent else torch.zeros_like(like) if gradient is None else gradient
        for position, like, gradient in zip(plan.gradients, wanted, computed, strict=True)
    ]
    ctx.values.known = None
    if not is_kept(ctx):
        release(ctx, present)
    return placed(plan, plan.gradients, computed)


def _can_run_again(ctx: Any) -> bool:
    """Whether the inputs that the functional graph reads are what they were in forward."""
    return bool(ctx.plan.replayable) and all(map(is_unchanged, ctx.kept, ctx.versions))


def _backward_graph_by_operators(
    ctx: Any, gradients: Sequence[Any], present: frozenset[int]
) -> tuple[Any, ...]:
    """The gradients by the backward graph's operators: for gradients that no program can read."""
    plan: Plan = ctx.plan
    tangents = (
        tangent.prepare_any(gradients[tangent.output_index], layout)
        for tangent, layout in zip(plan.tangents, ctx.layouts, strict=True)
    )
    segment = plan.operator_segment()
    ctx.values.known = [*take_saved(ctx, present, None), *tangents]
    ctx.values.absent = plan.absent(gradients, ctx.flags)
    with without_autocast(plan.device_types):
        return placed(plan, segment.arguments, segment.run(ctx.values, is_last=True))


def _inputs_again(ctx: Any, present: frozenset[int]) -> list[Any]:
    """The functional graph's inputs as they were in forward; tensors with gradients as own views.

    Views of their own keep apart the gradients of inputs that are computed from one another.  Raises
    RuntimeError where an input was written to since.
    """
    plan: Plan = ctx.plan
    if ctx.remaining is None:
        _ = ctx.saved_tensors  # eager's errors: freed already, or written to
    elif plan.repeated.meets(ctx.remaining.released, present):
        raise RuntimeError(SECOND_TIME)
    if not plan.replayable:
        raise RuntimeError(
            "weft: gradients of gradients of a graph that writes to tensors of its own are not "
            "supported; leave the function that is differentiated twice uncompiled"
        )
    if torch.is_grad_enabled() and not plan.warned:
        plan.warned = True
        message = "weft: gradients of gradients run the compiled graph's operators in eager PyTorch"
        try:
            warnings.warn(message, stacklevel=2)
        except UserWarning:  # a filter makes it an error, which eager does not raise
            logging.getLogger("weft").warning(message)
    every = kept_inputs(ctx)
    for k, value, version in zip(plan.kept, ctx.kept, ctx.versions, strict=True):
        check_version(value, version)
        if isinstance(value, torch.Tensor) and value.requires_grad:
            with torch.enable_grad():
                every[plan.argument_indices[k]] = value.view_as(value)
    return every
