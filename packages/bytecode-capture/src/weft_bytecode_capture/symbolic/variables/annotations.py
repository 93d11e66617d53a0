"""Type annotations as values: ``int | None``, ``list[int]``, ``Optional[int]``, ``Literal["a"]``.

They are constants, known by identity; ``isinstance`` takes unions apart.
"""
# ruff: noqa: UP006, UP045 - the old spellings have classes of their own

from __future__ import annotations

import typing

from ..builder import register_constant_types

_EXAMPLES = (
    int | None,
    list[int],
    typing.Union,
    typing.Optional[int],
    typing.List,
    typing.List[int],
    typing.Tuple,
    typing.Callable,
    typing.Callable[[int], int],
    typing.Literal,
    typing.Literal[1],
    typing.Annotated[int, ""],
    typing.TypeVar("_Example"),
    typing.ForwardRef("int"),
)

register_constant_types(*map(type, _EXAMPLES))
