"""Random programs as a newcomer writes them do as in CPython, over four calls with changing arguments.

Results, the arguments and all lasting objects after each call, which objects are one and which tensors share
memory, gradients, the type and text of exceptions.  Graphs run as they were captured, those with gradients
without control flow, since torch's own operators for it don't take all of it then.

``WEFT_ORDINARY_BLOCKS`` says how many blocks of four programs there are.
"""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch
import weft

from .ordinary_calls import World, calls_of, gradients, seen, tensors_in
from .ordinary_programs import OrdinaryProgram

BLOCKS = int(os.environ.get("WEFT_ORDINARY_BLOCKS", "4"))


@pytest.mark.filterwarnings("ignore:Use of .* on expanded tensors")
@pytest.mark.parametrize("block", range(BLOCKS))
def test_ordinary_programs(block: int) -> None:
    for seed in range(block * 4, block * 4 + 4):
        agree(seed)


def agree(seed: int) -> None:
    """The program does compiled what it does in CPython."""
    program, calls = OrdinaryProgram(seed), calls_of(seed)
    options = {"keep_control_flow": all(call.gradients == "none" for call in calls)}
    dynamic = (None, None, True, False)[seed % 4]

    def compiled(function: Any) -> Any:
        return weft.compile(function, backend="eager", dynamic=dynamic, options=options)

    worlds = (
        World(program, "ordinary_plain", lambda f: f),
        World(program, "ordinary_compiled", compiled),
    )
    for call in calls:
        told = f"seed {seed}, {call}\n{program.source}"
        (plain, plain_leaves), (found, found_leaves) = (world.call(call) for world in worlds)
        if _is_raised_by_a_kernel(plain[0]):
            # A graph's error leaves out what the program did before the operator that raised it.
            assert found[0] == plain[0], told
            return
        assert seen(found) == seen(plain), told
        assert all(map(_equal, tensors_in(found), tensors_in(plain))), told
        if call.context != "inference":
            wanted, given = gradients(plain, plain_leaves), gradients(found, found_leaves)
            assert len(wanted) == len(given) and all(map(_equal, given, wanted)), told


def _is_raised_by_a_kernel(outcome: Any) -> bool:
    return isinstance(outcome, tuple) and bool(outcome) and outcome[0] == "RuntimeError"


def _equal(left: Any, right: Any) -> bool:
    """Whether tensors have the same bits (NaN is NaN), or texts of errors are the same."""
    if not isinstance(left, torch.Tensor) or not isinstance(right, torch.Tensor):
        return bool(left == right)
    same = (left == right) | (left.isnan() & right.isnan())
    return left.dtype == right.dtype and left.shape == right.shape and bool(same.all())
