"""The table of what weft calls of its own choice: operands that break a rule give eager's results."""

from __future__ import annotations

import math
from typing import Any

import pytest
import sympy
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from weft_loop_ir import CALLEES, OperandLayout, OperandRule, accepts, call_library, needs_check
from weft_loop_ir.callees import EXACT, aligned_copy, copies_for, dense_copy, is_multiple
from weft_loop_ir.expressions import integer
from weft_loop_ir.ir import BufferView, ExternCall, MemoryPlan, Schedule
from weft_loop_ir.lowering import contractions

aten = torch.ops.aten

FLASH = aten._scaled_dot_product_flash_attention_for_cpu.default
EFFICIENT = aten._scaled_dot_product_efficient_attention.default

LAYOUTS = ["whole", "sliced", "every other", "transposed", "expanded", "expanded rows", "offset"]


def lay(size: tuple[int, ...], layout: str, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """A tensor of ``size`` that lies as ``layout`` says."""
    *outer, last = size

    def random(*extents: int) -> torch.Tensor:
        return torch.randn(extents).to(dtype)

    if layout == "sliced":
        return random(*outer, last + 3)[..., 1 : last + 1]
    if layout == "every other":
        return random(*outer, 2 * last)[..., ::2]
    if layout == "transposed" and outer:
        return random(*outer[:-1], last, outer[-1]).transpose(-1, -2)
    if layout == "expanded":
        return random(*outer, 1).expand(size)
    if layout == "expanded rows" and outer:
        return random(*outer[:-1], 1, last).expand(size)
    if layout == "offset":
        return random(math.prod(size) + 1)[1:].view(size)
    return random(*size)


# ---- the table -----------------------------------------------------------------------------------------


def test_what_is_always_called_is_in_the_table() -> None:
    names = [*contractions.LIBRARY, "convolution"]
    names += [
        operator._schema.name.removeprefix("aten::") for operator in contractions.OUT_VARIANTS
    ]
    assert {f"aten::{name}" for name in names} <= CALLEES.keys()


@pytest.mark.parametrize("name", CALLEES)
def test_rules_are_about_arguments(name: str) -> None:
    namespace, _, operator = name.partition("::")
    packet = getattr(getattr(torch.ops, namespace), operator, None)
    if packet is None:
        pytest.skip("this torch has no such operator")
    overload = getattr(packet, packet.overloads()[0])
    arguments = {argument.name for argument in overload._schema.arguments}
    assert CALLEES[name].operands.keys() <= arguments
    assert CALLEES[name].otherwise in {"", *CALLEES}


# ---- rules ---------------------------------------------------------------------------------------------

RULES = list({rule for callee in CALLEES.values() for rule in callee.operands.values()})


@settings(max_examples=200, deadline=None)
@given(
    rule=st.sampled_from(RULES),
    layout=st.sampled_from(LAYOUTS),
    size=st.lists(st.integers(0, 9), min_size=1, max_size=4),
    dtype=st.sampled_from([torch.float16, torch.bfloat16, torch.float32, torch.float64]),
)
def test_copies_lie_as_rules_ask(
    rule: OperandRule, layout: str, size: list[int], dtype: torch.dtype
) -> None:
    tensor = lay(tuple(size), layout, dtype)
    copy = aligned_copy(tensor, rule)
    assert torch.equal(copy, tensor)
    assert copy.numel() < 2 or not rule.is_matrix or len(size) != 2 or copy.stride(-1) == 1
    if not rule.is_matrix and tensor.numel():
        assert rule.takes_layout(OperandLayout.of(copy)) is True


@settings(max_examples=200, deadline=None)
@given(
    order=st.permutations(range(3)),
    size=st.lists(st.integers(1, 5), min_size=3, max_size=3),
    layout=st.sampled_from(["whole", "sliced", "every other", "offset"]),
    columns=st.sampled_from([8, 16]),
)
def test_results_lie_as_copies_of_operands(
    order: list[int], size: list[int], layout: str, columns: int
) -> None:
    """A result of attention is given to its gradient as the forward call on the copies would lay it."""
    name = "aten::_scaled_dot_product_cudnn_attention_backward"
    query = lay((*size, 8), layout, torch.float16).permute(*order, 3)
    out = torch.randn(*query.shape[:-1], columns).half()
    tensors = {"query": query, "out": out}
    layouts = {name: OperandLayout.of(tensor) for name, tensor in tensors.items()}
    copies = copies_for(CALLEES[name], tensors, layouts)
    given_query, given_out = copies.get("query", query), copies.get("out", out)
    assert torch.equal(given_query, query)
    assert torch.equal(given_out, out)
    if "query" in copies:
        if min(query.shape) > 1:
            assert given_query.stride() == torch.empty_like(query).stride()
        ratio = columns // 8
        wanted = (*(ratio * step for step in torch.empty_like(given_query).stride()[:-1]), 1)
        for extent, step, want in zip(out.shape, given_out.stride(), wanted, strict=True):
            assert extent == 1 or step == want


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (0, 2, 1, 3), (3, 0, 2, 1)])
def test_dense_copies_lie_as_new_tensors_like_another(order: tuple[int, ...]) -> None:
    other = torch.randn(2, 3, 4, 8).permute(order)
    tensor = torch.randn(other.shape)
    copy = dense_copy(tensor, other)
    assert torch.equal(copy, tensor)
    assert copy.stride() == torch.empty_like(other).stride()
    assert dense_copy(copy, other) is copy


@settings(max_examples=300, deadline=None)
@given(
    rule=st.sampled_from(RULES),
    layout=st.sampled_from(LAYOUTS),
    size=st.lists(st.integers(0, 9), min_size=1, max_size=4),
    dtype=st.sampled_from([torch.float16, torch.float32, torch.int64]),
)
def test_what_is_quickly_seen_is_so(
    rule: OperandRule, layout: str, size: list[int], dtype: torch.dtype
) -> None:
    tensor = lay(tuple(size), layout, dtype)
    if rule.surely_takes(tensor):
        assert rule.takes(OperandLayout.of(tensor)) is True


@settings(max_examples=300, deadline=None)
@given(
    rule=st.sampled_from(RULES),
    factors=st.lists(st.tuples(st.integers(0, 9), st.booleans()), min_size=4, max_size=4),
    offset=st.integers(0, 9),
    value=st.integers(1, 9),
)
def test_what_is_known_of_symbols_holds_for_numbers(
    rule: OperandRule, factors: list[tuple[int, bool]], offset: int, value: int
) -> None:
    """An answer for sizes that vary is the answer for each of them."""
    s = sympy.Symbol("s", integer=True, positive=True)
    extents = [integer(n) * (s if varies else 1) for n, varies in factors]
    varying = OperandLayout(
        torch.float32,
        (extents[0], extents[1]),
        (extents[2], extents[3]),
        integer(offset) * 4,
        EXACT,
    )
    known = rule.takes(varying)
    numbers = [int(e.xreplace({s: integer(value)})) for e in extents]
    fixed = OperandLayout(
        torch.float32, (numbers[0], numbers[1]), (numbers[2], numbers[3]), offset * 4, EXACT
    )
    assert rule.takes(fixed) is not None
    assert known in (None, rule.takes(fixed))


def test_multiples_of_what_varies() -> None:
    s, t = sympy.symbols("s t", integer=True, positive=True)
    assert is_multiple(16 * s + 8 * s * t, 8) is True
    assert is_multiple(4 * (s + 4 * t), 4) is True
    assert is_multiple(12 * s, 8) is None
    assert is_multiple(integer(12), 8) is False
    assert is_multiple(s, 1) is True


# ---- what is decided while the program is made ---------------------------------------------------------


def _view(size: Any, stride: Any, offset: Any = 0, dtype: Any = torch.float32) -> BufferView:
    numbers = (tuple(map(sympy.sympify, extents)) for extents in (size, stride))
    return BufferView("x", *numbers, sympy.sympify(offset), dtype)


def test_oneDNN_takes_biases_side_by_side() -> None:
    image = _view((2, 4, 8, 8), (256, 64, 8, 1))
    weight = _view((6, 4, 3, 3), (36, 9, 3, 1))
    name = "mkldnn::_convolution_pointwise"
    assert accepts(name, X=image, W=weight, B=None)
    assert accepts(name, X=image, W=weight, B=_view((6,), (1,), 3))
    assert not accepts(name, X=image, W=weight, B=_view((6,), (2,)))
    assert not accepts(name, X=image, W=weight, B=_view((6,), (0,)))
    step = sympy.Symbol("step", integer=True, positive=True)
    assert not accepts(name, X=image, W=weight, B=_view((6,), (step,)))


@pytest.mark.parametrize(
    ("view", "base", "needed"),
    [
        (_view((1, 4, 7, 16), (448, 112, 16, 1)), 64, False),
        (_view((1, 4, 7, 16), (448, 112, 16, 1)), 1, True),  # an input's address
        (_view((1, 4, 7, 16), (448, 112, 16, 1), 4), 64, False),
        (_view((1, 4, 7, 16), (448, 112, 16, 1), 2), 64, True),
        (_view((1, 4, 1, 16), (64, 16, 1, 1)), 64, True),  # a single key
        (_view((1, 4, 7, 16), (455, 17, 65, 1)), 64, True),
        (_view((1, 4, 7, 16), (448, 112, 16, 1), sympy.Symbol("p", integer=True)), 64, True),
        (_view((1, 4, 7, 16), (448, 112, 16, 1), 4 * sympy.Symbol("p", integer=True)), 64, False),
    ],
    ids=str,
)
def test_which_calls_look_at_operands(view: BufferView, base: int, needed: bool) -> None:
    call = ExternCall("e", EFFICIENT, (view, view, view, None, False), {}, (None,) * 4, "", "")
    offsets = {} if base == 1 else {"x": integer(0)}
    plan = MemoryPlan(integer(0), offsets)
    schedule = Schedule("g", (), (), {}, (call,), (), plan)
    assert needs_check(call, schedule, 64) == needed


# ---- calls ---------------------------------------------------------------------------------------------

sizes = st.tuples(st.integers(0, 2), st.integers(1, 3), st.integers(0, 5), st.integers(0, 5))


@settings(max_examples=150, deadline=None)
@given(
    size=sizes,
    width=st.sampled_from([1, 3, 8, 17]),
    layouts=st.tuples(*[st.sampled_from(LAYOUTS)] * 3),
    dtype=st.sampled_from([torch.float32, torch.float64, torch.bfloat16, torch.float16]),
    masked=st.booleans(),
)
def test_attention_on_the_CPU(
    size: tuple[int, int, int, int],
    width: int,
    layouts: tuple[str, str, str],
    dtype: torch.dtype,
    masked: bool,
) -> None:
    """torch's kernel reads rows as if their elements lay side by side, without a look."""
    batch, heads, queries, keys = size
    extents = [(batch, heads, n, width) for n in (queries, keys, keys)]
    operands = [lay(e, layout, dtype) for e, layout in zip(extents, layouts, strict=True)]
    mask = lay((queries, keys), layouts[0], dtype) if masked else None
    if 0 in size:  # torch's choice is never this kernel then
        return
    got, sums = call_library(FLASH, False, *operands, attn_mask=mask)
    contiguous = [operand.contiguous() for operand in operands]
    want, sums_wanted = FLASH(*contiguous, attn_mask=mask)
    torch.testing.assert_close(got, want)
    torch.testing.assert_close(sums, sums_wanted)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("position", [0, 1, 2, 3])
def test_gradients_of_attention_on_the_CPU(position: int, layout: str) -> None:
    size = (2, 3, 5, 8)
    operands = [torch.randn(size) for _ in range(3)]
    if position < 3:
        operands[position] = lay(size, layout)
    contiguous = [operand.contiguous() for operand in operands]
    out, sums = FLASH(*contiguous)
    gradient = torch.randn(size)
    backward = aten._scaled_dot_product_flash_attention_for_cpu_backward.default
    want = backward(gradient, *contiguous, out, sums, 0.0, False)
    if position == 3:
        out = lay(size, layout).copy_(out) if "expanded" not in layout else out
    got = call_library(backward, False, gradient, *operands, out, sums, 0.0, False)
    torch.testing.assert_close(got, want)


def test_other_operands_are_eagers() -> None:
    """Integers, and other ranks, are no operands of that kernel; its error is eager's where more is read."""
    operands = [torch.randn(2, 3, 5, 8)[:, 0] for _ in range(3)]
    got, sums = call_library(FLASH, True, *operands)
    assert sums is None
    want = torch.nn.functional.scaled_dot_product_attention(*operands)
    torch.testing.assert_close(got, want)
    with pytest.raises((RuntimeError, IndexError)):
        call_library(FLASH, False, *operands)


def test_what_is_not_in_the_table_is_called_as_it_is() -> None:
    x = torch.randn(4)
    assert torch.equal(call_library(aten.sin.default, False, x), x.sin())
