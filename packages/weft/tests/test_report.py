"""``weft report``: the page of a dump has all that was compiled, and a browser shows it."""

from __future__ import annotations

import html.parser
import json
import re
import shutil
import subprocess
import time
from pathlib import Path

import pytest
import torch
import weft
from weft.cli import main
from weft.report_page import DumpError, write_page
from weft.report_page.drawing import draw_graph, kernel_sources, lifetimes


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(16, 32)
        self.second = torch.nn.Linear(32, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = torch.softmax(self.first(x), -1) * 2 + 1
        time.sleep("<b>half-way</b>" == "")  # breaks the graph
        return self.second(hidden).relu()


@pytest.fixture(scope="module")
def dump(tmp_path_factory) -> Path:
    """Of a model that breaks, with gradients, and for two dtypes."""
    folder = tmp_path_factory.mktemp("dump")
    compiled = weft.compile(Model(), options={"dump_directory": str(folder)})
    compiled(torch.randn(8, 16)).sum().backward()
    with torch.no_grad():
        compiled(torch.randn(8, 16))
    return folder


class Outline(html.parser.HTMLParser):
    """Checks that tags are closed in order, and counts them."""

    VOID = frozenset({"meta", "br", "rect", "path", "img", "link"})

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.counts: dict[str, int] = {}
        self.text: list[str] = []
        self.links: list[str] = []

    def handle_starttag(self, tag, attributes) -> None:
        self.counts[tag] = self.counts.get(tag, 0) + 1
        for name, value in attributes:
            if name == "class":
                self.counts[f".{value}"] = self.counts.get(f".{value}", 0) + 1
            if name in ("src", "href"):
                self.links.append(value)
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag) -> None:
        if tag not in self.VOID:
            assert self.open.pop() == tag

    def handle_data(self, data) -> None:
        self.text.append(data)


def outline(page: Path) -> Outline:
    parsed = Outline()
    parsed.feed(page.read_text())
    assert parsed.open == []
    return parsed


def test_the_page_has_every_part(dump, tmp_path, capsys) -> None:
    page = tmp_path / "page.html"
    assert main(["report", str(dump), "--output", str(page)]) == 0
    assert str(page) in capsys.readouterr().out
    parsed = outline(page)
    text = " ".join(" ".join(parsed.text).split())
    graphs = [json.loads(path.read_text()) for path in dump.glob("*/report.json")]
    frames = [json.loads(line) for line in (dump / "frames.jsonl").read_text().splitlines()]
    assert len(graphs) == 4 and parsed.counts[".graph"] == 4
    assert parsed.counts[".break"] == sum(bool(frame["break"]) for frame in frames) == 2
    assert parsed.counts[".recompile"] == sum(bool(f["recompile_reason"]) for f in frames) >= 1
    assert parsed.counts[".frame"] == len(frames)
    steps = [s for g in graphs for part in g["schedules"].values() for s in part["steps"]]
    assert parsed.counts[".step"] == len(steps)
    drawn = sum(
        len(nodes) for g in graphs for name, nodes in g["graphs"].items()
        if name in ("1_captured", "3_forward", "3_backward")
    )  # fmt: skip
    assert parsed.counts[".node"] == drawn
    for graph in graphs:
        assert graph["location"] in text and "test_report.py:" in graph["location"]
    for stage in ("functionalize", "aot-autograd", "loop-ir", "codegen"):
        assert stage in text
    for guard in frames[0]["guards"]:
        assert guard["source"] in text
    assert "torch.softmax(self.first(x), -1) * 2 + 1" in text  # beside a kernel
    assert "Backward: fusion groups" in text
    assert "WEFT_KERNEL" in text or "void" in text  # generated source


def test_the_page_needs_nothing_else_and_runs_nothing(dump, tmp_path) -> None:
    page = tmp_path / "page.html"
    write_page(dump, page)
    parsed = outline(page)
    assert parsed.links == [] and "script" not in parsed.counts
    assert "<b>half-way</b>" not in page.read_text()  # of the program's line: escaped


def test_kernels_stand_beside_the_lines_that_they_compute(dump) -> None:
    for folder in dump.glob("0*"):
        facts = json.loads((folder / "report.json").read_text())
        for name, schedule in facts["schedules"].items():
            suffix = name.removeprefix("5_schedule")
            (source,) = folder.glob(f"6_generated{suffix}.cpp")
            kernels = [s["name"] for s in schedule["steps"] if s["kind"] == "kernel"]
            found = kernel_sources(source.read_text(), kernels)
            assert set(found) == set(kernels)
            assert all("{" in text for text in found.values())


def test_other_folders_are_refused(tmp_path, capsys) -> None:
    for folder in (tmp_path, tmp_path / "none"):
        with pytest.raises(DumpError):
            write_page(folder, tmp_path / "page.html")
        assert main(["report", str(folder)]) == 1
    assert "WEFT_DUMP" in capsys.readouterr().err
    (tmp_path / "000_x").mkdir()
    (tmp_path / "000_x" / "report.json").write_text("{")
    with pytest.raises(DumpError, match="damaged"):
        write_page(tmp_path, tmp_path / "page.html")


def node(name: str, *inputs: str) -> dict:
    return {
        "name": name, "inputs": list(inputs), "op": "call_function", "target": name, "value": "",
        "place": "", "code": "",
    }  # fmt: skip


def test_nodes_lie_below_what_they_take_and_beside_each_other() -> None:
    nodes = [node("a"), node("b"), node("c", "a", "b"), node("d", "c"), node("e", "a"), node("f")]
    drawing = draw_graph(nodes, {"c": 0, "d": 0})
    places = {box.name: (box.x, box.y) for box in drawing.boxes}
    assert len(set(places.values())) == len(nodes)
    for n in nodes:
        assert all(places[source][1] < places[n["name"]][1] for source in n["inputs"])
    assert len(drawing.lines) == 4
    assert draw_graph([node(str(i)) for i in range(1000)], {}) is None


def test_lifetimes_are_from_the_first_to_the_last_step() -> None:
    buffer = {"value": "float32[4]", "bytes": 16, "is_planned": True}
    schedule = {
        "steps": [
            {"reads": ["x"], "writes": ["a"]},
            {"reads": [], "writes": ["b"]},
            {"reads": ["a", "b"], "writes": ["y"]},
        ],
        "buffers": {
            "a": {**buffer, "offset": 0},
            "b": {**buffer, "offset": 64},
            "y": {**buffer, "is_planned": False, "offset": None},
            "dynamic": {**buffer, "bytes": None, "offset": 0},
        },
    }
    assert [(n.name, n.first, n.last) for n in lifetimes(schedule)] == [("a", 0, 2), ("b", 1, 2)]


BROWSER = shutil.which("chromium") or shutil.which("google-chrome")


@pytest.mark.skipif(BROWSER is None, reason="needs Chromium")
def test_a_browser_shows_the_page(dump, tmp_path) -> None:
    """The elements that a browser makes of it are those that were written, and each picture has a size."""
    page = tmp_path / "page.html"
    write_page(dump, page)
    measured = tmp_path / "measured.html"
    script = (
        "<script>document.title = JSON.stringify([...document.querySelectorAll('svg')]"
        ".map(s => s.closest('details') ? 1 : Math.min(s.getBoundingClientRect().width, "
        "s.getBoundingClientRect().height)))</script></body>"
    )
    measured.write_text(page.read_text().replace("</body>", script))
    run = subprocess.run(
        [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'p'}",
         "--dump-dom", measured.as_uri()],
        capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    (sizes,) = re.findall(r"<title>(.*?)</title>", run.stdout)[:1]
    assert all(size > 0 for size in json.loads(sizes))
    assert run.stdout.count("<svg") == page.read_text().count("<svg") == len(json.loads(sizes))
