"""Random numbers that Python draws for a graph: by code, on entry of a frame, in the order of the program.

The graph takes them as tensors.  A frame that runs again as it was written, as its graph has raised, has to
draw them again: its generator is put back, unless something else has drawn from it since.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from weft_guards import Source

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


_NUMBER = GeneratorKind(lambda number: number, lambda number: number, lambda number, state: None)
"""A number of the call, which stands among the generators and is drawn as it is."""


@dataclass(frozen=True)
class _Draw:
    """One draw of a frame: from generator number ``generator``, given the tensors of those before.

    Without a generator it computes with these.
    """

    generator: int | None
    call: Callable[[Any, Sequence[torch.Tensor]], Any]


class Draws:
    """What a frame draws, from generators that are found at ``bases``."""

    def __init__(self) -> None:
        self.bases: list[Source] = []
        self._kinds: list[GeneratorKind] = []
        self._draws: list[_Draw] = []
        self._copies: list[Any] = []  # of the generators, ahead of them by what has been added
        self._examples: list[torch.Tensor] = []
        self._numbers: dict[int, int] = {}  # of generators, by id

    def __len__(self) -> int:
        return len(self._draws)

    def add(
        self,
        generator: Any,
        base: Source,
        kind: GeneratorKind,
        call: Callable[[Any, Sequence[torch.Tensor]], Any],
    ) -> torch.Tensor:
        """What the generator gives if it draws next, as a tensor; each call of the frame will draw it.

        ``call`` is given the generator and the tensors that were drawn before.  The generator itself draws
        nothing here.

        :raises TypeError: it gives neither a number nor an array.
        """
        number = self._numbers.get(id(generator))
        if number is None:
            number = self._numbers[id(generator)] = len(self.bases)
            self.bases.append(base)
            self._kinds.append(kind)
            self._copies.append(kind.copy(generator))
        example = as_tensor(call(self._copies[number], self._examples))
        self._draws.append(_Draw(number, call))
        self._examples.append(example)
        return example

    def take(self, number: int | float, base: Source) -> int:
        """Where a number of the call stands among what is drawn: the one at ``base``, ``number`` now."""
        self.bases.append(base)
        self._kinds.append(_NUMBER)
        self._copies.append(number)
        self._draws.append(_Draw(len(self.bases) - 1, lambda given, drawn: given))
        self._examples.append(as_tensor(number))
        return len(self._draws) - 1

    @property
    def examples(self) -> Sequence[torch.Tensor]:
        """What was drawn for the capture."""
        return tuple(self._examples)

    def compute(self, call: Callable[[Sequence[torch.Tensor]], Any]) -> torch.Tensor:
        """What ``call`` gives of the tensors that were drawn before; each call of the frame will ask it."""
        example = as_tensor(call(self._examples))
        self._draws.append(_Draw(None, lambda generator, drawn: call(drawn)))
        self._examples.append(example)
        return example

    def draw(self, *generators: Any) -> tuple[Any, ...]:
        """Draw all, as tensors; the last of the tuple can take them back."""
        pairs = zip(self._kinds, generators, strict=True)
        before = [kind.read(generator) for kind, generator in pairs]
        with without_overrides(), torch.inference_mode(False):
            tensors = self._drawn(generators)
        return (*tensors, Drawn(self, generators, before))

    def _drawn(self, generators: Sequence[Any]) -> list[torch.Tensor]:
        tensors: list[torch.Tensor] = []
        for draw in self._draws:
            generator = None if draw.generator is None else generators[draw.generator]
            tensors.append(as_tensor(draw.call(generator, tensors)))
        return tensors

    def take_back(self, generators: Sequence[Any], before: Sequence[Any]) -> None:
        """Put back to the states ``before`` those from which nothing but a draw has drawn since."""
        rows = list(zip(self._kinds, generators, before, strict=True))
        again = [kind.with_state(generator, state) for kind, generator, state in rows]
        self._drawn(again)
        for (kind, generator, state), repeated in zip(rows, again, strict=True):
            if kind.read(repeated) == kind.read(generator):
                kind.write(generator, state)


@dataclass(frozen=True)
class Drawn:
    """What was drawn from generators in the states ``before``."""

    draws: Draws
    generators: tuple[Any, ...]
    before: list[Any]

    def take_back(self) -> None:
        """Put each generator back if nothing else has drawn from it since."""
        self.draws.take_back(self.generators, self.before)


def as_tensor(value: Any) -> torch.Tensor:
    """A drawn number as a tensor of 64 bits, a NumPy array as one that has its memory, a tensor as it is.

    :raises TypeError: it is neither.
    """
    if type(value) is float:
        return torch.tensor(value, dtype=torch.float64, device="cpu")
    if type(value) is int:
        return torch.tensor(value, dtype=torch.int64, device="cpu")
    tensor = value if isinstance(value, torch.Tensor) else torch.from_numpy(value)
    if tensor.dim() == 0:
        raise TypeError(f"a {type(value).__name__} is no number of Python's")
    return tensor
