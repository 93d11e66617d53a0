"""The loops of a finished kernel: their order, by the strides of the accesses, and merging."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import sympy
import torch

from weft_loop_ir.bodies import IndexValue, Instruction, Store
from weft_loop_ir.bodies.replay import Replayer
from weft_loop_ir.expressions import loop_symbol
from weft_loop_ir.ir import LoopVariable, Stage
from weft_loop_ir.recording import BodyRecorder
from weft_loop_ir.schedule.accesses import (
    LinearForm,
    linear_form,
    runs_that_act_as_one,
    with_replaced,
)


@dataclass(frozen=True)
class Nest:
    """The loops and stages of a kernel."""

    outer: tuple[LoopVariable, ...]
    inner: tuple[LoopVariable, ...]
    stages: tuple[Stage, ...]


def arranged(nest: Nest, buffer_dtype: Callable[[str], torch.dtype]) -> Nest:
    """``nest`` with the best order of outer loops and every pair of loops merged that acts as one."""
    accesses = _accesses(nest)
    variables, split = nest.outer + nest.inner, len(nest.outer)
    order: Sequence[int] = range(split)
    if not nest.inner and len(nest.stages) == 1:
        order = _vote(nest, accesses)
    forms = [form for _, form in accesses]
    outer_runs = runs_that_act_as_one(order, variables, forms)
    inner_runs = runs_that_act_as_one(range(split, len(variables)), variables, forms)
    if outer_runs + inner_runs == [[k] for k in range(len(variables))]:
        return nest
    return _rebuilt(nest, outer_runs, inner_runs, buffer_dtype)


def with_inner_loops_merged(nest: Nest, buffer_dtype: Callable[[str], torch.dtype]) -> Nest:
    """``nest`` with every run of inner loops merged that acts as one."""
    split = len(nest.outer)
    variables = nest.outer + nest.inner
    forms = [form for _, form in _accesses(nest)]
    runs = runs_that_act_as_one(range(split, len(variables)), variables, forms)
    if len(runs) == len(nest.inner):
        return nest
    return _rebuilt(nest, [[k] for k in range(split)], runs, buffer_dtype)


def _accesses(nest: Nest) -> list[tuple[Instruction, LinearForm]]:
    symbols = tuple(v.symbol for v in nest.outer + nest.inner)
    return [
        (instruction, linear_form(instruction.index, symbols))
        for stage in nest.stages
        for instruction in stage.body.indexed()
    ]


def _vote(nest: Nest, accesses: Sequence[tuple[Instruction, LinearForm]]) -> list[int]:
    """Outer loops, outermost first: innermost the one along which most accesses are contiguous.

    Ties, and the other loops, go by the strides of the first store.
    """
    count = len(nest.outer)
    votes = [0] * count
    store: LinearForm | None = None
    for instruction, form in accesses:
        is_store = isinstance(instruction, Store)
        if is_store and store is None:
            store = form
        if isinstance(instruction, IndexValue):
            continue
        for k in range(count):
            if form.coefficients[k] == 1:
                votes[k] += 2 if is_store else 1
    order = list(range(count))
    if store is not None and all(isinstance(c, int) for c in store.coefficients):
        strides = store.coefficients
        order.sort(key=lambda k: -strides[k])
    if not order:
        return order
    best = max(votes)
    if votes[order[-1]] < best:
        winner = max(k for k in order if votes[k] == best)
        order.remove(winner)
        order.append(winner)
    return order


def _rebuilt(
    nest: Nest,
    outer_runs: list[list[int]],
    inner_runs: list[list[int]],
    buffer_dtype: Callable[[str], torch.dtype],
) -> Nest:
    variables = nest.outer + nest.inner
    symbols = tuple(v.symbol for v in variables)
    renamed: dict[sympy.Symbol, sympy.Expr] = {}

    def merged(prefix: str, runs: list[list[int]]) -> tuple[LoopVariable, ...]:
        loops = []
        for position, run in enumerate(runs):
            size: sympy.Expr = sympy.S.One
            for k in run:
                size = size * variables[k].size
                renamed[symbols[k]] = sympy.S.Zero
            symbol = loop_symbol(prefix, position)
            renamed[symbols[run[-1]]] = symbol
            loops.append(LoopVariable(symbol, size))
        return tuple(loops)

    outer = merged("i", outer_runs)
    inner = merged("r", inner_runs)

    def index(expression: sympy.Expr) -> sympy.Expr:
        return with_replaced(expression, symbols, renamed)

    numbers = itertools.count()
    stages = []
    for stage in nest.stages:
        loops = outer + inner if stage.inner else outer
        ops = BodyRecorder.over(loops, buffer_dtype, numbers)
        Replayer(ops, index).replay(stage.body)
        stages.append(Stage(inner if stage.inner else (), ops.body(), stage.is_reduction))
    return Nest(outer, inner, tuple(stages))
