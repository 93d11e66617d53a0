"""Which operands a loop's results have gradients to, where its length or branches in its body decide that.

Such a loop carries flags: whether what a result is by now leads to an operand.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from weft_functionalize import reached_after

from .body import Flag
from .undefined_gradients import Defined, Reach, both, either

_Key = tuple[int, int]  # a carried value and an operand, by position


class DefinedAfterLoop:
    """What a loop's results lead to after any number of iterations.

    ``once``: by result and parameter of the body whether one iteration leads there.  ``carried`` are the
    positions of the carried values that have gradients in some iteration, ``operands`` of all that have them
    before the loop.  The loop runs ``least`` iterations or more, at most ``most`` if there is a bound.
    """

    def __init__(
        self,
        once: Mapping[_Key, bool | Flag],
        carried: Sequence[int],
        operands: Sequence[int],
        least: int,
        most: int | None,
    ) -> None:
        self.once = once
        self._carried = carried
        # By operand: the first that the body reaches by the same ways.
        first: dict[object, int] = {}
        self._like = {
            k: first.setdefault(k if k in carried else self._ways_to(k), k) for k in operands
        }
        self._operands = sorted(set(self._like.values()))
        self._known = self._after(least, most)
        varying = {k for (_, k), known in self._known.items() if known is None}
        in_any = self._after(0, most)
        # Those of one operand are computed from one another.
        self.flags = [key for key, known in in_any.items() if known is None and key[1] in varying]
        self._in_any = in_any

    def _ways_to(self, operand: int) -> tuple[bool | Flag, ...]:
        return tuple(self.once.get((j, operand), False) for j in self._carried)

    def _after(self, least: int, most: int | None) -> dict[_Key, bool | None]:
        """For each pair whether it is one after every number of iterations; None where that differs."""
        certain, possible = (
            reached_after(
                {
                    j: frozenset(
                        p
                        for (of, p), way in self.once.items()
                        if of == j and (way is True or not only_certain)
                    )
                    for j in self._carried
                },
                least,
                most,
            )
            for only_certain in (True, False)
        )
        found: dict[_Key, bool | None] = {}
        for j in self._carried:
            for k in self._operands:
                always = all(k in after[j] for after in certain)
                ever = any(k in after[j] for after in possible)
                found[j, k] = True if always else None if ever else False
        return found

    def begin(self, device: torch.device) -> list[torch.Tensor]:
        """The flags before the loop."""
        return [torch.full((), j == k, dtype=torch.bool, device=device) for j, k in self.flags]

    def follow(
        self, flags: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor]
    ) -> list[torch.Tensor]:
        """The flags after an iteration, of which the body's forward gave ``outputs``."""
        before: dict[_Key, Defined] = {k: bool(known) for k, known in self._in_any.items()}
        before.update(zip(self.flags, flags, strict=True))
        found = []
        for flag, (j, k) in zip(flags, self.flags, strict=True):
            total: Defined = False
            for (of, p), way in self.once.items():
                if of == j:
                    passed = outputs[way.index] if isinstance(way, Flag) else way
                    further = before.get((p, k), p == k)
                    total = either(total, both(passed, further))
            if isinstance(total, bool):
                total = torch.full_like(flag, total)
            found.append(total)
        return found

    def reach(self, flags: Sequence[torch.Tensor]) -> Reach:
        """By result and operand, from the flags after the loop."""
        after = dict(zip(self.flags, flags, strict=True))
        found: Reach = {}
        for operand, like in self._like.items():
            for j in self._carried:
                known = self._known[j, like]
                if known is not False:
                    found[j, operand] = after[j, like] if known is None else True
        return found
