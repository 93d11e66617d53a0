"""A captured graph that runs as programs of its pieces, one after another."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.fx

from .repeated_blocks import Piece

Node = torch.fx.Node
Run = Callable[..., Sequence[Any]]


@dataclass(frozen=True)
class _Step:
    """A program, where it finds what it takes and puts what it gives, and what nobody reads behind it."""

    run: Run
    takes: tuple[int, ...]
    gives: tuple[int, ...]
    frees: tuple[int, ...]


class _Failure(threading.local):
    """What this thread's last call that failed has left."""

    left_changes = False


class BlockProgram:
    """Takes and gives what the captured graph does.

    ``left_changes`` tells whether this thread's last call that raised has changed anything: a piece behind
    the first one comes after others, which may have drawn random numbers.
    """

    def __init__(
        self,
        graph_module: torch.fx.GraphModule,
        pieces: Sequence[Piece],
        runs: Sequence[Run],
    ) -> None:
        """``runs``: the programs of ``pieces``."""
        graph = graph_module.graph
        inputs = list(graph.find_nodes(op="placeholder"))
        attributes = list(graph.find_nodes(op="get_attr"))
        made = [node for piece in pieces for node in piece.gives]
        slots = {node: k for k, node in enumerate((*inputs, *attributes, *made))}
        (output,) = graph.find_nodes(op="output")
        returned = output.args[0]
        self._held = [getattr(graph_module, str(node.target)) for node in attributes]
        self._space = [None] * len(made)
        self._results = tuple(
            (slots[value], None) if isinstance(value, Node) else (None, value) for value in returned
        )
        kept = {slot for slot, _ in self._results if slot is not None}
        self._steps = tuple(_steps(pieces, runs, slots, kept))
        self._failure = _Failure()

    def __call__(self, *inputs: Any) -> tuple[Any, ...]:
        values = [*inputs, *self._held, *self._space]
        for step in self._steps:
            try:
                given = step.run(*[values[k] for k in step.takes])
            except BaseException as error:
                self._failure.left_changes = self._changes(step, error)
                raise
            for slot, value in zip(step.gives, given, strict=True):
                values[slot] = value
            del given
            for slot in step.frees:
                values[slot] = None
        return tuple([values[k] if k is not None else v for k, v in self._results])

    def _changes(self, step: _Step, error: BaseException) -> bool:
        """Whether something has changed before ``step`` raised ``error``."""
        if step is not self._steps[0]:
            return True
        tells: Callable[[], bool] | None = getattr(step.run, "left_changes", None)
        if tells is not None:
            return tells()
        return not isinstance(error, getattr(step.run, "early_errors", None) or ())

    def left_changes(self) -> bool:
        """Whether this thread's last call that raised has changed anything."""
        return self._failure.left_changes


def _steps(
    pieces: Sequence[Piece], runs: Sequence[Run], slots: dict[Node, int], kept: set[int]
) -> list[_Step]:
    last: dict[int, int] = {}  # by slot: the last piece that makes or takes it
    for number, piece in enumerate(pieces):
        last.update(dict.fromkeys((slots[node] for node in (*piece.takes, *piece.gives)), number))
    frees: list[list[int]] = [[] for _ in pieces]
    for slot, number in last.items():
        if slot not in kept:
            frees[number].append(slot)
    return [
        _Step(
            run,
            tuple(slots[node] for node in piece.takes),
            tuple(slots[node] for node in piece.gives),
            tuple(free),
        )
        for piece, run, free in zip(pieces, runs, frees, strict=True)
    ]
