"""Conditionals: forward keeps what the backward of the branch taken needs; backward takes the same branch.

An operand has a gradient if it has one in the branch taken.  In the other it is zero, and the conditional
says that there is none (:mod:`.undefined_gradients`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.fx
from weft_functionalize import GIVES_ZERO_GRADIENTS

from ..joint_recorder import JointRecorder
from .body import DifferentiatedBody, Flag, differentiate
from .recording import RegionRule, record_region, run_nodes
from .region_function import call_region, given_or_zeros
from .undefined_gradients import Defined, Reach


def differentiate_branch(
    recorder: JointRecorder, node: torch.fx.Node, args: Sequence[Any], rule: RegionRule
) -> tuple[Any, ...]:
    """The results of a ``cond`` through which gradients flow."""
    predicate, *modules, operands = args
    tracked = {k for k, v in enumerate(operands) if isinstance(v, torch.Tensor) and v.requires_grad}
    first, second = (differentiate(recorder, module, tracked, (), rule) for module in modules)
    return call_region(_Branch(recorder, node, predicate, (first, second), rule), operands)


class _Branch:
    """The two branches.  Each value that a branch saves has a slot, a result of the forward branch."""

    def __init__(
        self,
        recorder: JointRecorder,
        node: torch.fx.Node,
        predicate: torch.Tensor,
        branches: tuple[DifferentiatedBody, DifferentiatedBody],
        rule: RegionRule,
    ) -> None:
        self.recorder = recorder
        self.node = node
        self.predicate = predicate
        self.branches = branches
        self.rule = rule
        self.tracked = frozenset(k for body in branches for k in body.tangents)
        self.tangents = sorted(self.tracked)
        self.gradients = sorted({k for body in branches for k in body.gradients})
        # By slot: the branch, the position among its saved values, and the fake value.
        self.slots = [
            (branch, s, value)
            for branch, body in enumerate(branches)
            for s, value in enumerate(body.saved_values())
            if isinstance(value, torch.Tensor) and body.saved_parameter(s) is None
        ]
        # By result and operand: what the branches say of their ways, which are flags of one of them at least.
        keys = {key: None for body in branches for key in body.reach}
        self.ways = {
            key: (branches[0].reach.get(key, False), branches[1].reach.get(key, False))
            for key in keys
        }
        self.flags = list(dict.fromkeys(w for w in self.ways.values() if Flag in map(type, w)))

    def forward(self, operands: Sequence[Any]) -> tuple[tuple[Any, ...], list[torch.Tensor], Reach]:
        """Record the branch with slots; its results, the slots' values, and what has gradients of what."""
        recorder = self.recorder
        given = self.node.meta["val"]
        results = [recorder.fresh(v) if isinstance(v, torch.Tensor) else v for v in given]
        results += [recorder.fresh(value) for _, _, value in self.slots]
        results += [recorder.fresh(self.predicate) for _ in self.flags]
        made = self._add([self._forward_branch(k) for k in (0, 1)], operands, results)
        first = len(made) - len(self.flags)
        return (
            made[: len(given)],
            list(made[len(given) : first]),
            self._reach(made[first:]),
        )

    def _reach(self, flags: Sequence[torch.Tensor]) -> Reach:
        if GIVES_ZERO_GRADIENTS in self.node.meta:
            return dict.fromkeys(self.ways, True)
        known: dict[Any, Defined] = dict(zip(self.flags, flags, strict=True))
        known[True, True] = True
        known[True, False] = self.predicate
        if (False, True) in self.ways.values():
            known[False, True] = torch.logical_not(self.predicate)
        return {key: known[way] for key, way in self.ways.items()}

    def _forward_branch(self, branch: int) -> torch.fx.GraphModule:
        body = self.branches[branch]
        placeholders = body.parts.forward.graph.find_nodes(op="placeholder")

        def run(recorder: JointRecorder, values: list[Any]) -> list[Any]:
            environment = dict(zip(placeholders, values, strict=True))
            outputs = run_nodes(body.parts.forward, recorder, environment, self.rule)
            results = list(self.node.meta["val"])
            for k, output in zip(body.tensors, outputs, strict=False):
                results[k] = output
            for of, s, value in self.slots:
                index = body.parts.saved[s].output_index if of == branch else None
                kept = (
                    torch.empty(value.shape, dtype=value.dtype, device=value.device)
                    if index is None
                    else outputs[index]
                )
                results.append(kept)
            for way in self.flags:
                flag = way[branch]
                results.append(
                    outputs[flag.index]
                    if isinstance(flag, Flag)
                    else torch.full((), flag, device=self.predicate.device)
                )
            return results

        examples = [node.meta["val"] for node in placeholders]
        return record_region(self.recorder, examples, [n.name for n in placeholders], run)

    def backward(
        self, operands: Sequence[Any], kept: Sequence[torch.Tensor], gradients: Sequence[Any]
    ) -> dict[int, torch.Tensor]:
        """Record the branch of the gradients; these by operand."""
        likes: dict[int, torch.Tensor] = {}
        for body in self.branches:
            likes.update(zip(body.tangents, body.tangent_values(), strict=True))
        tangents = [given_or_zeros(gradients[k], likes[k]) for k in self.tangents]
        passed = [*tangents, *kept, *operands]
        examples = [*(likes[k] for k in self.tangents), *(value for _, _, value in self.slots)]
        inside = self.branches[0].parts.forward.graph.find_nodes(op="placeholder")
        examples += [node.meta["val"] for node in inside]
        modules = [self._backward_branch(branch, examples) for branch in (0, 1)]
        results = [self.recorder.fresh(operands[k]) for k in self.gradients]
        made = self._add(modules, passed, results)
        return dict(zip(self.gradients, made, strict=True))

    def _backward_branch(self, branch: int, examples: Sequence[Any]) -> torch.fx.GraphModule:
        body = self.branches[branch]
        count = len(self.tangents)

        def run(recorder: JointRecorder, values: list[Any]) -> list[Any]:
            every = dict(zip(self.tangents, values[:count], strict=True))
            tangents, rest = [every[k] for k in body.tangents], values[count:]
            slots, operands = rest[: len(self.slots)], rest[len(self.slots) :]
            saved = body.saved_values()
            for s in range(len(saved)):
                parameter = body.saved_parameter(s)
                if parameter is not None:
                    saved[s] = operands[parameter]
            for (of, s, _), slot in zip(self.slots, slots, strict=True):
                if of == branch:
                    saved[s] = slot
            placeholders = body.parts.backward.graph.find_nodes(op="placeholder")
            environment = dict(zip(placeholders, [*saved, *tangents], strict=True))
            computed = run_nodes(body.parts.backward, recorder, environment, self.rule)
            found = dict(zip(body.gradients, computed, strict=True))
            return [
                found[k] if k in found else torch.zeros_like(operands[k]) for k in self.gradients
            ]

        names = ["value"] * len(examples)
        return record_region(self.recorder, examples, names, run)

    def _add(
        self,
        modules: Sequence[torch.fx.GraphModule],
        operands: Sequence[Any],
        results: Sequence[Any],
    ) -> tuple[Any, ...]:
        recorder = self.recorder
        names = ("true_graph", "false_graph")
        regions = [recorder.add_region(n, m) for n, m in zip(names, modules, strict=True)]
        arguments = (
            recorder.nodes_in(self.predicate),
            *regions,
            tuple(recorder.nodes_in(value) for value in operands),
        )
        return recorder.add_region_operator(self.node, arguments, results)
