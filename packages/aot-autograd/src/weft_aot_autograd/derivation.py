"""What a compiled function computes: a functional graph, or gradients of one, or gradients of those."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.fx
from weft_functionalize import FunctionalGraph

from .replay import GradientModeInterpreter


@dataclass(frozen=True)
class Step:
    """A backward with ``create_graph``, whose results are the gradients of ``wanted``, inputs by position.

    ``given`` are the positions of the results that have a gradient, which are further inputs; each requires
    gradients itself if ``differentiable`` says so.  Behind these inputs come the values of ``reused``, nodes
    of what was computed before the step: who calls it has them already.
    """

    given: tuple[int, ...]
    wanted: tuple[int, ...]
    differentiable: tuple[bool, ...]
    reused: tuple[torch.fx.Node, ...] = ()


@dataclass(frozen=True)
class Derivation:
    """The function that ``functional`` becomes by ``steps``.  Its inputs are those of both, in order."""

    functional: FunctionalGraph
    steps: tuple[Step, ...] = ()

    def then(self, step: Step) -> Derivation:
        """The function that it becomes by one more step."""
        return replace(self, steps=(*self.steps, step))

    def run(self, inputs: Sequence[Any]) -> Sequence[Any]:
        """The results, operator by operator; gradient mode is on."""
        count = len(self.functional.inputs)
        results: Sequence[Any] = GradientModeInterpreter(self.functional.graph_module).run(
            *inputs[:count]
        )
        for step in self.steps:
            tangents = inputs[count : count + len(step.given)]
            count += len(step.given) + len(step.reused)
            wanted = [inputs[k] for k in step.wanted]
            found = gradients_of(results, step.given, tangents, wanted, create_graph=True)
            results = [
                torch.zeros_like(like) if gradient is None else gradient
                for like, gradient in zip(wanted, found, strict=True)
            ]
        return results


def gradients_of(
    results: Sequence[Any] | Mapping[int, Any],
    given: Sequence[int],
    tangents: Sequence[Any],
    wanted: Sequence[Any],
    *,
    create_graph: bool,
) -> Sequence[torch.Tensor | None]:
    """The gradients of ``wanted`` by those of the results at ``given``; others have zeros in eager."""
    used = [k for k, index in enumerate(given) if results[index].requires_grad]
    found: Sequence[torch.Tensor | None] = torch.autograd.grad(
        [results[given[k]] for k in used],
        wanted,
        [tangents[k] for k in used],
        create_graph=create_graph,
        allow_unused=True,
    )
    return found
