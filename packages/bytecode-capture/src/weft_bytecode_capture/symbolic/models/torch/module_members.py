"""The iterator over the members of a ModuleList or Sequential."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from ....frame.emitter import Emitter
from ....unsupported import Unsupported
from ...protocol import Evaluator
from ...variables.base import Variable
from ..iterators.builtin_iterators import SequenceIteratorVariable
from ..iterators.rebuilding import advanced_iterator


class MembersIteratorVariable(SequenceIteratorVariable):
    """``iter(container)``, which is an iterator over the values of a dict.

    ``has_changed`` says whether captured code has changed the container's members since.
    """

    def __init__(
        self, container: Variable, members: Sequence[Variable], has_changed: Callable[[], bool]
    ) -> None:
        super().__init__(container, members)
        self._has_changed = has_changed
        self._ended = False

    def python_type(self) -> type:
        return type(iter({}.values()))

    def next_or_none(self, evaluator: Evaluator) -> Variable | None:
        member = super().next_or_none(evaluator)
        self._ended |= member is None
        return member

    def reconstruct(self, emitter: Emitter) -> None:
        if self._has_changed():
            raise Unsupported("modules changed during iteration", repr(self.iterable))
        emitter.load_callable(_members_from)
        emitter.load_variable(self.iterable)
        emitter.load_constant(self.position + self._ended)
        emitter.call(2)


def _members_from(container: torch.nn.Module, position: int) -> Iterator[Any]:
    return advanced_iterator(container._modules.values(), position)
