"""The native check's operations, and what a predicate needs to know to be one of them."""

from __future__ import annotations

import enum
from typing import Any, Protocol

from .sources import Source

NativeStep = tuple[int, int, int, Any]
"""Operation, register read or -1, number, object; what number and object mean is in csrc/program.h."""


class Operation(enum.IntEnum):
    """The operations of csrc/program.h, in its order."""

    LOAD_ARGUMENT = 0
    LOAD_CLOSURE = enum.auto()
    LOAD_GLOBAL = enum.auto()
    LOAD_CONSTANT = enum.auto()
    LOAD_ATTRIBUTE = enum.auto()
    LOAD_INSTANCE_DICT = enum.auto()
    LOAD_ITEM = enum.auto()
    LOAD_DICT_KEY = enum.auto()
    LOAD_TYPE = enum.auto()
    LOAD_CELL = enum.auto()
    LOAD_PYTHON = enum.auto()
    CHECK_TYPE = enum.auto()
    CHECK_IDENTITY = enum.auto()
    CHECK_WEAK = enum.auto()
    CHECK_NOT_IDENTITY = enum.auto()
    CHECK_CONSTANT = enum.auto()
    CHECK_LENGTH = enum.auto()
    CHECK_KEYS = enum.auto()
    CHECK_CONTAINS = enum.auto()
    CHECK_ATTRIBUTE = enum.auto()
    CHECK_TENSOR = enum.auto()
    CHECK_GLOBAL_STATE = enum.auto()
    CHECK_SAME = enum.auto()
    CHECK_DISTINCT = enum.auto()
    CHECK_RELATION = enum.auto()
    CHECK_REAL = enum.auto()
    CHECK_FINITE = enum.auto()
    CHECK_OVERLAP = enum.auto()
    CHECK_SHARED = enum.auto()
    CHECK_SECTION = enum.auto()
    CHECK_PYTHON = enum.auto()


class Registers(Protocol):
    """Where a guard's values are when it is checked natively."""

    @property
    def own(self) -> int:
        """The register of the value at the guard's own source."""
        ...

    def of(self, source: Source) -> int:
        """That of the value at one of the predicate's :meth:`~Predicate.sources`."""
        ...

    def is_plain_tensor(self, source: Source) -> bool:
        """Whether it has been checked natively to hold a plain strided tensor."""
        ...
