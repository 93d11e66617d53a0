"""Transposed reads: a square tile is read along its rows and turned in registers.

A load that jumps along the vectorised loop but is contiguous along another outer loop is a transposed
read.  The kernel then walks that other loop ``lanes`` iterations at a time: for each such block it reads
the tile of ``lanes`` by ``lanes`` elements with whole vectors, transposes it, and the body takes vector
after vector of it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import sympy
import torch
from weft_loop_ir import Kernel, LoopVariable, print_index
from weft_loop_ir.bodies import Load

from weft_codegen_cpp.kernel.body_printer import Memory
from weft_codegen_cpp.kernel.expressions import INDEX, coefficient, memory_type, static_int


@dataclass(frozen=True)
class TilePlan:
    """``variable`` is walked in blocks; ``loads`` are the (buffer, index) pairs that become tiles."""

    variable: LoopVariable
    loads: tuple[tuple[str, sympy.Expr], ...]


def plan_tiles(
    kernel: Kernel, vector: sympy.Symbol | None, dtypes: dict[str, torch.dtype], lanes: int
) -> TilePlan | None:
    """The transposed reads of a pointwise kernel, None if it has none."""
    body = kernel.pointwise_body
    if vector is None or body is None or kernel.local_buffers or body.bound_symbols:
        return None
    candidates = {v.symbol: v for v in kernel.outer if v.symbol != vector and _pays(v, lanes)}
    found: dict[sympy.Symbol, list[tuple[str, sympy.Expr]]] = {s: [] for s in candidates}
    for instruction in body.instructions:
        if not isinstance(instruction, Load):
            continue
        buffer, index = instruction.buffer, instruction.index
        if buffer in kernel.writes or dtypes[buffer].itemsize > 4:
            continue
        if coefficient(index, vector) in (None, sympy.S.Zero, sympy.S.One):
            continue
        for symbol in candidates:
            if coefficient(index, symbol) == 1:
                found[symbol].append((buffer, index))
    counts = Counter({symbol: len(loads) for symbol, loads in found.items() if loads})
    if not counts:
        return None
    chosen = counts.most_common(1)[0][0]
    return TilePlan(candidates[chosen], tuple(dict.fromkeys(found[chosen])))


def _pays(variable: LoopVariable, lanes: int) -> bool:
    """Whether enough lines of a tile are used: reading half of them one by one costs as much as the tile."""
    size = static_int(variable.size)
    return size is None or 2 * size >= lanes


def tile_names(plan: TilePlan) -> dict[tuple[str, sympy.Expr], str]:
    """The C++ array of each tile."""
    return {load: f"tile{k}" for k, load in enumerate(plan.loads)}


def print_tile_reads(
    plan: TilePlan, vector: sympy.Symbol, memories: Mapping[str, Memory]
) -> list[str]:
    """Declare and fill the tiles of one block: rows are lanes of ``vector``."""
    symbol = plan.variable.symbol
    size = print_index(plan.variable.size, INDEX)
    lines = [f"const i64 {symbol.name}_count = min_index({size} - {symbol.name}_first, lanes);"]
    names = {vector: f"({vector.name}_first + row)", symbol: f"{symbol.name}_first"}
    for (buffer, index), tile in tile_names(plan).items():
        memory = memories[buffer]
        address = f"{memory.pointer} + {print_index(index, INDEX, names)}"
        lines.append(f"Vec<{memory_type(memory.dtype)}> {tile}[lanes];")
        lines.append(
            f"read_transposed({tile}, tag, {symbol.name}_count, "
            f"[&](int row) WEFT_LAMBDA {{ return {address}; }});"
        )
    return lines
