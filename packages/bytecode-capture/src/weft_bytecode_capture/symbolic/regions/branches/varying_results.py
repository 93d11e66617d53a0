"""Results of a conditional whose sizes differ by branch: ``if x.shape[0] % 2: x = torch.cat([x, last])``.

``cond`` gives results of one size.  So these come from two loops of one iteration at most: the first leaves
what one branch gives where the condition holds, the second what the other gives where it does not, both in
state whose sizes vary.  Sizes that are alike in either branch are one symbol after the conditional.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sympy
import torch
import torch.fx

from ...._torch.symbols import expression_of, known_bounds, new_integer
from ....unsupported import Unsupported
from ...models.torch.tensor import TensorVariable, note_data_dependent_sizes, tensor_of
from ...protocol import Frame
from ..loops.assumed_test import assume_inside
from ..loops.early_exit import flag, unset_like
from ..loops.varying_sizes import may_vary, plain_size
from ..loops.while_loop import OwnState, call_loop
from ..subgraph import Carried, Subgraph, fresh_like, parameter, regional

Pair = tuple[TensorVariable, TensorVariable]


def may_differ(left: torch.Tensor, right: torch.Tensor) -> bool:
    """Whether two branches may leave these tensors in one place, though sizes differ."""
    alike = (left.dim(), left.dtype, left.device) == (right.dim(), right.dtype, right.device)
    return alike and left.dim() > 0 and may_vary(left) and may_vary(right)


class VaryingResults:
    """What stands for the results of two branches; ``pairs`` are these in either branch."""

    def __init__(self, evaluator: Frame, pairs: Sequence[Pair]) -> None:
        self._evaluator = evaluator
        self._pairs = pairs
        self._dims = [self._varying(left.fake, right.fake) for left, right in pairs]

    def _varying(self, left: torch.Tensor, right: torch.Tensor) -> dict[int, tuple[Any, Any]]:
        """The dims whose sizes differ by branch, with both of them."""
        pairs = zip(map(plain_size, left.shape), map(plain_size, right.shape), strict=True)
        return {dim: ends for dim, ends in enumerate(pairs) if ends[0] != ends[1]}

    @property
    def vary(self) -> bool:
        """Whether there are any such sizes."""
        return any(self._dims)

    def fakes(self, likes: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """What stands for the results, which are like ``likes`` but for the sizes that vary.

        :raises Unsupported: one has gradients.
        """
        if any(like.requires_grad for like in likes):
            raise Unsupported("tensor that differs by branch", "beside results that have gradients")
        sizes: dict[Any, torch.SymInt] = {}
        return [self._fake(number, like, sizes) for number, like in enumerate(likes)]

    def _fake(
        self, number: int, like: torch.Tensor, sizes: dict[Any, torch.SymInt]
    ) -> torch.Tensor:
        """What is like ``like`` but for the sizes that vary: their symbols are in ``sizes``, or made."""
        dims = self._dims[number]
        if not dims:
            return like
        shape: list[int | torch.SymInt] = list(like.shape)
        for dim, ends in dims.items():
            if ends not in sizes:
                sizes[ends] = self._new_size(number, dim)
            shape[dim] = sizes[ends]
        with self._evaluator.graph.fake_mode:
            return torch.empty(shape, dtype=like.dtype, device=like.device)

    def _new_size(self, number: int, dim: int) -> torch.SymInt:
        left, right = (known_bounds(t.fake.shape[dim])[0] or 0 for t in self._pairs[number])
        return new_integer(self._evaluator.graph.fake_mode, max(0, min(left, right)), None)

    def emit(
        self,
        predicate: TensorVariable,
        branches: tuple[Subgraph, Subgraph],
        fakes: Sequence[torch.Tensor],
    ) -> tuple[list[torch.fx.Node], list[torch.fx.Node]]:
        """Append both loops; nodes for the results, which are like ``fakes``, and what the branches take."""
        evaluator = self._evaluator
        outer = evaluator.graph.graph
        state = [self._start(outer, number, fake) for number, fake in enumerate(fakes)]
        negated = tensor_of(evaluator, "logical_not", predicate)
        between: dict[Any, torch.SymInt] = {}
        middle = [self._fake(n, fresh_like(evaluator, f), between) for n, f in enumerate(fakes)]
        taken: dict[torch.fx.Node, None] = {}
        items: list[torch.fx.Node] = []
        for k, (holds, after) in enumerate(((predicate, middle), (negated, fakes))):
            left = [pair[k] for pair in self._pairs]
            items, used = self._once(branches[k], holds, state, left, after)
            taken.update(dict.fromkeys(used))
            state = [regional(node, fake) for node, fake in zip(items, after, strict=True)]
        return items, list(taken)

    def _start(self, outer: torch.fx.Graph, number: int, fake: torch.Tensor) -> TensorVariable:
        """What the first loop begins with: nothing of what varies, anything else."""
        evaluator, dims = self._evaluator, self._dims[number]
        like = self._pairs[number][0]
        if dims:
            shape = [0 if d in dims else size for d, size in enumerate(fake.shape)]
            with evaluator.graph.fake_mode:
                empty = torch.empty(shape, dtype=fake.dtype, device=fake.device)
            like = TensorVariable(like.node, empty, None)
        return unset_like(evaluator, outer, like)

    def _once(
        self,
        subgraph: Subgraph,
        holds: TensorVariable,
        state: Sequence[TensorVariable],
        left: Sequence[TensorVariable],
        after: Sequence[torch.Tensor],
    ) -> tuple[list[torch.fx.Node], list[torch.fx.Node]]:
        """Append the loop whose body is a branch: it runs where the condition ``holds``."""
        evaluator = self._evaluator
        with subgraph.active():
            following = flag(evaluator, False)
        assert isinstance(following, TensorVariable)
        test = parameter(subgraph.graph, "holds", holds.fake)
        inside: dict[Any, torch.SymInt] = {}
        kept = []
        for number, (start, result, fake) in enumerate(zip(state, left, after, strict=True)):
            stands = self._fake(number, fresh_like(evaluator, start.fake), inside)
            node = parameter(subgraph.graph, "result", stands)
            kept.append(Carried(start, regional(node, fake), result))
        own = OwnState(test, holds.node, following.node, holds.fake)
        items, used = call_loop(
            evaluator, subgraph, own, kept, lambda graph, copies: copies[0], is_entered=holds
        )
        return items[1:], used

    def note_sizes(
        self, results: Sequence[TensorVariable], branches: tuple[Subgraph, Subgraph]
    ) -> None:
        """The results have their nodes: say where their sizes are read, and what these are at least."""
        evaluator, graph = self._evaluator, self._evaluator.graph.graph
        found: tuple[dict[Any, Any], dict[Any, Any]] = ({}, {})
        for result, dims in zip(results, self._dims, strict=True):
            if dims:
                note_data_dependent_sizes(evaluator, result)
            for dim, ends in dims.items():
                size: Any = result.fake.shape[dim]
                symbol, least = expression_of(size), known_bounds(size)[0]
                if symbol not in found[0] and least:
                    node = graph.call_method("size", (result.node, dim))
                    node.meta["example_value"] = size
                    assume_inside(evaluator, sympy.Ge(symbol, least), {symbol: node}, graph)
                for sizes, end in zip(found, ends, strict=True):
                    sizes[symbol] = end
        loop = evaluator.rolled_loop
        if found[0] and loop is not None:
            loop.joins.append((branches[0].graph, branches[1].graph, found))
