"""Programs that hypothesis writes do the same plainly and compiled: results, errors, and state they change.

``WEFT_PROGRAMS`` says how many programs are tried (60 if unset).
"""

import collections
import contextlib
import copy
import itertools
import os
import sys
import types

import programs
import pytest
import torch
import wider_programs
from differential import outcome, run_graph, same
from hypothesis import HealthCheck, given, settings
from weft_bytecode_capture import CaptureOptions, compile_frames, disable

CALLS = (
    (torch.tensor([1.0, -2.0]), torch.tensor([0.5, 3.0]), [3, 1, 2], {"a": 1, "b": 2}, 2),
    (torch.tensor([1.0, -2.0]), torch.tensor([0.5, 3.0]), [3, 1, 2], {"a": 1, "b": 2}, 2),
    (torch.tensor([-1.0, 4.0]), torch.tensor([2.0, 2.0]), [0], {"c": 5}, -1),
)


def namespace(source):
    """The globals of a program, itself among them."""
    log = []
    names = {
        "torch": torch, "LOG": log, "STATE": {"total": 0}, "TOTAL": 0, "Box": programs.Box,
        "noted": programs.noted, "__name__": "program", "deque": collections.deque, "sys": sys,
        "itertools": itertools, "contextlib": contextlib, "SimpleNamespace": types.SimpleNamespace,
        "Row": wider_programs.Row, "Table": wider_programs.Table,
    }  # fmt: skip

    @disable
    def barrier(value):
        noted = "function" if callable(value) else copy.copy(value)
        log.append(("barrier", value if isinstance(value, torch.Tensor) else noted))
        return value

    names["barrier"] = barrier
    exec(compile(source, "/programs/program.py", "exec"), names)
    return names


def observed(names, function, arguments):
    programs.LOG.clear()
    found = outcome(function, copy.deepcopy(arguments))
    return (*found, names["LOG"], list(programs.LOG), names["STATE"], names["TOTAL"])


@pytest.mark.filterwarnings("ignore:weft. program:UserWarning")  # compiled as often as it may be
@settings(
    max_examples=int(os.environ.get("WEFT_PROGRAMS", "60")),
    deadline=None,
    derandomize="WEFT_PROGRAMS" not in os.environ,
    suppress_health_check=list(HealthCheck),
)
@given(wider_programs.programs())
def test_programs_do_the_same(source):
    plain, captured = namespace(source), namespace(source)
    options = CaptureOptions(recompile_limit=4)
    compiled = compile_frames(captured["program"], run_graph, options)
    for arguments in CALLS:
        expected = observed(plain, plain["program"], arguments)
        found = observed(captured, compiled, arguments)
        assert same(found, expected), f"{found}\nis not\n{expected}\nfor\n{source}"
