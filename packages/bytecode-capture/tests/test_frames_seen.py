"""Tracers, profilers and frame objects: they see the frames that the program wrote, and only those."""

import cProfile
import gc
import sys
import time

import pytest
import torch
from differential import check, run_graph
from weft_bytecode_capture import CaptureOptions, GraphBreakError, capture, compile_frames, disable

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


def bound_by_exec(x):
    exec("factor = x.dim() + 1")
    return x * locals()["factor"]


def read_by_eval(x):
    exec("factor = 3")
    return x * eval("factor")


def defined_by_exec(x):
    exec("def inner(value): return value * 2")
    return locals()["inner"](x)


def added_to_the_dict(x):
    namespace = locals()
    namespace["added"] = 4
    y = x + 1
    return y, sorted(locals()), vars() is namespace


def in_a_loop(x):
    for number in range(2):
        vars().setdefault("first", number)
        x = x + 1
    return x, sorted(vars())


def behind_a_break(x):
    y = x + 1
    time.sleep(0)
    exec("factor = 3")
    y = y * 2
    return y * locals()["factor"]


def once(x):
    y = x + 1
    names = sorted(locals())
    return y * 2, names


def of_their_own(x):
    names = {"x": x}
    exec("y = x + 1", names)
    return names["y"] * eval("z", {"z": 3}), vars(EVENTS.__class__) is vars(list)


def of_an_inner_function(x):
    return bound_by_exec(x + 1) * 2


@pytest.mark.parametrize(
    "function",
    [
        *(bound_by_exec, read_by_eval, defined_by_exec, added_to_the_dict, in_a_loop),
        *(behind_a_break, once, of_their_own, of_an_inner_function),
    ],
)
def test_the_dict_of_a_frames_locals(function):
    """One for each frame until CPython 3.12, a new one for each call from 3.13 on."""
    x = torch.randn(3)
    compiled = compile_frames(function, run_graph)
    for _ in range(2):
        try:
            expected = function(x)
        except (KeyError, NameError) as error:
            with pytest.raises(type(error), match=str(error)):
                compiled(x)
        else:
            assert_alike(compiled(x), expected)


def assert_alike(found, expected):
    found, expected = (r if isinstance(r, tuple) else (r,) for r in (found, expected))
    torch.testing.assert_close(found[0], expected[0])
    assert found[1:] == expected[1:]


def codes_compiled(function):
    """The code objects that are compiled for two calls."""
    reports = []
    compiled = compile_frames(
        function, lambda graph, inputs: graph.forward, CaptureOptions(), None, reports.append
    )
    x = torch.ones(2)
    for _ in range(2):
        assert torch.equal(compiled(x), function(x))
    return [report.code for report in reports]


def test_audit_hooks_are_not_compiled():
    seen = []

    def hook(event, arguments):
        if event == "weft.heard":
            seen.append(torch.ones(2) + len(arguments))

    def heard(x):
        sys.audit("weft.heard", 1)
        return x * 2

    sys.addaudithook(hook)  # for as long as the process lasts
    codes = codes_compiled(heard)
    assert heard.__code__ in codes and hook.__code__ not in codes
    assert len(seen) == 4


@pytest.mark.skipif(sys.version_info < (3, 12), reason="sys.monitoring is of CPython 3.12")
def test_callbacks_of_monitoring_are_not_compiled():
    seen = []

    def begun(code, offset):
        if code is named.__code__:
            seen.append(torch.ones(2) + offset)

    def named(x):
        return x + 1

    def monitored(x):
        time.sleep(0)
        return named(x) * 2

    tool, events = sys.monitoring.PROFILER_ID, sys.monitoring.events
    sys.monitoring.use_tool_id(tool, "test")
    try:
        sys.monitoring.register_callback(tool, events.PY_START, begun)
        sys.monitoring.set_events(tool, events.PY_START)
        codes = codes_compiled(monitored)
    finally:
        sys.monitoring.set_events(tool, 0)
        sys.monitoring.free_tool_id(tool)
    assert monitored.__code__ in codes and begun.__code__ not in codes
    assert seen


def test_finalizers_of_garbage_are_not_compiled():
    """It is collected wherever enough objects have been made: no place of the program's."""
    seen = []

    class Node:
        def __del__(self):
            seen.append(torch.ones(2) + 1)

    @disable
    def leave_garbage():
        node = Node()
        node.itself = node

    def collected(x):
        leave_garbage()
        gc.collect()
        return x * 2

    codes = codes_compiled(collected)
    assert collected.__code__ in codes and Node.__del__.__code__ not in codes
    assert len(seen) == 4
