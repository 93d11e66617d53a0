"""Programs for files: the host program and compiled kernels as pieces of code, all else as plain data.

What a program is made of again needs neither Triton nor a compiler.  Functions are without their text, a hash
of it in its place, and so still tell kernels apart.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from weft_codegen_triton.compilation.binary import KernelBinary
from weft_codegen_triton.generated import GeneratedProgram, PrintedProgram
from weft_codegen_triton.kernel.kernel_printer import Function
from weft_codegen_triton.matmuls.precision import ByPrecision

Compiled = Mapping[int, tuple[Function, KernelBinary]]
"""Variants of a function by number, 0 for the function itself; only the chosen one where one is."""

CompileAll = Callable[[Mapping[str, Function]], Mapping[str, Compiled]]

Part = int
"""Which piece of a program's code something is."""


@dataclass(frozen=True)
class ExportedKernel:
    """A variant of a function: as a :class:`KernelBinary` whose ``cubin`` is that ``part`` of the code."""

    function: Function
    part: Part
    name: str
    shared_bytes: int
    warps: int
    scratch_parameters: int

    def compiled(self, code: Sequence[bytes]) -> tuple[Function, KernelBinary]:
        """The variant with its machine code."""
        return self.function, KernelBinary(
            self.name, code[self.part], self.shared_bytes, self.warps, self.scratch_parameters
        )


@dataclass(frozen=True, eq=False)
class PortableProgram:
    """``generated`` without what is run, which is in the code.

    ``sources`` are the text of its host program, and of the one for wide indices if there is one.
    ``kernels`` are the variants of each function, for sizes that are multiples of 16 and for others.
    """

    generated: GeneratedProgram
    sources: tuple[Part, ...]
    kernels: Mapping[Function, Mapping[int, ExportedKernel]]

    def with_sources(self, code: Sequence[bytes]) -> GeneratedProgram:
        """The program whose host has its source again."""
        texts = [code[part].decode() for part in self.sources]
        wide = self.generated.wide
        return replace(
            self.generated,
            printed=_with_source(self.generated.printed, texts[0]),
            wide=None if wide is None else _with_source(wide, texts[1]),
        )


def export_program(
    generated: GeneratedProgram | ByPrecision, compile_all: CompileAll
) -> tuple[PortableProgram | ByPrecision, tuple[bytes, ...]]:
    """``generated`` for a file, and the code beside it; ``compile_all`` gives the variants of functions."""
    parts: dict[bytes, Part] = {}

    def put(content: bytes) -> Part:
        return parts.setdefault(content, len(parts))

    if isinstance(generated, ByPrecision):
        programs = {p: _portable(g, compile_all, put) for p, g in generated.programs.items()}
        return replace(generated, programs=programs), tuple(parts)
    return _portable(generated, compile_all, put), tuple(parts)


def _portable(
    generated: GeneratedProgram, compile_all: CompileAll, put: Callable[[bytes], Part]
) -> PortableProgram:
    sources, kernels = [], {}
    printed = [generated.printed] if generated.wide is None else [generated.printed, generated.wide]
    for program in printed:
        sources.append(put(program.host.source.encode()))
        for is_aligned in (False, True) if program.host.aligned else (False,):
            functions = program.functions_for(is_aligned)
            for name, variants in compile_all(functions).items():
                kernels[_without_text(functions[name])] = {
                    number: ExportedKernel(
                        _without_text(function),
                        put(binary.cubin),
                        binary.name,
                        binary.shared_bytes,
                        binary.warps,
                        binary.scratch_parameters,
                    )
                    for number, (function, binary) in variants.items()
                }
    wide = generated.wide
    bare = replace(
        generated,
        printed=_without_texts(generated.printed),
        wide=None if wide is None else _without_texts(wide),
    )
    return PortableProgram(bare, tuple(sources), kernels)


def _without_text(function: Function) -> Function:
    digest = hashlib.sha256(function.template.encode()).hexdigest()
    return replace(function, template=f"# {digest[:32]}", alternatives=())


def _without_texts(printed: PrintedProgram) -> PrintedProgram:
    functions = {name: _without_text(f) for name, f in printed.functions.items()}
    return PrintedProgram(functions, replace(printed.host, source=""))


def _with_source(printed: PrintedProgram, source: str) -> PrintedProgram:
    return replace(printed, host=replace(printed.host, source=source))
