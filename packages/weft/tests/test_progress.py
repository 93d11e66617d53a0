"""The progress line: there after a while of compiling, gone when a graph is done, on terminals only."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
import threading

import pytest
import torch
import weft
from weft.graph_report import GraphReport
from weft.progress import ProgressLine
from weft.standing_observers import standing_observers

DONE = GraphReport("m.py:1 in f", 7, 0, {}, {}, None)


class Shown:
    """A line that notes what it showed."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.is_there = threading.Event()
        self.stops = 0

    def __call__(self, text: str) -> Shown:
        self.texts.append(text)
        return self

    def start(self) -> None:
        self.is_there.set()

    def update(self, text: str) -> None:
        self.texts.append(text)

    def stop(self) -> None:
        self.is_there.clear()
        self.stops += 1


def test_nothing_is_shown_of_what_takes_less_than_the_delay() -> None:
    shown = Shown()
    line = ProgressLine(3600.0, shown)
    line.stage_started("m.py:1 in f", "codegen")
    line.graph_finished(DONE)
    assert shown.texts == [] and threading.active_count() < 50


def test_the_line_follows_the_stages_and_goes_with_the_graph() -> None:
    shown = Shown()
    line = ProgressLine(0.01, shown)
    line.stage_started("m.py:1 in f", "loop-ir")
    assert shown.is_there.wait(60)
    line.stage_started("m.py:1 in f", "codegen")
    assert shown.texts == ["weft: loop-ir: m.py:1 in f", "weft: codegen: m.py:1 in f"]
    line.graph_finished(DONE)
    assert not shown.is_there.is_set() and shown.stops == 1
    line.stage_started("m.py:9 in g", "loop-ir")  # soon after: the same wait
    assert shown.is_there.wait(60)
    assert shown.texts[-1].endswith("m.py:9 in g (1 graphs, 7 kernels done)")
    line.frame_converted(None)  # an error: no graph is finished
    assert not shown.is_there.is_set()


def test_capture_shows_too_and_frames_without_graphs_end_it() -> None:
    shown = Shown()
    line = ProgressLine(0.01, shown)
    line.frame_began("m.py:1 in f")
    assert shown.is_there.wait(60)
    line.stage_started("m.py:1 in f", "loop-ir")
    assert shown.texts == ["weft: capture: m.py:1 in f", "weft: loop-ir: m.py:1 in f"]
    line.frame_converted(None)
    assert not shown.is_there.is_set()


def test_capture_tells_where_it_begins() -> None:
    class Began(weft.CompileLog):
        def frame_began(self, location: str) -> None:
            self.events.append(location)

        def stage_started(self, location: str, stage_name: str) -> None:
            self.events.append(stage_name)

    log = Began()
    log.events = []
    with weft.observe(log), torch.no_grad():
        weft.compile(captured)(torch.ones(3))
    assert log.events[0].endswith("in captured") and "loop-ir" in log.events[1:]


def captured(x):
    return x.sin() + 1


PROGRAM = """
import torch, weft, weft.progress, time
line = weft.progress.terminal_line()
line._delay = 0.0
class Slow(weft.CompileLog):
    def stage_started(self, location, stage):
        time.sleep(0.2)
with weft.observe(Slow()), torch.no_grad():
    weft.compile(lambda x: x.sin() + 1)(torch.ones(3))
"""


@pytest.mark.skipif(not hasattr(os, "openpty"), reason="needs a terminal")
def test_terminals_have_a_line_and_nothing_else_has(tmp_path, monkeypatch, capfd) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("WEFT_CACHE_DIR", str(tmp_path / "cache"))
    controller, terminal = pty.openpty()
    with open(controller, "rb", buffering=0) as reader:
        process = subprocess.Popen(
            [sys.executable, str(program)],
            stderr=terminal,
            stdout=subprocess.PIPE,
            cwd=tmp_path,
        )
        os.close(terminal)
        seen = b""
        try:
            while part := reader.read(4096):
                seen += part
        except OSError:  # the other end is closed
            pass
        assert process.wait() == 0, seen
        assert process.stdout is not None and process.stdout.read() == b""
        process.stdout.close()
    assert b"weft: codegen: program.py:9 in <lambda>" in seen, seen

    line = weft.progress.terminal_line()
    monkeypatch.setattr(line, "_delay", line._delay)  # which the program sets
    exec(compile(PROGRAM, str(program), "exec"), {})  # this process' streams are no terminals
    assert capfd.readouterr() == ("", "")


def test_the_line_can_be_turned_off(monkeypatch) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    assert len(standing_observers(frozenset())) == 1
    monkeypatch.setenv("WEFT_PROGRESS", "0")
    assert standing_observers(frozenset()) == ()
