"""The command line of a sweep over the operator database, sharded over processes."""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path

from tests.opinfo.checking import Case, Outcome
from tests.opinfo.workers import Worker


def command(
    every_case: Callable[[], Iterator[Case]], check: Callable[[Case, int], Outcome], module: str
) -> None:
    """Run the cases in worker processes of ``module``, print, and write the outcomes."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--samples", type=int, default=3)
    parser.add_argument(
        "--only", default="", help="cases whose name matches this regular expression"
    )
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--first", type=int, default=0, help="where --every begins to count")
    parser.add_argument("--seconds", type=float, default=1e9, help="no case begins after these")
    parser.add_argument("--case-seconds", type=float, default=120.0, help="the limit of one case")
    parser.add_argument("--output", type=Path, default=Path(f"{module.rpartition('.')[2]}.jsonl"))
    parser.add_argument("--serve", action="store_true", help="be a worker process")
    options = parser.parse_args()
    cases = [case for case in every_case() if re.search(options.only, str(case))]
    if options.serve:
        by_name = {str(case): case for case in cases}
        for name in sys.stdin:
            try:
                outcome = check(by_name[name.strip()], options.samples)
            except Exception:  # of the check itself, which is no reason to lose the process
                outcome = Outcome(errors=[traceback.format_exc()[-600:]])
            print(json.dumps(asdict(outcome)), flush=True)
        return
    outcomes = _outcomes(cases[options.first :: options.every], options, module)
    with options.output.open("w") as file:
        for name, outcome in sorted(outcomes.items()):
            file.write(json.dumps({"case": name, **asdict(outcome)}) + "\n")
            for text in outcome.wrong + outcome.errors:
                print(name, text)
    bad = sum(bool(outcome.wrong or outcome.errors) for outcome in outcomes.values())
    calls = sum(outcome.samples for outcome in outcomes.values())
    print(f"{calls} calls of {len(outcomes)} cases of {len(cases)}, {bad} cases differ")
    sys.exit(bool(bad))


def _outcomes(cases: list[Case], options: argparse.Namespace, module: str) -> dict[str, Outcome]:
    """The outcome of each case that was begun in time."""
    rest = deque(cases)
    outcomes: dict[str, Outcome] = {}
    end = time.monotonic() + options.seconds

    def work(_: int) -> None:
        with Worker(["--serve", "--samples", str(options.samples)], module) as worker:
            while rest and time.monotonic() < end:
                case = rest.popleft()
                outcomes[str(case)] = worker.ask(case, options.case_seconds)

    with ThreadPoolExecutor(options.jobs) as pool:
        list(pool.map(work, range(options.jobs)))
    return outcomes
