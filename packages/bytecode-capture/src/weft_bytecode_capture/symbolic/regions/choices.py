"""Results of regions that may be the caller's own tensors, returned: the code after the graph chooses.

``while x.sum() > 1: x = x / 2`` leaves the caller's ``x`` itself where the loop has no iteration, which a
graph's output cannot be.  Where one predicate decides that, it is an output too; elsewhere a tag may be.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from ..variables.base import Variable
from ..variables.tensor import TensorVariable
from .aliases import storage_of
from .decisions import Place

if TYPE_CHECKING:
    from ...frame.emitter import Emitter
    from ..evaluator import Evaluator


@dataclass(frozen=True)
class Choice:
    """``result`` is a new tensor where ``predicate`` is ``when``, and ``operand`` elsewhere."""

    result: TensorVariable
    predicate: TensorVariable
    when: bool
    operand: TensorVariable


class ChoiceVariable(Variable):
    """A tensor that the code after the graph chooses: ``result``, or one of ``operands``."""

    def __init__(self, result: TensorVariable, operands: Sequence[TensorVariable]) -> None:
        self.result = result
        self.operands = operands

    def python_type(self) -> type:
        return torch.Tensor


class _ByPredicate(ChoiceVariable):
    def __init__(self, result: TensorVariable, choice: Choice) -> None:
        super().__init__(result, [choice.operand])
        self.choice = choice

    def reconstruct(self, emitter: Emitter) -> None:
        emitter.load_callable(_chosen)
        emitter.load_variable(self.choice.predicate)
        emitter.load_constant(self.choice.when)
        emitter.load_variable(self.result)
        emitter.load_variable(self.choice.operand)
        emitter.call(4)


class _ByTag(ChoiceVariable):
    def __init__(
        self, result: TensorVariable, operands: Sequence[TensorVariable], tag: TensorVariable
    ) -> None:
        super().__init__(result, operands)
        self.tag = tag

    def reconstruct(self, emitter: Emitter) -> None:
        emitter.load_callable(_tagged)
        emitter.load_variable(self.tag)
        emitter.load_variable(self.result)
        for operand in self.operands:
            emitter.load_variable(operand)
        emitter.call(2 + len(self.operands))


def _chosen(
    predicate: torch.Tensor, when: bool, result: torch.Tensor, operand: torch.Tensor
) -> torch.Tensor:
    return result if bool(predicate) is when else operand


def _tagged(tag: torch.Tensor, *tensors: torch.Tensor) -> torch.Tensor:
    return tensors[int(tag)]


def note_choice(evaluator: Evaluator, choice: Choice) -> None:
    """Note what decides whether a region's result is an operand, if that is a tensor of the caller's."""
    is_outermost = evaluator.graph.graph is evaluator.graph.outermost
    if is_outermost and choice.operand.source is not None:
        evaluator.state.region_choices[storage_of(choice.result.fake)] = choice


def choose_results(evaluator: Evaluator, outputs: Sequence[Variable]) -> list[ChoiceVariable]:
    """Let the code after the graph choose in the place of each output that may be an operand."""
    visible = _visible(evaluator)
    made = []
    for output in outputs:
        choice = _choice(evaluator, output, visible) if isinstance(output, TensorVariable) else None
        if choice is not None:
            output.loaded_instead = choice
            made.append(choice)
    return made


def _choice(
    evaluator: Evaluator, result: TensorVariable, visible: set[int]
) -> ChoiceVariable | None:
    """What to return in the place of ``result``, if that may be an operand in a way that is known."""
    choice = evaluator.state.region_choices.get(storage_of(result.fake))
    if choice is not None and choice.result is result:
        # It can be nothing else than the operand or new, and is that in one way.
        aliases, operand = evaluator.state.region_aliases, choice.operand
        if aliases.is_operand_or_new(result.fake, operand.fake, visible):
            return _ByPredicate(_given(result), choice)
    tags = evaluator.state.region_tags
    tag = tags.decided(result, visible)
    return None if tag is None else _ByTag(_given(result), tags.operands, tag)


def _given(result: TensorVariable) -> TensorVariable:
    """The graph's output that ``result`` is, when nothing is chosen."""
    return TensorVariable(result.node, result.fake, None)


def _visible(evaluator: Evaluator) -> set[int]:
    """The storages of tensors that the caller has whatever the frame returns."""
    outermost = evaluator.graph.outermost
    nodes = [*outermost.find_nodes(op="placeholder"), *outermost.find_nodes(op="get_attr")]
    values = [node.meta.get("example_value") for node in nodes]
    found = {storage_of(value) for value in values if isinstance(value, torch.Tensor)}
    return found | evaluator.state.region_aliases.attributes


def ambiguous_result(
    evaluator: Evaluator, outputs: Sequence[Variable], chosen: Sequence[TensorVariable] = ()
) -> Place | None:
    """The region by which a result that leaves the frame may be another tensor of the caller's.

    The caller's are the graph's inputs, attributes and ``outputs``, and the results ``chosen`` elsewhere.
    None if there is no such result.
    """
    fakes = [getattr(output, "fake", None) for output in outputs]
    left = [storage_of(fake) for fake in fakes if isinstance(fake, torch.Tensor)]
    others = {*left, *(storage_of(variable.fake) for variable in chosen), *_visible(evaluator)}
    aliases = evaluator.state.region_aliases
    regional = {storage for storage in others if aliases.is_result(storage)}
    for storage in dict.fromkeys(left):
        for other in sorted((others if storage in regional else regional) - {storage}):
            place = aliases.uniting(storage, other)
            if place is not None:
                return place
    return None


def refused_alias(
    evaluator: Evaluator, outputs: Sequence[Variable], choices: Sequence[ChoiceVariable]
) -> Place | None:
    """The region of which a result that may be another tensor of the caller's escapes unchosen.

    ``outputs`` are the graph's without ``choices``.
    """
    chosen = [choice.result for choice in choices]
    left = [v for v in outputs if not any(v is c for c in chosen)]
    others = [v for v in left if not evaluator.state.region_tags.is_tag(v)]
    return ambiguous_result(evaluator, others, chosen) or _one_new_tensor(evaluator, choices)


def _one_new_tensor(evaluator: Evaluator, choices: Sequence[ChoiceVariable]) -> Place | None:
    """The region by which two of these may be one tensor that is none of the caller's."""
    operands = {storage_of(o.fake) for choice in choices for o in choice.operands}
    storages = dict.fromkeys(storage_of(choice.result.fake) for choice in choices)
    for left, right in itertools.combinations(storages, 2):
        place = evaluator.state.region_aliases.uniting(left, right, operands)
        if place is not None:
            return place
    return None
