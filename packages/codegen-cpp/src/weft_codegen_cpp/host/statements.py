"""The statements of a host program: their lines, how they may end a call, and what may stand for them."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass

from weft_codegen_cpp.kernel.expressions import indent
from weft_codegen_cpp.kernel.kernel_printer import PrintedKernel


class Failure(enum.Flag):
    """What may go wrong in a call: the values of ``Status`` in ``weft_kernel.h``, those of kernels as one."""

    NONE = 0
    PYTHON = enum.auto()
    KERNEL = enum.auto()
    OPERATOR = enum.auto()
    REQUIREMENT = enum.auto()
    TOO_LARGE = enum.auto()


STATUS = {
    Failure.PYTHON: "python_error",
    Failure.KERNEL: "Status(c.error.status)",
    Failure.OPERATOR: "operator_failed",
    Failure.REQUIREMENT: "requirement_failed",
    Failure.TOO_LARGE: "too_large",
}


@dataclass(frozen=True)
class PlaceRow:
    """A buffer that lies in the arena from a number of bytes on."""

    name: str
    offset: int


@dataclass(frozen=True)
class KernelRows:
    """Kernels that run together: the function of each with what it is given, buffers all."""

    kernels: tuple[tuple[PrintedKernel, tuple[str, ...]], ...]


@dataclass(frozen=True)
class AllocationRow:
    """A buffer whose memory is a new tensor: its slot and, as C++, its layout."""

    name: str
    slot: int
    layout: str


@dataclass(frozen=True)
class DropRow:
    """The tensor, or the Python object, in a slot, which is freed by ``drop_owned`` or ``drop_made``."""

    what: str
    slot: int


@dataclass(frozen=True)
class ViewRow:
    """A tensor, by its number, on the memory of a buffer from an offset in bytes on."""

    name: str
    number: int
    offset: int
    layout: str


@dataclass(frozen=True)
class FunctionRow:
    """Statements in a function of their own."""

    statements: tuple[str, ...]


Row = PlaceRow | KernelRows | AllocationRow | DropRow | ViewRow | FunctionRow


@dataclass(frozen=True)
class Statement:
    """``lines`` of C++; ``failures`` may end the call in them.

    ``rows`` of a table can stand for them: none for a comment, and None where there are no such rows.
    """

    lines: tuple[str, ...]
    failures: Failure = Failure.NONE
    rows: tuple[Row, ...] | None = None


def lines_of(statements: Sequence[Statement]) -> list[str]:
    return [line for statement in statements for line in statement.lines]


def failures_of(statements: Sequence[Statement]) -> Failure:
    """What may go wrong in any of ``statements``."""
    failures = Failure.NONE
    for statement in statements:
        failures |= statement.failures
    return failures


def joined(*parts: str | Sequence[Statement], rows: tuple[Row, ...] | None = None) -> Statement:
    """One statement of lines and of blocks, which are indented."""
    lines: list[str] = []
    failures = Failure.NONE
    for part in parts:
        if isinstance(part, str):
            lines.append(part)
        else:
            lines += indent(lines_of(part))
            failures |= failures_of(part)
    return Statement(tuple(lines), failures, rows)
