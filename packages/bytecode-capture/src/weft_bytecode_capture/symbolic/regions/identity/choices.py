"""Results of regions that may be the caller's own tensors, returned: the code after the graph chooses.

``while x.sum() > 1: x = x / 2`` leaves the caller's ``x`` itself where the loop has no iteration, which a
graph's output cannot be.  Where one predicate decides that, it is an output too; elsewhere a tag may be.
So it is with views of the caller's tensors, with views of results, and with two results that may be one.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch

from ...._torch import storage_identity
from ....frame.emitter import Emitter
from ...graph.changed_layouts import is_change_of_layout
from ...graph.storages import node_values, storages
from ...models.torch.tensor import TensorVariable
from ...protocol import Frame
from ...variables.base import Variable
from ..decisions import ProgramPoint
from .tags import Known, Tag
from .views import view_of


@dataclass(frozen=True)
class Choice:
    """``result`` is a new tensor where ``predicate`` is ``when``, and ``operand`` elsewhere."""

    result: TensorVariable
    predicate: TensorVariable
    when: bool
    operand: TensorVariable


class ChoiceVariable(Variable):
    """A tensor that the code after the graph chooses: ``result``, or another.

    ``exact`` are the storages of the tensors for which it is known whether that is one of them.
    """

    kind = torch.Tensor

    def __init__(self, result: TensorVariable, exact: frozenset[int]) -> None:
        self.result = result
        self.exact = exact

    @property
    def storage(self) -> int:
        return storage_identity(self.result.fake)

    def results(self) -> list[TensorVariable]:
        """The graph's outputs that may be the tensor where it is a new one."""
        return [self.result]


class _ByPredicate(ChoiceVariable):
    def __init__(self, result: TensorVariable, choice: Choice) -> None:
        super().__init__(result, frozenset({storage_identity(choice.operand.fake)}))
        self.choice = choice

    def reconstruct(self, emitter: Emitter) -> None:
        emitter.load_call(
            _chosen, self.choice.predicate, self.choice.when, self.result, self.choice.operand
        )


@dataclass(frozen=True)
class _Twin:
    """What a tensor is where its region's result is ``other``'s: one that a branch has made for both."""

    other: Tag
    tensor: TensorVariable


class _ByTag(ChoiceVariable):
    """Chosen by the ``tag`` of ``base``, a region's result, which ``result`` is or is a view of.

    ``tensors`` are what it may be else, by their numbers; ``made`` are the numbers for which it is the first
    of ``twins`` with that number, if there is one.
    """

    def __init__(
        self,
        result: TensorVariable,
        base: TensorVariable,
        tag: Tag,
        exact: frozenset[int],
        tensors: dict[int, TensorVariable],
        made: tuple[int, ...],
    ) -> None:
        super().__init__(result, exact)
        self.base = base
        self.tag = tag
        self.tensors = tensors
        self.made = made
        self.twins: list[_Twin] = []

    def results(self) -> list[TensorVariable]:
        return [self.result, *(twin.tensor for twin in self.twins)]

    def reconstruct(self, emitter: Emitter) -> None:
        emitter.load_callable(_tagged)
        _load_tag(emitter, self.tag)
        emitter.load_variable(self.result)
        emitter.load_constant(tuple(self.tensors))
        emitter.load_elements("tuple", self.tensors.values())
        emitter.load_constant(self.made)
        for twin in self.twins:
            _load_tag(emitter, twin.other)
            emitter.load_variable(twin.tensor)
        emitter.build("tuple", 2 * len(self.twins))
        emitter.call(6)


def _load_tag(emitter: Emitter, tag: Tag) -> None:
    if isinstance(tag, int):
        emitter.load_constant(tag)
    else:
        emitter.load_variable(tag)


def _chosen(
    predicate: torch.Tensor, when: bool, result: torch.Tensor, operand: torch.Tensor
) -> torch.Tensor:
    return result if bool(predicate) is when else operand


def _tagged(
    tag: torch.Tensor | int,
    result: torch.Tensor,
    numbers: tuple[int, ...],
    tensors: tuple[torch.Tensor, ...],
    made: tuple[int, ...],
    twins: tuple[Any, ...],  # a tag and a tensor, and so on
) -> torch.Tensor:
    number = int(tag)
    if number in numbers:
        return tensors[numbers.index(number)]
    if number in made:
        for other, twin in zip(twins[::2], twins[1::2], strict=True):
            if int(other) == number:
                return cast("torch.Tensor", twin)
    return result


def note_choice(evaluator: Frame, choice: Choice) -> None:
    """Note what decides whether a region's result is an operand, if that is a tensor of the caller's."""
    if not evaluator.graph.is_in_region and choice.operand.source is not None:
        evaluator.state.region_choices[storage_identity(choice.result.fake)] = choice


def choose_results(evaluator: Frame, outputs: Sequence[Variable]) -> list[ChoiceVariable]:
    """Let the code after the graph choose in the place of each output that may be another tensor."""
    visible = _visible(evaluator)
    views = _Views(evaluator)
    made = []
    for output in outputs:
        choice = (
            _choice(evaluator, output, visible, views)
            if isinstance(output, TensorVariable)
            else None
        )
        if choice is not None:
            output.loaded_instead = choice
            made.append(choice)
    _note_twins(evaluator, [choice for choice in made if isinstance(choice, _ByTag)], views)
    return made


def _choice(
    evaluator: Frame, result: TensorVariable, visible: set[int], views: _Views
) -> ChoiceVariable | None:
    """What to return in the place of ``result``, if that may be another tensor in a way that is known."""
    if _is_changed_in_place(evaluator, result):
        return None
    ways = [_by_predicate, _by_tag]  # the simpler one first, which does not know of what is made
    if evaluator.state.region_tags.made_too:
        ways.reverse()
    found = (way(evaluator, result, visible, views) for way in ways)
    return next((choice for choice in found if choice is not None), None)


def _is_changed_in_place(evaluator: Frame, result: TensorVariable) -> bool:
    """Whether a tensor with the memory of ``result`` changes its layout behind the region that gives it."""
    storage = storage_identity(result.fake)
    return any(
        is_change_of_layout(node) and storage in storages(node_values(node.all_input_nodes[:1]))
        for node in evaluator.graph.outermost.nodes
    )


def _by_predicate(
    evaluator: Frame, result: TensorVariable, visible: set[int], views: _Views
) -> _ByPredicate | None:
    choice = evaluator.state.region_choices.get(storage_identity(result.fake))
    if choice is None or choice.result is not result:
        return None
    # It can be nothing else than the operand or new, and is that in one way.
    aliases, operand = evaluator.state.aliases, choice.operand
    if not aliases.is_operand_or_new(result.fake, operand.fake, visible):
        return None
    return _ByPredicate(views.given(result), choice)


def _by_tag(
    evaluator: Frame, result: TensorVariable, visible: set[int], views: _Views
) -> _ByTag | None:
    tags = evaluator.state.region_tags
    view = view_of(result)
    base = None if view is None else tags.result_of(view.base)
    tag = None if base is None else tags.decided(base, visible)
    if tag is None:
        return None
    assert base is not None and view is not None
    tensors: dict[int, TensorVariable] = {}
    possible = tags.possible(tag)
    for number, known in possible.items():
        if known.is_made:
            continue
        tensor = views.known(known)
        if tensor is not None and view.steps:
            tensor = view.taken_of(evaluator, tensor)
        elif known.in_loop and not views.is_alone(known, result):
            return None
        if tensor is None:
            return None
        tensors[number] = tensor
    made = tuple(number for number, known in possible.items() if known.is_made)
    return _ByTag(views.given(result), base, tag, tags.exact(tag), tensors, made)


class _Views:
    """What the code after the graph may choose, each made once."""

    def __init__(self, evaluator: Frame) -> None:
        self._evaluator = evaluator
        self._given: dict[int, TensorVariable] = {}
        self._taken: dict[int, TensorVariable | None] = {}
        self._of_loops: dict[int, TensorVariable] = {}

    def given(self, result: TensorVariable) -> TensorVariable:
        """The graph's output that ``result`` is, when nothing is chosen."""
        if id(result) not in self._given:
            self._given[id(result)] = TensorVariable(result.node, result.fake, None)
        return self._given[id(result)]

    def known(self, known: Known) -> TensorVariable | None:
        """A known tensor, in the outermost graph; None if it can't be there."""
        variable = known.variable
        if known.view is None:
            return variable
        if id(variable) not in self._taken:
            base = known.view.base
            given = TensorVariable(base, base.meta["example_value"], None)
            found = known.view.taken_of(self._evaluator, given)
            same = found is not None and _is_alike(found.fake, variable.fake)
            self._taken[id(variable)] = found if same else None
        return self._taken[id(variable)]

    def is_alone(self, known: Known, result: TensorVariable) -> bool:
        """Whether no result but this one may be a view that a loop takes: another object each time."""
        return self._of_loops.setdefault(id(known.variable), result) is result


def _is_alike(left: torch.Tensor, right: torch.Tensor) -> bool:
    """Whether two tensors of one storage are the same part of it, with gradients or without."""
    return (
        left.shape == right.shape
        and left.stride() == right.stride()
        and left.storage_offset() == right.storage_offset()
        and left.dtype == right.dtype
        and left.requires_grad == right.requires_grad
    )


def _note_twins(evaluator: Frame, choices: Sequence[_ByTag], views: _Views) -> None:
    """Let each tensor that a branch has made be one object, the first of the results that are it."""
    bases = {id(choice.base): choice for choice in choices}
    for choice in choices:
        view = view_of(choice.result)
        assert view is not None
        for other in itertools.takewhile(lambda c: c.base is not choice.base, bases.values()):  # noqa: B023
            if set(other.made).isdisjoint(choice.made):
                continue
            tensor: TensorVariable | None = views.given(other.base)
            if view.steps:
                tensor = view.taken_of(evaluator, views.given(other.base))
            if tensor is None:  # the two are laid out in other ways
                choice.exact = frozenset()
            else:
                choice.twins.append(_Twin(other.tag, tensor))


def _visible(evaluator: Frame) -> set[int]:
    """The storages of tensors that the caller has whatever the frame returns."""
    outermost = evaluator.graph.outermost
    nodes = [*outermost.find_nodes(op="placeholder"), *outermost.find_nodes(op="get_attr")]
    return storages(node_values(nodes)) | evaluator.state.aliases.attributes


def ambiguous_result(evaluator: Frame, outputs: Sequence[Variable]) -> ProgramPoint | None:
    """The region by which a result that leaves the frame may be another tensor of the caller's.

    The caller's are the graph's inputs, attributes and ``outputs``.  None if there is no such result.
    """
    left = _storages(outputs)
    others = {*left, *_visible(evaluator)}
    aliases = evaluator.state.aliases
    regional = {storage for storage in others if aliases.is_result(storage)}
    for storage in left:
        for other in sorted((others if storage in regional else regional) - {storage}):
            place = aliases.uniting(storage, other)
            if place is not None:
                return place
    return None


def refused_alias(
    evaluator: Frame, outputs: Sequence[Variable], choices: Sequence[ChoiceVariable]
) -> ProgramPoint | None:
    """The region of which a result that may be another tensor of the caller's escapes unchosen.

    ``outputs`` are what the graph gives the code that makes ``choices``.
    """
    aliases, tags = evaluator.state.aliases, evaluator.state.region_tags
    chosen = {id(variable) for choice in choices for variable in choice.results()}
    left = [v for v in outputs if id(v) not in chosen and not tags.is_tag(v)]
    place = ambiguous_result(evaluator, left)
    if place is not None:
        return place
    pairs = [
        (one.storage, other.storage, one.exact & other.exact)
        for one, other in itertools.combinations(choices, 2)
    ]
    for storage in _storages(left):
        is_exact = not aliases.is_result(storage)
        pairs += [(storage, c.storage, c.exact if is_exact else frozenset()) for c in choices]
    found = (aliases.uniting(*pair) for pair in dict.fromkeys(pairs))
    return next((place for place in found if place is not None), None)


def _storages(outputs: Sequence[Variable]) -> list[int]:
    fakes = [getattr(output, "fake", None) for output in outputs]
    return list(dict.fromkeys(storage_identity(f) for f in fakes if isinstance(f, torch.Tensor)))
