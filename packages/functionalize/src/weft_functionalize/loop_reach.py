"""What a loop's state has gradients to, by what one iteration's has."""

from __future__ import annotations

from collections.abc import Mapping

Reached = dict[int, frozenset[int]]


def reached_after(
    once: Mapping[int, frozenset[int]], least: int, most: int | None
) -> list[Reached]:
    """What each position of the state reaches, for every number of iterations from ``least`` to ``most``.

    ``once`` is what it reaches after one iteration: positions of the state before it, and others, which no
    iteration changes.  ``most`` is None where there is no bound.  Equal results are given once.
    """
    current: Reached = {k: frozenset({k}) for k in once}
    seen: list[Reached] = []
    while current not in seen and (most is None or len(seen) <= most):
        seen.append(current)
        current = {
            k: frozenset().union(*(current.get(p, frozenset({p})) for p in positions))
            for k, positions in once.items()
        }
    found = seen[least:]
    if current in seen:  # from here on they take turns
        turns = seen[seen.index(current) :]
        first = max(least, len(seen))
        last = first + len(turns) - 1
        found += [
            turns[(n - len(seen)) % len(turns)]
            for n in range(first, (last if most is None else min(last, most)) + 1)
        ]
    return [one for k, one in enumerate(found) if one not in found[:k]]
