"""Loops that no region holds, too long to be written out: each iteration ends the graph."""

import pytest
import torch
from weft_bytecode_capture import CaptureOptions, capture
from weft_bytecode_capture.captured_graph import GraphBreakError

KIND = "long loop that is not kept as one"
LENGTH = 120


def counted(x, n):
    i = 0
    while i < n:
        x = x * 0.5 + i
        i += 1
    return x, i


def endless(x, n):
    i = 0
    while True:
        x = x * 0.5 + 1
        i += 2
        if i > 2 * n:
            break
    return x


def nested(x, n):
    for names in ["ab"] * (n // 6):
        for name in names * 3:
            x = x * 0.5 + ord(name)
    return x


def generated(x, n):
    def halves(x):
        for i in range(n):
            x = x * 0.5
            yield x + i

    total = 0
    for value in halves(x):
        total = total + value
    return total


def listed(x, n):
    return torch.stack([x + len(name) for name in ["a", "bc"] * (n // 2)])


def in_a_call(x, n):
    return counted(x, n)[0] + 1


PROGRAMS = (counted, endless, nested, generated, listed, in_a_call)


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_long_loop_is_cut_off(program):
    x = torch.randn(3)
    captured = capture(program, options=CaptureOptions(unrolled_limits=((20, 30),)))
    kinds, sizes = set(), []
    for n in (LENGTH, LENGTH + 30):
        found = captured(x, n)
        torch.testing.assert_close(found.result, program(x, n))
        kinds |= {graph_break.kind for graph_break in found.breaks}
        sizes += [len(graph.graph_module.graph.nodes) for graph in found.graphs]
    assert KIND in kinds or "generator that outlives the graph" in kinds
    assert sum(sizes) < 700, sizes


def test_short_loops_are_not_cut_off():
    result = capture(nested, options=CaptureOptions(unrolled_limits=((400, 60), (40, 1000))))
    assert not result(torch.ones(3), LENGTH).breaks


def test_fullgraph_says_how_many_iterations():
    options = CaptureOptions(fullgraph=True, unrolled_limits=((20, 30),))
    with pytest.raises(GraphBreakError, match=r"20 iterations, 3[89] operations"):
        capture(counted, options=options)(torch.ones(3), LENGTH)


def ended_by_an_error(x):
    total = torch.zeros(())
    while True:
        try:
            largest = x.max()
        except RuntimeError:
            break
        total = total + largest
        x = x[x < largest]
    return total


def test_a_loop_that_only_an_operators_error_ends_is_refused_after_few_iterations():
    """Each iteration makes a size that data decides, and no fake tensor raises."""
    x = torch.arange(5.0)
    with torch.no_grad(), pytest.raises(GraphBreakError, match="64 sizes that data decides"):
        capture(ended_by_an_error, options=CaptureOptions(fullgraph=True))(x)
    with torch.no_grad():
        assert torch.equal(capture(ended_by_an_error)(x).result, ended_by_an_error(x))


def counted_parts(x, n):
    i = 0
    while i < n:
        x = torch.cat([x[x > i], x[:1]])
        i += 1
    return x


def test_counted_loops_with_few_such_sizes_are_in_the_graph():
    x = torch.arange(50.0)
    found = capture(counted_parts, options=CaptureOptions(fullgraph=True))(x, 40)
    assert torch.equal(found.result, counted_parts(x, 40))
