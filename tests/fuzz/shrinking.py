"""A smaller program that still fails: by leaving out statements, calls, results and layouts, greedily."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator

from .programs import Program, Statement, locals_of

Fails = Callable[[Program], bool]


def shrink(program: Program, fails: Fails, seconds: float = 120.0) -> Program:
    """The smallest program found in ``seconds`` for which ``fails`` holds, as it does for ``program``."""
    end = time.monotonic() + seconds
    progress = True
    while progress and time.monotonic() < end:
        progress = False
        for smaller in _smaller(program):
            if time.monotonic() > end:
                break
            if _is_a_program(smaller) and fails(smaller):
                program, progress = smaller, True
                break
    return program


def _is_a_program(program: Program) -> bool:
    """Whether eager runs it: what raises besides its last statement is another program."""
    if any("last = " in statement.line for statement in program.statements):
        return True
    return locals_of(program) is not None


def _smaller(program: Program) -> Iterator[Program]:
    """Programs with one thing less, those that leave out most first."""
    for count in range(len(program.calls)):
        if len(program.calls) > 1:
            calls = (*program.calls[:count], *program.calls[count + 1 :])
            yield dataclasses.replace(program, calls=calls)
    for statements in _fewer(program.statements):
        yield dataclasses.replace(program, statements=statements)
    for k in range(len(program.results)):
        if len(program.results) > 1:
            results = (*program.results[:k], *program.results[k + 1 :])
            yield dataclasses.replace(program, results=results)
    if program.dynamic is not False:
        yield dataclasses.replace(program, dynamic=False)
    for k, call in enumerate(program.calls):
        plainer = [
            dataclasses.replace(call, layouts=("plain",) * len(call.layouts)),
            dataclasses.replace(call, gradients=False),
            dataclasses.replace(call, no_grad=False),
        ]
        for changed in plainer:
            if changed != call:
                calls = (*program.calls[:k], changed, *program.calls[k + 1 :])
                yield dataclasses.replace(program, calls=calls)


def _fewer(statements: tuple[Statement, ...]) -> Iterator[tuple[Statement, ...]]:
    """Sequences with fewer statements: without one, with a block in place of one, with a smaller one."""
    half = len(statements) // 2
    if half > 1:
        yield statements[half:]
        yield statements[:half]
    for k in reversed(range(len(statements))):
        yield (*statements[:k], *statements[k + 1 :])
    for k, statement in enumerate(statements):
        for _, body in statement.blocks:
            yield (*statements[:k], *body, *statements[k + 1 :])
        for number, (header, body) in enumerate(statement.blocks):
            for fewer in _fewer(body):
                blocks = list(statement.blocks)
                blocks[number] = (header, fewer)
                changed = dataclasses.replace(statement, blocks=tuple(blocks))
                yield (*statements[:k], changed, *statements[k + 1 :])
