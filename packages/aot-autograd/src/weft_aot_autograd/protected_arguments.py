"""Arguments that eager holds for some results, and that this function has copied for the others' sake."""

from __future__ import annotations

from typing import Any

from .saved_values import check_version, is_unchanged
from .separate_edges import leads_to
from .training_plan import Plan


def check_protected(ctx: Any, present: frozenset[int]) -> None:
    """Raise eager's error for an argument that was written to, where all is asked for that a result leads to.

    Where only some of it is, nothing says whether eager gets to the operator that holds the argument.
    """
    plan: Plan = ctx.plan
    for position, outputs in plan.protected.items():
        value, version = ctx.kept[position], ctx.versions[position]
        if is_unchanged(value, version):
            continue
        given = (plan.tangents[k].output_index for k in present)
        if any(
            all(leads_to(ctx, k) for k in plan.given.reached_by(output))
            for output in outputs.intersection(given)
        ):
            check_version(value, version)
