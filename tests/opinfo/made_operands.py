"""Calls of an operator that are made up from its schema: some that eager takes, and those with bad operands.

The operator database has few operators that programs reach by decomposition, and none of their overloads.
"""

from __future__ import annotations

import random
import warnings
import zlib
from collections.abc import Iterator
from typing import Any

import torch
from torch._ops import OpOverload
from torch.utils._pytree import tree_map

from tests.opinfo.perturbed import Attempt, changed_arguments

_TRIES = 600
_MARGIN = 32
"""Elements before and after a tensor in its storage, which no call may read or write."""

_SHAPES = ((), (1,), (3,), (2, 3), (3, 3), (3, 4), (2, 3, 4), (2, 3, 4, 4), (1, 2, 4, 4, 4))
_DTYPES = (*[torch.float32] * 8, torch.int64, torch.bool, torch.float64)
_PLACES = ("index", "indices", "target", "offsets", "x1", "x2")
"""Names of tensors, or parts of them, that hold whole numbers."""

_NUMBERS = {
    "float": (0.0, 0.5, 1.0, 2.0, 1e-5),
    "number": (0, 1, 2, 0.5, -1.5),
    "str": ("none", "mean", "sum", "floor", "tanh", "amax", "prod", "constant"),
    "dtype": (torch.float32, torch.float64, torch.int64, torch.bool),
    "bool": (False, True),
}


def made_calls(operator: OpOverload, samples: int) -> Iterator[Attempt]:
    """``samples`` calls that eager takes, and each of them with each argument in turn changed in each way."""
    source = random.Random(zlib.crc32(str(operator).encode()))
    found = 0
    forms = set()
    for _ in range(_TRIES):
        if found >= samples:
            break
        arguments = _draw(operator, source)
        form = str(tree_map(_form, arguments))
        if form in forms or not _is_taken(operator, arguments):
            continue
        forms.add(form)
        yield Attempt(f"made {found}", arguments)
        for attempt in changed_arguments(arguments, f"made {found}"):
            yield Attempt(attempt.change, tree_map(_with_margin, attempt.arguments))
        found += 1


def _is_taken(operator: OpOverload, arguments: Any) -> bool:
    value, args, kwargs = tree_map(_clone, arguments)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            operator(value, *args, **kwargs)
        except Exception:
            return False
    return True


def _clone(leaf: Any) -> Any:
    return leaf.clone() if isinstance(leaf, torch.Tensor) else leaf


def _form(leaf: Any) -> Any:
    return (tuple(leaf.shape), leaf.dtype) if isinstance(leaf, torch.Tensor) else leaf


def _with_margin(leaf: Any) -> Any:
    """The tensor in the middle of a storage of other numbers."""
    if not isinstance(leaf, torch.Tensor) or not leaf.is_contiguous():
        return leaf
    wide = torch.full((leaf.numel() + 2 * _MARGIN,), 77, dtype=torch.float64).to(leaf.dtype)
    return wide[_MARGIN:-_MARGIN].view(leaf.shape).copy_(leaf)


def _draw(operator: OpOverload, source: random.Random) -> Any:
    shape, dtype = source.choice(_SHAPES), source.choice(_DTYPES)
    positional: list[Any] = []
    named: dict[str, Any] = {}
    for argument in operator._schema.arguments:
        if argument.has_default_value() and source.random() < 0.5:
            if not argument.kwarg_only:
                positional.append(argument.default_value)
            continue
        value = _value(str(argument.type), argument.name, shape, dtype, source)
        if argument.kwarg_only:
            named[argument.name] = value
        else:
            positional.append(value)
    if not positional:
        return None
    return positional[0], tuple(positional[1:]), named


def _value(
    kind: str, name: str, shape: tuple[int, ...], dtype: torch.dtype, source: random.Random
) -> Any:
    if kind.startswith("Optional["):
        if source.random() < 0.4:
            return None
        kind = kind.removeprefix("Optional[").removesuffix("]")
    if kind.startswith("List["):
        kind = kind.removeprefix("List[").removesuffix("]")
        count = source.choice((len(shape), len(shape), max(len(shape) - 2, 0), 1, 2, 4))
        return [_value(kind, name, shape, dtype, source) for _ in range(count)]
    if kind == "Tensor":
        return _tensor(name, shape, dtype, source)
    if kind == "int":
        return _integer(name, shape, source)
    return source.choice(_NUMBERS.get(kind, (None,)))


def _integer(name: str, shape: tuple[int, ...], source: random.Random) -> Any:
    if "dtype" in name:
        return source.choice((torch.float32, torch.int64))
    if name in ("layout", "memory_format", "reduction"):
        return {"reduction": source.choice((0, 1, 2)), "layout": torch.strided}.get(
            name, torch.contiguous_format
        )
    if name.startswith(("dim", "axis")):
        return source.randrange(max(len(shape), 1))
    return source.choice((0, 1, 1, 1, 2, 3, *shape))


def _tensor(
    name: str, shape: tuple[int, ...], dtype: torch.dtype, source: random.Random
) -> torch.Tensor:
    kind = source.random()
    if kind < 0.2:
        shape = shape[1:]
    elif kind < 0.3:
        shape = shape[1:2]
    elif kind < 0.35:
        shape = (2, 2)
    generator = torch.Generator().manual_seed(source.randrange(1000))
    if any(place in name for place in _PLACES) and source.random() < 0.9:
        most = min(shape, default=1) if source.random() < 0.5 else 2
        return torch.randint(0, most, shape, generator=generator)
    if "mask" in name or name == "condition":
        dtype = source.choice((torch.bool, dtype))
    values = torch.rand(shape, generator=generator, dtype=torch.float64)
    return (values * 2).to(dtype) if dtype in (torch.int64, torch.bool) else values.to(dtype)
