"""Tracers, profilers and frame objects: they see the frames that the program wrote, and only those."""

import cProfile
import sys
import time

import pytest
import torch
from differential import check, run_graph
from weft_bytecode_capture import CaptureOptions, GraphBreakError, capture, compile_frames

EVENTS = []


def observe(frame, event, argument):
    if frame.f_code.co_filename == __file__:
        EVENTS.append((event, frame.f_code.co_name, frame.f_lineno))
    return observe


@pytest.fixture(autouse=True)
def as_before():
    before = sys.gettrace(), sys.getprofile()
    yield
    sys.settrace(before[0])
    sys.setprofile(before[1])


def double(x):
    return x * 2


def traced_in_the_middle(x):
    y = x + 1
    sys.settrace(observe)
    y = double(y)
    sys.settrace(None)
    return double(y)


def profiled_in_the_middle(x):
    y = x + 1
    sys.setprofile(observe)
    y = double(y)
    sys.setprofile(None)
    return double(y)


def start():
    sys.settrace(observe)


def traced_by_a_helper(x):
    y = x + 1
    start()
    try:
        return double(y)
    finally:
        sys.settrace(None)


def after_a_break(x):
    time.sleep(0)
    y = x + 1
    return traced_in_the_middle(y)


@pytest.mark.parametrize(
    "function", [traced_in_the_middle, profiled_in_the_middle, traced_by_a_helper, after_a_break]
)
def test_no_frame_but_the_programs_is_seen(function):
    x = torch.ones(2)
    compiled = compile_frames(function, run_graph)
    EVENTS.clear()
    expected = function(x)
    plain = list(EVENTS)
    assert plain
    for _ in range(3):
        EVENTS.clear()
        assert torch.equal(compiled(x), expected)
        assert plain == EVENTS


def test_a_profile_function_sees_every_call():
    def program(x):
        return double(double(x)) + 1

    compiled = compile_frames(program, run_graph)
    x = torch.ones(2)
    compiled(x)
    seen = []
    for function in (program, compiled):
        EVENTS.clear()
        sys.setprofile(observe)
        function(x)
        sys.setprofile(None)
        seen.append([row for row in EVENTS if row[1] in ("program", "double")])
    assert seen[0] == seen[1]


def test_a_profiler_of_c_leaves_capture_on():
    captured = capture(lambda x: double(double(x)) + 1)
    profiler = cProfile.Profile()
    result = profiler.runcall(captured, torch.ones(2))
    assert len(result.graphs) == 1
    assert torch.equal(result.result, torch.full((2,), 5.0))


def test_setting_a_tracer_is_an_error_where_breaks_are():
    compiled = compile_frames(traced_in_the_middle, run_graph, CaptureOptions(fullgraph=True))
    with pytest.raises(GraphBreakError, match="change of the tracer"):
        compiled(torch.ones(2))


def test_a_frame_that_looks_at_itself():
    def program(x):
        frame = sys._getframe()
        y = x + 1
        return y, sorted(frame.f_locals), frame is sys._getframe(), frame.f_lineno

    check(program, [(torch.ones(2),)], fullgraph=False)


def test_a_callee_that_looks_at_its_caller():
    def name_of_caller():
        return sys._getframe(1).f_code.co_name

    def program(x):
        y = x + 1
        return y * len(name_of_caller()), name_of_caller()

    check(program, [(torch.ones(2),)], fullgraph=False)
