"""The command ``weft demo``."""

from __future__ import annotations

import re

from weft.cli import main


def test_demo_prints_a_whole_table(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["demo", "--runs", "2"]) == 0
    lines = capsys.readouterr().out.splitlines()
    for name in ("transformer", "convnet"):
        (row,) = (line for line in lines if re.match(rf"{name} *│", line))
        assert row.rstrip().endswith(" 0")  # graph breaks
    assert "…" not in "".join(lines)
