"""What ``WEFT_LOGS`` tells while weft compiles."""

import io

import pytest
import torch
import weft
from weft.logs import LOGS, requested_logs, with_logs


def as_it_is(graph_module, example_inputs):
    return graph_module


def scaled(x: torch.Tensor, factor: float = 2.0) -> torch.Tensor:
    return x * factor


def printing(x: torch.Tensor) -> torch.Tensor:
    y = x + 1
    print(end="")  # noqa: T201 - what breaks the graph
    return y * 2


def test_recompiles_are_logged_with_line_and_remedy() -> None:
    stream = io.StringIO()
    log = weft.CompileLog()
    compiled = weft.compile(scaled, backend=as_it_is)
    with weft.observe(log):
        compiled(torch.randn(3), 2.0)
        compiled(torch.randn(3), 3.0)
    observer = with_logs(lambda report: None, frozenset({"recompiles"}), stream)
    for report in log.conversions:
        observer(report)
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
        ("bytecode", ["bytecode of printing", "UNPACK_SEQUENCE", "Resumption"]),
        ("graph_breaks", ["graph break in printing", "print(", "hint:", "test_logs.py"]),
        ("graph_code", ["graph of printing", "x + 1", "y * 2"]),
        ("guards", ["guards of printing", "L['x']: Tensor torch.float32 (3,)", "test_logs.py:"]),
    ],
)
def test_logs_tell_of_every_frame(monkeypatch, capsys, log, expected) -> None:
    monkeypatch.setenv("WEFT_LOGS", log)
    weft.compile(printing, backend=as_it_is)(torch.ones(3))
    text = capsys.readouterr().err
    assert all(part in text for part in expected), text


def test_names_are_separated_by_commas() -> None:
    assert requested_logs({"WEFT_LOGS": "recompiles, guards,"}) == {"recompiles", "guards"}
    assert requested_logs({"WEFT_LOGS": ",".join(LOGS)}) == LOGS.keys()
