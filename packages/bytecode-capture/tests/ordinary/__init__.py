"""Ordinary Python programs with tensors in them: each a function, the calls to compare, and its state."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

X = torch.arange(4.0) - 1.5
Y = torch.linspace(-1.0, 1.0, 4)


@dataclass
class Program:
    """``state`` gives what the function changes beside its arguments, ``reset`` brings it back.

    ``one_graph``: nothing in it breaks the graph.
    """

    function: Callable[..., Any]
    calls: list[tuple[Any, ...]]
    one_graph: bool = True
    state: Callable[[], Any] = lambda: None
    reset: Callable[[], Any] = lambda: None


@dataclass
class Programs:
    """The programs of one topic, in the order in which they are written."""

    rows: list[Program] = field(default_factory=list)

    def __call__(
        self, *calls: tuple[Any, ...], **options: Any
    ) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        """Decorator: add a function with the arguments that it is called with."""

        def add(function: Callable[..., Any]) -> Callable[..., Any]:
            self.rows.append(Program(function, list(calls), **options))
            return function

        return add
