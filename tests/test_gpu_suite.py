"""The harness of benchmarks/gpu_suite on the processor: what it measures, when it stops, what it prints."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.gpu_suite.accuracy import errors, on_some_device, reference
from benchmarks.gpu_suite.report import BEGIN, END, report, write
from benchmarks.gpu_suite.results import Key, Result, Results, Task, is_done, read_results
from benchmarks.gpu_suite.run import main, rows

ROOT = Path(__file__).parents[1]
INFER = Task("infer", "float16")


def figures(ms: float, error: float = 1e-3, **others: Any) -> Result:
    """A result as benchmarks.gpu_suite.measure prints it."""
    usual = {"spread": 0.2, "first_call_seconds": 3.0, "peak_bytes": 2**30, "kernels": 10}
    return {"ms": ms, "errors": {"outputs": error}, "machine": "a GPU", **usual, **others}


def results(**of_compilers: Result) -> Results:
    """Results of BERT-base by the short names of compilers."""
    names = {"tuned": "torch.compile:max-autotune", "torch": "torch.compile"}
    return {
        Key("BERT-base", names.get(name, name), INFER): result
        for name, result in of_compilers.items()
    }


# ---- results and their order ---------------------------------------------------------------------------


def test_whole_rows_come_first_and_slow_compilers_last() -> None:
    found = rows(["a", "b"], [INFER], ["eager", "slow", "weft"], ["slow"])
    names = [[(key.model, key.compiler) for key in row] for row in found]
    assert names == [
        [("a", "eager"), ("a", "weft")],
        [("b", "eager"), ("b", "weft")],
        [("a", "slow")],
        [("b", "slow")],
    ]


def test_the_last_result_of_a_file_counts(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    assert read_results([path]) == {}
    key = Key("BERT-base", "weft", INFER)
    lines = [key.fields() | figures(2.0), key.fields() | figures(1.0)]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert read_results([path])[key]["ms"] == 1.0


@pytest.mark.parametrize(
    ("result", "done"),
    [
        (None, False),
        (figures(1.0), True),
        ({"failure": "out of memory"}, False),
        ({"unfinished": 180}, True),
        ({"unfinished": 60}, False),
    ],
    ids=["missing", "measured", "failed", "unfinished", "unfinished in less"],
)
def test_what_is_measured_again(result: Result | None, done: bool) -> None:
    assert is_done(result, 180.0) == done


@pytest.mark.parametrize("text", ["float16", "infer:", "infer:Tensor", "both:float16"])
def test_what_is_no_task(text: str) -> None:
    with pytest.raises(ValueError, match="is no task"):
        Task.parse(text)


# ---- errors beside float64 -----------------------------------------------------------------------------


def test_errors_are_norms_over_the_references() -> None:
    exact = torch.tensor([3.0, 4.0])
    found = errors({"outputs": [exact, exact * 1.1]}, {"outputs": [exact, exact]})
    assert found == {"outputs": pytest.approx(0.1, rel=1e-6)}
    assert math.isnan(errors({"outputs": [exact * math.nan]}, {"outputs": [exact]})["outputs"])


def test_a_wrong_gradient_shows_beside_large_ones_and_a_vanishing_one_does_not() -> None:
    large, small, zero = torch.full((100,), 10.0), torch.ones(4), torch.full((4,), 1e-9)
    wanted = {"gradients": [large, small, zero]}
    right = errors({"gradients": [large, small, -zero]}, wanted)
    assert right["gradients"] < 1e-6
    assert right["worst gradient"] < 1e-6
    wrong = errors({"gradients": [large, -small, zero]}, wanted)
    assert wrong["gradients"] < 0.05
    assert wrong["worst gradient"] > 1.0


def test_results_of_other_shapes_are_no_results() -> None:
    with pytest.raises(AssertionError, match="of shape"):
        errors({"outputs": [torch.ones(3, 1)]}, {"outputs": [torch.ones(3)]})


def test_a_reference_is_computed_once(tmp_path: Path) -> None:
    calls = []

    def compute() -> dict[str, list[torch.Tensor]]:
        calls.append(1)
        return {"outputs": [torch.full((2,), 1.5, dtype=torch.float64)]}

    for _ in range(2):
        found = reference(tmp_path / "model", compute)
        assert torch.equal(found["outputs"][0], torch.full((2,), 1.5))
    assert len(calls) == 1


def test_a_reference_for_which_memory_is_short_is_computed_on_the_processor() -> None:
    calls = []

    def compute(
        model: torch.nn.Module, inputs: dict[str, torch.Tensor]
    ) -> dict[str, list[torch.Tensor]]:
        calls.append(inputs["tokens"].dtype)
        if len(calls) == 1:
            raise torch.cuda.OutOfMemoryError
        return {"outputs": [model(inputs["x"])]}

    linear = torch.nn.Linear(3, 2).half()
    inputs = {"x": torch.ones(1, 3).half(), "tokens": torch.ones(1, dtype=torch.int64)}
    found = on_some_device(compute, linear, inputs)["outputs"][0]
    assert found.dtype == torch.float64
    assert calls == [torch.int64, torch.int64]
    assert linear.weight.dtype == torch.float16


# ---- tables --------------------------------------------------------------------------------------------


def test_a_report_compares_with_the_best_mode() -> None:
    text = report(
        results(
            eager=figures(8.0, peak_bytes=2**31),
            torch=figures(6.0, first_call_seconds=30.0),
            tuned=figures(4.0),
            weft=figures(2.0, peak_bytes=2**29),
        ),
        ["BERT-base", "GPT-2"],
    )
    (row,) = (line for line in text.splitlines() if line.startswith("| BERT-base"))
    assert "| 8.00 ± 0.10 | 6.00 ± 0.10 | 4.00 ± 0.10 | 2.00 ± 0.10 | 4.00x | 2.00x |" in row
    assert "2.00 / 1.00 / 1.00 / 0.50" in row
    assert "4.00x over eager (1 model; slower on none)" in text
    assert "2.00x over torch.compile's best (1 model; slower on none)" in text
    assert "peak memory 0.50 of torch.compile's (more on none)" in text
    assert "first call 0.10 of torch.compile's" in text
    assert "GPT-2" not in text


def test_a_report_names_what_is_slower_unfinished_or_failed() -> None:
    text = report(
        results(
            eager=figures(1.0),
            torch={"failure": "out\nof memory"},
            tuned={"unfinished": 180},
            weft=figures(2.0),
        ),
        ["BERT-base"],
    )
    assert "0.50x over eager (1 model; slower on 1: BERT-base)" in text
    assert "torch.compile on BERT-base: failed: out of memory." in text
    assert "torch.compile:max-autotune on BERT-base: not finished in 180 s." in text


@pytest.mark.parametrize(
    ("eager", "weft", "is_wrong"),
    [
        (1e-3, 1.9e-3, False),
        (1e-3, 2.1e-3, True),
        (1e-6, 1e-5, False),  # less than a rounding
        (1e-3, math.nan, True),
        (math.nan, math.nan, False),  # nothing to compare with
    ],
)
def test_a_report_says_which_results_are_wrong(eager: float, weft: float, is_wrong: bool) -> None:
    text = report(results(eager=figures(2.0, eager), weft=figures(1.0, weft)), ["BERT-base"])
    assert ("WRONG: outputs of weft" in text) == is_wrong
    assert (f"{1 - is_wrong} of 1 model within" in text) and (
        "wrong: BERT-base" in text
    ) == is_wrong


def test_a_report_takes_the_place_of_the_last_one(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")
    for _ in range(2):
        write(page, "new")
    assert page.read_text() == f"before\n{BEGIN}\n\nnew\n\n{END}\nafter\n"
    page.write_text("no marks")
    with pytest.raises(ValueError, match="lacks"):
        write(page, "new")


def test_the_page_of_results_has_the_marks() -> None:
    text = (ROOT / "benchmarks/results/gpu-models.md").read_text()
    assert text.count(BEGIN) == text.count(END) == 1
    assert text.index(BEGIN) < text.index(END)


# ---- the processes -------------------------------------------------------------------------------------


def dry_run(path: Path, *arguments: str) -> None:
    """Eager and weft on a tiny model, with results in ``path``."""
    main(["BERT-base", "--dry", "--results", str(path), "--compilers", "eager,weft", *arguments])


@pytest.mark.slow  # starts five processes, for the benchmarks alone
def test_a_dry_run_measures_every_cell_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "results.jsonl"
    # Time enough on any machine: what is not finished is not what is tested here.
    long = [f"--{name}=3000" for name in ("seconds", "seconds-per-measurement", "seconds-to-time")]
    options = ["--tasks", "infer:bfloat16,train:bfloat16", "--jobs", "2", *long]
    dry_run(path, *options)
    text = capsys.readouterr().out
    assert text.count("1 of 1 model within the limits") == 2
    found = read_results([path])
    assert len(found) == 4
    for key, result in found.items():
        wanted = (
            {"outputs"} if key.task.what == "infer" else {"loss", "gradients", "worst gradient"}
        )
        assert result["errors"].keys() == wanted, result
        assert result["ms"] > 0
    before = path.read_text()
    dry_run(path, *options)
    assert capsys.readouterr().out == text
    assert path.read_text() == before


def test_what_is_not_ready_in_time_is_ended(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "results.jsonl"
    dry_run(path, "--tasks", "infer:bfloat16", "--seconds-per-measurement=0.1", "--gpus=2")
    assert "weft on BERT-base: not finished in" in capsys.readouterr().out
    results = read_results([path]).values()
    assert [set(r) & {"unfinished", "ms", "failure"} for r in results] == [{"unfinished"}] * 2


def test_what_the_end_of_the_run_cuts_short_is_left_to_the_next(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    dry_run(path, "--tasks", "infer:bfloat16", "--seconds", "0.1")
    assert read_results([path]) == {}
