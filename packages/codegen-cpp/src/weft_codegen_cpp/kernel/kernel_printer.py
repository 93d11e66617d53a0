"""Prints a kernel as one C++ function over a range of units of its outer loops."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import sympy
from weft_loop_ir import Buffer, Kernel, LoopVariable, SizeFloat, print_index

from weft_codegen_cpp.cpu import Cpu
from weft_codegen_cpp.kernel.body_printer import BodyPrinter
from weft_codegen_cpp.kernel.expressions import (
    INDEX,
    MAGNITUDE,
    doubles,
    indent,
    memory_type,
    size_of,
    static_int,
)
from weft_codegen_cpp.kernel.kernel_layout import KernelLayout
from weft_codegen_cpp.kernel.loop_nests import expected_sizes
from weft_codegen_cpp.kernel.loop_structure import stage_nanoseconds
from weft_codegen_cpp.kernel.unit_printer import UnitPrinter

STACK_BYTES = 32768  # a larger local buffer comes from malloc


@dataclass(frozen=True)
class PrintedKernel:
    """A kernel in C++ and what a caller passes: pointers in the order of ``buffers``, symbols, scalars.

    ``fields`` are of the structure that a caller fills, ``body`` the function's statements.  Both name
    buffers by position and don't name the kernel: kernels that do the same have the same texts and need to
    be compiled only once, under one ``name``.
    """

    name: str
    fields: tuple[str, ...]
    body: tuple[str, ...]
    buffers: tuple[str, ...]
    symbols: tuple[sympy.Symbol, ...]
    scalars: tuple[SizeFloat, ...]
    units: str  # C++ expression over the symbols: the number of units of work
    nanoseconds: str  # C++ expression: the estimated time of the whole kernel
    may_fail: bool  # an index is out of range, or memory for rows is not to be had
    has_symbols: bool  # its loops' sizes are known in a call
    large_functions: int  # that are inlined, or called if it is printed so
    values: Mapping[sympy.Symbol, int] = field(default_factory=dict)  # symbols that aren't sizes

    @property
    def declaration(self) -> str:
        """The structure that a caller fills, and the function's prototype."""
        lines = [f"struct {self.name}_call {{", *indent(self.fields), "};", f"{self._prototype};"]
        return "\n".join([*lines, ""])

    @property
    def definition(self) -> str:
        call = f"const auto& call = *(const {self.name}_call*)raw;"
        return "\n".join([f"{self._prototype} {{", *indent([call, *self.body]), "}", ""])

    @property
    def _prototype(self) -> str:
        return f"WEFT_KERNEL void {self.name}(const void* raw, i64 begin, i64 end)"


def print_kernel(
    kernel: Kernel,
    buffers: Mapping[str, Buffer],
    cpu: Cpu,
    *,
    shares_memory: bool = False,
    out_of_line: bool = False,
) -> PrintedKernel:
    """``kernel`` as the function ``kernel.name(const void*, i64 begin, i64 end)``.

    ``shares_memory`` says that a buffer that it writes lies in the memory of one that it reads,
    ``out_of_line`` that large functions are called, not inlined.
    """
    layout = KernelLayout(kernel, buffers, cpu, out_of_line)
    return _KernelPrinter(layout, shares_memory).print()


class _KernelPrinter:
    def __init__(self, layout: KernelLayout, shares_memory: bool) -> None:
        self.layout = layout
        self.kernel = layout.kernel
        self.tables = layout.tables
        self.plan = layout.plan
        self.lanes = layout.lanes
        self.qualifier = "const" if shares_memory else "__restrict const"
        self.units = UnitPrinter(layout)
        self.may_fail = layout.checks

    def print(self) -> PrintedKernel:
        layout = self.layout
        symbols = layout.symbols
        types = {p: memory_type(layout.buffers[n].layout.dtype) for n, p in layout.pointers.items()}
        fields = [f"{t}* {p};" for p, t in types.items()]
        fields += [f"i64 {s.name};" for s in symbols]
        fields += [f"f64 {name};" for name in layout.scalars.values()]
        fields.append("KernelError* error;")
        setup = [f"{t}* {self.qualifier} {p} = call.{p};" for p, t in types.items()]
        setup += [f"const i64 {s.name} = call.{s.name};" for s in symbols]
        setup += [f"const f64 {name} = call.{name};" for name in layout.scalars.values()]
        setup += [*self._local_storage(), *self._filled_tables()]
        body = (*setup, *self.units.loop())
        return PrintedKernel(
            self.kernel.name,
            tuple(fields),
            body,
            layout.used,
            symbols,
            tuple(layout.scalars),
            self.units.count(),
            self._cost(),
            self.may_fail,
            bool(symbols),
            len(layout.large_functions),
        )

    def _local_storage(self) -> list[str]:
        copies = self.lanes * self.layout.columns if self.plan.outer is not None else 1
        lines = []
        for local in self.kernel.local_buffers:
            type_name, row = memory_type(local.dtype), self.layout.rows[local.name]
            size = static_int(local.size)
            count = print_index(local.size * copies, INDEX)
            if size is not None and size * copies * local.dtype.itemsize <= STACK_BYTES:
                lines.append(f"alignas(64) {type_name} {row}_all[{max(size * copies, 1)}];")
            else:
                lines.append(f"Scratch<{type_name}> {row}_all({count}, call.error);")
                lines.append(f"if ({row}_all.failed) return;")
                self.may_fail = True
            if self.plan.outer is None:
                lines.append(f"{type_name}* const {row} = {row}_all;")
        return lines

    def _filled_tables(self) -> list[str]:
        """What is the same in every iteration of the other loops, computed before they begin."""
        if self.tables is None:
            return []
        name, size = self.tables.variable.symbol.name, size_of(self.tables.variable)
        printer = BodyPrinter(self.layout.scope(self.tables.variable.symbol, "tag"))
        self.tables.fill.replay(printer)
        storage = [
            f"alignas(64) {memory_type(dtype)} {table}[{size}];"
            for table, dtype in self.tables.dtypes.items()
        ]
        fill = [f"auto fill = [&](auto tag, const i64 {name}) WEFT_LAMBDA {{"]
        fill += [*indent(printer.lines), "};"]
        loop = [
            f"for (i64 {name} = 0; {name} < {size}; {name} += lanes) {{",
            f"  if ({name} + lanes <= {size}) fill(Full{{}}, {name});",
            f"  else fill(Part({size} - {name}), {name});",
            "}",
        ]
        return [*storage, "{", *indent([*fill, *loop]), "}"]

    def _cost(self) -> str:
        terms = []
        outer = [_magnitude(v) for v in self.kernel.outer]
        for stage in self.kernel.stages:
            lanes = self.lanes if self.plan.outer is not None or stage.inner else 1
            sizes = outer + [_magnitude(v) for v in stage.inner]
            sizes += [f"f64({s})" for s in expected_sizes(stage)]
            cost = f"{stage_nanoseconds(stage.body, lanes):.3f}"
            terms.append(" * ".join([cost, *sizes]))
        return " + ".join(terms)


def _magnitude(variable: LoopVariable) -> str:
    """The number of a loop's iterations as a double, which is right beyond an integer's range."""
    return print_index(variable.size, MAGNITUDE, doubles(variable.size))
