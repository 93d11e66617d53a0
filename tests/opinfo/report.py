"""The whole operator database: ``python -m tests.opinfo.report [--samples N] [--only TEXT]``.

``--gradients`` checks gradients, ``--dynamic`` symbolic sizes and numbers, strictly (see :mod:`.dynamic`).

``--every N --first K`` takes every Nth case from the Kth on, to run the whole in N pieces.
Runs the cases in worker processes (a crash, or a case past its time limit, loses one case), prints counts and
what differs, and writes all outcomes as JSON lines.  Exits with 1 if a result is wrong that :data:`KNOWN`
doesn't explain.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path

from tests.opinfo.checking import Case, Outcome, all_cases, check
from tests.opinfo.dynamic import check_dynamic, dynamic_cases
from tests.opinfo.gradients import check_gradients, gradient_cases
from tests.opinfo.known import KNOWN, explained
from tests.opinfo.workers import Worker


def serve(options: argparse.Namespace) -> None:
    """Check the cases named on standard input, one a line; one line of JSON each."""
    cases, check_case = chosen(options)
    by_name = {str(case): case for case in cases}
    for name in sys.stdin:
        outcome = check_case(by_name[name.strip()], options.samples)
        print(json.dumps(asdict(outcome)), flush=True)


def chosen(
    options: argparse.Namespace,
) -> tuple[Iterator[Case], Callable[[Case, int], Outcome]]:
    """The cases that the options ask for, and what checks one."""
    if options.dynamic:
        return dynamic_cases(), check_dynamic
    if options.gradients:
        return gradient_cases(), check_gradients
    return all_cases(), check


def run(cases: list[Case], options: argparse.Namespace) -> dict[Case, Outcome]:
    """The outcome of each case that was begun in time."""
    rest = deque(cases)
    outcomes: dict[Case, Outcome] = {}
    end = time.monotonic() + options.seconds
    arguments = ["--serve", "--samples", str(options.samples)]
    arguments += ["--gradients"] * options.gradients + ["--dynamic"] * options.dynamic

    def work(_: int) -> None:
        with Worker(arguments) as worker:
            while rest and time.monotonic() < end:
                case = rest.popleft()
                outcomes[case] = worker.ask(case, options.case_seconds)
                file.write(json.dumps({"case": str(case), **asdict(outcomes[case])}) + "\n")
                file.flush()

    with options.output.open("w") as file, ThreadPoolExecutor(options.jobs) as pool:
        list(pool.map(work, range(options.jobs)))
    return outcomes


def summary(outcomes: dict[Case, Outcome]) -> str:
    """Counts by dtype and kind, as a Markdown table."""
    kinds = ("compiled", "in parts", "eager", "no sample", "known", "refused", "wrong", "error")
    lines = ["| dtype | " + " | ".join(kinds) + " |", "|---" * (len(kinds) + 1) + "|"]
    rows: dict[str, Counter[str]] = {}
    for case, outcome in outcomes.items():
        kind = "known" if explained(case, outcome) else outcome.kind
        label = (
            f"{str(case.dtype).removeprefix('torch.')}, {'dynamic' if case.dynamic else 'static'}"
        )
        rows.setdefault(label, Counter())[kind] += 1
    for label, counts in rows.items():
        lines.append(f"| {label} | " + " | ".join(str(counts[kind]) for kind in kinds) + " |")
    return "\n".join(lines)


def main() -> None:
    """Run, print, and write the outcomes."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--samples", type=int, default=4)
    parser.add_argument("--only", default="")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--first", type=int, default=0, help="where --every begins to count")
    parser.add_argument("--seconds", type=float, default=1e9, help="no case begins after these")
    parser.add_argument("--case-seconds", type=float, default=600.0, help="the limit of one case")
    parser.add_argument("--output", type=Path, default=Path("opinfo.jsonl"))
    parser.add_argument("--gradients", action="store_true", help="in float32 and float64")
    parser.add_argument("--dynamic", action="store_true", help="symbolic sizes, strictly")
    parser.add_argument("--serve", action="store_true", help="be a worker process")
    options = parser.parse_args()
    if options.serve:
        serve(options)
        return
    cases = [case for case in chosen(options)[0] if options.only in str(case)]
    outcomes = run(cases[options.first :: options.every], options)
    bad = {
        case: outcome
        for case, outcome in outcomes.items()
        if outcome.kind in ("wrong", "error") and not explained(case, outcome)
    }
    for case, outcome in outcomes.items():
        if case in bad or outcome.kind == "refused":
            print(case, outcome.kind, *(outcome.wrong or outcome.errors or outcome.refused)[:1])
    ordered = dict(sorted(outcomes.items(), key=lambda item: all_order(item[0])))
    print(summary(ordered))
    print(f"{len(KNOWN)} operators have differences that tests/opinfo/known.py explains")
    sys.exit(bool(bad))


def all_order(case: Case) -> tuple[str, bool]:
    return str(case.dtype), case.dynamic


if __name__ == "__main__":
    main()
