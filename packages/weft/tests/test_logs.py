"""What ``WEFT_LOGS`` tells while weft compiles."""

import io
import time

import pytest
import torch
import weft
from weft.logs import ALL_LOGS, LogWriter, Totals, help_text, requested_logs


def as_it_is(graph_module, example_inputs):
    return graph_module


def scaled(x: torch.Tensor, factor: float = 2.0) -> torch.Tensor:
    return x * factor


def sleeping(x: torch.Tensor) -> torch.Tensor:
    y = x + 1
    time.sleep(0)
    return y * 2


def test_recompiles_are_logged_with_line_and_remedy() -> None:
    stream = io.StringIO()
    log = weft.CompileLog()
    compiled = weft.compile(scaled, backend=as_it_is)
    with weft.observe(log):
        compiled(torch.randn(3), 2.0)
        compiled(torch.randn(3), 3.0)
    writer = LogWriter(frozenset({"recompiles"}), stream)
    for report in log.conversions:
        writer.frame_converted(report)
    text = stream.getvalue()
    assert text.count("recompiling scaled") == 1
    assert "L['factor']: expected" in text and "found 3.0" in text
    assert "needed by" in text and "test_logs.py" in text
    assert "code takes any finite float" in text


def test_environment_variable(monkeypatch, capsys) -> None:
    monkeypatch.setenv("WEFT_LOGS", "recompiles")
    compiled = weft.compile(scaled, backend=as_it_is)
    compiled(torch.randn(3))
    assert "recompiling" not in capsys.readouterr().err
    compiled(torch.randn(3).double())
    assert "convert it to one dtype" in capsys.readouterr().err


def test_unknown_log() -> None:
    with pytest.raises(ValueError, match="WEFT_LOGS: unknown"):
        requested_logs({"WEFT_LOGS": "recompile"})
    assert requested_logs({}) == frozenset()


@pytest.mark.parametrize(
    ("log", "expected"),
    [
        ("bytecode", ["bytecode of sleeping", "UNPACK_SEQUENCE", "Resumption"]),
        ("graph_breaks", ["graph break in sleeping", "sleep(", "hint:", "test_logs.py"]),
        ("graph_code", ["graph of sleeping", "x + 1", "y * 2"]),
        ("guards", ["guards of sleeping", "L['x']: Tensor torch.float32 (3,)", "test_logs.py:"]),
    ],
)
def test_logs_tell_of_every_frame(monkeypatch, capsys, log, expected) -> None:
    monkeypatch.setenv("WEFT_LOGS", log)
    weft.compile(sleeping, backend=as_it_is)(torch.ones(3))
    text = capsys.readouterr().err
    assert all(part in text for part in expected), text


def test_names_are_separated_by_commas() -> None:
    assert requested_logs({"WEFT_LOGS": "recompiles, guards,"}) == {"recompiles", "guards"}
    assert requested_logs({"WEFT_LOGS": ",".join(ALL_LOGS)}) == ALL_LOGS.keys()


def embedded(x: torch.Tensor) -> torch.Tensor:
    return torch.linalg.pinv(x) + 1


def test_logs_tell_of_every_graph(tmp_path, monkeypatch, capsys) -> None:
    """In a fresh cache a program is stored, then found; the pseudo-inverse has no kernel of weft's."""
    monkeypatch.setenv("WEFT_STRICT", "0")  # in strict mode every stage runs
    monkeypatch.setenv("WEFT_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("WEFT_LOGS", "cache,fallbacks,perf,progress")
    with torch.no_grad():
        for cache in ("miss, stored", "hit"):
            weft.reset()
            weft.compile(embedded)(torch.eye(3))
            text = capsys.readouterr().err
            assert f": {cache}\n" in text, text
            assert "operators without a kernel of weft's" in text, text
            assert "test_logs.py" in text and "in embedded" in text
            assert "weft: program cache: " in text
            assert ("weft: codegen: " in text) == (cache != "hit")
            assert "kernels, " in text and " s" in text


def test_a_graph_that_runs_eagerly_is_told(monkeypatch, capsys) -> None:
    from weft.graph_report import GraphReport

    stream = io.StringIO()
    writer = LogWriter(frozenset({"fallbacks", "perf", "cache"}), stream)
    writer.graph_finished(GraphReport("m.py:3 in f", 0, 0, {}, {}, "codegen failed: no compiler"))
    assert stream.getvalue() == "weft: eager: m.py:3 in f: codegen failed: no compiler\n"


def test_summary_counts_all(capsys) -> None:
    log = weft.CompileLog()
    compiled = weft.compile(sleeping)
    with weft.observe(log), torch.no_grad():
        compiled(torch.ones(3))
        compiled(torch.ones(3).double())
    totals = Totals()
    for frame in log.conversions:
        totals.add_frame(frame)
    for graph in log.graphs:
        totals.add_graph(graph)
    assert (totals.graphs, totals.breaks, totals.recompiles) == (4, 2, 2)
    assert totals.kernels == log.kernel_count > 0
    assert "4 graphs" in str(totals) and "2 graph breaks" in str(totals)


def test_help_names_every_log() -> None:
    assert all(f"  {name}" in help_text() for name in ALL_LOGS)
    assert requested_logs({"WEFT_LOGS": "help"}) == {"help"}
