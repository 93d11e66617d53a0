"""Random whole programs beside eager: ``python -m tests.fuzz.report --programs 20000 [--first SEED]``.

Runs them in worker processes, so that a crash or an endless loop loses one program; what differs is made
smaller and printed with all that is needed to run it again (``--only SEED`` runs one).  Every outcome is a
line of JSON in ``--output``.  Exits with 1 if any program is wrong or shows a fault.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import torch

from tests.opinfo.workers import Worker, answer_all

from .checking import Outcome, check
from .programs import Program, random_program
from .shrinking import shrink
from .templates import PRELUDE

PROGRAM_SECONDS = 120.0
OPTIMIZED = 10
"""Of so many programs one is optimized as users' are; the others compile in a third of the time."""


def outcome_of(seed: int, shrink_seconds: float) -> dict[str, Any]:
    """What became of the program of ``seed``, and its smallest form where it fails."""
    os.environ["WEFT_UNOPTIMIZED_LENGTH"] = "1" if seed % OPTIMIZED else ""
    program = random_program(seed)
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


def serve(shrink_seconds: float) -> None:
    """Check the programs whose seeds come on standard input, one a line; one line of JSON each."""
    torch.set_num_threads(1)
    for line in sys.stdin:
        try:
            answer = outcome_of(int(line), shrink_seconds)
        except Exception as error:  # of the fuzzer itself
            answer = {"errors": [f"{type(error).__name__}: {error}"[:500]]}
        print(json.dumps(answer), flush=True)


def run(options: argparse.Namespace) -> list[dict[str, Any]]:
    """The outcome of every program that was begun in time."""
    arguments = ["--serve", "--shrink-seconds", str(options.shrink_seconds)]

    def failure(seed: str, error: str) -> dict[str, Any]:
        return {"seed": int(seed), "kind": "fault", "detail": error, "program": ""}

    with options.output.open("w") as file:
        return answer_all(
            map(str, range(options.first, options.first + options.programs)),
            functools.partial(Worker, arguments, "tests.fuzz.report"),
            failure,
            file,
            jobs=options.jobs,
            question_seconds=PROGRAM_SECONDS + options.shrink_seconds,
            end=time.monotonic() + options.seconds,
        )


def main() -> None:
    """Run, print what fails, and counts."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--programs", type=int, default=1000)
    parser.add_argument("--first", type=int, default=0, help="the first program's seed")
    parser.add_argument("--only", type=int, help="the seed of one program, run in this process")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--seconds", type=float, default=1e9, help="no program begins after these")
    parser.add_argument("--shrink-seconds", type=float, default=60.0)
    parser.add_argument("--output", type=Path, default=Path("fuzz.jsonl"))
    parser.add_argument("--serve", action="store_true", help="be a worker process")
    options = parser.parse_args()
    if options.serve:
        serve(options.shrink_seconds)
        return
    if options.only is not None:
        print(describe(random_program(options.only)))
    outcomes = [outcome_of(options.only, 0)] if options.only is not None else run(options)
    bad = [outcome for outcome in outcomes if outcome["kind"] in ("wrong", "fault")]
    for outcome in bad:
        print(
            f"seed {outcome['seed']}: {outcome['kind']}: {outcome['detail']}\n{outcome['program']}"
        )
    counts = Counter(outcome["kind"] for outcome in outcomes)
    print(
        f"{len(outcomes)} programs: {', '.join(f'{n} {kind}' for kind, n in counts.most_common())}"
    )
    sys.exit(bool(bad))


if __name__ == "__main__":
    main()
