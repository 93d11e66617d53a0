"""Where each value that is saved for backward lies: in the context itself, or in autograd."""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Sequence
from typing import Any

Gather = Callable[[Sequence[Any]], tuple[Any, ...]]


def gather(positions: Sequence[int]) -> Gather:
    """What takes the values at ``positions``, in that order, in one native call: there are hundreds."""
    if len(positions) > 1:
        return operator.itemgetter(*positions)
    if not positions:
        return _nothing
    (only,) = positions
    return lambda values: (values[only],)


def _nothing(values: Sequence[Any]) -> tuple[Any, ...]:
    return ()


class SavedLayout:
    """How a call's saved values are taken apart in forward, and put together in backward.

    ``saved`` says of each whether it is one of the ``argument_count`` arguments, not a result, and its
    position there.  The context holds those at the positions ``apart``, autograd those ``in_autograd``, of
    which it gets aliases of the ``aliased``: they keep their memory if an argument gets another.
    """

    def __init__(
        self,
        saved: Sequence[tuple[bool, int]],
        argument_count: int,
        apart: Collection[int],
        aliased: Collection[int] = (),
    ) -> None:
        self.apart = tuple(sorted(apart))
        self.in_autograd = tuple(k for k in range(len(saved)) if k not in apart)
        places = [index + (0 if is_argument else argument_count) for is_argument, index in saved]
        self._aliased = tuple(n for n, k in enumerate(self.in_autograd) if k in aliased)
        self._take_apart = gather([places[k] for k in self.apart])
        self._take_others = gather([places[k] for k in self.in_autograd])
        order = {k: number for number, k in enumerate((*self.apart, *self.in_autograd))}
        self._together = gather([order[k] for k in range(len(saved))])

    def divided(
        self, arguments: Sequence[Any], results: Sequence[Any]
    ) -> tuple[dict[int, Any], tuple[Any, ...]]:
        """What the context holds, by position, and what autograd is to save."""
        every = (*arguments, *results)
        taken = zip(self.apart, self._take_apart(every), strict=True)
        others = self._take_others(every)
        if self._aliased:
            others = tuple(
                value.detach() if number in self._aliased else value
                for number, value in enumerate(others)
            )
        return dict(taken), others

    def together(self, apart: dict[int, Any], others: Sequence[Any]) -> list[Any]:
        """The saved values in their order, from what :meth:`divided` gave."""
        return [*self._together((*apart.values(), *others))]
