"""Leaves that a program makes: ``nn.Parameter(t)``, and ``t.requires_grad_()`` of what the graph computes.

No graph makes a leaf.  One of a tensor that the graph has computed is made before the graph is called, as an
input of it, and the graph writes to it what the program computed: ``nn.Parameter(torch.zeros(n))``.  One of a
tensor from outside is made of that, and shares its memory: ``x.detach().requires_grad_()``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import sympy
import torch
import torch.fx
from weft_guards import Source, SymbolSource, expression_function

from ..._torch import storage_identity
from ..._torch.symbols import expression_of, unbacked_symbols
from ...sources import ComputedSource, ConvertedSource
from ...unsupported import BreakEarlier, Unsupported
from ..models.torch.tensor import TensorVariable
from ..protocol import Evaluator
from .marked_leaves import KIND
from .storages import leaves, node_values, storages, version_of


@dataclass(frozen=True)
class LeafKind:
    """What a leaf is, besides its memory; ``is_view``: to autograd a view of a tensor without gradients."""

    is_parameter: bool
    requires_grad: bool = True
    is_view: bool = False

    @property
    def __name__(self) -> str:
        return "Parameter" if self.is_parameter else "leaf"

    def __call__(self, tensor: torch.Tensor) -> torch.Tensor:
        """A leaf that shares a tensor's memory."""
        if self.is_parameter:
            return torch.nn.Parameter(tensor, self.requires_grad)
        own = tensor.view_as(tensor) if self.is_view else tensor.detach()
        return own.requires_grad_(self.requires_grad)


@dataclass(frozen=True, eq=False)
class _Layout:
    """Makes leaves whose elements are written later; called with numbers that sizes and strides depend on."""

    kind: LeafKind
    dtype: torch.dtype
    device: torch.device
    extents: tuple[tuple[Callable[..., int], ...], ...]

    def __call__(self, *numbers: int) -> torch.Tensor:
        sizes, strides = ([f(*numbers) for f in row] for row in self.extents)
        return self.kind(torch.empty_strided(sizes, strides, dtype=self.dtype, device=self.device))


@dataclass(frozen=True)
class _Shared:
    """A leaf in the memory of other tensors: none of them may be written to from now on.

    ``is_copy``: it has a copy in fact, which nobody sees as long as the others stay in the graph.
    """

    rows: tuple[tuple[torch.Tensor, int], ...]  # fakes, with their version counters
    is_copy: bool
    position: int  # of the root frame's instruction


class NewLeaves:
    """The leaves of one evaluation."""

    def __init__(self) -> None:
        self._nodes: set[torch.fx.Node] = set()
        self._shared: list[_Shared] = []
        self.made: list[TensorVariable] = []

    def __contains__(self, node: torch.fx.Node) -> bool:
        return node in self._nodes

    def become(self, evaluator: Evaluator, tensor: TensorVariable) -> bool:
        """Let a tensor of the graph be a leaf from now on; False where a graph cannot have it so."""
        leaf = self._leaf(evaluator, tensor, LeafKind(False, is_view=tensor.fake._is_view()))
        if leaf is None:
            return False
        evaluator.graph.views_of_leaves.note(evaluator, tensor.fake)
        tensor.node, tensor.fake = leaf.node, leaf.fake
        tensor.loaded_instead = leaf.loaded_instead
        self.made.append(tensor)
        return True

    def parameter(
        self, evaluator: Evaluator, tensor: TensorVariable, requires_grad: bool
    ) -> TensorVariable:
        """``nn.Parameter(tensor, requires_grad)``.

        :raises Unsupported: a graph cannot have it.
        """
        leaf = self._leaf(evaluator, tensor, LeafKind(True, requires_grad))
        if leaf is None:
            raise Unsupported("construction of an instance", f"Parameter({tensor!r})")
        if self._given(evaluator, tensor) is None:
            # The memory is the leaf's from now on.
            with evaluator.graph.modes.without_gradients():
                view = evaluator.graph.call_method(evaluator, "detach", leaf, [], {})
            assert isinstance(view, TensorVariable)
            tensor.node, tensor.fake = view.node, view.fake
        self.made.append(leaf)
        return leaf

    def give_memory(
        self, evaluator: Evaluator, leaf: TensorVariable, value: TensorVariable
    ) -> bool:
        """``leaf.data = value``: another leaf stands for it from now on; False as above."""
        fake = leaf.fake
        is_parameter = isinstance(fake, torch.nn.Parameter)
        kind = LeafKind(is_parameter, fake.requires_grad, fake._is_view())
        made = self._leaf(evaluator, value, kind)
        if made is None:
            return False
        leaf.node, leaf.fake = made.node, made.fake
        leaf.loaded_instead = made.loaded_instead
        return True

    def check(self, outputs: Iterable[torch.Tensor]) -> None:
        """
        :raises BreakEarlier: the graph writes to memory that a leaf shares with other tensors, or, where it
            has a copy, one of these is among ``outputs``.
        """
        left = storages(outputs)
        for leaf in self._shared:
            written = any(version_of(fake) != version for fake, version in leaf.rows)
            if written or (leaf.is_copy and storage_identity(leaf.rows[0][0]) in left):
                raise BreakEarlier(leaf.position, Unsupported(KIND, "others have its memory too"))

    def _leaf(
        self, evaluator: Evaluator, tensor: TensorVariable, kind: LeafKind
    ) -> TensorVariable | None:
        if not _can_be(evaluator, tensor):
            return None
        given = self._given(evaluator, tensor)
        if given is not None:
            return self._sharing(evaluator, given, replace(kind, is_view=False))
        source = _source(evaluator, tensor, kind)
        if source is None:
            return None
        fake = tensor.fake
        with evaluator.graph.fake_mode, evaluator.graph.shapes.rules():
            made = kind(
                torch.empty_strided(fake.shape, fake.stride(), dtype=fake.dtype, device=fake.device)
            )
        leaf = self._add(evaluator, source, made)
        with evaluator.graph.modes.without_gradients():
            # Eager's leaf counts the writes to the tensor that it was: none, if there were none.
            counts = version_of(fake) > 0
            written = leaf if counts else leaf.get_attribute(evaluator, "data")
            evaluator.graph.call_method(evaluator, "copy_", written, [tensor], {})
        if _has_others(evaluator, fake):
            self._share(evaluator, fake, made, is_copy=True)
        return leaf

    def _share(
        self, evaluator: Evaluator, fake: torch.Tensor, leaf: torch.Tensor, is_copy: bool
    ) -> None:
        root = evaluator.state.root
        assert root is not None
        rows = tuple((tensor, version_of(tensor)) for tensor in (fake, leaf))
        self._shared.append(_Shared(rows, is_copy, root.index))

    def _sharing(
        self, evaluator: Evaluator, given: tuple[Source, torch.Tensor], kind: LeafKind
    ) -> TensorVariable:
        source, known = given
        with evaluator.graph.fake_mode, torch.no_grad():
            made = kind(known)
        self._share(evaluator, known, made, is_copy=False)
        return self._add(evaluator, ConvertedSource(source, kind), made)

    def _add(self, evaluator: Evaluator, source: Source, fake: torch.Tensor) -> TensorVariable:
        node = evaluator.graph.add_placeholder(source, fake)
        self._nodes.add(node)
        leaf = TensorVariable(node, fake, None)
        leaf.loaded_instead = TensorVariable(node, fake, source)
        return leaf

    def _given(
        self, evaluator: Evaluator, tensor: TensorVariable
    ) -> tuple[Source, torch.Tensor] | None:
        """The tensor from outside that this one is, or is a detached form of; None if it is none."""
        node: Any = tensor.node
        if node.target in _DETACHED:
            node = node.args[0]
        return next(
            (
                (source, fake)
                for source, _, fake in evaluator.graph.given
                if fake is node.meta.get("example_value")
            ),
            None,
        )


_DETACHED = frozenset({"detach", torch.detach, torch.Tensor.detach})


def _can_be(evaluator: Evaluator, tensor: TensorVariable) -> bool:
    """Whether a graph can have a leaf in a tensor's place."""
    graph, fake = evaluator.graph, tensor.fake
    if graph.is_in_region or graph.transforms.active or type(tensor) is not TensorVariable:
        return False
    if tensor.is_regional or tensor.element is not None or fake.requires_grad:
        return False
    if not (fake.dtype.is_floating_point or fake.dtype.is_complex) or fake.is_inference():
        return False
    return not (fake.is_conj() or fake.is_neg() or torch.is_inference_mode_enabled())


def _has_others(evaluator: Evaluator, fake: torch.Tensor) -> bool:
    """Whether other tensors of the graph have the same memory."""
    values = node_values(evaluator.graph.outermost.nodes)
    others = (v for v in leaves(values) if isinstance(v, torch.Tensor) and v is not fake)
    return storage_identity(fake) in storages(others)


def _source(evaluator: Evaluator, tensor: TensorVariable, kind: LeafKind) -> Source | None:
    """Where code finds a new tensor of the same layout; None for a part of a tensor from outside."""
    fake, shapes = tensor.fake, evaluator.graph.shapes
    if storage_identity(fake) in storages(known for _, _, known in evaluator.graph.given):
        return None
    if any(unbacked_symbols(n) for n in (*fake.shape, *fake.stride())):
        return None
    rows = [[*map(_expression, row)] for row in (fake.shape, fake.stride())]
    symbols = sorted({s for row in rows for n in row for s in n.free_symbols}, key=str)
    read = [shapes.symbol_source(symbol) for symbol in symbols]
    known = tuple(source for source in read if isinstance(source, SymbolSource))
    if len(known) < len(read):
        return None
    extents = tuple(tuple(expression_function(n, symbols) for n in row) for row in rows)
    return ComputedSource(_Layout(kind, fake.dtype, fake.device, extents), known)


def _expression(number: int | torch.SymInt) -> Any:
    return expression_of(number) if isinstance(number, torch.SymInt) else sympy.Integer(number)
