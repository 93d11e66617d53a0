"""A host program as text, with what its functions take and give, and the launches that it makes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import sympy
from weft_loop_ir import SymbolInput

from weft_codegen_triton.host.launches import Launch
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
