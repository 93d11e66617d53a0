"""The generated source of a graph: one text to read, and the parts that compilers can work on at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class KernelSource:
    """A kernel: the comment above it, what a caller needs, and the function."""

    comment: str
    declaration: str
    definition: str


@dataclass(frozen=True)
class TranslationUnit:
    """The kernels of a graph and the host program that calls them, which needs ``headers`` of the runtime.

    ``tables``: how many characters of the host program are constants, over which compilers take no time.
    """

    name: str
    kernels: tuple[KernelSource, ...]
    host: str
    headers: tuple[str, ...] = ()
    tables: int = 0

    @property
    def length(self) -> int:
        """Characters that compilers take time over."""
        kernels = sum(len(k.declaration) + len(k.definition) for k in self.kernels)
        return kernels + len(self.host) - self.tables

    @property
    def _includes(self) -> str:
        return "".join(f'#include "{name}"\n' for name in ("weft_host.h", *self.headers))

    @property
    def whole(self) -> str:
        """Everything as one translation unit, whose kernels are static."""
        kernels = [k.comment + k.declaration + k.definition for k in self.kernels]
        return _unit(f"// {self.name}\n{self._includes}", [*kernels, self.host])

    def split(self, count: int) -> tuple[str, ...]:
        """``count`` translation units of about the same length: the host is in the first.

        Functions cross from one to another: they are to be compiled with ``WEFT_SEPARATE`` defined.
        """
        if count < 2:
            return (self.whole,)
        groups: list[list[KernelSource]] = [[] for _ in range(count)]
        lengths = [len(self.host) - self.tables, *[0] * (count - 1)]
        for kernel in sorted(self.kernels, key=lambda k: len(k.definition), reverse=True):
            shortest = lengths.index(min(lengths))
            groups[shortest].append(kernel)
            lengths[shortest] += len(kernel.definition)
        declarations = [k.declaration for k in self.kernels]
        first = [*declarations, *(k.definition for k in groups[0]), self.host]
        rest = [[k.declaration + k.definition for k in group] for group in groups[1:] if group]
        return (
            _unit(self._includes, first),
            *(_unit('#include "weft_kernel.h"\n', part) for part in rest),
        )


def _unit(head: str, parts: Sequence[str]) -> str:
    return "\n".join([head, "namespace weft {\n", *parts, "}  // namespace weft\n"])
