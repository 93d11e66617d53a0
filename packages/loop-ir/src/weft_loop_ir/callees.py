"""Functions of libraries that weft calls of its own choice, and what operands they take.

An operand is known in three forms: while the program is made as a window on a buffer, with sizes and strides
that may vary; as a fake tensor; and in a call as a tensor with an address.  One rule decides for all of them.

A call is either not the one that eager's dispatch would make for those very operands (oneDNN where torch
would take its BLAS), or the dispatch took place while the program was made (attention, whose kernel torch
chooses by strides and offsets of the tensors that it is given then).  Eager's own operators (``mm``,
``convolution``) decide at each call, and take what eager's would: they are here with no rule.

CUDA's kernels of attention read 16 bytes at once, from each row's first byte on.  With torch 2.11, where
rows began elsewhere, the one in CUTLASS raised an error, flash attention made the context unusable, and
cuDNN's gave wrong numbers; torch's choice looks at none of that.  torch keeps the plans of cuDNN by the
layouts of query, key and value alone: a result of attention that lies otherwise than the one for which its
gradient's plan was made is read at the wrong places, without an error.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import sympy
import torch

from weft_loop_ir._torch import OpOverload, argument_names, named_arguments
from weft_loop_ir.ir import BufferView, ExternCall, Schedule

# -- operands -----------------------------------------------------------------------------------------


Extent: TypeAlias = "int | sympy.Expr"

EXACT = 1 << 20
"""The alignment of a base whose address is in the offset."""


@dataclass(frozen=True)
class OperandLayout:
    """How an operand lies: ``offset`` bytes behind an address that is a multiple of ``base`` bytes."""

    dtype: torch.dtype
    size: tuple[Extent, ...]
    stride: tuple[Extent, ...]
    offset: Extent = 0
    base: int = 1

    @staticmethod
    def of(tensor: torch.Tensor) -> OperandLayout:
        """A tensor with memory."""
        address = tensor.data_ptr()
        return OperandLayout(tensor.dtype, tuple(tensor.shape), tensor.stride(), address, EXACT)


@dataclass(frozen=True)
class OperandRule:
    """What a callee takes as one of its operands; what is not said may be anything.

    ``unit_stride``: elements of the last dimension lie side by side, even a single one.  ``is_matrix``: the
    elements of rows or of columns lie side by side, and neither share memory.  ``aligned``: the address, and
    the bytes from one row or matrix to the next, are multiples of it; a single row has such a step too.
    ``last_bytes``: so are the bytes of the last dimension; both are powers of two.  ``max_last``: its largest
    size.  ``has_columns``: it is not empty.
    """

    dtypes: frozenset[torch.dtype] | None = None
    ranks: frozenset[int] | None = None
    unit_stride: bool = False
    is_matrix: bool = False
    has_columns: bool = False
    aligned: int = 1
    last_bytes: int = 1
    max_last: int | None = None

    def takes(self, operand: OperandLayout) -> bool | None:
        """Whether the operand is such in every call; None where that is not known."""
        return _all(self.takes_value(operand), self.takes_layout(operand))

    def surely_takes(self, tensor: torch.Tensor) -> bool:
        """Whether numbers that are quickly read say so; :meth:`takes` decides where they don't."""
        *steps, last = tensor.stride() or (1,)
        size, width = tensor.shape, tensor.itemsize
        if self.dtypes is not None and tensor.dtype not in self.dtypes:
            return False
        if self.ranks is not None and len(size) not in self.ranks:
            return False
        if self.is_matrix or self.has_columns or (self.unit_stride and last != 1):
            return False
        if self.max_last is not None and size[-1] > self.max_last:
            return False
        if self.last_bytes > 1 and size[-1] * width % self.last_bytes:
            return False
        if self.aligned == 1:
            return True
        bits = tensor.data_ptr()
        for step in steps:
            bits |= step * width
        return bits % self.aligned == 0

    def takes_value(self, operand: OperandLayout) -> bool | None:
        """The same of what a copy of the operand has in common with it."""
        answers: list[bool | None] = [
            self.dtypes is None or operand.dtype in self.dtypes,
            self.ranks is None or len(operand.size) in self.ranks,
        ]
        if operand.size:
            last = operand.size[-1]
            if self.has_columns:
                answers.append(_is_positive(last))
            answers.append(is_multiple(last * operand.dtype.itemsize, self.last_bytes))
            if self.max_last is not None:
                answers.append(_at_most(last, self.max_last))
        return _all(*answers)

    def takes_layout(self, operand: OperandLayout) -> bool | None:
        """The same of where its elements lie."""
        answers: list[bool | None] = []
        if self.unit_stride:
            answers.append(_is(operand.stride[-1], 1) if operand.stride else True)
        if self.is_matrix:
            answers.append(_is_dense_matrix(operand))
        if self.aligned > 1:
            width = operand.dtype.itemsize
            answers.append(self._takes_address(operand))
            steps = list(zip(operand.size, operand.stride, strict=True))[:-1]
            answers += [
                is_multiple(step * width, self.aligned)
                for dim, (extent, step) in enumerate(steps, 1)
                if dim == len(steps) or extent != 1
            ]
        return _all(*answers)

    def _takes_address(self, operand: OperandLayout) -> bool | None:
        if operand.base % self.aligned:
            return None
        return is_multiple(operand.offset, self.aligned)


ANY = OperandRule()


@dataclass(frozen=True)
class Callee:
    """A function that weft calls of its own choice, or where eager's dispatch would decide again.

    ``operands``: rules by the names of the schema's arguments; those without one may be anything that the
    operator itself takes.  ``where``: where weft chooses it.  ``is_deterministic``: a call gives the same
    bits again, where :func:`torch.use_deterministic_algorithms` asks for that (guards hold it).
    ``otherwise``: eager's own operator, for operands of which no copy would do.  ``dense_as``: operands that
    lie side by side in the order of another's dimensions, as results of it do; looked at where that one is
    copied.
    """

    where: str
    operands: Mapping[str, OperandRule] = field(default_factory=dict)
    is_deterministic: bool = True
    otherwise: str = ""
    dense_as: Mapping[str, str] = field(default_factory=dict)

    def takes(self, operands: Mapping[str, OperandLayout | None]) -> bool | None:
        """Whether it takes ``operands``, by name, in every call; None where that is not known."""
        found = ((rule, operands.get(name)) for name, rule in self.operands.items())
        return _all(*(rule.takes(operand) for rule, operand in found if operand is not None))


def aligned_copy(tensor: torch.Tensor, rule: OperandRule) -> torch.Tensor:
    """``tensor`` as ``rule`` asks for it to lie: rows side by side, each beginning at a multiple.

    What is expanded stays so, and the dimensions before the last keep their order.
    """
    for dim, step in enumerate(tensor.stride()[:-1]):
        if step == 0 and tensor.shape[dim] > 1:
            copy = aligned_copy(tensor.narrow(dim, 0, 1), rule)
            return copy.expand(tensor.shape)
    last = tensor.shape[-1]
    unit = max(1, rule.aligned // tensor.itemsize)
    order = _outermost_first(tensor)
    padded = tensor.new_empty([*(tensor.shape[d] for d in order), -(-last // unit) * unit])
    back = [order.index(dim) for dim in range(tensor.ndim - 1)]
    return padded.permute(*back, -1)[..., :last].copy_(tensor)


def _outermost_first(tensor: torch.Tensor) -> list[int]:
    """The dimensions before the last, in the order in which they lie."""
    steps = tensor.stride()
    return sorted(range(tensor.ndim - 1), key=lambda dim: -steps[dim])


def dense_copy(tensor: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """``tensor`` side by side in the order of the dimensions of ``other``; itself where it lies so."""
    order = [*_outermost_first(other), other.ndim - 1]
    if tensor.shape == other.shape:
        strides = torch.empty_like(other, device="meta").stride()
    else:
        ordered = torch.empty([tensor.shape[d] for d in order], device="meta")
        strides = ordered.permute([order.index(dim) for dim in range(other.ndim)]).stride()
    if tensor.stride() == strides:
        return tensor
    return tensor.new_empty_strided(tensor.shape, strides).copy_(tensor)


# ---- what is known of extents --------------------------------------------------------------------------


def is_multiple(extent: Extent, unit: int) -> bool | None:
    """Whether ``extent`` is a multiple of ``unit`` whatever its symbols, integers, are."""
    if unit == 1:
        return True
    if isinstance(extent, int | sympy.Integer):
        return int(extent) % unit == 0
    terms = sympy.Add.make_args(sympy.expand(extent))
    factors = (term.as_coeff_Mul()[0] for term in terms)
    return True if all(f.is_Integer and int(f) % unit == 0 for f in factors) else None


def _is(extent: Extent, number: int) -> bool | None:
    return int(extent) == number if isinstance(extent, int | sympy.Integer) else None


def _is_positive(extent: Extent) -> bool | None:
    positive: bool | None = extent > 0 if isinstance(extent, int) else extent.is_positive
    return positive


def _at_most(extent: Extent, limit: int) -> bool | None:
    return int(extent) <= limit if isinstance(extent, int | sympy.Integer) else None


def _is_dense_matrix(operand: OperandLayout) -> bool | None:
    if len(operand.size) != 2:
        return False
    (rows, columns), (row, column) = operand.size, operand.stride
    answers = _is_dense(columns, column, row), _is_dense(rows, row, column)
    return True if True in answers else (None if None in answers else False)


def _is_dense(inner: Extent, step: Extent, stride: Extent) -> bool | None:
    """Whether ``inner`` elements lie side by side, and ``stride`` leads behind them."""
    if _is(step, 1) is False:
        return False
    beyond = sympy.sympify(stride) - inner
    return _all(_is(step, 1), beyond.is_nonnegative)


def _all(*answers: bool | None) -> bool | None:
    """False if one is, else None if one is, else True."""
    return False if False in answers else (None if None in answers else True)


# -- functions ----------------------------------------------------------------------------------------


HALVES = frozenset({torch.float16, torch.bfloat16})
REALS = HALVES | {torch.float32, torch.float64}
READ_AT_ONCE = 16
"""Bytes of one access of CUDA's kernels of attention."""


def _attention(where: str, rule: OperandRule, others: str = "", **more: OperandRule) -> Callee:
    """Attention with ``rule`` for query, key and value, and what else is a matrix of the same rows."""
    rules = dict.fromkeys(("query", "key", "value", *others.split()), rule)
    is_forward = "out" not in rules
    return Callee(where, rules | more, otherwise=MATHS if is_forward else "")


MATHS = "aten::scaled_dot_product_attention"
"""Attention by eager's dispatch, which has a form for any operands."""

CHOSEN = "torch's choice for scaled_dot_product_attention, made while the program is (aot-autograd)"
DIFFERENTIATED = "the gradient of that choice (aot-autograd)"

_IN_ROWS = OperandRule(dtypes=REALS, ranks=frozenset({4}), unit_stride=True)
_FLASH = OperandRule(
    dtypes=HALVES, ranks=frozenset({4}), unit_stride=True, aligned=READ_AT_ONCE, max_last=256
)
_EFFICIENT = replace(
    _FLASH, dtypes=HALVES | {torch.float32}, last_bytes=READ_AT_ONCE, max_last=None
)
_CUDNN = replace(_FLASH, last_bytes=READ_AT_ONCE)
_GRADIENT = OperandRule(aligned=READ_AT_ONCE)
"""Copied by the kernel if it is not contiguous, not for where it begins."""

_MASK = OperandRule(ranks=frozenset({4}), unit_stride=True, aligned=READ_AT_ONCE)
_CPU_MASK = OperandRule(ranks=frozenset({2, 4}))

_FLOATS = frozenset({torch.float32, torch.bfloat16, torch.float16})
_ONEDNN_BIAS = OperandRule(dtypes=_FLOATS, ranks=frozenset({1}), unit_stride=True)
"""oneDNN is given a pointer to a bias, and reads on from there."""
_ONEDNN_MATRIX = OperandRule(dtypes=_FLOATS, ranks=frozenset({2}), is_matrix=True, has_columns=True)
_ONEDNN_IMAGE = OperandRule(dtypes=_FLOATS, ranks=frozenset({4}))

DISPATCHED = "eager's own operator, into memory that is given or on operands that lie otherwise"

DISPATCHED_NAMES = """
    mm addmm bmm baddbmm mv addmv dot linear matmul _int_mm _scaled_mm convolution convolution_backward
    scaled_dot_product_attention _scaled_dot_product_attention_math _embedding_bag_forward_only
"""

CALLEES: Mapping[str, Callee] = {
    "aten::_scaled_dot_product_flash_attention_for_cpu": _attention(
        CHOSEN, _IN_ROWS, attn_mask=_CPU_MASK
    ),
    "aten::_scaled_dot_product_flash_attention_for_cpu_backward": _attention(
        DIFFERENTIATED, _IN_ROWS, "out", attn_mask=_CPU_MASK
    ),
    "aten::_scaled_dot_product_flash_attention": _attention(CHOSEN, _FLASH),
    "aten::_scaled_dot_product_flash_attention_backward": _attention(
        DIFFERENTIATED, _FLASH, "out", grad_out=_GRADIENT
    ),
    "aten::_scaled_dot_product_efficient_attention": _attention(
        CHOSEN, _EFFICIENT, attn_bias=_MASK
    ),
    "aten::_scaled_dot_product_efficient_attention_backward": _attention(
        DIFFERENTIATED, _EFFICIENT, "out", grad_out_=_GRADIENT, attn_bias=_MASK
    ),
    "aten::_scaled_dot_product_cudnn_attention": _attention(CHOSEN, _CUDNN, attn_bias=_MASK),
    "aten::_scaled_dot_product_cudnn_attention_backward": replace(
        _attention(DIFFERENTIATED, _CUDNN, "out", grad_out=_GRADIENT, attn_bias=_MASK),
        dense_as={"out": "query"},
    ),
    "aten::_scaled_dot_product_fused_attention_overrideable": _attention(CHOSEN, ANY),
    "mkldnn::_linear_pointwise": Callee(
        "large float32 matmuls on processors that Intel did not make (codegen-cpp)",
        {"X": _ONEDNN_MATRIX, "W": _ONEDNN_MATRIX, "B": _ONEDNN_BIAS},
    ),
    "mkldnn::_convolution_pointwise": Callee(
        "large convolutions there, and those with constant weights everywhere (codegen-cpp)",
        {"X": _ONEDNN_IMAGE, "W": _ONEDNN_IMAGE, "B": _ONEDNN_BIAS},
    ),
    "mkldnn::_reorder_linear_weight": Callee(
        "constant weights of matmuls (codegen-cpp)", {"self": _ONEDNN_MATRIX}
    ),
    "mkldnn::_reorder_convolution_weight": Callee(
        "constant weights of convolutions (codegen-cpp)", {"self": _ONEDNN_IMAGE}
    ),
    **{f"aten::{name}": Callee(DISPATCHED) for name in DISPATCHED_NAMES.split()},
    "aten::_foreach_copy_": Callee("inputs of recordings (codegen-triton), one dtype at a time"),
    "aten::_foreach_mul": Callee("copies of recordings' small results, of floats (codegen-triton)"),
}
"""By the name of the operator's schema, without its overload."""


# -- calls --------------------------------------------------------------------------------------------


def callee_of(operator: OpOverload) -> Callee | None:
    """What is known of ``operator`` as a callee; None for what eager calls too."""
    return CALLEES.get(operator._schema.name)


def view_layout(view: BufferView, base: int) -> OperandLayout:
    """A window on a buffer whose address is a multiple of ``base`` bytes."""
    offset = view.offset * view.dtype.itemsize
    return OperandLayout(view.dtype, view.size, view.stride, offset, base)


def accepts(name: str, **views: BufferView | None) -> bool:
    """Whether the callee of that name takes ``views``, by argument, in every call."""
    layouts = {key: None if view is None else view_layout(view, 1) for key, view in views.items()}
    return CALLEES[name].takes(layouts) is True


def needs_check(call: ExternCall, schedule: Schedule, alignment: int) -> bool:
    """Whether operands of ``call`` may be such as :func:`call_library` copies.

    The arena, and what the program allocates besides, begin at multiples of ``alignment`` bytes.
    """
    callee = callee_of(call.operator)
    if callee is None:
        return False
    memory = schedule.memory

    def layout(argument: object) -> OperandLayout | None:
        if not isinstance(argument, BufferView):
            return None
        is_own = argument.buffer in memory.offsets or argument.buffer in memory.alone
        return view_layout(argument, alignment if is_own else 1)

    layouts = {name: layout(value) for name, value in call.named_arguments.items()}
    return callee.takes(layouts) is not True


def call_library(operator: OpOverload, first_only: bool, *arguments: Any, **keywords: Any) -> Any:
    """``operator`` of operands that it takes: those that lie otherwise are copied to where they lie so.

    Where no copy does, eager's own operator gives the first result; the others are None.  This takes
    ``first_only``: nothing reads the others.  Without that the operator itself says what is wrong.
    """
    for position, name, rule in _checks(operator):
        operand = arguments[position] if position < len(arguments) else keywords.get(name)
        if operand is not None and not rule.surely_takes(operand):
            return _call_with_copies(operator, first_only, arguments, keywords)
    return operator(*arguments, **keywords)


@functools.cache
def _checks(operator: OpOverload) -> tuple[tuple[int, str, OperandRule], ...]:
    """What is looked at: the positions and names of operands, and their rules."""
    callee, names = callee_of(operator), argument_names(operator)
    rules = {} if callee is None else callee.operands
    return tuple((names.index(name), name, rule) for name, rule in rules.items())


def _call_with_copies(
    operator: OpOverload, first_only: bool, arguments: Sequence[Any], keywords: Mapping[str, Any]
) -> Any:
    """The call where not all operands are surely such as it takes."""
    callee = CALLEES[operator._schema.name]
    named = named_arguments(operator, arguments, keywords)
    tensors = {
        name: named[name]
        for name in callee.operands
        if isinstance(named.get(name), torch.Tensor) and named[name].numel()
    }
    layouts = {name: OperandLayout.of(tensor) for name, tensor in tensors.items()}
    fits = (callee.operands[name].takes_value(layout) for name, layout in layouts.items())
    if first_only and callee.otherwise and False in fits:  # no copy would do
        return _otherwise(operator, named)
    copies = copies_for(callee, tensors, layouts)
    if not copies:
        return operator(*arguments, **keywords)
    names = argument_names(operator)
    fitting = [copies.get(n, a) for n, a in zip(names, arguments, strict=False)]
    return operator(*fitting, **{n: copies.get(n, a) for n, a in keywords.items()})


def copies_for(
    callee: Callee, tensors: Mapping[str, torch.Tensor], layouts: Mapping[str, OperandLayout]
) -> dict[str, torch.Tensor]:
    """Copies of those of ``tensors``, operands by name, whose ``layouts`` ``callee`` does not take."""
    copies = {
        name: aligned_copy(tensor, callee.operands[name])
        for name, tensor in tensors.items()
        if callee.operands[name].takes_layout(layouts[name]) is False
    }
    for name, other in callee.dense_as.items():
        if other in copies and name in tensors:
            copies[name] = dense_copy(tensors[name], copies[other])
    return copies


def _otherwise(operator: OpOverload, named: Mapping[str, Any]) -> Any:
    """Attention by eager's dispatch."""
    query, key = named["query"], named["key"]
    result = torch.nn.functional.scaled_dot_product_attention(
        query,
        key,
        named["value"],
        named.get("attn_bias", named.get("attn_mask")),
        named.get("dropout_p", 0.0),
        named.get("is_causal", False),
        scale=named.get("scale"),
        enable_gqa=query.shape[1] != key.shape[1],
    )
    return (result, *[None] * (len(operator._schema.returns) - 1))


# -- results -------------------------------------------------------------------------------------------


def settle(
    result: torch.Tensor | None,
    size: Sequence[int],
    stride: Sequence[int],
    dtype: torch.dtype,
    device: torch.device,
    copy: bool,
) -> torch.Tensor:
    """``result`` as the schedule expects it: of these strides, and with ``copy`` in memory of its own.

    Meta functions may promise other strides than the operator gives (those of Fourier transforms on the CPU
    do in torch 2.11), and the schedule reads by the promise.  An operator may give None where its meta
    function gives a tensor (the random state of attention without dropout): those who take it don't read it.

    :raises RuntimeError: the result has another size.
    """
    if result is None:
        return torch.empty_strided(size, stride, dtype=dtype, device=device)
    if result.shape != size:
        raise RuntimeError(f"an operator gave {tuple(result.shape)} where {size} was expected")
    copy = copy or result.dtype != dtype  # some meta functions and kernels disagree
    own = result.stride()
    same = own == stride or all(n <= 1 or s == t for n, s, t in zip(size, stride, own, strict=True))
    if same and not copy and not result.is_conj() and not result.is_neg():
        return result
    return torch.empty_strided(size, stride, dtype=dtype, device=result.device).copy_(result)


def lies_in(result: torch.Tensor | None, operands: Sequence[torch.Tensor]) -> bool:
    """Whether an operator gave memory of one of its operands, which a plan takes for others later.

    An operator's schema need not tell it: one that is written in Python may return what it was given.
    """
    if result is None or result.numel() == 0:
        return False
    begin = result.untyped_storage().data_ptr()
    return any(operand.untyped_storage().data_ptr() == begin for operand in operands)
