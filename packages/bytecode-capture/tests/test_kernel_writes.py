"""What kernels in Python change is read behind their calls as it is then; one graph where it is not."""

import collections
import sys
import types

import pytest
import torch
from differential import run_graph
from weft_bytecode_capture import CaptureOptions, Unsupported, capture, compile_frames

THIS = sys.modules[__name__]
NUMBER = OTHER = 0
LIST: list[int] = []
TABLE = {"calls": 0}
SET: set[int] = set()
QUEUE: collections.deque[int] = collections.deque()
SPACE = types.SimpleNamespace(calls=0)
FACTORS = {"factor": 2.0}


class Counter:
    total = 0

    def __init__(self):
        self.calls = 0

    def note(self):
        self.calls += 1

    @classmethod
    def count(cls):
        cls.total += 1

    def __setitem__(self, key, value):
        self.calls += value


COUNTER = Counter()


def closure():
    calls = 0

    def note():
        nonlocal calls
        calls += 1

    return note, lambda: calls


def note_number():
    global NUMBER
    NUMBER += 1


def note_entry():
    TABLE["calls"] += 1


def note_attribute():
    SPACE.calls += 1


def note_total():
    Counter.total += 1


def note_item():
    COUNTER["any"] = 1


def note_of_module():
    THIS.OTHER += 1


STATES = {
    "global": (note_number, lambda: NUMBER),
    "list": (lambda: LIST.append(1), lambda: len(LIST)),
    "entry": (note_entry, lambda: TABLE["calls"]),
    "set": (lambda: SET.add(len(SET)), lambda: len(SET)),
    "queue": (lambda: QUEUE.append(1), lambda: len(QUEUE)),
    "attribute": (note_attribute, lambda: SPACE.calls),
    "attribute by name": (note_attribute, lambda: getattr(SPACE, "calls")),  # noqa: B009
    "method": (lambda: COUNTER.note(), lambda: COUNTER.calls),
    "item": (note_item, lambda: COUNTER.calls),
    "class": (note_total, lambda: Counter.total),
    "class method": (lambda: Counter.count(), lambda: Counter.total),
    "closure": closure(),
    "global of a module": (note_of_module, lambda: THIS.OTHER),
    "global by a module": (note_of_module, lambda: OTHER),
}


def new_operator(name, note):
    @torch.library.custom_op(f"weft_kernel_writes::note_{name.replace(' ', '_')}", mutates_args=())
    def operator(x: torch.Tensor) -> torch.Tensor:
        note()
        return x * FACTORS["factor"]

    @operator.register_fake
    def _(x):
        return torch.empty_like(x)

    return operator


OPERATORS = {name: new_operator(name, note) for name, (note, _) in STATES.items()}


def read_behind(operator, read):
    return lambda x: (operator(x), read())


def read_on_both_sides(operator, read):
    return lambda x: (read(), operator(x), read())


def read_between(operator, read):
    def program(x):
        y = operator(x)
        first = read()
        return operator(y) * first, read()

    return program


def read_in_a_helper(operator, read):
    def helper(x):
        return operator(x) + read()

    return lambda x: (helper(x), helper(x + 1))


PROGRAMS = [read_behind, read_on_both_sides, read_between, read_in_a_helper]


@pytest.mark.parametrize("make", PROGRAMS)
@pytest.mark.parametrize("name", STATES)
def test_the_program_reads_what_the_kernel_has_changed(name, make):
    read = STATES[name][1]
    start = 0

    def read_since():
        return read() - start

    program = make(OPERATORS[name], read_since)
    x = torch.arange(3.0)
    compiled = compile_frames(program, run_graph)
    for _ in range(2):
        start = read()
        expected, calls = program(x), read_since()
        start = read()
        found = compiled(x)
        assert read_since() == calls
        torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("name", STATES)
def test_one_graph_where_nothing_is_read_behind(name):
    operator, read = OPERATORS[name], STATES[name][1]

    def program(x):
        return operator(x).relu() * FACTORS["factor"] + operator(x + 1)

    captured = capture(program, options=CaptureOptions(fullgraph=True), backend=run_graph)
    start = read()
    torch.testing.assert_close(captured(torch.ones(3)).result, torch.full((3,), 8.0))
    assert read() == start + 2


def test_a_break_says_what_the_kernel_changes():
    program = read_behind(OPERATORS["list"], STATES["list"][1])
    with pytest.raises(Unsupported, match="state that a kernel changes"):
        capture(program, options=CaptureOptions(fullgraph=True), backend=run_graph)(torch.ones(3))
