"""Random programs of views, writes, branches and loops agree with eager bit for bit.

So does TensorSSA form, run by its definition.

``WEFT_REGION_BLOCKS`` says how many blocks of six programs there are: 3334 makes 20,000 programs.
"""

from __future__ import annotations

import collections
import itertools
import os
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.fx
import weft_aot_autograd
import weft_functionalize
import weft_loop_ir
from weft_bytecode_capture import CaptureOptions, capture

from .objects_in_results import Row, identities, objects_in
from .random_programs import (
    COLUMNS,
    ROWS,
    ChangingProgram,
    ContainerProgram,
    Program,
    ReturningProgram,
    WiderProgram,
)
from .random_state_programs import StatefulProgram

ROLLED = CaptureOptions(rolled_loop_length=2)


class Line:
    """A backend: every stage up to the schedule, which the reference evaluator runs."""

    def __init__(self) -> None:
        self.refused: collections.Counter[str] = collections.Counter()
        self.regions = 0

    def __call__(
        self, graph_module: torch.fx.GraphModule, example_inputs: list[Any]
    ) -> Callable[..., Any]:
        names = [str(node.target) for node in graph_module.graph.nodes]
        self.regions += names.count("cond") + names.count("while_loop")
        try:
            functional = weft_functionalize.functionalize(graph_module, example_inputs)
            forward = weft_aot_autograd.trace_inference(functional)
            loop_graph = weft_loop_ir.lower(forward.graph_module)
        except (weft_functionalize.Unsupported, weft_loop_ir.Unsupported) as error:
            self.refused[error.kind] += 1
            return graph_module.forward
        schedule = weft_loop_ir.schedule(loop_graph)
        weft_loop_ir.verify(schedule)

        def run(*inputs: Any) -> tuple[Any, ...]:
            every: list[Any] = [functional.lifted.get(i) for i in range(len(functional.inputs))]
            for index, value in zip(functional.user_input_indices, inputs, strict=True):
                every[index] = value
            by_definition = weft_functionalize.interpret(functional.graph_module, every)
            results = weft_loop_ir.evaluate(schedule, every, use_arena=True)
            assert all(map(torch.equal, results, by_definition))
            return results

        return weft_functionalize.wrap(functional, run, functional.lifted)


def agree(seed: int, line: Line, kind: type[Program] = Program) -> None:
    """The compiled program's results and its inputs after it are eager's."""
    written = kind(seed)
    source = written.source
    scope: dict[str, Any] = {"torch": torch, "Row": Row}
    scope |= {"collections": collections, "itertools": itertools}
    exec(compile(source, f"<program {seed}>", "exec"), scope)
    program = scope["program"]
    generator = torch.Generator().manual_seed(seed)
    shape = (ROWS, COLUMNS)
    compiled = capture(program, options=ROLLED, backend=line)
    for numbers in written.numbers:
        given = [torch.randint(-5, 6, shape, generator=generator).double() for _ in range(2)]
        theirs, mine = [x.clone() for x in given], [x.clone() for x in given]
        with torch.no_grad():
            wanted = program(*theirs, *numbers)
            got = compiled(*mine, *numbers).result
        assert identities((got, mine)) == identities((wanted, theirs)), f"seed {seed}\n{source}"
        _write(got)
        _write(wanted)
        left, right = objects_in((got, mine)), objects_in((wanted, theirs))
        assert all(map(_equal, left, right)), f"seed {seed}\n{source}"


def _write(results: tuple[Any, ...]) -> None:
    """What a caller may do with what it is given: inputs that are results see it."""
    for value in objects_in(results):
        if isinstance(value, torch.Tensor) and value.dtype != torch.bool:
            value.mul_(3)


def _equal(left: Any, right: Any) -> bool:
    """Whether tensors are equal: all else is told by :func:`identities`."""
    return not isinstance(left, torch.Tensor) or torch.equal(left, right)


BLOCKS = int(os.environ.get("WEFT_REGION_BLOCKS", "4"))


@pytest.mark.parametrize("block", range(BLOCKS))
def test_random_programs(block: int) -> None:
    line = Line()
    for seed in range(block * 6, block * 6 + 6):
        agree(seed, line)
    assert line.regions  # that is, some of it was kept whole
    assert not line.refused


@pytest.mark.parametrize("seed", [10285, 10426])
def test_writes_to_what_nested_regions_may_return(seed: int) -> None:
    agree(seed, Line())


def test_what_a_loop_of_branches_gives_may_be_an_input() -> None:
    agree(5292, Line(), WiderProgram)


@pytest.mark.parametrize("block", range(BLOCKS))
def test_wider_random_programs(block: int) -> None:
    line = Line()
    for seed in range(block * 6, block * 6 + 6):
        agree(seed, line, WiderProgram)
    assert line.regions


@pytest.mark.parametrize("block", range(BLOCKS))
def test_random_programs_of_numbers_that_change(block: int) -> None:
    line = Line()
    for seed in range(block * 2, block * 2 + 2):
        agree(seed, line, ChangingProgram)
    assert line.regions


@pytest.mark.parametrize(
    "seed", [pytest.param(n, marks=pytest.mark.slow) for n in (4359, 4664)] + [4570]
)
def test_returns_from_a_while_whose_test_has_two_parts(seed: int) -> None:
    agree(seed, Line(), WiderProgram)


@pytest.mark.parametrize("block", range(BLOCKS))
def test_random_programs_that_return_what_they_have(block: int) -> None:
    for seed in range(block * 6, block * 6 + 6):
        agree(seed, Line(), ReturningProgram)


@pytest.mark.parametrize("block", range(BLOCKS))
def test_random_programs_of_containers(block: int) -> None:
    line = Line()
    for seed in range(block * 6, block * 6 + 6):
        agree(seed, line, ContainerProgram)
    assert line.regions


@pytest.mark.parametrize("block", range(BLOCKS))
def test_random_programs_that_change_python_state(block: int) -> None:
    agree(block, Line(), StatefulProgram)
