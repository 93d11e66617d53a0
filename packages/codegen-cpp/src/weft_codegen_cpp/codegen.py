"""The stages of this package in a row: print kernels, print the host program, compile, load."""

from __future__ import annotations

import copy
import hashlib
import os
import platform
import re
import shlex
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Self

import torch
import torch.fx
from weft_loop_ir import (
    Codegen,
    ExportedProgram,
    ExternCall,
    Kernel,
    LoweringOptions,
    ParallelKernels,
    Prerequisite,
    Schedule,
    ScheduleOptions,
    all_items,
    convolve_channels_last,
    slice_known_indices,
    use_library_attention,
)
from weft_loop_ir.disk_cache import has_entry, private_folder, write_entry

from weft_codegen_cpp.cache import (
    cache_directory,
    cached_library,
    discard_library,
    library_key,
    precompiled_headers,
)
from weft_codegen_cpp.cpu import cpu_flags, cpu_of
from weft_codegen_cpp.errors import CompilerNotFound
from weft_codegen_cpp.loader import load_library, make_entry
from weft_codegen_cpp.options import CppOptions
from weft_codegen_cpp.program import CppProgram, GeneratedProgram
from weft_codegen_cpp.toolchain import find_toolchain, idle_processes
from weft_codegen_cpp.translation_unit import TranslationUnit

if TYPE_CHECKING:
    from weft_codegen_cpp.host.host_printer import PrintedHost

LAID_DTYPES = (torch.float32, torch.bfloat16)
"""Dtypes of the convolutions that oneDNN runs."""

MAX_WEIGHT = 1.0
"""Elements of a weight for each one of the images, up to which turning it at each call pays.

Measured on one thread: a ResNet-50 takes 48.8 ms with 1, 50.4 with 0 (nothing is turned), 55.3 with 100.
"""

ATTENTION_DTYPES = (torch.float32,)
MIN_SCORES = 1 << 18
"""Scores of a head from which torch's attention is faster than matmuls and a softmax.

Measured on one thread in float32, ms for matmuls and a softmax, and for torch's: 12 heads of 256 x 256 2.1
and 2.2, 8 of 512 x 512 6.2 and 5.9, 4 of 1024 x 1024 13.0 and 11.2.  In bfloat16 torch's takes twice as long.
"""

INLINED_MATMULS = 1 << 15
"""Multiplications in a matmul up to which a kernel is faster than a call of torch.

Measured on one thread, µs for the call of a program: 8 x 8 by 8 x 8 1.04 and 0.45, 32 x 32 by 32 x 32 1.73
and 0.86, in bfloat16 12.5 and 1.3; a thousand of 3 x 3 by 3 x 3 27.9 and 4.0.
"""


LONG = 300_000
LONG_FLAGS = ("-O1",)
"""Characters from which a program is compiled with other flags: with fewer of the compiler's passes.

That halves its time, and costs 2 to 5 percent of a kernel's, 30 where a library is called lane by lane.  Only
straight-line code of thousands of operators, or of hundreds of different kernels, is so long.
"""

UNOPTIMIZED_FLAGS = ("-O0",)
"""From ``CppOptions.unoptimized_length`` on.

Processor time, gradients of pooling and of grid sampling: 7.5 and 18.4 s at -O2, 3.0 and 10.2 at -O1, 0.8 and
2.0 at -O0.
"""

VECTOR_INSTRUCTIONS = re.compile(
    r"(avx|amx|sse|ssse|fma|f16c|bmi|aes|vaes|sha|gfni|vpclmul|pclmul|movbe|popcnt|abm|adx|asimd|sve)"
)
"""Flags of a processor, as Linux names them, that say which instructions compilers may use."""

CHARACTERS_A_KERNEL = 2000
"""Of the source, on average."""


class CppCodegen(Codegen):
    """Compiles schedules for the CPU.

    ``compile`` raises :class:`CompilerNotFound` without a compiler, :class:`CompileError` when it fails, and
    :class:`weft_loop_ir.Unsupported` for a schedule that has no C++ form.
    """

    device_type = "cpu"
    schedule_options = ScheduleOptions(parallel_kernels=256, split_short_rows=64, reuse_rows=True)
    writes_inputs = True
    checks_first = True

    def __init__(self, options: CppOptions | None = None) -> None:
        self.options = options if options is not None else CppOptions()

    @property
    def lowering_options(self) -> LoweringOptions:
        """Made anew for each graph: some of them are torch's settings at that moment."""
        if self.options.eager_numerics:
            return LoweringOptions(eager_numerics=True)
        return LoweringOptions(inlined_matmuls=INLINED_MATMULS, wide_moments=True)

    def rewrite(self, graph_module: torch.fx.GraphModule) -> None:
        """Lay convolutions channels-last, in place, where turning their weights at each call pays."""
        if torch.backends.mkldnn.is_available():
            convolve_channels_last(
                graph_module.graph, LAID_DTYPES, min_channels=1, max_weight=MAX_WEIGHT
            )

    def rewrite_functional(
        self, graph_module: torch.fx.GraphModule, *, differentiated: bool
    ) -> None:
        """Have the library run attention where scores are many, and read known places as slices.

        Not where gradients are recorded: its backward computes scores again, in another order than forward
        did, and where they are about 1e5 weights differ by a percent.
        """
        count = slice_known_indices(graph_module.graph)
        if not differentiated:
            count += use_library_attention(
                graph_module.graph, ATTENTION_DTYPES, min_scores=MIN_SCORES, differentiated=False
            )
        if count:
            graph_module.recompile()

    def rewrite_frozen(
        self, graph_module: torch.fx.GraphModule, constants: Collection[torch.fx.Node]
    ) -> None:
        """Lay convolutions channels-last, in place: their weights are turned once, being constants."""
        if torch.backends.mkldnn.is_available():
            convolve_channels_last(graph_module.graph, LAID_DTYPES, min_channels=1)

    def compile(self, schedule: Schedule, constants: Mapping[str, torch.Tensor]) -> CppProgram:
        """Compile ``schedule``, with each CONSTANT buffer bound to its tensor in ``constants``."""
        return self.load(self._generate(schedule, constants))

    def begin(
        self, schedule: Schedule, constants: Mapping[str, torch.Tensor]
    ) -> Callable[[], CppProgram]:
        """As :meth:`compile`, but compilers run beside what the caller does until it asks for the program.

        It has to ask, so that none is left running.
        """
        generated = self._generate(schedule, constants)
        pool = ThreadPoolExecutor(1, "weft-compiler")
        try:
            library = pool.submit(self._library, generated.unit)
        except RuntimeError:  # no thread begins when the interpreter ends
            return lambda: self.load(generated)
        pool.shutdown(wait=False)
        return lambda: self._loaded(generated, library.result())

    def _generate(
        self, schedule: Schedule, constants: Mapping[str, torch.Tensor]
    ) -> GeneratedProgram:
        unit, host = self.print(schedule, constants)
        steps = list(all_items(schedule.steps))
        kernels = sum(isinstance(step, Kernel | ParallelKernels) for step in steps)
        kernels -= sum(len(s.kernels) for s in steps if isinstance(s, ParallelKernels))
        calls = sum(isinstance(step, ExternCall) for step in steps)
        failing = host.may_fail, host.early_errors, host.checks_first
        return GeneratedProgram(unit, host.objects, kernels, calls, *failing)

    def load(self, generated: GeneratedProgram) -> CppProgram:
        """The program that another one, maybe of another process, had as its ``generated``.

        A library that is no longer in the cache is compiled again.
        """
        return self._loaded(generated, self._library(generated.unit))

    def _library(self, unit: TranslationUnit) -> Path:
        """The library of ``unit``, compiled if the cache has none."""
        toolchain = find_toolchain(self.options)
        source = unit.whole
        processes = self.options.processes or _processes(unit)
        flags = (*toolchain.flags, *self._flags_of(unit.length))
        toolchain = replace(toolchain, flags=flags)
        folder = cache_directory(self.options.cache_directory, self.options.cache_limit)

        def build(path: Path, library: Path) -> None:
            headers = precompiled_headers(folder, toolchain)
            toolchain.compile(path, library, units=unit.split(processes), headers=headers)

        key = library_key(source, toolchain)
        keep = self.options.keep_sources
        return cached_library(folder, key, source, build, keep, toolchain.seconds)

    def _flags_of(self, length: int) -> tuple[str, ...]:
        """The flags that a program of ``length`` characters is compiled with besides the toolchain's."""
        unoptimized = self.options.unoptimized_length
        if unoptimized is None:
            unoptimized = int(os.environ.get("WEFT_UNOPTIMIZED_LENGTH") or sys.maxsize)
        if length >= unoptimized:
            return UNOPTIMIZED_FLAGS
        return LONG_FLAGS if length > LONG else ()

    def _loaded(self, generated: GeneratedProgram, library: Path) -> CppProgram:
        try:
            loaded = load_library(library)
        except (
            OSError,
            AttributeError,
            RuntimeError,
        ):  # no library of ours: as sealed as it may be
            discard_library(library)
            loaded = load_library(self._library(generated.unit))
        entry = make_entry(loaded, generated.objects)
        return CppProgram(entry, generated, generated.unit.whole, loaded)

    def with_cache_limit(self, limit: int) -> Self:
        """The same that keeps its cache below ``limit`` bytes."""
        limited = copy.copy(self)
        limited.options = replace(self.options, cache_limit=limit)
        return limited

    def with_eager_numerics(self) -> Self:
        """The same whose programs give eager's bits."""
        exact = copy.copy(self)
        exact.options = replace(self.options, eager_numerics=True)
        return exact

    def prerequisites(self) -> Sequence[Prerequisite]:
        """The compiler."""
        try:
            toolchain = find_toolchain(self.options)
        except CompilerNotFound as error:
            remedy = "install g++ or clang++, or name one in the environment variable CXX"
            return (Prerequisite("C++ compiler", str(error).partition(":")[0], remedy),)
        found = f"{shlex.join(toolchain.compiler)} ({toolchain.version})"
        vectors = f"{cpu_of(self.options).lanes} values of 32 bits"
        return Prerequisite("C++ compiler", found), Prerequisite("vectors", vectors)

    def environment(self) -> str:
        """What generated programs depend on besides their schedules: options, compiler, processor."""
        options = replace(self.options, cache_limit=None)
        key = library_key("", find_toolchain(self.options))
        return f"{options} {cpu_of(self.options)} {key}"

    def export(self, generated: GeneratedProgram) -> ExportedProgram:
        """The program without its source, and its library."""
        unit = TranslationUnit(generated.unit.name, (), "")
        code = self._library(generated.unit).read_bytes()
        return ExportedProgram(replace(generated, unit=unit), (code,), self.target())

    def load_exported(self, generated: GeneratedProgram, code: Sequence[bytes]) -> CppProgram:
        """The program whose library is ``code``; no compiler is looked for."""
        (content,) = code
        name = f"{hashlib.sha256(content).hexdigest()[:32]}.so"
        folder = private_folder("saved")
        if not has_entry(folder, name):
            write_entry(folder, name, content)
        library = load_library(folder / name)
        entry = make_entry(library, generated.objects)
        return CppProgram(entry, generated, "", library)

    def target(self) -> Mapping[str, Sequence[str]]:
        """The system, and what of the processor's instructions a program may use."""
        instructions = sorted(flag for flag in cpu_flags() if VECTOR_INSTRUCTIONS.match(flag))
        return {
            "system": [platform.system()],
            "machine": [platform.machine()],
            "instructions": instructions,
        }

    def print(
        self, schedule: Schedule, constants: Mapping[str, torch.Tensor]
    ) -> tuple[TranslationUnit, PrintedHost]:
        """The translation unit of ``schedule``, and its host program apart."""
        # at the first use: a process that loads its programs prints none
        from weft_codegen_cpp.printed_program import print_program

        return print_program(schedule, constants, self.options)


def _processes(unit: TranslationUnit) -> int:
    """How many compilers work on a program; two on a long one, since this process does nothing meanwhile."""
    processes = idle_processes(max(len(unit.kernels), unit.length // CHARACTERS_A_KERNEL))
    return max(processes, min(2, os.cpu_count() or 1)) if unit.length > LONG else processes
