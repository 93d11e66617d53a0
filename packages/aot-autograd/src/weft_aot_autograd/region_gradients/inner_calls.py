"""Writes out what a program asks of autograd inside: gradients that go through branches and loops."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from weft_functionalize import known_equal

from ..formula_errors import refused_formulas
from ..joint_recorder import JointRecorder
from ..unsupported import Unsupported
from .undefined_gradients import GradientPaths


def run_inner_gradients(
    recorder: JointRecorder,
    outputs: Sequence[torch.Tensor],
    inputs: Sequence[torch.Tensor],
    tangents: Sequence[torch.Tensor | None] | None,
    reached: Sequence[bool],
) -> tuple[torch.Tensor | None, ...]:
    """As ``weft_functionalize.inner_gradients`` has it, under ``recorder``, which is active."""
    if recorder.is_region:
        raise Unsupported("gradients inside a region")
    given = [None] * len(outputs) if tangents is None else tangents
    rows = [(o, t) for o, t in zip(outputs, given, strict=True) if o.requires_grad]
    wanted = [k for k, is_reached in enumerate(reached) if is_reached and inputs[k].requires_grad]
    found: dict[int, torch.Tensor] = {}
    if rows and wanted:
        starts = [output for output, _ in rows]
        with recorder.in_program(), torch.no_grad():
            paths = GradientPaths([inputs[k] for k in wanted])
            for output in starts:
                paths.from_result(output)
            masks = paths.mask([(output, True) for output in starts])
        try:
            with recorder.in_program(), refused_formulas():
                gradients: Sequence[torch.Tensor | None] = torch.autograd.grad(
                    starts,
                    [inputs[k] for k in wanted],
                    [tangent for _, tangent in rows],
                    retain_graph=True,
                    allow_unused=True,
                )
        finally:
            for handle in masks:
                handle.remove()
        found = {k: g for k, g in zip(wanted, gradients, strict=True) if g is not None}
    with torch.no_grad():
        return tuple(
            (_laid_out(found[k], value) if k in found else torch.zeros_like(value))
            if is_reached
            else None
            for k, (value, is_reached) in enumerate(zip(inputs, reached, strict=True))
        )


def _laid_out(gradient: torch.Tensor, like: torch.Tensor) -> Any:
    """``gradient`` with the strides that ``empty_like`` gives what is as ``like``."""
    wanted = torch.empty_strided(like.shape, like.stride(), device="meta")
    wanted = torch.empty_like(wanted)
    if all(map(known_equal, gradient.stride(), wanted.stride())):
        return gradient
    order = sorted(range(like.dim()), key=wanted.stride, reverse=True)
    dense = gradient.permute(order).clone(memory_format=torch.contiguous_format)
    return dense.permute([order.index(d) for d in range(like.dim())])
