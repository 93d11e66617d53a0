"""The catalogue of graph breaks: complete, and what users are shown wherever a graph breaks."""

from __future__ import annotations

import ast
import functools
import inspect
import sys
import time
from pathlib import Path

import pytest
import torch
import weft_bytecode_capture
from differential import run_graph
from weft_bytecode_capture import CaptureOptions, GraphBreakError, capture, compile_frames
from weft_bytecode_capture.break_kinds import BREAK_KINDS, OPERATOR_REJECTS, page

SOURCES = Path(weft_bytecode_capture.__file__).parent


@functools.cache
def _raised_and_named():
    """The kinds that the sources raise in their own words, and all their texts."""
    raised, named = set(), set()
    for file in SOURCES.rglob("*.py"):
        if file.name == "break_kinds.py":
            continue
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                named.add(node.value)
            if (
                isinstance(node, ast.Call)
                and getattr(node.func, "id", None) == "Unsupported"
                and node.args
                and isinstance(node.args[0], ast.Constant)
            ):
                raised.add(node.args[0].value)
    return raised, named


def test_every_kind_raised_is_in_the_catalogue():
    raised, _ = _raised_and_named()
    assert len(raised) > 100
    assert raised <= BREAK_KINDS.keys()


def test_every_kind_of_the_catalogue_is_raised():
    _, named = _raised_and_named()
    assert BREAK_KINDS.keys() - named <= {
        OPERATOR_REJECTS,
        "deletion of an object with an observable lifetime",
    }


@pytest.mark.parametrize("kind", BREAK_KINDS)
def test_every_kind_is_explained(kind):
    entry = BREAK_KINDS[kind]
    assert entry.explanation
    assert "|" not in kind + entry.explanation + "".join(entry.hints)  # a table shows them
    assert f"| {kind} | {entry.explanation} |" in page()


def test_the_page_holds_the_catalogue():
    file = SOURCES.parents[1] / "BREAKS.md"
    if not file.exists():
        pytest.skip("an installed package has no page")
    rows = [line for line in file.read_text().splitlines() if line.startswith("| ")]
    written = {row.split(" | ")[0].removeprefix("| ") for row in rows} - {"kind"}
    assert len(written & BREAK_KINDS.keys()) > 150, "the module break_kinds writes the page"


class Wrapping(torch.Tensor):
    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


WRAPPING = torch.ones(2).as_subclass(Wrapping)


class Changed(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.mark_dirty(x)
        return x.mul_(2)

    @staticmethod
    def backward(ctx, gradient):
        return gradient


def entered_between(x):
    y = x + 1
    with torch.inference_mode():
        return y, x + 2


PROGRAMS = {
    "value of a tensor as a Python object": lambda x: x.sum().to(torch.complex64).item(),
    "change of requires_grad": lambda x: x.detach().requires_grad_().requires_grad_(False),
    "backward pass inside the function": lambda x: x.sum().backward(create_graph=True),
    "hook of a tensor": lambda x: x.register_hook(lambda gradient: gradient),
    "autograd function that needs gradients": lambda x: Changed.apply(x * 1),
    "tensor of unusual kind": lambda x: WRAPPING.shape,
    "storage of a tensor": lambda x: x.data_ptr() != 0,
    "change of torch's defaults": lambda x: torch.set_default_dtype(torch.float32),
    "state of a random number generator": lambda x: torch.get_rng_state(),
    "setting that may change": lambda x: torch.get_num_threads(),
    "inference mode switched between operators": entered_between,
    "Python function applied to each element": lambda x: x.detach().clone().apply_(abs),
    "call of a builtin function": lambda x: sys.getsizeof(x),
    "identity of equal constants": lambda x: (x.dim() + 10**6) is (x.dim() + 10**6),
}


@pytest.mark.parametrize("kind", PROGRAMS)
def test_users_are_shown_kind_reason_hints_and_line(kind):
    function = PROGRAMS[kind]
    x = torch.ones(3, requires_grad=True)
    breaks = {found.kind: found for found in capture(function)(x).breaks}
    found = breaks[kind]
    assert found.explanation
    assert Path(found.location.file).exists()
    assert found.location.line > 0
    with pytest.raises(GraphBreakError) as raised:
        compile_frames(function, run_graph, CaptureOptions(fullgraph=True))(x)
    text = str(raised.value)
    for part in (kind, found.context, found.explanation, *found.hints):
        assert part in text
    lines = {line for _, _, line in function.__code__.co_lines()}
    assert any(f'"{__file__}", line {line}' in text for line in lines)


def prints_on_a_side(x):
    if x.sum() > 0:
        print("positive")  # the cause
    return x * 2


def stops_in_a_call(x):
    def turn(y):
        return y * time.time()  # the cause

    while x.sum() < 10:
        x = turn(x)
    return x


def sizes_differ(x):
    return x[None] if x.sum() > 0 else x


def appends_on_a_side(x):
    kept = []
    for row in x:
        if row > 0:
            kept.append(row)
    return kept


WHY_NOT_KEPT = {
    prints_on_a_side: "print(Constant('positive'))",
    stops_in_a_call: "time()",
    sizes_differ: "tensor that differs by branch",
    appends_on_a_side: "list that one branch makes longer",
}


@pytest.mark.parametrize("function", WHY_NOT_KEPT, ids=lambda function: function.__name__)
def test_users_are_shown_why_a_branch_is_not_kept(function):
    """Also the line in it that cannot be."""
    with pytest.raises(GraphBreakError) as raised:
        compile_frames(function, run_graph, CaptureOptions(fullgraph=True))(torch.ones(3))
    before, _, why = str(raised.value).partition("not kept in the graph:")
    assert "branch on a tensor's value" in before
    assert WHY_NOT_KEPT[function] in why
    lines, first = inspect.getsourcelines(function)
    for line, text in enumerate(lines, first):
        if text.rstrip().endswith("# the cause"):
            assert f'"{__file__}", line {line}' in why
