"""How each region operator is recorded: as it is, or as operators of autograd's own with two regions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.fx

from ..joint_recorder import JointRecorder
from ..unsupported import Unsupported
from .branches import differentiate_branch
from .loops import differentiate_loop
from .recording import RegionRule
from .scans import differentiate_scan
from .uncounted_loops import differentiate_uncounted


def run_region_operator(
    recorder: JointRecorder, node: torch.fx.Node, args: Sequence[Any]
) -> tuple[Any, ...]:
    """Record the call ``node`` of a region operator on fake ``args``; its results.

    Raises :class:`Unsupported` where gradients would have to flow through what has no rule here.
    """
    if not torch.is_grad_enabled() or not any(map(_has_gradient, _operands(args))):
        return _as_it_is(recorder, node, args)
    rule = _RULES.get(str(node.target))
    if rule is None:
        raise Unsupported("gradient of an operator", str(node.target))
    results: tuple[Any, ...] | None = rule(recorder, node, args, run_region_operator)
    return _as_it_is(recorder, node, args) if results is None else results


def _operands(args: Sequence[Any]) -> list[Any]:
    found: list[Any] = []
    for argument in args:
        found += argument if isinstance(argument, (tuple, list)) else [argument]
    return found


def _has_gradient(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.requires_grad


def _as_it_is(recorder: JointRecorder, node: torch.fx.Node, args: Sequence[Any]) -> tuple[Any, ...]:
    results = [
        recorder.fresh(value) if isinstance(value, torch.Tensor) else value
        for value in node.meta["val"]
    ]
    return recorder.add_region_operator(node, _with_nodes(recorder, args), results)


def _with_nodes(recorder: JointRecorder, args: Sequence[Any]) -> tuple[Any, ...]:
    return tuple(
        recorder.add_region("region", argument)
        if isinstance(argument, torch.fx.GraphModule)
        else recorder.nodes_in(argument)
        for argument in args
    )


def _differentiate_while(
    recorder: JointRecorder, node: torch.fx.Node, args: Sequence[Any], rule: RegionRule
) -> tuple[Any, ...] | None:
    _, _, carried, _ = args
    counts = any(isinstance(value, (int, torch.SymInt)) for value in carried)
    return (differentiate_loop if counts else differentiate_uncounted)(recorder, node, args, rule)


_RULES = {
    "cond": differentiate_branch,
    "while_loop": _differentiate_while,
    "associative_scan": differentiate_scan,
}
