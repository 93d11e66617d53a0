"""Launches one after another, from the few values that their arguments are made of."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from weft_codegen_triton.runtime.cuda_graph import Compute

Launches = Sequence[tuple[Callable[..., None], Sequence[tuple[int, int]]]]
"""Launchers and their terms: columns, rows and arguments.

A term is the position of a value, counted from 1 (0 stands for the number 0), and what is added to it.
"""


class LaunchList:
    """Makes ``launches``."""

    def __init__(self, launches: Launches) -> None:
        self._launches = tuple(launches)

    def __call__(self, stream: int, *values: int) -> None:
        """Launch on ``stream`` what has a column and a row."""
        given = (0, *values)
        for launch, terms in self._launches:
            columns, rows, *arguments = [given[position] + more for position, more in terms]
            if columns and rows:
                launch(stream, columns, rows, *arguments)


# -- functions -----------------------------------------------------------------------------------------


Prepare = Callable[
    [list[Any], Sequence[torch.Tensor]], tuple[tuple[torch.Tensor, ...], tuple[torch.Tensor, ...]]
]
Finish = Callable[[list[Any], Sequence[torch.Tensor], int, Sequence[torch.Tensor]], tuple[Any, ...]]


class HostFunctions(NamedTuple):
    """What a host program's module defines; not all have a head to ``prepare``."""

    prepare: Prepare | None
    compute: Compute
    finish: Finish
