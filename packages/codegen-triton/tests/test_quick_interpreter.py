"""What the tests remember for Triton's interpreter is what it would have worked out anew."""

from __future__ import annotations

import itertools
import math

import pytest
import triton.language as tl
from triton.language import core

ELEMENTS = (tl.int1, tl.int32, tl.uint32, tl.bfloat16, core.pointer_type(tl.int32))
SHAPES = ([1], [4], [4, 1], [1, 4], [2, 2, 8])


def test_types_of_blocks_differ_where_they_are_written_otherwise() -> None:
    made = [(e, s, tl.block_type(e, s)) for e, s in itertools.product(ELEMENTS, SHAPES)]
    for (e, s, one), (f, t, other) in itertools.product(made, made):
        assert (one == other) == (e == f and s == t)
    for element, shape, one in made:
        assert one is tl.block_type(element, [tl.constexpr(n) for n in shape])
        assert (one.scalar, [*one.shape], one.numel) == (element, shape, math.prod(shape))
        assert str(element) in one.name


@pytest.mark.parametrize(
    ("shape", "error"), [([3], ValueError), ([], TypeError), ([4.0], TypeError)]
)
def test_what_is_no_block_is_refused_each_time(shape, error) -> None:
    for _ in range(2):
        with pytest.raises(error):
            tl.block_type(tl.int32, shape)


def test_tensors_have_the_shape_and_the_dtype_of_their_type() -> None:
    for element, shape in itertools.product(ELEMENTS, SHAPES):
        for handle in (1, 2):
            found = tl.tensor(handle, tl.block_type(element, shape))
            assert (found.handle, found.dtype) == (handle, element)
            assert [n.value for n in found.shape] == shape
            assert found.numel.value == math.prod(shape)
    scalar = tl.tensor(3, tl.int32)
    assert (scalar.handle, scalar.dtype, len(scalar.shape)) == (3, tl.int32, 0)


@pytest.mark.parametrize("other", [[1, 2], [1], [2, 1], [1, 2.0], (1, 2), [tl.constexpr(1), 2]])
def test_shapes_are_compared_as_numbers(other) -> None:
    values = [getattr(value, "value", value) for value in other]
    assert bool(tl.tuple([1, 2]) == other) == (values == [1, 2])
