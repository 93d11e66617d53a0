"""Which form a contraction runs in: what was found for it on this device before, else what is fastest now.

A choice is kept on disk by problem (the forms' texts, which hold sizes, strides and dtypes) and device.
Where sizes vary a kernel of our own is chosen only if it is faster for small and for large ones.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from weft_loop_ir import Buffer, Kernel

from weft_codegen_triton.compilation.cache import put
from weft_codegen_triton.kernel.frame import RowLimits
from weft_codegen_triton.kernel.kernel_printer import Function, PrintedKernel
from weft_codegen_triton.products.find_products import ProductKernel
from weft_codegen_triton.products.precision import Precision
from weft_codegen_triton.products.print_product import print_product
from weft_codegen_triton.products.tiles import TileShape, tiles_for
from weft_codegen_triton.products.time_products import (
    MOST_BYTES,
    Clock,
    KernelLoader,
    Launcher,
    Problem,
    can_be_timed,
    milliseconds,
)

REPRESENTATIVE = (16, 512)
"""What sizes that vary are, all alike, while forms are timed."""
LEAST_GAIN = 0.97
"""The share of the library's time that a kernel takes at most, to be chosen."""


@dataclass(frozen=True)
class Choice:
    """A form by its position and its tile, or neither for the library.

    ``library_ms`` and ``chosen_ms`` are milliseconds for the largest sizes that were timed; ``failed``
    counts kernels that could not be compiled or loaded.
    """

    form: int | None
    tile: tuple[int, ...] | None
    library_ms: float
    chosen_ms: float
    failed: int


class ProductChooser:
    """Chooses forms by their times on ``device``; ``folder`` holds what is known."""

    def __init__(
        self,
        device: KernelLoader,
        folder: Path,
        buffers: Mapping[str, Buffer],
        limits: RowLimits,
        precision: Precision,
        clock: Clock = milliseconds,
    ) -> None:
        self._clock = clock
        self._device = device
        self._folder = folder
        self._buffers = buffers
        self._limits = limits
        self._precision = precision

    def prepare(self, problems: Iterable[Sequence[ProductKernel]]) -> None:
        """Compile what will be timed first, of all ``problems`` at once."""
        functions: dict[str, Function] = {}
        for forms in problems:
            if can_be_timed(forms) and _read(self._path(forms), forms) is None:
                for form in _in_tiles(forms[0]):
                    printed = print_product(form, self._buffers, self._precision)
                    functions[f"candidate{len(functions)}"] = printed.function
        if functions:
            self._device.load_each(functions)

    def __call__(self, forms: Sequence[ProductKernel]) -> ProductKernel | None:
        """The form of ``forms`` that is faster than the library's call; None if there is none."""
        if not can_be_timed(forms):
            return None
        path = self._path(forms)
        choice = _read(path, forms)
        if choice is None:
            choice = self._decide(forms)
            put(path, json.dumps(vars(choice)).encode())
        if choice.form is None or choice.tile is None:
            return None
        return replace(forms[choice.form], tile=TileShape(*choice.tile))

    def _path(self, forms: Sequence[ProductKernel]) -> Path:
        printed = [print_product(form, self._buffers, self._precision) for form in forms]
        text = [p.function.template for p in printed]
        text += [str(forms[0].call.operator), self._device.name, torch.__version__]
        text += [str(tile) for tile in tiles_for(forms[0].contraction)]
        return (
            self._folder / f"{hashlib.sha256(chr(10).join(text).encode()).hexdigest()[:32]}.product"
        )

    def _decide(self, forms: Sequence[ProductKernel]) -> Choice:
        """First the tile is chosen for the form that does most, then the form in that tile."""
        problem = self._problem(forms, REPRESENTATIVE[-1])
        library = Choice(None, None, 0.0, 0.0, 0)
        if problem.bytes > MOST_BYTES:
            return library
        around = [step for step in problem.steps if isinstance(step, Kernel)]
        others, _ = self._load(problem, around)
        if len(others) < len(around):
            return library
        apart = problem.milliseconds(None, others)
        tiles = _in_tiles(forms[0])
        times, failed = self._times(problem, tiles, others)
        if not times:
            return replace(library, library_ms=apart, chosen_ms=apart, failed=failed)
        tile = min(times, key=lambda position: times[position])
        shaped = [replace(form, tile=tiles[tile].tile) for form in forms]
        by_form = {0: times[tile]}
        found, more = self._times(problem, shaped[1:], others)
        by_form.update({position + 1: time for position, time in found.items()})
        best = min(by_form, key=lambda position: by_form[position])
        is_faster = by_form[best] < LEAST_GAIN * apart
        if is_faster and not forms[0].contraction.is_static:
            is_faster = self._is_faster(forms, shaped[best], REPRESENTATIVE[0])
        if not is_faster:
            return Choice(None, None, apart, apart, failed + more)
        numbers = tuple(vars(shaped[best].tile).values())
        return Choice(best, numbers, apart, by_form[best], failed + more)

    def _problem(self, forms: Sequence[ProductKernel], size: int) -> Problem:
        symbols = {s for b in self._buffers.values() for n in b.layout.size for s in n.free_symbols}
        sizes = dict.fromkeys(symbols, size)
        return Problem(forms, self._buffers, self._device, self._limits, sizes, self._clock)

    def _load(
        self, problem: Problem, kernels: Sequence[Kernel]
    ) -> tuple[dict[str, tuple[PrintedKernel, Launcher]], int]:
        """Those of ``kernels`` that can be run, by name, and how many can't."""
        printed = {kernel.name: problem.print(kernel, self._precision) for kernel in kernels}
        launchers = self._device.load_each({n: p.function for n, p in printed.items()})
        found = {n: (printed[n], made) for n, made in launchers.items() if made is not None}
        return found, len(printed) - len(found)

    def _times(
        self,
        problem: Problem,
        forms: Sequence[ProductKernel],
        others: Mapping[str, tuple[PrintedKernel, Launcher]],
    ) -> tuple[dict[int, float], int]:
        """Milliseconds of those of ``forms`` that can be run, by position, and how many can't."""
        named = [replace(form, name=f"form{position}") for position, form in enumerate(forms)]
        loaded, failed = self._load(problem, named)
        times = {
            position: problem.milliseconds(form, {**others, **loaded})
            for position, form in enumerate(named)
            if form.name in loaded
        }
        return times, failed

    def _is_faster(self, forms: Sequence[ProductKernel], form: ProductKernel, size: int) -> bool:
        """Whether ``form`` is faster than the library where sizes that vary are ``size``."""
        problem = self._problem(forms, size)
        others, _ = self._load(problem, [s for s in problem.steps if isinstance(s, Kernel)])
        times, _ = self._times(problem, [form], others)
        return bool(times) and times[0] < LEAST_GAIN * problem.milliseconds(None, others)


def _in_tiles(form: ProductKernel) -> list[ProductKernel]:
    return [replace(form, tile=tile) for tile in tiles_for(form.contraction)]


def _read(path: Path, forms: Sequence[ProductKernel]) -> Choice | None:
    """What was chosen before; None if nothing was, or it is not about ``forms``."""
    try:
        known = Choice(**json.loads(path.read_text()))
    except (OSError, ValueError, TypeError):
        return None
    if known.form is None or known.tile is None:
        return known
    tile = TileShape(*known.tile)
    is_valid = 0 <= known.form < len(forms) and tile in tiles_for(forms[known.form].contraction)
    return known if is_valid else None
