"""Random numbers that Python draws for a graph: by code, on entry of a frame, in the order of the program.

The graph takes them as tensors.  A frame that runs again as it was written, as its graph has raised, has to
draw them again: its generator is put back, unless something else has drawn from it since.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from ._torch import without_overrides


@dataclass(frozen=True)
class GeneratorKind:
    """How a class of generators is used: ``make`` gives another one, whose state ``write`` sets.

    States that ``read`` gives are equal if they are the same state.
    """

    make: Callable[[Any], Any]
    read: Callable[[Any], Any]
    write: Callable[[Any, Any], None]

    def copy(self, generator: Any) -> Any:
        """A generator that draws what ``generator`` would."""
        return self.with_state(generator, self.read(generator))

    def with_state(self, generator: Any, state: Any) -> Any:
        """A generator as ``generator``, in another state."""
        made = self.make(generator)
        self.write(made, state)
        return made


class Draws:
    """What a frame draws from one generator."""

    def __init__(self, kind: GeneratorKind, generator: Any) -> None:
        self.kind = kind
        self._calls: list[Callable[[Any], Any]] = []
        self._copy = kind.copy(generator)

    def __len__(self) -> int:
        return len(self._calls)

    def add(self, call: Callable[[Any], Any]) -> Any:
        """What ``call`` gives for the generator if it draws next; from now on each call of the frame does.

        The generator itself draws nothing here.
        """
        value = call(self._copy)
        self._calls.append(call)
        return value

    def draw(self, generator: Any) -> tuple[Any, ...]:
        """Draw all, as tensors; the last of the tuple can take them back."""
        before = self.kind.read(generator)
        with without_overrides(), torch.inference_mode(False):
            tensors = [as_tensor(call(generator)) for call in self._calls]
        return (*tensors, Drawn(self, generator, before))

    def repeat(self, generator: Any) -> None:
        """Draw as :meth:`draw` does."""
        for call in self._calls:
            call(generator)


class Drawn:
    """What was drawn from a generator, whose state was ``before``."""

    def __init__(self, draws: Draws, generator: Any, before: Any) -> None:
        self._draws = draws
        self._generator = generator
        self._before = before

    def take_back(self) -> None:
        """Put the generator back if nothing else has drawn from it since."""
        kind = self._draws.kind
        again = kind.with_state(self._generator, self._before)
        self._draws.repeat(again)
        if kind.read(again) == kind.read(self._generator):
            kind.write(self._generator, self._before)


def as_tensor(value: Any) -> torch.Tensor:
    """A drawn number as a tensor of 64 bits, a NumPy array as one that has its memory, a tensor as it is.

    :raises TypeError: it is neither.
    """
    if isinstance(value, float):
        return torch.tensor(value, dtype=torch.float64, device="cpu")
    if isinstance(value, int):
        return torch.tensor(value, dtype=torch.int64, device="cpu")
    return value if isinstance(value, torch.Tensor) else torch.from_numpy(value)
