"""A host program as text, with what its functions take and give, and the launches that it makes.

Launches of kernels that follow each other are one call of it.  Most arguments of a launch are a tensor's
address, or a place in the arena: one of few values and a number added to it.  The program hands those values
over once, and the launches are made of them without Python.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any

import sympy
from weft_loop_ir import Schedule, SymbolInput

from weft_codegen_triton.host.expressions import print_size
from weft_codegen_triton.kernel.aligned_sizes import product_of
from weft_codegen_triton.kernel.kernel_printer import PrintedKernel


@dataclass(frozen=True)
class PrintedHost:
    """``source`` is the module.  ``objects`` are globals that it needs besides its own imports.

    ``inputs`` and ``constants`` name the buffers (or symbols) of the arguments of its functions, in order.
    ``launches`` are the kernels that each of its functions ``launch0``, ``launch1``, ... launches.
    ``returned`` and ``donated`` name the buffers that ``compute`` gives and that results are made of, the
    latter private ones; ``head_steps`` and ``tail_steps`` count the steps of ``prepare`` and of ``finish``.
    ``may_not_fit``: indices may be too large.  ``aligned`` are the sizes, or products of them, that kernels
    would have multiples of 16; ``begins_aligned``: they are where the graph was made.  ``written`` are the
    positions of ``inputs`` that kernels write to.
    """

    source: str
    objects: Mapping[str, Any]
    launches: Mapping[str, tuple[Launch, ...]]
    inputs: tuple[str | SymbolInput, ...]
    constants: tuple[str, ...]
    returned: tuple[str, ...]
    donated: tuple[str, ...]
    head_steps: int
    tail_steps: int
    may_not_fit: bool
    aligned: tuple[sympy.Expr, ...]
    begins_aligned: bool
    written: tuple[int, ...]


@dataclass(frozen=True)
class KernelLaunch:
    """A launch of ``function``, for a kernel (or several merged) called ``name``."""

    function: str
    printed: PrintedKernel
    name: str
    origins: tuple[str, ...]


# -- launches ------------------------------------------------------------------------------------------


LaunchArgument = tuple[str, int]
"""A Python expression and an integer that is added to it; the expression may be empty, for 0."""

Term = tuple[int, int]
"""The position of a value that the program hands over, from 1 on, and what is added; position 0 is 0."""


ALIGNED = "_aligned"
"""What ends the name of a list of launches for sizes that are multiples of 16."""

IS_ALIGNED = "is_aligned"
"""The program's variable that says whether they are."""


@dataclass(frozen=True)
class Launch:
    """One of a list: the name of a function, and its columns, rows and arguments."""

    function: str
    terms: tuple[Term, ...]


@dataclass
class LaunchPrinter:
    """Collects launches, until something else comes between, and prints the call that makes them.

    ``lists`` are the launches of each call, by the name that the program calls.  Those of a function in
    ``varied`` are made by another name where the program's sizes are aligned.
    """

    emit: Callable[[str], None]
    varied: Set[str] = frozenset()
    lists: dict[str, tuple[Launch, ...]] = field(default_factory=dict)
    _pending: list[Launch] = field(default_factory=list)
    _values: dict[str, int] = field(default_factory=dict)
    _released: list[str] = field(default_factory=list)

    def add(self, function: str, operands: Sequence[LaunchArgument], comment: str) -> None:
        """Launch ``function`` with ``operands``: columns, rows (none where one is 0), and its arguments."""
        texts = [_text(operand) for operand in operands]
        self.emit(f"# {function}[{texts[0]}, {texts[1]}]({', '.join(texts[2:])}): {comment}")
        self._pending.append(Launch(function, tuple(self._term(o) for o in operands)))

    def _term(self, operand: LaunchArgument) -> Term:
        expression, offset = operand
        if not expression:
            return 0, offset
        return self._values.setdefault(expression, len(self._values) + 1), offset

    def release(self, variables: Sequence[str]) -> None:
        """Drop ``variables``, whose memory the launches collected so far may need."""
        self._released += variables
        if not self._pending:
            self.flush()

    def flush(self) -> None:
        """Print the call of what has been collected."""
        if self._pending:
            name = f"launch{len(self.lists)}"
            self.lists[name] = tuple(self._pending)
            called = name
            if any(launch.function in self.varied for launch in self._pending):
                called = f"({name}{ALIGNED} if {IS_ALIGNED} else {name})"
            self.emit(f"{called}({', '.join(['stream', *self._values])})")
            self._pending.clear()
            self._values.clear()
        if self._released:
            self.emit(f"del {', '.join(self._released)}")
            self._released.clear()


def _text(operand: LaunchArgument) -> str:
    expression, offset = operand
    if not expression:
        return str(offset)
    return f"{expression} + {offset}" if offset else expression


def aligning_products(kernels: Iterable[PrintedKernel], schedule: Schedule) -> Iterator[sympy.Expr]:
    """The products that kernels would have multiples of 16, of sizes that the call's inputs have."""
    given = {s.symbol for s in schedule.symbols if s.symbol.is_integer}
    for printed in kernels:
        for product in printed.aligning:
            if (known := product_of(product, given)) != 1:
                yield known


def blocks_of(count: sympy.Expr, block: int) -> LaunchArgument:
    """How many blocks of ``block`` cover ``count``."""
    if count.is_Integer:
        return "", -(-int(count) // block)
    return f"-(-{print_size(count)} // {block})", 0
