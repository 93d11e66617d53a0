"""The whole operator database: ``python -m tests.opinfo.report [--samples N] [--only TEXT] [--gradients]``.

``--every N --first K`` takes every Nth case from the Kth on, to run the whole in N pieces.
Runs every case in worker processes (a crash loses one case), prints counts and what differs, and writes all
outcomes as JSON lines.  Exits with 1 if a result is wrong that :data:`KNOWN` doesn't explain.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path

from tests.opinfo.checking import Case, Outcome, all_cases, check
from tests.opinfo.gradients import check_gradients, gradient_cases
from tests.opinfo.known import KNOWN, explained

ROOT = Path(__file__).parents[2]


def work(cases: list[Case], samples: int, gradients: bool) -> Iterator[tuple[Case, Outcome]]:
    """Run ``cases`` in worker processes, one after another; a new one follows each crash."""
    rest = list(cases)
    while rest:
        names = "\n".join(str(case) for case in rest)
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.opinfo.report", "--worker", "--samples", str(samples)]
            + ["--gradients"] * gradients,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            cwd=ROOT,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(names)
        process.stdin.close()
        for line in process.stdout:
            if line.startswith("{"):
                yield rest.pop(0), Outcome(**json.loads(line))
        if process.wait() and rest:
            crash = f"the process ended with {process.returncode}"
            yield rest.pop(0), Outcome(errors=[crash])


def worker(samples: int, gradients: bool) -> None:
    """Check the cases named on standard input; one line of JSON each."""
    by_name = {str(case): case for case in all_cases()}
    for name in sys.stdin.read().split():
        outcome = (check_gradients if gradients else check)(by_name[name], samples)
        print(json.dumps(asdict(outcome)), flush=True)


def summary(outcomes: dict[Case, Outcome]) -> str:
    """Counts by dtype and kind, as a Markdown table."""
    kinds = ("compiled", "in parts", "eager", "no sample", "known", "wrong", "error")
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
    parser.add_argument("--output", type=Path, default=Path("opinfo.jsonl"))
    parser.add_argument("--gradients", action="store_true", help="in float32 and float64")
    parser.add_argument("--worker", action="store_true")
    options = parser.parse_args()
    if options.worker:
        worker(options.samples, options.gradients)
        return
    every = gradient_cases() if options.gradients else all_cases()
    cases = [case for case in every if options.only in str(case)]
    cases = cases[options.first :: options.every]
    parts = [cases[k :: options.jobs] for k in range(options.jobs)]
    outcomes: dict[Case, Outcome] = {}
    with options.output.open("w") as file, ThreadPoolExecutor(options.jobs) as pool:

        def run(part: list[Case]) -> None:
            for case, outcome in work(part, options.samples, options.gradients):
                outcomes[case] = outcome
                file.write(json.dumps({"case": str(case), **asdict(outcome)}) + "\n")
                file.flush()

        list(pool.map(run, parts))
    bad = {
        case: outcome
        for case, outcome in outcomes.items()
        if outcome.kind in ("wrong", "error") and not explained(case, outcome)
    }
    for case, outcome in bad.items():
        print(case, outcome.kind, *(outcome.wrong or outcome.errors)[:1])
    print(summary(dict(sorted(outcomes.items(), key=lambda item: all_order(item[0])))))
    print(f"{len(KNOWN)} operators have differences that tests/opinfo/known.py explains")
    sys.exit(bool(bad))


def all_order(case: Case) -> tuple[str, bool]:
    return str(case.dtype), case.dynamic


if __name__ == "__main__":
    main()
