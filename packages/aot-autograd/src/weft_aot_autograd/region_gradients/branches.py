"""Branches: forward keeps what the backward of the side taken needs; backward takes the same side."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.fx

from ..joint_recorder import JointRecorder
from ..unsupported import Unsupported
from .body import DifferentiatedBody, differentiate
from .recording import RegionRule, record_region, run_nodes

_HINT = "eager leaves the gradients of what the other side uses undefined"


def differentiate_branch(
    recorder: JointRecorder, node: torch.fx.Node, args: Sequence[Any], rule: RegionRule
) -> tuple[Any, ...]:
    """The results of a ``cond`` through which gradients flow.

    Raises :class:`Unsupported` where the sides give gradients to different operands or results: eager has
    none there, rather than zeros, where the other side is taken.
    """
    predicate, *modules, operands = args
    tracked = {k for k, v in enumerate(operands) if isinstance(v, torch.Tensor) and v.requires_grad}
    sides = [differentiate(recorder, module, tracked, (), rule) for module in modules]
    first, second = sides
    if first is None or second is None or first.tangents != second.tangents:
        raise Unsupported("gradients on one side of a branch only", node.name)
    if first.gradients != second.gradients:
        raise Unsupported("gradients that depend on the side of a branch", node.name, _HINT)
    branch = _Branch(recorder, node, (first, second), rule)
    results: tuple[Any, ...] = _BranchFunction.apply(branch, predicate, *operands)  # type: ignore[no-untyped-call]
    return results


class _BranchFunction(torch.autograd.Function):
    """One branch in autograd."""

    @staticmethod
    def forward(
        ctx: Any, branch: _Branch, predicate: torch.Tensor, *operands: Any
    ) -> tuple[Any, ...]:
        ctx.set_materialize_grads(False)
        ctx.branch, ctx.predicate, ctx.operands = branch, predicate, operands
        results, ctx.slots = branch.forward(predicate, operands)
        constant = [
            result
            for k, result in enumerate(results)
            if isinstance(result, torch.Tensor) and k not in branch.sides[0].tangents
        ]
        ctx.mark_non_differentiable(*constant)
        return results

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Any, ...]:
        found = ctx.branch.backward(ctx.predicate, ctx.operands, ctx.slots, gradients)
        return None, None, *(found.get(k) for k in range(len(ctx.operands)))


class _Branch:
    """The two branches.  Each value that a side saves has a slot, a result of the forward branch."""

    def __init__(
        self,
        recorder: JointRecorder,
        node: torch.fx.Node,
        sides: tuple[DifferentiatedBody, DifferentiatedBody],
        rule: RegionRule,
    ) -> None:
        self.recorder = recorder
        self.node = node
        self.sides = sides
        self.rule = rule
        # By slot: the side, the position among its saved values, and the fake value.
        self.slots = [
            (side, s, value)
            for side, body in enumerate(sides)
            for s, value in enumerate(body.saved_values())
            if isinstance(value, torch.Tensor) and body.saved_parameter(s) is None
        ]

    def forward(
        self, predicate: torch.Tensor, operands: Sequence[Any]
    ) -> tuple[tuple[Any, ...], list[torch.Tensor]]:
        """Record the branch with slots; its results, and the slots' values."""
        recorder = self.recorder
        given = self.node.meta["val"]
        results = [recorder.fresh(v) if isinstance(v, torch.Tensor) else v for v in given]
        results += [recorder.fresh(value) for _, _, value in self.slots]
        made = self._add(predicate, [self._forward_side(k) for k in (0, 1)], operands, results)
        return made[: len(given)], list(made[len(given) :])

    def _forward_side(self, side: int) -> torch.fx.GraphModule:
        body = self.sides[side]
        placeholders = body.parts.forward.graph.find_nodes(op="placeholder")

        def run(recorder: JointRecorder, values: list[Any]) -> list[Any]:
            environment = dict(zip(placeholders, values, strict=True))
            outputs = run_nodes(body.parts.forward, recorder, environment, self.rule)
            results = list(self.node.meta["val"])
            for k, output in zip(body.tensors, outputs, strict=False):
                results[k] = output
            for of, s, value in self.slots:
                index = body.parts.saved[s].output_index if of == side else None
                kept = (
                    torch.empty(value.shape, dtype=value.dtype, device=value.device)
                    if index is None
                    else outputs[index]
                )
                results.append(kept)
            return results

        examples = [node.meta["val"] for node in placeholders]
        return record_region(self.recorder, examples, [n.name for n in placeholders], run)

    def backward(
        self,
        predicate: torch.Tensor,
        operands: Sequence[Any],
        slots: Sequence[torch.Tensor],
        gradients: Sequence[Any],
    ) -> dict[int, torch.Tensor]:
        """Record the branch of the gradients; these by operand."""
        first = self.sides[0]
        tangents = []
        for k, like in zip(first.tangents, first.tangent_values(), strict=True):
            given = gradients[k]
            if given is None:
                given = torch.zeros(like.shape, dtype=like.dtype, device=like.device)
            tangents.append(given)
        passed = [*tangents, *slots, *operands]
        examples = [*first.tangent_values(), *(value for _, _, value in self.slots)]
        inside = first.parts.forward.graph.find_nodes(op="placeholder")
        examples += [node.meta["val"] for node in inside]
        modules = [self._backward_side(side, examples) for side in (0, 1)]
        results = [self.recorder.fresh(operands[k]) for k in first.gradients]
        made = self._add(predicate, modules, passed, results)
        return dict(zip(first.gradients, made, strict=True))

    def _backward_side(self, side: int, examples: Sequence[Any]) -> torch.fx.GraphModule:
        body = self.sides[side]
        count = len(body.tangents)

        def run(recorder: JointRecorder, values: list[Any]) -> list[Any]:
            tangents, rest = values[:count], values[count:]
            slots, operands = rest[: len(self.slots)], rest[len(self.slots) :]
            saved = body.saved_values()
            for s in range(len(saved)):
                parameter = body.saved_parameter(s)
                if parameter is not None:
                    saved[s] = operands[parameter]
            for (of, s, _), slot in zip(self.slots, slots, strict=True):
                if of == side:
                    saved[s] = slot
            placeholders = body.parts.backward.graph.find_nodes(op="placeholder")
            environment = dict(zip(placeholders, [*saved, *tangents], strict=True))
            return run_nodes(body.parts.backward, recorder, environment, self.rule)

        names = ["value"] * len(examples)
        return record_region(self.recorder, examples, names, run)

    def _add(
        self,
        predicate: torch.Tensor,
        modules: Sequence[torch.fx.GraphModule],
        operands: Sequence[Any],
        results: Sequence[Any],
    ) -> tuple[Any, ...]:
        recorder = self.recorder
        names = ("true_graph", "false_graph")
        regions = [recorder.add_region(n, m) for n, m in zip(names, modules, strict=True)]
        arguments = (
            recorder.nodes_in(predicate),
            *regions,
            tuple(recorder.nodes_in(value) for value in operands),
        )
        return recorder.add_region_operator(self.node, arguments, results)
