"""Random whole programs beside eager: ``python -m tests.fuzz.report --programs 20000 [--first SEED]``.

Runs them in worker processes, so that a crash or an endless loop loses one program; what differs is made
smaller and printed with all that is needed to run it again (``--only SEED`` runs one).  Most are run by
loop-ir's evaluator (:mod:`tests.fuzz.evaluated`), one of ``--compiled-every`` by what a C++ compiler makes.
Every outcome is a line of JSON in ``--output``.  The last lines are counts, and a line for each kind of
failure.  Exits with 1 if any program is wrong or shows a fault.
"""

from __future__ import annotations

import argparse
import functools
import gc
import json
import os
import re
import sys
import time
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import torch
import weft
from weft_codegen_cpp import CppCodegen

from tests.opinfo.workers import Worker, answer_all

from .checking import Outcome, check
from .evaluated import EvaluatedCpp, cache_fakes
from .programs import Program, random_program
from .shrinking import shrink
from .templates import PRELUDE

OPTIMIZED = 10
"""Of so many compiled programs one is optimized as users' are; the others compile in a third of the time."""

TOLD = 70
"""Kinds of failures that the last lines tell of."""


def outcome_of(seed: int, shrink_seconds: float, compiled_every: int) -> dict[str, Any]:
    """What became of the program of ``seed``, and its smallest form where it fails."""
    compiled = seed % compiled_every == 0
    os.environ["WEFT_UNOPTIMIZED_LENGTH"] = "1" if seed // compiled_every % OPTIMIZED else ""
    weft.register_codegen("cpu", CppCodegen if compiled else EvaluatedCpp)
    program = random_program(seed)
    with cache_fakes(compiled):
        outcome = check(program)
        if outcome.bad and shrink_seconds > 0:
            program = shrink(program, lambda other: _fails_so(other, outcome), shrink_seconds)
            outcome = check(program)
    text = describe(program) if outcome.kind not in ("right", "unstable") else ""
    return {"seed": seed, "kind": outcome.kind, "detail": outcome.detail, "program": text}


def _fails_so(program: Program, outcome: Outcome) -> bool:
    try:
        return _same(check(program), outcome)
    except (
        SyntaxError,
        RuntimeError,
    ):  # it has lost a loop around a break, or has too many dimensions
        return False


def _same(found: Outcome, wanted: Outcome) -> bool:
    """Whether two programs fail alike: of the same kind, faults with errors of the same stage."""
    alike = found.kind == wanted.kind
    return alike and (found.kind != "fault" or _stage(found.detail) == _stage(wanted.detail))


def _stage(detail: str) -> str:
    return detail.split(" failed on ")[0].split(": ", 1)[-1] + detail.rsplit(": ", 2)[-2][-40:]


def describe(program: Program) -> str:
    """The program without what all have, and its calls."""
    calls = "\n".join(f"# {call}" for call in program.calls)
    head = f"# dynamic={program.dynamic} {program.inputs}\n{calls}"
    return f"{head}\n{program.source.removeprefix(PRELUDE)}"


def serve(options: argparse.Namespace) -> None:
    """Check programs; standard input has the seed of one a line, and for how long to make it smaller.

    One line of JSON each.
    """
    torch.set_num_threads(1)
    gc.freeze()  # what is imported stays
    for line in sys.stdin:
        seed, shrink_seconds = line.split()
        try:
            answer = outcome_of(int(seed), float(shrink_seconds), options.compiled_every)
        except Exception as error:  # of the fuzzer itself
            answer = {"errors": [f"{type(error).__name__}: {error}"[:500]]}
        print(json.dumps(answer), flush=True)


def run(options: argparse.Namespace) -> list[dict[str, Any]]:
    """The outcome of every program that was begun in time."""
    arguments = ["--serve", "--compiled-every", str(options.compiled_every)]
    asked = Counter[str]()

    def question(seed: int) -> str:
        """The first failures are made smaller; a fault that many programs show leaves time for others."""
        return f"{seed} {options.shrink_seconds if asked['bad'] < options.shrink_most else 0}"

    def failure(asked: str, error: str) -> dict[str, Any]:
        return {"seed": int(asked.split()[0]), "kind": "fault", "detail": error, "program": ""}

    def observe(answer: dict[str, Any]) -> None:
        asked["bad"] += answer["kind"] in BAD

    with options.output.open("w") as file:
        return answer_all(
            map(question, range(options.first, options.first + options.programs)),
            functools.partial(Worker, arguments, "tests.fuzz.report"),
            failure,
            file,
            jobs=options.jobs,
            question_seconds=options.program_seconds + options.shrink_seconds,
            end=time.monotonic() + options.seconds,
            observe=observe,
        )


BAD = ("wrong", "fault")


def summary(outcomes: list[dict[str, Any]]) -> str:
    """Counts, and a line for each kind of failure: how many, some seeds, the first one's detail."""
    alike = defaultdict(list)
    for outcome in outcomes:
        if outcome["kind"] in BAD:
            detail = outcome["detail"].replace("\n", " ")
            alike[re.sub(r"[\d.]+", "0", detail)[:60]].append((outcome["seed"], detail))
    lines = []
    for found in sorted(alike.values(), key=len, reverse=True)[:TOLD]:
        seeds = " ".join(str(seed) for seed, _ in found[:3])
        lines.append(f"{len(found)} x (seeds {seeds}): {found[0][1][:80]}")
    counts = Counter(outcome["kind"] for outcome in outcomes)
    told = ", ".join(f"{n} {kind}" for kind, n in counts.most_common())
    return "\n".join([*lines, f"{len(outcomes)} programs: {told}"])


def main() -> None:
    """Run, print what fails, and counts."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--programs", type=int, default=1000)
    parser.add_argument("--first", type=int, default=0, help="the first program's seed")
    parser.add_argument("--only", type=int, help="the seed of one program, run in this process")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--seconds", type=float, default=1e9, help="no program begins after these")
    parser.add_argument("--program-seconds", type=float, default=120.0, help="what one may take")
    parser.add_argument("--compiled-every", type=int, default=10, help="1: all by a C++ compiler")
    parser.add_argument("--shrink-seconds", type=float, default=60.0)
    parser.add_argument("--shrink-most", type=int, default=40, help="failures made smaller")
    parser.add_argument("--output", type=Path, default=Path("fuzz.jsonl"))
    parser.add_argument("--serve", action="store_true", help="be a worker process")
    options = parser.parse_args()
    if options.serve:
        serve(options)
        return
    if options.only is not None:
        print(describe(random_program(options.only)))
        outcomes = [outcome_of(options.only, 0, options.compiled_every)]
    else:
        outcomes = run(options)
    bad = [outcome for outcome in outcomes if outcome["kind"] in BAD]
    for outcome in bad:
        print(
            f"seed {outcome['seed']}: {outcome['kind']}: {outcome['detail']}\n{outcome['program']}"
        )
    print(summary(outcomes))
    sys.exit(bool(bad))


if __name__ == "__main__":
    main()
