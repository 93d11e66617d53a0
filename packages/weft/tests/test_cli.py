"""The command ``weft``, but for what it shows of one stage each: help, explain, the caches, the doctor."""

from __future__ import annotations

import os
import stat

import pytest
import torch
import weft
from weft.cli import main
from weft.doctor import VARIABLES, examine

SCRIPT = """
import sys
import time
import torch
import weft

def f(x):
    y = x + 1
    print(sys.argv[1])
    time.sleep(0)
    return y * 2

compiled = {compiler}.compile(f, backend="eager")
compiled(torch.ones(3))
compiled(torch.ones(3).double())
{ending}
"""


@pytest.fixture(autouse=True)
def wide(monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "300")


def script(folder, compiler="weft", ending=""):
    path = folder / "program.py"
    path.write_text(SCRIPT.format(compiler=compiler, ending=ending))
    return str(path)


def test_bare_command_prints_help(capsys) -> None:
    assert main([]) == 0
    text = capsys.readouterr().out
    assert all(f"\n    {name}" in text for name in ("doctor", "explain", "cache", "report", "demo"))


@pytest.mark.parametrize("compiler", ["weft", "torch"])
@pytest.mark.parametrize("ending", ["", "sys.exit(3)"])
def test_explain_runs_a_program_and_tells_of_all_it_compiled(
    compiler, ending, tmp_path, capsys
) -> None:
    before = torch.compile
    options = ["--torch-compile"] if compiler == "torch" else []
    path = script(tmp_path, compiler, ending)
    assert main(["explain", *options, path, "said", "--guards"]) == 0
    text = capsys.readouterr().out
    assert text.count("said") >= 2
    assert "4 graphs, 2 graph breaks" in text
    assert "Compiled again" in text and "program.py:" in text
    assert "Tensor torch.float32" not in text.partition("Compiled again")[0]
    assert torch.compile is before


def test_explain_shows_guards_if_asked(tmp_path, capsys) -> None:
    assert main(["explain", "--guards", script(tmp_path), "said"]) == 0
    assert "Tensor torch.float32 (3,)" in capsys.readouterr().out


def test_explain_of_a_program_that_raises_shows_what_there_was(tmp_path, capsys) -> None:
    with pytest.raises(ZeroDivisionError):
        main(["explain", script(tmp_path, ending="1 / 0"), "said"])
    assert "4 graphs, 2 graph breaks" in capsys.readouterr().out


def test_explain_of_nothing(tmp_path, capsys) -> None:
    assert main(["explain", str(tmp_path / "no.py")]) == 1
    assert "no such script" in capsys.readouterr().err


@pytest.mark.parametrize("kind", ["path", "url"])
def test_caches_are_carried_from_one_folder_to_another(kind, tmp_path, monkeypatch, capsys) -> None:
    """An exported cache serves in another folder; an emptied one has nothing."""
    monkeypatch.setenv("WEFT_STRICT", "0")  # in strict mode every stage runs
    first, second, file = tmp_path / "first", tmp_path / "second", tmp_path / "caches.zip"
    if kind == "url":
        file = file.as_uri()
    x = torch.randn(5)

    def compiled_from() -> str:
        log = weft.CompileLog()
        weft.reset()
        with weft.observe(log), torch.no_grad():
            torch.testing.assert_close(weft.compile(shifted)(x), shifted(x))
        (graph,) = log.graphs
        return graph.cache

    monkeypatch.setenv("WEFT_CACHE_DIR", str(first))
    assert compiled_from() == "miss, stored"
    assert main(["cache", "export", str(file)]) == 0
    assert main(["cache", "info"]) == 0
    text = capsys.readouterr().out
    assert str(first / "programs") in text and str(file) in text

    monkeypatch.setenv("WEFT_CACHE_DIR", str(second))
    assert main(["cache", "import", str(file)]) == 0
    assert compiled_from() == "hit"
    assert {p.name for p in (second / "cpp").glob("*.s*")} == {
        p.name for p in (first / "cpp").glob("*.s*")
    }
    assert all(p.stat().st_mode & 0o077 == 0 for p in second.rglob("*"))

    assert main(["cache", "clear"]) == 0
    assert not list((second / "programs").iterdir())
    assert compiled_from() == "miss, stored"


def shifted(x: torch.Tensor) -> torch.Tensor:
    return x.cos() - 0.25


def test_cache_commands_say_why_they_can_not(tmp_path, monkeypatch, capsys) -> None:
    assert main(["cache", "import", str(tmp_path / "none")]) == 1
    (tmp_path / "text").write_text("no archive")
    assert main(["cache", "import", str(tmp_path / "text")]) == 1
    assert "no archive of weft's caches" in capsys.readouterr().err
    assert main(["cache", "export", "nobody://knows/it"]) == 1
    assert "nobody://knows/it" in capsys.readouterr().err
    shared = tmp_path / "shared"
    (shared / "programs").mkdir(parents=True)
    os.chmod(shared / "programs", 0o777)
    monkeypatch.setenv("WEFT_CACHE_DIR", str(shared))
    assert main(["cache", "info"]) == 1
    assert "others may write" in capsys.readouterr().out
    assert main(["cache", "clear"]) == 1
    assert stat.S_IMODE((shared / "programs").stat().st_mode) == 0o777


def findings() -> dict[str, object]:
    return {finding.name.strip(): finding for finding in examine()}


def test_doctor_finds_all_well_here(capsys) -> None:
    found = findings()
    for name in ("Python", "torch", "C++ compiler", "cache cpp", "a small program"):
        assert found[name].remedy is None, found[name]
    assert "weft_codegen_cpp" in found["code generator for cpu"].found
    assert main(["doctor"]) == 0
    assert "compiled and right" in capsys.readouterr().out


def test_doctor_names_what_is_amiss_and_what_to_do(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.setenv("CXX", "/no/such/compiler")
    monkeypatch.setenv("WEFT_LOG", "guards")
    monkeypatch.setenv("WEFT_CACHE_DIR", str(tmp_path / "shared"))
    (tmp_path / "shared" / "cpp").mkdir(parents=True)
    os.chmod(tmp_path / "shared" / "cpp", 0o777)
    weft.reset()
    found = findings()
    assert "CXX" in found["C++ compiler"].remedy and found["C++ compiler"].is_fatal
    assert "WEFT_LOGS?" in found["WEFT_LOG"].remedy
    assert "WEFT_CACHE_DIR" in found["cache cpp"].remedy
    assert found["a small program"].is_fatal
    assert main(["doctor"]) == 1


def test_doctor_knows_the_variables_that_weft_reads() -> None:
    """Those that the sources name are in its table."""
    import re
    from pathlib import Path

    folders = [Path(weft.__file__).parent]
    for name in ("weft_loop_ir", "weft_codegen_cpp", "weft_codegen_triton"):
        folders.append(Path(__import__(name).__file__).parent)
    named = set()
    for folder in folders:
        for file in folder.rglob("*.py"):
            text = file.read_text()
            named |= set(re.findall(r"environ(?:ment)?(?:\.get\(|\[)\s*\"(WEFT_\w+)\"", text))
    assert named == VARIABLES.keys()
