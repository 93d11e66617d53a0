"""Weights of few bits in the layouts that libraries store them in, and what plain PyTorch makes of them."""

from __future__ import annotations

from collections.abc import Callable

import torch

T = torch.Tensor
COLUMNS, GROUP = 12, 32


def grouped(q: T, s: T, z: T | float, dtype: torch.dtype) -> T:
    return ((q.reshape(COLUMNS, -1, GROUP).to(dtype) - z) * s).flatten(1)


def interleaved(w: T, s: T, z: T) -> T:
    return grouped(torch.stack((w & 15, w >> 4), -1), s, 8, s.dtype)


def high_first(w: T, s: T, z: T) -> T:
    return grouped(torch.stack((w >> 4, w & 15), -1), s, 8, s.dtype)


def halves(w: T, s: T, z: T) -> T:
    return grouped(torch.cat((w & 15, w >> 4), -1), s, 8, s.dtype)


def halves_of_columns(w: T, s: T, z: T) -> T:
    w = w.view(COLUMNS // 2, -1)
    return grouped(torch.cat((w & 15, w >> 4), 0), s, z, s.dtype)


def zero_points(w: T, s: T, z: T) -> T:
    return grouped(torch.stack((w & 15, w >> 4), -1), s, z, s.dtype)


def added_zero_points(w: T, s: T, z: T) -> T:
    q = torch.stack((w & 15, w >> 4), -1).reshape(COLUMNS, -1, GROUP)
    return (q.to(s.dtype) * s + z).flatten(1)


def with_signs(w: T, s: T, z: T) -> T:
    return grouped(torch.stack(((w << 4) >> 4, w >> 4), -1), s, 0, s.dtype)


def words(w: T, s: T, z: T) -> T:
    shifts = torch.arange(0, 32, 4, dtype=torch.int32, device=w.device)
    return grouped((w[:, :, None] >> shifts) & 15, s, 8, s.dtype)


def words_less_zero_points(w: T, s: T, z: T) -> T:
    shifts = torch.arange(0, 32, 4, dtype=torch.int32, device=w.device)
    q = ((w[:, :, None] >> shifts) & 15).view(COLUMNS, -1, GROUP)
    packed = z.to(torch.int32) | 48
    return ((q - (packed & 15)).to(s.dtype) * s).flatten(1)


def in_float32(w: T, s: T, z: T) -> T:
    q = torch.stack((w & 15, w >> 4), -1).reshape(COLUMNS, -1, GROUP)
    return ((q.float() - 8) * s.float()).to(s.dtype).flatten(1)


def of_2_bits(w: T, s: T, z: T) -> T:
    parts = torch.stack([(w >> shift) & 3 for shift in (0, 2, 4, 6)], -1)
    return grouped(parts, s[:, :1].expand(-1, 2 * s.shape[1], 1), 1, s.dtype)


def of_8_bits(w: T, s: T, z: T) -> T:
    return w.to(s.dtype) * s[:, 0]


def of_8_bits_in_groups(w: T, s: T, z: T) -> T:
    return grouped(w, s[:, ::2], 0, s.dtype)


def of_8_bits_less_zero_points(w: T, s: T, z: T) -> T:
    return grouped(w, s[:, ::2], 128 + z[:, ::2], s.dtype)


STORED = {
    words: torch.int32,
    words_less_zero_points: torch.int32,
    with_signs: torch.int8,
    of_8_bits: torch.int8,
    of_8_bits_in_groups: torch.int8,
}
LAYOUTS: tuple[Callable[[T, T, T], T], ...] = (
    interleaved,
    high_first,
    halves,
    halves_of_columns,
    zero_points,
    added_zero_points,
    with_signs,
    words,
    words_less_zero_points,
    in_float32,
    of_2_bits,
    of_8_bits,
    of_8_bits_in_groups,
    of_8_bits_less_zero_points,
)

OF_SEVERAL = (
    halves_of_columns,
    zero_points,
    added_zero_points,
    words_less_zero_points,
    in_float32,
    of_8_bits_less_zero_points,
)
"""Those that take more than a word and a scale, or numbers from different columns of it."""


def stored(made: Callable[[T, T, T], T], groups: int, dtype: torch.dtype) -> tuple[T, T, T]:
    """A weight as ``made`` reads it, its groups' scales and their zero points."""
    w = torch.randint(0, 256, (COLUMNS, groups * GROUP // 2), dtype=torch.uint8)
    s = (torch.rand(COLUMNS, groups, 1) / 64 + 0.01).to(dtype)
    return w.view(STORED.get(made, torch.uint8)), s, torch.randint(0, 16, s.shape).to(dtype)
