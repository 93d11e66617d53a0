"""Symbols of the numbers that a graph computes: where the code after the graph reads them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..._torch.symbols import unbacked_symbols

MAX_NUMBER = 2**31 - 1
"""Of an integer that a graph reads from a tensor and computes with: products of two fit into 64 bits."""


@dataclass(frozen=True)
class DataSymbolSource:
    """``tensor``, a value of the graph, has the number as its only element, or as its size in ``dimension``.

    The tensor that an element is read from is a copy: the program may write to its own one later.
    """

    tensor: Any
    dimension: int | None = None


class DataSymbols:
    """The integers of one capture that depend on data; none of them has a value that is known."""

    def __init__(self) -> None:
        self._symbol_sources: dict[Any, DataSymbolSource] = {}
        self.bounded: set[Any] = set()  # symbols that the graph checks to be small

    def __bool__(self) -> bool:
        return bool(self._symbol_sources)

    def __contains__(self, symbol: Any) -> bool:
        return symbol in self._symbol_sources

    def __getitem__(self, symbol: Any) -> DataSymbolSource:
        return self._symbol_sources[symbol]

    def are_sizes(self) -> frozenset[Any]:
        """The symbols that are sizes of tensors: no memory has more elements than an integer counts."""
        return frozenset(
            s for s, source in self._symbol_sources.items() if source.dimension is not None
        )

    def add(self, number: Any, source: DataSymbolSource) -> None:
        """Note where a number is read; the first source of a symbol counts."""
        for symbol in unbacked_symbols(number):
            self._symbol_sources.setdefault(symbol, source)

    def know(self, *numbers: Any) -> bool:
        """Whether the code after the graph can read all that depends on data in ``numbers``."""
        return all(
            symbol in self._symbol_sources for n in numbers for symbol in unbacked_symbols(n)
        )
