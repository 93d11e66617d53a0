"""The suite's tables: ``python -m benchmarks.gpu_suite.report FILE ... [--write PAGE.md]``.

For each task that the files hold results of: a row for each model, and below them what they amount to.  With
``--write`` they take the place of what is between the two marks in that file.

A model's results are wrong where an error of weft's beside float64 is larger than eager's times a factor, and
than a rounding of the dtype: a loss is one number, which eager may hit by luck.
"""

from __future__ import annotations

import argparse
import math
import statistics
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import torch

from benchmarks.gpu_suite.models import SUITE
from benchmarks.gpu_suite.results import COMPILERS, Result, Results, Task, read_results

BEGIN, END = (
    "<!-- benchmarks.gpu_suite.report begins -->",
    "<!-- benchmarks.gpu_suite.report ends -->",
)
FACTORS = {"outputs": 2.0, "loss": 2.0, "gradients": 2.0, "worst gradient": 4.0}
"""How many times eager's an error may be; that of a single parameter is the noisiest."""

Row = dict[str, Result]
"""What was measured of a model, by compiler; each has its figures."""


def report(results: Results, models: Iterable[str]) -> str:
    """All tables, as Markdown."""
    models = list(models)
    tasks = dict.fromkeys(key.task for key in results)
    machines = sorted({r["machine"] for r in results.values() if "machine" in r})
    return "\n\n".join(["; ".join(machines), *(_section(results, models, task) for task in tasks)])


def _section(results: Results, models: list[str], task: Task) -> str:
    of_task = {(k.model, k.compiler): r for k, r in results.items() if k.task == task}
    compilers = [c for c in COMPILERS if any(key[1] == c for key in of_task)]
    measured = {
        model: {c: of_task[model, c] for c in compilers if "ms" in of_task.get((model, c), {})}
        for model in models
    }
    whole = {model: row for model, row in measured.items() if {"eager", "weft"} <= row.keys()}
    title = f"{'Inference' if task.what == 'infer' else 'Training, a step under autocast'}, {task.dtype}:"
    lines = [title, "", *_table(whole, compilers, task), ""]
    lines += [f"- {line}" for line in _summary(whole, compilers, task)]
    lines += [
        f"- {compiler} on {model}: {_why(result)}."
        for (model, compiler), result in of_task.items()
        if "ms" not in result
    ]
    return "\n".join(lines)


def _why(result: Result) -> str:
    if "unfinished" in result:
        return f"not finished in {result['unfinished']} s"
    return f"failed: {' '.join(result['failure'].split())[-200:]}"


def short(compiler: str) -> str:
    """torch.compile's modes by themselves, weft's with its name."""
    name, _, mode = compiler.partition(":")
    return mode if mode and name == "torch.compile" else f"{name} {mode}".strip()


# ---- rows ------------------------------------------------------------------------------------------


def _table(rows: dict[str, Row], compilers: list[str], task: Task) -> Iterator[str]:
    of_each = [short(c) for c in compilers]
    columns = [f"{name} ms" for name in of_each]
    columns += ["weft over eager", "over torch.compile's best", f"kernels: {' / '.join(of_each)}"]
    columns += [f"peak GiB: {' / '.join(of_each)}", f"first call s: {' / '.join(of_each[1:])}"]
    columns += ["errors beside float64: eager / weft", ""]
    yield f"| model | {' | '.join(columns)} |"
    yield "|---|" + "---|" * len(columns)
    for model, row in rows.items():
        yield f"| {model} | {' | '.join(_cells(row, compilers, task))} |"


def _cells(row: Row, compilers: list[str], task: Task) -> list[str]:
    def of_each(text: Callable[[Result], str], chosen: Iterable[str] = compilers) -> list[str]:
        return [text(row[c]) if c in row else "-" for c in chosen]

    weft, best = row["weft"], best_of_torch(row)
    compared = [row["eager"], *([best] if best else [])]
    ratios = [f"{other['ms'] / weft['ms']:.2f}x" for other in compared]
    return [
        *of_each(lambda r: f"{r['ms']:.2f} ± {r['spread'] / 2:.2f}"),
        *(ratios if best else [*ratios, "-"]),
        " / ".join(of_each(lambda r: str(r["kernels"]))),
        " / ".join(of_each(lambda r: f"{r['peak_bytes'] / 2**30:.2f}")),
        " / ".join(of_each(lambda r: f"{r['first_call_seconds']:.0f}", compilers[1:])),
        "; ".join(
            f"{kind} {error:.1e} / {weft['errors'][kind]:.1e}"
            for kind, error in row["eager"]["errors"].items()
        ),
        "; ".join(wrong(row, task)),
    ]


def best_of_torch(row: Row) -> Result | None:
    """The fastest of the modes of torch.compile."""
    modes = [result for compiler, result in row.items() if compiler.startswith("torch.compile")]
    return min(modes, key=lambda r: float(r["ms"])) if modes else None


def wrong(row: Row, task: Task) -> list[str]:
    """What of weft's results is further from float64 than it may be."""
    rounding = torch.finfo(getattr(torch, task.dtype)).eps / 2
    eager = row["eager"]["errors"]
    return [
        f"WRONG: {kind} of {short(compiler)}"
        for compiler, result in row.items()
        if compiler.startswith("weft")
        for kind, error in result["errors"].items()
        # A comparison with NaN is false; where eager's own result is none, there is nothing to compare.
        if math.isfinite(eager[kind]) and not error <= max(FACTORS[kind] * eager[kind], rounding)
    ]


# ---- all models ------------------------------------------------------------------------------------


def geometric_mean(ratios: list[float]) -> float:
    return math.exp(statistics.fmean(map(math.log, ratios)))


def _summary(rows: dict[str, Row], compilers: list[str], task: Task) -> Iterator[str]:
    """What the rows amount to, a line a fact."""
    for compiler in (c for c in compilers if c.startswith("weft")):
        yield f"{short(compiler)}, geometric means: {', '.join(_means(rows, compiler))}."
    for compiler in (c for c in compilers if c.startswith("torch.compile")):
        ratios = [
            row["eager"]["ms"] / row[compiler]["ms"] for row in rows.values() if compiler in row
        ]
        if ratios:
            yield f"{compiler}: {geometric_mean(ratios):.2f}x over eager ({_models(len(ratios))})."
    found = [model for model, row in rows.items() if wrong(row, task)]
    yield (
        f"Results beside float64: {len(rows) - len(found)} of {_models(len(rows))} within the limits"
        f"{'; wrong: ' + ', '.join(found) if found else ''}."
    )


def _means(rows: dict[str, Row], compiler: str) -> Iterator[str]:
    """Geometric means of a compiler of weft's beside the others, and the models on which it loses."""
    mine = {model: row for model, row in rows.items() if compiler in row}
    yield from _speed("eager", [(m, row[compiler], row["eager"]) for m, row in mine.items()])
    best = {m: found for m, row in mine.items() if (found := best_of_torch(row))}
    yield from _speed("torch.compile's best", [(m, mine[m][compiler], r) for m, r in best.items()])
    for text, figure, other in (
        ("peak memory", "peak_bytes", "torch.compile"),
        ("kernels", "kernels", "torch.compile"),
        ("first call", "first_call_seconds", "torch.compile"),
    ):
        pairs = [
            (m, row[compiler][figure], row[other][figure])
            for m, row in mine.items()
            if other in row
        ]
        pairs = [(m, a, b) for m, a, b in pairs if a > 0 and b > 0]
        if pairs:
            more = [m for m, a, b in pairs if a > b]
            yield (
                f"{text} {geometric_mean([a / b for _, a, b in pairs]):.2f} of {other}'s "
                f"(more on {_named(more)})"
            )


def _speed(other: str, pairs: list[tuple[str, Result, Result]]) -> Iterator[str]:
    """The mean speed-up, of a model with a compiler's result and another's each, over the other."""
    if pairs:
        slower = [m for m, mine, theirs in pairs if mine["ms"] > theirs["ms"]]
        mean = geometric_mean([theirs["ms"] / mine["ms"] for _, mine, theirs in pairs])
        yield f"{mean:.2f}x over {other} ({_models(len(pairs))}; slower on {_named(slower)})"


def _named(models: list[str]) -> str:
    return f"{len(models)}: {', '.join(models)}" if models else "none"


def _models(count: int) -> str:
    return "1 model" if count == 1 else f"{count} models"


# ---- the file --------------------------------------------------------------------------------------


def write(path: Path, text: str) -> None:
    """Put ``text`` between the marks in the file; ValueError where it hasn't both."""
    before, begin, rest = path.read_text().partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{path} lacks {BEGIN!r} or, after it, {END!r}")
    path.write_text(f"{before}{BEGIN}\n\n{text}\n\n{END}{after}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("results", nargs="+", type=Path)
    parser.add_argument("--write", type=Path, help="the file with the marks")
    options = parser.parse_args()
    text = report(read_results(options.results), SUITE)
    print(text)
    if options.write is not None:
        write(options.write, text)


if __name__ == "__main__":
    main()
