"""Cumulative sums, products and logarithms of sums of many rows as kernels.

A program goes along its rows with the total so far.  Rows may lie side by side in memory or element by
element.  Few long rows are left to the library, which has several programs for one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from sympy import Integer
from weft_loop_ir import Buffer, BufferView, ExternCall

from weft_codegen_triton.kernel.blocks import power_of_two
from weft_codegen_triton.kernel.dtypes import pointer_type, triton_dtype
from weft_codegen_triton.kernel.index_bounds import INT32_SAFE
from weft_codegen_triton.kernel.kernel_printer import PLACEHOLDER, Function, PrintedKernel

aten = torch.ops.aten

FEWEST_ROWS = 256
"""Rows that keep a GPU busy with a program each."""


@dataclass(frozen=True)
class Scan:
    """The number that changes nothing, the scan of a block, its total, and how two totals are joined.

    ``elements``: how many are scanned at once.  ``dtypes``: which it is for, empty for all; joins of many
    instructions take long to compile.
    """

    identity: str
    inside: str
    total: str
    join: str
    elements: int = 1024
    dtypes: tuple[torch.dtype, ...] = ()


SCANS = {
    aten.cumsum.default: Scan("0", "tl.cumsum({0}, 1)", "tl.sum({0}, 1)", "{0} + {1}"),
    aten.cumprod.default: Scan(
        "1", "tl.cumprod({0}, 1)", "math.reduce({0}, 1, weft.multiply)", "{0} * {1}"
    ),
    aten.logcumsumexp.default: Scan(
        'float("-inf")',
        "tl.associative_scan({0}, 1, weft.log_add_exp)",
        "math.reduce({0}, 1, weft.log_add_exp)",
        "weft.log_add_exp({0}, {1})",
        elements=256,
        dtypes=(torch.float32, torch.float16, torch.bfloat16),
    ),
}

TEMPLATE = f"""\
@triton.jit
def {PLACEHOLDER}(in0_ptr, out1_ptr, XBLOCK: tl.constexpr, RBLOCK: tl.constexpr):
    xindex = tl.program_id(0){{wide}} * XBLOCK + tl.arange(0, XBLOCK)[:, None]
    xmask = xindex < {{rows}}
    start = xindex // {{inner}} * {{span}} + xindex % {{inner}}
    total = tl.full([XBLOCK, 1], {{identity}}, {{held}})
    for roffset in range(0, {{length}}, RBLOCK):
        rindex = roffset + tl.arange(0, RBLOCK)[None, :]
        mask = xmask & (rindex < {{length}})
        places = start + rindex * {{inner}}
        element = tl.load(in0_ptr + places, mask, other={{identity}}).to({{held}})
        result = {{inside}}
        tl.store(out1_ptr + places, result.to({{stored}}), mask)
        total = ({{whole}}).to({{held}})
"""


def print_scan(call: ExternCall, buffers: Mapping[str, Buffer]) -> PrintedKernel | None:
    """The kernel of a call that is a scan; None where the call is to stay."""
    scan = SCANS.get(call.operator)
    shape = None if scan is None else _shape(call, buffers)
    if scan is None or shape is None:
        return None
    source, (target,) = call.arguments[0].buffer, call.outputs
    assert target is not None
    outer, length, inner = shape
    rows, dtype = outer * inner, buffers[target].layout.dtype
    if scan.dtypes and dtype not in scan.dtypes:
        return None
    held = triton_dtype(torch.float32 if dtype.itemsize == 2 and dtype.is_floating_point else dtype)
    columns = min(scan.elements if inner == 1 else 16, power_of_two(length))
    neighbours = rows if inner == 1 else min(64, inner)
    block = min(scan.elements // columns, power_of_two(neighbours))
    template = TEMPLATE.format(
        wide=".to(tl.int64)" if outer * length * inner >= INT32_SAFE else "",
        rows=rows,
        inner=inner,
        span=length * inner,
        length=length,
        identity=scan.identity,
        held=held,
        stored=triton_dtype(dtype),
        inside=scan.join.format("total", scan.inside.format("element")),
        whole=scan.join.format("total", scan.total.format("element") + "[:, None]"),
    )
    pointers = (
        ("in0_ptr", pointer_type(buffers[source].layout.dtype)),
        ("out1_ptr", pointer_type(dtype)),
    )
    constants = (("XBLOCK", block), ("RBLOCK", columns))
    function = Function(template, pointers, constants, 4, False, ("XBLOCK",), (), True)
    return PrintedKernel(function, (source, target), (), (), (), (Integer(rows),), (block,))


def _shape(call: ExternCall, buffers: Mapping[str, Buffer]) -> tuple[int, int, int] | None:
    """Rows outside of the scanned dimension, its length, and rows inside; None where no kernel does it."""
    view, dim = call.arguments[:2]
    (target,) = call.outputs
    if not isinstance(view, BufferView) or not isinstance(dim, int) or target is None:
        return None
    layout, result = buffers[view.buffer].layout, buffers[target].layout
    is_whole = view.offset == 0 and view.dtype == layout.dtype and view.size == layout.size
    if not is_whole or not view.size or not all(n.is_Integer and n > 0 for n in view.size):
        return None
    size = [int(n) for n in view.size]
    stride = tuple(math.prod(size[k + 1 :]) for k in range(len(size)))
    if not stride == tuple(view.stride) == tuple(layout.stride) == tuple(result.stride):
        return None
    if (layout.dtype != result.dtype and layout.dtype.is_floating_point) or result.dtype.is_complex:
        return None
    dim %= len(size)
    shape = math.prod(size[:dim]), size[dim], math.prod(size[dim + 1 :])
    return shape if shape[0] * shape[2] >= FEWEST_ROWS else None
