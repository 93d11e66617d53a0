"""Operators with kernels in Python find what the program has changed before it calls them."""

import contextvars
import types

import pytest
import torch
from differential import run_graph
from weft_bytecode_capture import CaptureOptions, capture, compile_frames

FACTOR = 2.0
CONTEXT = contextvars.ContextVar("context", default=2.0)
SETTINGS = types.SimpleNamespace(factor=2.0, inner=types.SimpleNamespace(factor=2.0))
LIST = [2.0]
TABLE = {"factor": 2.0}


class Settings:
    factor = 2.0


def read_in_a_helper():
    return LIST[-1] + len(LIST)


READS = {
    "global": lambda: FACTOR,
    "context": lambda: CONTEXT.get(),
    "attribute": lambda: SETTINGS.factor,
    "attribute of an attribute": lambda: SETTINGS.inner.factor,
    "element": lambda: read_in_a_helper(),
    "entry": lambda: TABLE["factor"],
    "class": lambda: Settings.factor,
}


def new_operator(name, read):
    @torch.library.custom_op(f"weft_kernels::{name}", mutates_args=())
    def operator(x: torch.Tensor) -> torch.Tensor:
        return x * read()

    @operator.register_fake
    def _(x):
        return torch.empty_like(x)

    return operator


OPERATORS = {
    name: new_operator("reads_" + name.replace(" ", "_"), read) for name, read in READS.items()
}


def change_global():
    global FACTOR
    FACTOR = 5.0


def change_context():
    CONTEXT.set(5.0)


def change_attribute():
    SETTINGS.factor = 5.0


def change_inner():
    SETTINGS.inner.factor = 5.0


def change_list():
    LIST.append(5.0)


def change_table():
    TABLE["factor"] = 5.0


def change_class():
    Settings.factor = 5.0


CHANGES = dict(
    zip(
        READS,
        [change_global, change_context, change_attribute, change_inner]
        + [change_list, change_table, change_class],
        strict=True,
    )
)


@pytest.fixture(autouse=True)
def as_before():
    yield
    global FACTOR
    FACTOR = SETTINGS.factor = SETTINGS.inner.factor = TABLE["factor"] = Settings.factor = 2.0
    CONTEXT.set(2.0)
    LIST[:] = [2.0]


@pytest.mark.parametrize("changed", READS)
@pytest.mark.parametrize("name", READS)
def test_kernels_read_what_was_changed_before(name, changed):
    operator, change = OPERATORS[name], CHANGES[changed]

    def program(x):
        before = operator(x + 1)
        change()
        return before, operator(x)

    x = torch.ones(3)
    expected = [x * 2 * READS[name](), None]
    compiled = compile_frames(program, run_graph)
    found = compiled(x)
    expected[1] = x * READS[name]()
    torch.testing.assert_close(list(found), expected)


def test_functions_allowed_in_the_graph():
    @torch.compiler.allow_in_graph
    def scaled(x):
        return x * SETTINGS.factor

    def program(x):
        SETTINGS.factor = 5.0
        return scaled(x)

    x = torch.ones(3)
    torch.testing.assert_close(compile_frames(program, run_graph)(x), x * 5)


def test_changes_of_what_no_kernel_names_leave_one_graph():
    operator = OPERATORS["attribute"]
    log = []

    def program(x):
        log.append(x.shape[0])
        TABLE["calls"] = TABLE.get("calls", 0) + 1
        return operator(x) + 1

    captured = capture(program, options=CaptureOptions(fullgraph=True), backend=run_graph)
    torch.testing.assert_close(captured(torch.ones(3)).result, torch.full((3,), 3.0))
    assert log == [3]
    del TABLE["calls"]


def test_changes_behind_the_call_leave_one_graph():
    operator = OPERATORS["attribute"]

    def program(x):
        y = operator(x)
        SETTINGS.factor = 7.0
        return y

    captured = capture(program, options=CaptureOptions(fullgraph=True), backend=run_graph)
    torch.testing.assert_close(captured(torch.ones(3)).result, torch.full((3,), 2.0))
    assert SETTINGS.factor == 7.0
