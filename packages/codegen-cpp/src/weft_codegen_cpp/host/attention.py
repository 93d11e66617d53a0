"""Attention as a kernel of the runtime (``weft_attention.h``), where it has one for the call's tensors.

torch's own multiplies with MKL, tile by tile: on a processor that Intel did not make it takes three times as
long in bfloat16 and twice in float32 (4 x 6 heads of 128 x 64 on one thread, µs: 1417 and 1255).
"""

from __future__ import annotations

import math

import sympy
import torch
from weft_loop_ir import BufferView, ExternCall

from weft_codegen_cpp.cpu import cpu_of
from weft_codegen_cpp.host.extern_calls import AttentionCall
from weft_codegen_cpp.host.parts import Pointer
from weft_codegen_cpp.host.statements import Failure, joined
from weft_codegen_cpp.host.writer import HostWriter
from weft_codegen_cpp.kernel.expressions import literal, memory_type

DTYPES = (torch.float32, torch.bfloat16)
MAX_DEPTH = 256
HEADER = "weft_attention.h"


def has_kernel(writer: HostWriter, native: AttentionCall) -> bool:
    """Whether the runtime attends to the tensors of ``native``."""
    query, key, value, mask = native.query, native.key, native.value, native.mask
    if writer.options.eager_numerics:
        return False
    depth, scale = query.size[-1], native.scale
    if native.dropout != 0 or not (scale is None or isinstance(scale, int | float)):
        return False
    lanes = cpu_of(writer.options).lanes
    if not depth.is_Integer or int(depth) % lanes or not 0 < depth <= MAX_DEPTH:
        return False
    for view in (query, key, value):
        is_row = len(view.size) == 4 and view.stride[-1] == 1 and view.size[-1] == depth
        if not is_row or view.dtype != query.dtype or view.dtype not in DTYPES:
            return False
    if (
        query.size[0] != key.size[0]
        or key.size[:3] != value.size[:3]
        or not _heads_of_one(query, key)
    ):
        return False
    return mask is None or _is_readable(mask, query.dtype)


def _heads_of_one(query: BufferView, key: BufferView) -> int:
    """How many heads of queries share one of keys, side by side; 0 where that is not known."""
    of_queries, of_keys = query.size[1], key.size[1]
    if of_queries == of_keys:
        return 1
    if not of_queries.is_Integer or not of_keys.is_Integer or of_queries % of_keys != 0:
        return 0
    return int(of_queries) // int(of_keys)


def _is_readable(mask: BufferView, dtype: torch.dtype) -> bool:
    """Whether a mask's rows lie side by side, or hold one number for all keys."""
    if len(mask.size) not in (2, 4) or mask.dtype not in (torch.float32, dtype):
        return False
    return bool(mask.size[-1] == 1 or mask.stride[-1] in (0, 1))


def print_attention(writer: HostWriter, call: ExternCall, native: AttentionCall) -> None:
    """Append the statements that allocate the results of ``call`` and compute them, if anything reads one."""
    if not any(call.outputs):
        return
    query, key, value, mask = native.query, native.key, native.value, native.mask
    out, log_sums = call.outputs
    for result in (out, log_sums):
        if result is not None:
            writer.allocate(result)
    depth = int(query.size[-1])
    chosen = 1 / math.sqrt(depth) if native.scale is None else float(native.scale)
    tensors = query, key, value, mask
    pointers = ["nullptr" if t is None else _pointer(writer, t) for t in tensors]
    pointers += ["nullptr" if r is None else str(Pointer(r)) for r in (out, log_sums)]
    strides = [_numbers(writer, t.stride[:3]) for t in (query, key, value)]
    strides += [
        _result_strides(writer, out),
        _numbers(writer, () if mask is None else _mask_strides(mask)),
        _result_strides(writer, log_sums),
    ]
    extents = [writer.index(n) for n in (*query.size[:3], key.size[2])]
    extents.append(str(_heads_of_one(query, key)))
    types = [memory_type(t.dtype) for t in (query, mask or query)]
    number = literal(chosen, torch.float32)
    batch, heads, queries, keys = (f"f64(call0.{n})" for n in ("batch", "heads", "queries", "keys"))
    each = 4 * depth / cpu_of(writer.options).operations_a_nanosecond
    cost = f"{each:.3f} * {batch} * {heads} * {queries} * {keys}"
    blocks = "((call0.queries + attention_queries - 1) / attention_queries)"
    fields = [*pointers, *extents, *strides, number, str(native.causal).lower(), "&c.error"]
    task = f'attend<{types[0]}, {types[1]}, {depth}>, &call0, units, {cost}, "attention"'
    writer.headers.add(HEADER)
    with writer.collected() as run:
        writer.emit(
            f"const Attention call0 = {{{', '.join(fields)}}};",
            f"const i64 units = call0.batch * call0.heads * {blocks};",
            f"run_task({{{task}}}, {writer.options.threads});",
        )
        writer.fail_if("c.error.status", Failure.KERNEL)
    writer.steps.append(joined("{", run, "}"))


def _pointer(writer: HostWriter, view: BufferView) -> str:
    return f"{Pointer(view.buffer)} + {writer.index(view.offset)}"


def _numbers(writer: HostWriter, expressions: tuple[sympy.Expr, ...]) -> str:
    return "{" + ", ".join(f"i64({writer.index(e)})" for e in expressions) + "}"


def _result_strides(writer: HostWriter, name: str | None) -> str:
    return (
        "{}" if name is None else _numbers(writer, writer.schedule.buffers[name].layout.stride[:3])
    )


def _mask_strides(mask: BufferView) -> tuple[sympy.Expr, ...]:
    """Of batch, head, query and key; 0 along what the mask does not tell apart."""
    strides = [
        sympy.S.Zero if size == 1 else step
        for size, step in zip(mask.size, mask.stride, strict=True)
    ]
    return (*[sympy.S.Zero] * (4 - len(strides)), *strides)
