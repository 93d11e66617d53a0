"""The code generator for GPUs.

This release generates no kernels yet: it holds the device's place, so that a CUDA graph is refused with a
sentence that says what happens instead of an error about a missing package.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NoReturn

import torch
from weft_loop_ir import Schedule

__all__ = ["TritonCodegen", "Unsupported"]


class Unsupported(RuntimeError):
    """What was asked for is not generated yet."""


class TritonCodegen:
    """Implements ``weft_loop_ir.Codegen`` for CUDA devices."""

    device_type = "cuda"

    def compile(self, schedule: Schedule, constants: Mapping[str, torch.Tensor]) -> NoReturn:
        """Raises :class:`Unsupported`: the graph then runs eagerly, or is an error when asked for."""
        raise Unsupported(
            f"weft generates no GPU code in this release, so the graph {schedule.name!r} on a CUDA device "
            "can only run eagerly; on the CPU it is compiled"
        )
