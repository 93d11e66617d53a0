"""Marks on tensors' dimensions, weft's and torch's."""

from __future__ import annotations

import pytest
import torch
from test_symbolic_sizes import Compiled
from weft_bytecode_capture import CaptureOptions, compile_frames, mark_dynamic, mark_static


def marked(*size: int, **bounds: int) -> torch.Tensor:
    tensor = torch.randn(size)
    mark_dynamic(tensor, 0, **bounds)
    return tensor


def test_a_marked_size_is_symbolic_from_the_first_call():
    compiled = Compiled(lambda x: x * x.shape[0])
    compiled.check(marked(4, 3))
    for rows in (2, 7, 100):
        compiled.check(torch.randn(rows, 3))
    assert compiled.count == 1


@pytest.mark.parametrize("minimum", [0, 1])
def test_a_minimum_avoids_the_graph_of_one(minimum):
    compiled = Compiled(lambda x: x.cumsum(0) + 1)
    compiled.check(marked(4, 3, min=minimum))
    for rows in (7, 1, 2):
        compiled.check(torch.randn(rows, 3))
    assert compiled.count == 1
    compiled.check(torch.randn(0, 3))
    assert compiled.count == 2


def test_a_range_holds_and_is_guarded():
    compiled = Compiled(lambda x: x + 1 if x.shape[0] <= 64 else x - 1)
    compiled.check(marked(4, 3, min=2, max=64))
    assert {"L['x'].size(0) >= 2", "L['x'].size(0) <= 64"} <= compiled.relations
    for rows in (64, 2, 33):
        compiled.check(torch.randn(rows, 3))
    assert compiled.count == 1
    compiled.check(torch.randn(65, 3))
    assert compiled.count == 2


def test_a_static_mark_wins_over_changes():
    compiled = Compiled(lambda x: x + 1)
    for rows in (2, 3, 4):
        tensor = torch.randn(rows, 5)
        mark_static(tensor, 0)
        compiled.check(tensor)
    assert compiled.count == 3
    assert not compiled.relations


def test_the_last_mark_counts():
    tensor = torch.randn(4, 3)
    mark_dynamic(tensor, [0, -1])
    mark_static(tensor)
    mark_dynamic(tensor, 0)
    compiled = Compiled(lambda x: x + 1)
    compiled.check(tensor)
    compiled.check(torch.randn(9, 3))
    assert compiled.count == 1
    compiled.check(torch.randn(9, 4))
    assert compiled.count == 2


def torch_mark(name: str, tensor: torch.Tensor, value: object) -> torch.Tensor:
    setattr(tensor, name, value)
    return tensor


class Range:
    dim, min, max = 0, 2, 50


def test_torchs_marks_are_honoured():
    """The attributes that torch's own functions set, which this package does not import."""
    compiled = Compiled(lambda x: x + x.shape[0])
    dynamic = torch_mark("_dynamo_dynamic_indices", torch.randn(4, 3), {0})
    compiled.check(torch_mark("_dynamo_dynamic_range", dynamic, {Range()}))
    assert "L['x'].size(0) <= 50" in compiled.relations
    compiled.check(torch.randn(7, 3))
    assert compiled.count == 1
    other = Compiled(lambda x: x + x.shape[0])
    for rows in (2, 3, 4):
        other.check(torch_mark("_dynamo_static_indices", torch.randn(rows, 3), {0}))
    assert other.count == 3
    unbacked = Compiled(lambda x: x + 1)
    unbacked.check(torch_mark("_dynamo_unbacked_indices", torch.randn(4, 3), {0}))
    unbacked.check(torch.randn(1, 3))
    assert unbacked.count == 1


@pytest.mark.parametrize(
    ("arguments", "bounds", "error", "message"),
    [
        ((2,), {}, ValueError, "dim 2 is out of range: t has 2 dimensions"),
        ((-3,), {}, ValueError, "dim -3 is out of range"),
        (("0",), {}, TypeError, "dim must be an integer"),
        ((True,), {}, TypeError, "dim must be an integer"),
        ((0,), {"min": 5, "max": 4}, ValueError, "min must not be above max"),
        ((0,), {"min": -1}, ValueError, "min must not be negative"),
        ((0,), {"max": 2.5}, TypeError, "max must be an integer"),
        ((0,), {"min": 5}, ValueError, "dimension 0 of t has size 4, out of its mark's range 5.."),
        ((0,), {"max": 3}, ValueError, "dimension 0 of t has size 4, out of its mark's range ..3"),
    ],
    ids=str,
)
def test_wrong_marks_raise(arguments, bounds, error, message):
    with pytest.raises(error, match=message.replace("..", r"\.\.")):
        mark_dynamic(torch.randn(4, 3), *arguments, **bounds)


def test_marks_are_for_tensors():
    with pytest.raises(TypeError, match="t must be a tensor"):
        mark_dynamic([1], 0)
    with pytest.raises(TypeError, match="t must be a tensor"):
        mark_static(None)


def test_a_size_out_of_range_raises_in_the_call():
    tensor = marked(4, 3, min=2, max=8)
    tensor.resize_(9, 3).fill_(1)
    with pytest.raises(ValueError, match=r"dimension 0 of L\['x'\] has size 9.*2\.\.8"):
        Compiled(lambda x: x + 1).compiled(tensor)


def test_a_program_that_fixes_a_marked_size_raises():
    def function(x):
        return x + 1 if x.shape[0] == 4 else x

    with pytest.raises(
        ValueError, match=r"L\['x'\].size\(0\) is marked dynamic.*x.shape\[0\] == 4"
    ):
        Compiled(function).compiled(marked(4, 3))


@pytest.mark.parametrize("dynamic", [None, False, True])
def test_a_preference_yields_to_the_program(dynamic):
    """torch's ``maybe_mark_dynamic``: sizes that the program fixes are fixed, the others are symbolic."""

    def function(x):
        return x * 2 if x.shape[0] == 4 else x.reshape(x.shape[0], 6).sum(1)

    graphs = []

    def backend(graph_module, inputs):
        graphs.append(graph_module)
        return graph_module.forward

    compiled = compile_frames(function, backend, CaptureOptions(dynamic=dynamic))
    for rows, count in ((4, 1), (5, 2), (7, 2), (9, 2), (4, 2), (1, 3)):
        x = torch.randn(rows, 6)
        x._dynamo_weak_dynamic_indices = {0, 1}
        torch.testing.assert_close(compiled(x), function(x))
        assert len(graphs) == count, rows
