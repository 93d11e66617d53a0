"""Running a captured graph a second time for the sake of its gradients, on inputs of the functional graph."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.fx

from ._torch import view_base
from .functional_graph import (
    FunctionalGraph,
    InputKind,
    OutputKind,
    ViewOfInput,
    ViewOfOutput,
    WholeOutput,
    view_key,
)
from .plain_run import plain_run


def run_again(functional: FunctionalGraph, inputs: Sequence[Any]) -> dict[int, Any]:
    """What eager gives for the functional graph's outputs, by index: user outputs and new values of inputs.

    Views among the user outputs are there by :func:`~.functional_graph.view_key`, and so is what they are of.

    ``inputs`` are all of the functional graph's, which the captured graph may write to; none stands for
    several that the caller passes.
    """
    described = [*zip(functional.inputs, inputs, strict=True)]
    held = {f"source.{d.target}": value for d, value in described if d.kind in _HELD_BY_MODULES}
    passed = [(d.position or 0, v) for d, v in described if d.kind is InputKind.USER_INPUT]
    values = [value for _, value in sorted(passed, key=lambda pair: pair[0])]
    results = torch.func.functional_call(_Plain(functional.source), held, tuple(values))
    found: dict[int, Any] = {}
    for descriptor in functional.outputs:
        index = descriptor.graph_index
        match descriptor.alias:
            case WholeOutput(base):
                found[base] = results[descriptor.position or 0]
            case ViewOfInput() | ViewOfOutput():
                view = results[descriptor.position or 0]
                found[view_key(descriptor.position or 0)] = view
                if isinstance(descriptor.alias, ViewOfOutput):
                    found.setdefault(descriptor.alias.output_index, view_base(view))
        if index is None:
            continue
        if descriptor.kind is OutputKind.MUTATED_INPUT and descriptor.input_index is not None:
            found[index] = inputs[descriptor.input_index]
        elif descriptor.kind is OutputKind.USER_OUTPUT and descriptor.position is not None:
            found[index] = results[descriptor.position]
    return found


class _Plain(torch.nn.Module):
    """A captured graph whose branches and loops are Python's, for which autograd has no node."""

    def __init__(self, source: torch.fx.GraphModule) -> None:
        super().__init__()
        self.source = source

    def forward(self, *inputs: Any) -> Any:
        return plain_run(self.source)(*inputs)


_HELD_BY_MODULES = (InputKind.PARAMETER, InputKind.BUFFER)
