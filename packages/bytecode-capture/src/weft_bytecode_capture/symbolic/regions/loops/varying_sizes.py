"""Carried tensors whose sizes differ by iteration: ``order = order[1:][mask]``, ``x = torch.cat([x, new])``.

Such a dim has one symbol in the body, for the size that an iteration begins with, and another after the loop.
Which dims vary, and which of them are alike, is found out: at first those whose sizes data decides.  A body
that leaves another size is evaluated again with a symbol for it, one for all dims that begin and end alike.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import sympy
import torch
import torch.fx

from ...._torch.symbols import (
    expression_of,
    is_known_contiguous,
    known_bounds,
    new_integer,
    size_hint,
    statically_known_true,
    unbacked_symbols,
)
from ...models.numbers.symbolic_integer import LoopCounter, SymbolicIntegerVariable
from ...models.torch.tensor import note_data_dependent_sizes
from ...protocol import Frame
from ..decisions import Dim, ProgramPoint, VaryingSize, refuse
from ..subgraph import Carried, fresh_like
from .assumed_test import assume_inside

_MAX_SIZE = 2**31 - 1
"""Of a dim, where arithmetic on sizes asks for a bound: sums of such sizes stay far below 64 bits."""


class VaryingSizes:
    """The dims of what the loop at ``place`` carries that vary; ``graph`` is its body's.

    Dims with one number have one size in every iteration.  A tensor is known by the local that it is in, and
    its number among the tensors there.
    """

    def __init__(self, evaluator: Frame, place: ProgramPoint, graph: torch.fx.Graph) -> None:
        self._evaluator = evaluator
        self._place = place
        self._graph = graph
        found = evaluator.state.cache.regions.varying(place)
        self._is_first = found is None  # attempt
        self._known: dict[Dim, VaryingSize] = dict(found or {})
        self._firsts: dict[Any, int] = {}  # numbers at the first attempt, by size
        self._inside: dict[int, torch.SymInt] = {}
        self._least: dict[int, int] = {}  # what each of these is at least, in every iteration
        self.nodes: dict[Any, torch.fx.Node] = {}  # that give the sizes in the body, by symbol
        self._ends: dict[Dim, tuple[Any, Any]] = {}  # what dims begin and end with
        self._growing: set[Dim] = set()  # those that end with no less than is known of that
        self._carried: dict[int, tuple[Carried, dict[int, int]]] = {}  # by identity
        self._starts: dict[int, torch.SymInt] = {}  # a size that a dim begins with, by number
        self._starts_by_hint: dict[int, Any] = {}

    def fake(self, key: tuple[str, int], start: torch.Tensor) -> torch.Tensor:
        """What stands in the body for the carried tensor ``start``."""
        if self._is_first and may_vary(start):
            for dim, size in enumerate(start.shape):
                if isinstance(size, torch.SymInt) and unbacked_symbols(size):
                    number = self._firsts.setdefault(expression_of(size), len(self._firsts))
                    self._known[(*key, dim)] = VaryingSize(number)
        numbers = self._numbers(key, start)
        if not numbers:
            return fresh_like(self._evaluator, start)
        for dim, number in numbers.items():
            if number not in self._inside:
                self._inside[number] = new_integer(self._evaluator.graph.fake_mode, 0, None)
            self._begin_alike((*key, dim), start.shape[dim])
            least = known_bounds(start.shape[dim])[0] or 0
            least = least if self._known[(*key, dim)].grows else 0
            self._least[number] = min(least, self._least.get(number, least))
        return self._resized(start, {d: self._inside[number] for d, number in numbers.items()})

    def _begin_alike(self, dim: Dim, size: int | torch.SymInt) -> None:
        """Guard that a ``size`` which ``dim`` begins with is that of the others of its number.

        Those that are one symbol are; others were so in the call at hand (:meth:`_start_size`).

        :raises RegionRefused: it is another, as where the loop is come to a second time.
        """
        number = self._known[dim].number
        if not isinstance(size, torch.SymInt) or unbacked_symbols(size):
            return
        first = self._starts.setdefault(number, size)
        if plain_size(first) != plain_size(size) and first != size:
            apart = VaryingSize(self._new_number(), self._known[dim].grows)
            found = {**self._known, dim: apart}
            raise refuse(self._evaluator, self._place, "sizes that vary", varying=found)

    def _start_size(self, size: int | torch.SymInt) -> Any:
        """A size that a dim begins with: one for all that are equal in this call, if no data decides them."""
        hint = size_hint(size) if isinstance(size, torch.SymInt) else None
        plain = plain_size(size)
        return plain if hint is None else self._starts_by_hint.setdefault(hint, plain)

    def vary(self, dim: Dim) -> None:
        """Let the size of ``dim`` vary, which no other one is like."""
        if dim not in self._known:
            self._known[dim] = VaryingSize(self._new_number())

    def _new_number(self) -> int:
        return max((size.number for size in self._known.values()), default=-1) + 1

    def _numbers(self, key: tuple[str, int], tensor: torch.Tensor) -> dict[int, int]:
        """The dims that vary, with their numbers."""
        every = ((d, self._known.get((*key, d))) for d in range(tensor.dim()))
        return {d: size.number for d, size in every if size is not None}

    def _resized(self, like: torch.Tensor, sizes: Mapping[int, torch.SymInt]) -> torch.Tensor:
        shape = [sizes.get(d, size) for d, size in enumerate(like.shape)]
        with self._evaluator.graph.fake_mode:
            return torch.empty(shape, dtype=like.dtype, device=like.device)

    def note(self, key: tuple[str, int], carried: Carried) -> None:
        """``carried`` is made, with what :meth:`fake` gives."""
        numbers = self._numbers(key, carried.start.fake)
        if not numbers:
            return
        self._carried[id(carried)] = carried, numbers
        for dim, number in numbers.items():
            size = self._inside[number]
            symbol = expression_of(size)
            if symbol not in self.nodes:
                node = self._graph.call_method("size", (carried.parameter.node, dim))
                node.meta["example_value"] = size
                self.nodes[symbol] = node
                counter = SymbolicIntegerVariable(node, size)
                self._evaluator.graph.counters[symbol] = LoopCounter(
                    counter, 0, _MAX_SIZE, is_size=True
                )

    def rely_on_bounds(self) -> None:
        """Let the body, whose graph is at hand, rely on it that sizes which grow never fall."""
        for number, least in self._least.items():
            if least > 0:
                self.rely_on(sympy.Ge(expression_of(self._inside[number]), least))

    def rely_on(self, relation: Any) -> None:
        """Let the body rely on a relation of its sizes."""
        assume_inside(self._evaluator, relation, self.nodes, self._graph)

    def varies(self, carried: Carried) -> bool:
        """Whether a dim of it does."""
        return id(carried) in self._carried

    def leave(self, key: tuple[str, int], carried: Carried, left: torch.Tensor) -> bool:
        """Whether ``left``, what an iteration leaves, is like the start but for sizes that vary: noted here.

        What has gradients, or lies otherwise than one element after another, may not: memory is made anew.
        """
        start = carried.start.fake
        alike = (start.dim(), start.dtype, start.device) == (left.dim(), left.dtype, left.device)
        if not alike or not may_vary(start) or not may_vary(left):
            return False
        for dim, (begun, ended) in enumerate(
            zip(carried.parameter.fake.shape, left.shape, strict=True)
        ):
            if plain_size(begun) == plain_size(ended):
                continue
            known = self._known.get((*key, dim))
            self._ends[(*key, dim)] = self._start_size(start.shape[dim]), plain_size(ended)
            least = known_bounds(start.shape[dim])[0] or 0
            least = least if known is None else self._least[known.number]
            if (known is None or known.grows) and statically_known_true(ended >= least):
                self._growing.add((*key, dim))
        return True

    def settle(self) -> None:
        """Go on with what is known of the sizes, where that is all.

        :raises RegionRefused: more dims vary, or some that had one number differ.
        """
        numbers: dict[Any, int] = {}
        found: dict[Dim, VaryingSize] = {}
        for dim, ends in self._ends.items():
            known = self._known.get(dim)
            key = (None, ends[0]) if known is None else (known.number, ends)
            number = numbers.setdefault(key, len(numbers))
            found[dim] = VaryingSize(number, dim in self._growing)
        is_split = len(numbers) != len({size.number for size in self._known.values()})
        falls = any(
            self._known[d].grows and not size.grows for d, size in found.items() if d in self._known
        )
        if found.keys() != self._known.keys() or is_split or falls:
            raise refuse(self._evaluator, self._place, "sizes that vary", varying=found)

    def following(self) -> dict[Any, Any]:
        """What the sizes are in the next iteration, by the symbols of this one's."""
        return {
            expression_of(self._inside[size.number]): self._ends[dim][1]
            for dim, size in self._known.items()
        }

    def started(self) -> dict[Any, Any]:
        """What the sizes are before the first iteration, by symbol."""
        found: dict[Any, Any] = {}
        for carried, numbers in self._carried.values():
            for dim, number in numbers.items():
                symbol = expression_of(self._inside[number])
                found[symbol] = plain_size(carried.start.fake.shape[dim])
        return found

    def begin_results(self) -> None:
        """Let parameters, which become the loop's results, have the sizes that there are after it."""
        mode, aliases = self._evaluator.graph.fake_mode, self._evaluator.state.aliases
        after: dict[int, torch.SymInt] = {}
        for carried, numbers in self._carried.values():
            for number in numbers.values():
                if number not in after:
                    after[number] = new_integer(mode, 0, None)
            inside = carried.parameter.fake
            outside = self._resized(inside, {d: after[number] for d, number in numbers.items()})
            aliases.note_resized(inside, outside)
            carried.parameter.fake = outside

    def end_results(self) -> None:
        """The loop's results have their nodes: say where their sizes are read."""
        for carried, _ in self._carried.values():
            note_data_dependent_sizes(self._evaluator, carried.parameter)


def may_vary(tensor: torch.Tensor) -> bool:
    """Whether a tensor may be carried though its sizes vary: its memory is made anew, as a dense one."""
    return not tensor.requires_grad and is_known_contiguous(tensor)


def plain_size(size: int | torch.SymInt) -> Any:
    """A size as an integer or an expression, which may be compared."""
    return expression_of(size) if isinstance(size, torch.SymInt) else size
