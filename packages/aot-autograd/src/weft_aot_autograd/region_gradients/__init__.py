"""Gradients through branches and loops: forward and backward each get a region.

What a region's backward needs is found as for a whole graph: the region's own joint graph is cut by
:func:`~..partition.partition`.  A loop keeps what crosses in stacks, one row an iteration, and its backward
counts down; a conditional hands over what the branch taken has kept.
"""

from __future__ import annotations

from .rules import run_region_operator

__all__ = ["run_region_operator"]
