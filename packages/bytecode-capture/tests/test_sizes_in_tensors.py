"""Integers in tensors that sizes alone determine: positions that ``arange`` gives, and pieces of them."""

from __future__ import annotations

import pytest
import torch
from differential import run_graph, same
from weft_bytecode_capture import CaptureOptions, compile_frames


def between(positions, stride, pooled, shift=1):
    first = pooled[0] - positions[0] + shift * len(pooled) * stride
    return torch.arange(first, pooled[0] - positions[-1] - 1, -stride, dtype=torch.long)


def pooling(x):
    positions, found = torch.arange(0, len(x), dtype=torch.long), []
    for block in range(3):
        pooled = positions
        if block:
            first = positions.new_tensor([1 - 2**block])
            pooled = torch.cat([first, positions[1:-1][::2]], 0)
            found.append(between(positions, 2 ** (block - 1), pooled, shift=2))
        found.append(between(pooled, 2**block, pooled))
        positions = pooled
    return [x.sum() + positions for positions in found]


def steps(x):
    n = len(x)
    places = torch.arange(3, 3 * n, 2)
    return torch.zeros(places[-1]), x.new_zeros(places[1] - 1), torch.arange(places[-2])


def whole_floats(x):
    n = len(x)
    integers = torch.arange(-n * 2, n * 2, 1.0, dtype=torch.int64)
    return integers, torch.arange(0.0, n), torch.arange(n, 2 * n, 2.0, dtype=torch.float64)


@pytest.mark.parametrize("function", [pooling, steps, whole_floats])
def test_numbers_of_sizes_are_no_data(function):
    graphs = []

    def backend(graph_module, example_inputs):
        graphs.append(graph_module)
        return run_graph(graph_module, example_inputs)

    options = CaptureOptions(fullgraph=True, read_contents=False)
    program = compile_frames(function, backend, options)
    for n in (12, 17, 10, 30):
        x = torch.randn(n)
        assert same(program(x), function(x))
    assert len(graphs) == 2


def written(x):
    places = torch.arange(len(x))
    places.add_(2)
    return torch.zeros(places[-1])


def overwritten(x):
    places = torch.arange(len(x))
    places[0] = 5
    return torch.arange(places[0], places[-1])


def out_of_range(x):
    return torch.zeros(torch.arange(len(x))[20])


@pytest.mark.parametrize("function", [written, overwritten])
def test_positions_that_are_written_to_are_read(function):
    program = compile_frames(function, run_graph, CaptureOptions())
    for n in (12, 17, 10):
        x = torch.randn(n)
        assert same(program(x), function(x))


def test_a_place_that_is_not_there():
    program = compile_frames(out_of_range, run_graph, CaptureOptions())
    for n in (22, 30, 25):
        x = torch.randn(n)
        assert same(program(x), out_of_range(x))
    with pytest.raises(IndexError):
        program(torch.randn(7))
