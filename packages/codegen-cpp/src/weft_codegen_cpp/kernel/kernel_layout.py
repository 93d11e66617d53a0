"""What all parts of a kernel's printer ask: its loops, which is vectorised, its buffers and their names."""

from __future__ import annotations

import itertools
from collections.abc import Mapping

import sympy
from weft_loop_ir import Buffer, Kernel, LoopVariable, Unsupported
from weft_loop_ir.bodies import Reduction, Scalar

from weft_codegen_cpp.cpu import Cpu
from weft_codegen_cpp.kernel.body_printer import Memory, Scope
from weft_codegen_cpp.kernel.expressions import COMPUTE_TYPE, coefficient, static_int
from weft_codegen_cpp.kernel.invariants import Tables, with_tables
from weft_codegen_cpp.kernel.kernel_forms import used_buffers
from weft_codegen_cpp.kernel.loop_structure import VectorPlan, calls_functions, plan_vectors
from weft_codegen_cpp.kernel.tiles import plan_tiles, tile_names

COLUMN_BLOCKS = 8  # vectors side by side in a column reduction: 128 floats with 16 lanes
SHORT_BODY = 12
"""Instructions up to which a strided reduction has so many too.

Measured, with 8 and 2 vectors: ``max_pool3d`` of symbolic sizes takes the compiler 9.4 and 2.6 s and runs 75
and 59 ms; columns of every other element, summed by a body of 3 instructions, 3.1 and 8.6 ms.
"""


class KernelLayout:
    """``used`` names the buffers that the function is given.

    ``pointers``, ``rows`` and ``scalars`` say what it calls them, its local buffers and its doubles.
    ``columns`` is how many vectors of the outer vectorised loop a reduction or a program's loop runs abreast.
    ``large_functions`` are those printed so far, called with ``out_of_line``, else inlined.
    """

    def __init__(
        self, kernel: Kernel, buffers: Mapping[str, Buffer], cpu: Cpu, out_of_line: bool = False
    ) -> None:
        self.buffers = buffers
        self.cpu = cpu
        self.lanes = cpu.lanes
        self.out_of_line = out_of_line
        self.large_functions: list[str] = []
        self.plan: VectorPlan = plan_vectors(kernel, cpu.lanes)
        self.kernel: Kernel
        self.tables: Tables | None
        self.kernel, self.tables = with_tables(kernel, self.plan.outer, cpu)
        self.bodies = kernel.bodies
        self.symbols = kernel.free_sizes
        self.numbers = itertools.count()
        instructions = list(kernel.walk())
        self.used = used_buffers(kernel)
        self.has_reduction = any(isinstance(i, Reduction) for i in instructions)
        dtypes = {name: buffers[name].layout.dtype for name in self.used}
        self.has_loop = any(s.is_sequential for s in kernel.stages)
        self.tiles = None
        if not (self.has_reduction or self.has_loop):
            self.tiles = plan_tiles(kernel, self.plan.outer, dtypes, cpu.lanes)
        self.columns = self._column_blocks()
        self.pointers = {name: f"p{k}" for k, name in enumerate(self.used)}
        self.rows = {b.name: f"row{k}" for k, b in enumerate(kernel.local_buffers)}
        numbers = dict.fromkeys(i.number for i in instructions if isinstance(i, Scalar))
        self.scalars = {number: f"scalar{k}" for k, number in enumerate(numbers)}
        self.checks = any(body.checks_positions for body in self.bodies)

    def _column_blocks(self) -> int:
        """How many vectors of the outer vectorised loop a reduction or a program's loop runs abreast."""
        if self.plan.outer is None or not (self.has_reduction or self.has_loop):
            return 1
        count = COLUMN_BLOCKS
        if (self.is_costly() and not self.has_loop) or self._is_long_and_strided():
            count = 2
        size = static_int(next(v.size for v in self.kernel.outer if v.symbol == self.plan.outer))
        while count > 1 and size is not None and size < count * self.lanes:
            count //= 2
        return count

    def _is_long_and_strided(self) -> bool:
        """Whether a body of many instructions reads what does not lie side by side for neighbouring lanes.

        As the windows of pooling do: of eight vectors abreast, each read lane by lane, the compiler has more
        values than it can place in a reasonable time, and the code is no faster.
        """
        outer = self.plan.outer
        for body in self.bodies:
            indices = [load.index for load in body.loads()]
            strided = (outer in i.free_symbols and coefficient(i, outer) != 1 for i in indices)
            if len(list(body.walk())) > SHORT_BODY and any(strided):
                return True
        return False

    def is_costly(self) -> bool:
        """Whether it computes functions that keep a core's units busy by themselves."""
        return any(map(calls_functions, self.kernel.bodies))

    def is_tiled(self, variable: LoopVariable) -> bool:
        """Whether the loop is walked in blocks, of which tiles are read."""
        return self.tiles is not None and variable.symbol == self.tiles.variable.symbol

    def memories(self, per_lane: bool) -> dict[str, Memory]:
        """The buffers by name; ``per_lane``: local ones have a copy for each lane.

        :raises Unsupported: a kernel has no values of a buffer's dtype, whose memory is bytes to the host.
        """
        memories = {
            name: Memory(pointer, self.buffers[name].layout.dtype)
            for name, pointer in self.pointers.items()
        }
        for local in self.kernel.local_buffers:
            memories[local.name] = Memory(self.rows[local.name], local.dtype, per_lane)
        if self.tables is not None:
            memories |= {name: Memory(name, dtype) for name, dtype in self.tables.dtypes.items()}
        for memory in memories.values():
            if memory.dtype not in COMPUTE_TYPE:
                raise Unsupported("no C++ form for values of a dtype", str(memory.dtype))
        return memories

    def scope(self, vector_symbol: sympy.Symbol | None, tag: str) -> Scope:
        """Where a body is printed whose lanes lie along ``vector_symbol``, those of ``tag`` active."""
        scope = Scope(
            self.memories(self.plan.outer is not None),
            {},
            vector_symbol,
            tag,
            self.numbers,
            scalars=self.scalars,
            out_of_line=self.out_of_line,
            large_functions=self.large_functions,
        )
        if self.tiles is not None:
            line = f"{self.tiles.variable.symbol.name}_line"
            scope.tiles = {load: f"{t}[{line}]" for load, t in tile_names(self.tiles).items()}
        return scope
