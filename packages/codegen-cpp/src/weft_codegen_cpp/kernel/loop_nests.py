"""Loops around the body of a stage.

A long reduction goes in runs: each has accumulators of its own, which join a total, and few digits are lost.

A loop of the program inside a kernel ends when no element goes on.
"""

from __future__ import annotations

from collections.abc import Sequence

from weft_loop_ir import LoopVariable, Stage

from weft_codegen_cpp.kernel.expressions import indent, size_of, static_int
from weft_codegen_cpp.kernel.reductions import ReductionSet

CHUNK = 32  # steps of a running total before it joins a total of totals


def nest(loops: tuple[LoopVariable, ...], body: list[str]) -> list[str]:
    """``body`` in ``loops``, the last of them innermost."""
    for variable in reversed(loops):
        name = variable.symbol.name
        head = f"for (i64 {name} = 0; {name} < {size_of(variable)}; ++{name}) {{"
        body = [head, *indent(body), "}"]
    return body


def chunked(
    reductions: ReductionSet, loops: tuple[LoopVariable, ...], body: list[str], copies: str
) -> list[str]:
    """The nest of ``loops``; a long one in chunks, each with a total of its own."""
    if not loops or not reductions.loses_digits:
        return one_run(reductions, nest(loops, body), copies)
    last = loops[-1]
    extent = static_int(last.size)
    if extent is None or extent > 2 * CHUNK:
        run = in_runs(reductions, last, CHUNK, body, copies)
    elif len(loops) == 1:
        return one_run(reductions, nest(loops, body), copies)
    else:
        run = in_run(reductions, nest((last,), body), copies)
    return totalled(reductions, nest(loops[:-1], run), copies)


def one_run(reductions: ReductionSet, body: list[str], copies: str) -> list[str]:
    """``body``, all of a reduction, in one run."""
    start = reductions.start_run(copies) if reductions.rescales else []
    run = reductions.repeated([*start, *body], copies)
    return [*run, *reductions.settle(copies)]


def in_run(reductions: ReductionSet, body: list[str], copies: str) -> list[str]:
    """``body`` with accumulators of its own, which then join the totals."""
    run = [*reductions.start_run(copies), *body]
    return [*reductions.repeated(run, copies), *reductions.end_run(copies)]


def in_runs(
    reductions: ReductionSet, loop: LoopVariable, step: int, body: list[str], copies: str
) -> list[str]:
    """The loop over ``body`` in chunks of ``step`` iterations, each with accumulators of its own."""
    name, size = loop.symbol.name, size_of(loop)
    chunk = [
        f"for (i64 {name} = {name}_chunk; {name} < {name}_end; ++{name}) {{",
        *indent(body),
        "}",
    ]
    return [
        f"for (i64 {name}_chunk = 0; {name}_chunk < {size}; {name}_chunk += {step}) {{",
        f"  const i64 {name}_end = min_index({name}_chunk + {step}, {size});",
        *indent(in_run(reductions, chunk, copies)),
        "}",
    ]


def totalled(reductions: ReductionSet, nest: list[str], copies: str) -> list[str]:
    """``nest``, whose runs join totals, and then the totals as the accumulators."""
    return [*reductions.declare_totals(copies), *nest, *reductions.take_totals(copies)]


# -- loops of the program ------------------------------------------------------------------------------


EXPECTED_ITERATIONS = 32
"""Of a loop that data ends."""


def ending(flags: str, elements: str, tag: str) -> list[str]:
    """What leaves a loop where none of the ``elements`` of ``flags`` is set in a lane that takes part.

    The others compute something too, from zeros, which may never end.
    """
    return [
        "bool goes_on = false;",
        f"for (int k = 0; k < {elements}; ++k) goes_on |= {tag}.active(k) && {flags}[k];",
        "if (!goes_on) break;",
    ]


def unbounded(stage: Stage, body: Sequence[str]) -> list[str]:
    """``body``, in a loop if nothing but its flag ends ``stage``."""
    if stage.goes_on is None or stage.inner:
        return list(body)
    return ["for (;;) {", *("  " + line for line in body), "}"]


def expected_sizes(stage: Stage) -> list[str]:
    """What else the cost of an iteration is multiplied with."""
    return [str(EXPECTED_ITERATIONS)] if stage.goes_on is not None and not stage.inner else []
