"""Leaves from outside that a program gives other memory (``p.data = value``) or lets require no gradient.

From there on another node stands for the tensor in the graph; the code behind the graph changes the tensor.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.fx

from ...frame.emitter import Emitter
from ...unsupported import BreakEarlier, Unsupported
from ..models.torch.tensor import TensorVariable
from ..protocol import Evaluator
from ..variables.base import Variable
from ..variables.constant import ConstantVariable
from .answers import guard_leaf
from .new_leaves import LeafKind
from .purity import possibly_written, writes
from .storages import storages, version_of


@dataclass
class _NewMemory:
    """The memory that a leaf was given, and its version then.

    ``is_new``: nothing outside has it, and no gradient is computed with it: nobody sees its versions but
    by the leaf, whose own count has ``writes`` more.
    """

    view: TensorVariable
    version: int
    position: int  # of the root frame's instruction
    is_new: bool
    writes: int = 0


class ChangedLeaf:
    """One such leaf; ``node`` and ``fake`` are what stood for it first."""

    def __init__(self, tensor: TensorVariable) -> None:
        self._tensor = tensor
        self._node, self._fake = tensor.node, tensor.fake
        self.memory: _NewMemory | None = None

    @property
    def required_gradients(self) -> bool:
        """Whether the tensor required gradients at first."""
        return self._fake.requires_grad

    def check_read(self) -> None:
        """
        :raises Unsupported: the tensor's gradient would be wanted, which no node in its place has.
        """
        if self.memory and self._tensor.fake.requires_grad and torch.is_grad_enabled():
            raise Unsupported(
                "attribute write", f"{self._tensor!r}.data, of which gradients follow"
            )

    def memory_of(self, tensor: TensorVariable) -> TensorVariable:
        """What lies in the tensor's memory, of which no gradient is wanted."""
        return tensor if self.memory is None else self.memory.view

    def stand_in(self, node: torch.fx.Node, fake: torch.Tensor, requires_grad: bool) -> None:
        """Let ``node`` stand for the tensor."""
        if self.memory is None and requires_grad == self._fake.requires_grad:
            self._tensor.node, self._tensor.fake = self._node, self._fake
            return
        kind = LeafKind(isinstance(self._fake, torch.nn.Parameter), requires_grad)
        self._tensor.node, self._tensor.fake = node, kind(fake)

    def emit(self, emitter: Emitter) -> None:
        requires_grad = self._tensor.fake.requires_grad
        if self.memory is not None:
            emitter.run_call(_give_memory, self._tensor, self.memory.view, self.memory.writes)
        if requires_grad != self._fake.requires_grad:
            emitter.run_call(_let_require, self._tensor, ConstantVariable(requires_grad))


class ChangedLeaves:
    """Those of one evaluation."""

    def __init__(self) -> None:
        self._memories: list[_NewMemory] = []

    @property
    def are_given_memory(self) -> bool:
        """Whether the code behind the graph gives any of them other memory."""
        return bool(self._memories)

    def give_memory(self, evaluator: Evaluator, tensor: TensorVariable, value: Variable) -> bool:
        """``tensor.data = value``; False where a graph cannot have it so."""
        if type(value) is not TensorVariable or type(tensor) is not TensorVariable:
            return False
        own, given = tensor.fake, value.fake
        if not all(getattr(own, k) == getattr(given, k) for k in ("dtype", "device", "layout")):
            return False
        if (own.shape, own.stride()) != (given.shape, given.stride()) or _is_lazy(given):
            return False
        root = evaluator.state.root
        assert root is not None
        if tensor.node in evaluator.graph.new_leaves:
            return evaluator.graph.new_leaves.give_memory(
                evaluator, tensor, _detached(evaluator, value)
            )
        if not _is_leaf_outside(evaluator, tensor):
            return False
        view = _detached(evaluator, value)
        memory = _NewMemory(view, version_of(view.fake), root.index, _is_new(evaluator, given))
        changed = self._changed(evaluator, tensor)
        changed.memory = memory
        changed.stand_in(view.node, view.fake, own.requires_grad)
        self._memories.append(memory)
        return True

    def let_require(self, evaluator: Evaluator, tensor: TensorVariable, wanted: Variable) -> bool:
        """``tensor.requires_grad_(wanted)`` of a leaf that did, or does no more; False as above."""
        if not wanted.is_constant() or type(wanted.as_constant()) is not bool:
            return False
        if not _is_leaf_outside(evaluator, tensor):
            return False
        requires_grad: bool = wanted.as_constant()
        if requires_grad and (tensor.changed is None or not tensor.changed.required_gradients):
            return False
        changed = self._changed(evaluator, tensor)
        view = _detached(evaluator, tensor)
        changed.stand_in(view.node, view.fake, requires_grad)
        return True

    def _changed(self, evaluator: Evaluator, tensor: TensorVariable) -> ChangedLeaf:
        if tensor.changed is None:
            for source, given, fake in evaluator.graph.given:
                if fake is tensor.fake:
                    guard_leaf(evaluator, source, given)
            tensor.changed = ChangedLeaf(tensor)
            evaluator.side_effects.record(tensor.changed.emit)
        return tensor.changed

    def check(self, graph: torch.fx.Graph) -> None:
        """Find how often each memory was written to, by the leaf alone.

        :raises BreakEarlier: by others too, or others see it: for each of them versions count apart.
        """
        written: list[torch.fx.Node] = []
        if self._memories:
            written = [n for node in graph.nodes if writes(node) for n in possibly_written(node)]
        for memory in self._memories:
            memory.writes = version_of(memory.view.fake) - memory.version
            is_by_leaf = memory.is_new and memory.writes == written.count(memory.view.node)
            if memory.writes and not is_by_leaf:
                error = Unsupported("attribute write", "data, of which the memory is written to")
                raise BreakEarlier(memory.position, error)


def _is_leaf_outside(evaluator: Evaluator, tensor: TensorVariable) -> bool:
    """Whether a tensor is a leaf from outside of which the graph may have another node."""
    graph = evaluator.graph
    if graph.is_in_region or graph.transforms.active or evaluator.state.overrides.modes:
        return False
    if (
        type(tensor) is not TensorVariable
        or tensor.source is None
        or torch.is_inference_mode_enabled()
    ):
        return False
    if tensor.is_regional or tensor.element is not None or tensor.loaded_instead is not None:
        return False
    given = evaluator.builder.value_of(tensor)
    return bool(given.is_leaf) and not given.is_inference() and not _is_lazy(tensor.fake)


def _is_new(evaluator: Evaluator, fake: torch.Tensor) -> bool:
    """Whether the graph has made a tensor's memory, and all that knows it requires no gradients."""
    outside = storages([known for _, _, known in evaluator.graph.given])
    return not (storages([fake]) & outside) and not fake.requires_grad


def _is_lazy(fake: torch.Tensor) -> bool:
    return fake.is_conj() or fake.is_neg() or fake.is_inference()


def _detached(evaluator: Evaluator, tensor: TensorVariable) -> TensorVariable:
    view = evaluator.graph.call_method(evaluator, "detach", tensor, [], {})
    assert isinstance(view, TensorVariable)
    return view


def _give_memory(tensor: torch.Tensor, value: torch.Tensor, writes: int) -> None:
    tensor.data = value
    for _ in range(writes):
        torch.autograd.graph.increment_version(tensor)


def _let_require(tensor: torch.Tensor, requires_grad: bool) -> None:
    tensor.requires_grad_(requires_grad)
