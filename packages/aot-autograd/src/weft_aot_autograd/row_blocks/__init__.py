"""Large matrices of which a row at a time is read, computed in blocks of rows."""

from __future__ import annotations

from .blocks import forward_in_blocks, joint_in_blocks
from .options import RowBlockOptions

__all__ = ["RowBlockOptions", "forward_in_blocks", "joint_in_blocks"]
