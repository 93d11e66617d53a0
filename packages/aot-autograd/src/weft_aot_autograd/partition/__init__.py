"""Cuts a joint graph into forward and backward, one file a step."""

from __future__ import annotations

from .backward_segments import BackwardSegment, segment_backward
from .options import PartitionOptions
from .partition import partition

__all__ = ["BackwardSegment", "PartitionOptions", "partition", "segment_backward"]
