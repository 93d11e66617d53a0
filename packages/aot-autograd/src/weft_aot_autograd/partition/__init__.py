"""Cuts a joint graph into forward and backward, one file a step."""

from __future__ import annotations

from .options import PartitionOptions
from .partition import partition
from .stages import BackwardStage, stage_backward

__all__ = ["BackwardStage", "PartitionOptions", "partition", "stage_backward"]
