"""Results with containers in them: their tensors, and which of their objects are one."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import torch


@dataclasses.dataclass
class Row:
    """An object of programs."""

    value: torch.Tensor
    count: int


def _parts(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return [part for item in value.items() for part in item]
    if isinstance(value, (list, tuple)):
        return list(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return list(vars(value).values())
    return []


def objects_in(value: Any) -> Iterator[Any]:
    """A value and everything in it, each as often as it is there."""
    yield value
    for part in _parts(value):
        yield from objects_in(part)


def tensors_in(value: Any) -> list[torch.Tensor]:
    return [part for part in objects_in(value) if isinstance(part, torch.Tensor)]


def identities(value: Any) -> list[Any]:
    """Of every object in a value: its type, or what it is if it can't change, and where it was met first.

    Equal for two values if one could not be told from the other but for the numbers in tensors.
    """
    first: dict[int, int] = {}
    storages: dict[int, int] = {}
    found: list[Any] = []
    for number, part in enumerate(objects_in(value)):
        if isinstance(part, torch.Tensor):
            place = storages.setdefault(part.untyped_storage()._cdata, number)
            found.append((first.setdefault(id(part), number), place))
        elif isinstance(part, (list, dict)) or dataclasses.is_dataclass(part):
            found.append((type(part), first.setdefault(id(part), number)))
        else:
            found.append(type(part) if isinstance(part, tuple) else part)
    return found
