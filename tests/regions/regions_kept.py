"""How many regions graphs keep, of programs that are run beside eager."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.fx
from weft_bytecode_capture import CaptureOptions, capture

from .objects_in_results import identities, tensors_in
from .test_random_programs import Line


def regions_in(
    function: Callable[..., Any], calls: Sequence[Sequence[torch.Tensor]]
) -> list[list[int]]:
    """How many regions each graph has that there is after each call.

    Results, identities and what later writes to results and inputs show are eager's.
    """
    line, regions, found = Line(), [], []

    def backend(graph: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
        before = line.regions
        run = line(graph, inputs)
        regions.append(line.regions - before)
        return run

    compiled = capture(function, options=CaptureOptions(rolled_loop_length=4), backend=backend)
    for call in calls:
        mine, theirs = ([x.clone() for x in call] for _ in range(2))
        with torch.no_grad():
            got, wanted = compiled(*mine).result, function(*theirs)
        assert identities((got, mine)) == identities((wanted, theirs))
        left, right = tensors_in((got, mine)), tensors_in((wanted, theirs))
        torch.testing.assert_close(left, right, equal_nan=True)
        for first, second in zip(left, right, strict=True):
            first.add_(7)
            second.add_(7)
        torch.testing.assert_close(left, right, equal_nan=True)
        found.append(list(regions))
    return found
