"""Random numbers as functions of a seed and a position, and operators that make tensors of them.

Philox 4x32 with ten rounds (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011): the key is
the seed, the counter the position.  Nothing is kept between calls, so who has the seeds can compute the same
numbers twice instead of keeping them, in backward say.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch

ROUNDS = 10
MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
INCREMENTS = (0x9E3779B9, 0xBB67AE85)
_LOW = 0xFFFFFFFF


def philox(seed: torch.Tensor, position: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The first two of the four words of 32 bits for each position, as int64 tensors from 0 to 2**32 - 1.

    ``seed`` and ``position`` are int64 tensors that broadcast.
    """
    seed, position = torch.broadcast_tensors(seed, position)
    counter = [position & _LOW, position >> 32 & _LOW, *[torch.zeros_like(position)] * 2]
    key = [seed & _LOW, seed >> 32 & _LOW]
    for _ in range(ROUNDS):
        first, second = counter[0] * MULTIPLIERS[0], counter[2] * MULTIPLIERS[1]  # wrap at 2**64
        counter = [
            (second >> 32 & _LOW) ^ counter[1] ^ key[0],
            second & _LOW,
            (first >> 32 & _LOW) ^ counter[3] ^ key[1],
            first & _LOW,
        ]
        key = [(word + step) & _LOW for word, step in zip(key, INCREMENTS, strict=True)]
    return counter[0], counter[1]


def uniform(seed: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
    """Multiples of 2**-24 from 0 to below 1, in float32."""
    return (philox(seed, position)[0] >> 8).float() * 2.0**-24


def normal(seed: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
    """Standard normal numbers in float32, by Box and Muller's method."""
    first, second = philox(seed, position)
    radius = torch.sqrt(-2.0 * torch.log((first.double() + 0.5) * 2.0**-32))
    return (radius * torch.cos(second.double() * (2.0 * math.pi * 2.0**-32))).float()


OPERATORS = torch.library.Library("weft", "DEF")
"""``uniform_at(seeds, which, size)`` and ``normal_at``: contiguous float32 tensors of ``size``.

``seeds`` is a vector of int64; its element ``which`` is the seed, an element's place in row-major order the
position.
"""


def _define(name: str, numbers: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> None:
    OPERATORS.define(
        f"{name}(Tensor seeds, int which, SymInt[] size) -> Tensor", tags=(torch.Tag.pointwise,)
    )

    def run(seeds: torch.Tensor, which: int, size: Sequence[int]) -> torch.Tensor:
        count = math.prod(size)
        return numbers(seeds[which], torch.arange(count, device=seeds.device)).view(size)

    def fake(seeds: torch.Tensor, which: int, size: Sequence[int]) -> torch.Tensor:
        return torch.empty(size, dtype=torch.float32, device=seeds.device)

    OPERATORS.impl(name, run, "CompositeExplicitAutograd")
    torch.library.register_fake(f"weft::{name}", fake, lib=OPERATORS)


_define("uniform_at", uniform)
_define("normal_at", normal)
