"""The page: what the dump's files hold, put into the template."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..dump import FACTS
from ..dump_facts import FRAMES
from ..errors import WeftError
from .drawing import draw_graph, kernel_sources, lifetimes

PARTS = (("", "forward"), ("_backward", "backward"))
"""The suffix of the files of each part of a graph, and its name."""


class DumpError(WeftError):
    """A folder that ``WEFT_DUMP`` has not made."""


def write_page(folder: Path, page: Path) -> None:
    """Write a page of all graphs and frames in ``folder``, which ``WEFT_DUMP`` named, to ``page``.

    :raises DumpError: there is nothing of that kind in it.
    :raises OSError: the page can't be written.
    """
    page.write_text(render(folder))


def render(folder: Path) -> str:
    """The page as text: nothing that it shows is anywhere else."""
    import jinja2  # it takes a while

    if not folder.is_dir():
        raise DumpError(f"no such folder: {folder}")
    frames = _frames(folder)
    graphs = [_graph(path) for path in sorted(folder.iterdir()) if (path / FACTS).is_file()]
    if not frames and not graphs:
        raise DumpError(f"{folder} holds no dump: run the program with WEFT_DUMP={folder}")
    template = (Path(__file__).parent / "page.html.jinja").read_text()
    environment = jinja2.Environment(
        autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined
    )
    return environment.from_string(template).render(
        folder=str(folder), frames=frames, graphs=graphs, timeline=_timeline(graphs)
    )


def _frames(folder: Path) -> list[Mapping[str, Any]]:
    try:
        lines = (folder / FRAMES).read_text().splitlines()
        return [json.loads(line) for line in lines]
    except FileNotFoundError:
        return []
    except ValueError as error:
        raise DumpError(f"{folder / FRAMES} is damaged: {error}") from error


def _graph(folder: Path) -> dict[str, Any]:
    try:
        facts: dict[str, Any] = json.loads((folder / FACTS).read_text())
    except ValueError as error:
        raise DumpError(f"{folder / FACTS} is damaged: {error}") from error
    places = {
        node["name"]: node for nodes in facts["graphs"].values() for node in nodes if node["place"]
    }
    facts["folder"] = folder.name
    facts["parts"] = [
        _part(folder, facts, places, suffix, name)
        for suffix, name in PARTS
        if f"5_schedule{suffix}" in facts["schedules"]
    ]
    captured = facts["graphs"].get("1_captured")
    facts["captured"] = draw_graph(captured, {}) if captured else None
    return facts


def _part(
    folder: Path, facts: Mapping[str, Any], places: Mapping[str, Any], suffix: str, name: str
) -> dict[str, Any]:
    """Forward or backward: its graph with the fusion groups, its kernels, its memory."""
    schedule = facts["schedules"][f"5_schedule{suffix}"]
    steps = schedule["steps"]
    groups = {origin: number for number, step in enumerate(steps) for origin in step["origins"]}
    nodes = facts["graphs"].get("3_backward" if suffix else "3_forward", [])
    source = next((path.read_text() for path in sorted(folder.glob(f"6_generated{suffix}.*"))), "")
    parts = kernel_sources(source, [step["name"] for step in steps])
    return {
        "name": name,
        "drawing": draw_graph(nodes, groups),
        "node_count": len(nodes),
        "steps": [
            {
                **step,
                "number": number,
                "source": parts.get(step["name"], ""),
                "lines": _users_lines(step["origins"], places),
            }
            for number, step in enumerate(steps)
        ],
        "lifetimes": lifetimes(schedule),
        "arena_bytes": schedule["arena_bytes"],
        "source": source,
    }


def _users_lines(origins: list[str], places: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The places and lines that a step's operators come from, each once."""
    found = {
        (places[origin]["place"], places[origin]["code"]): None
        for origin in origins
        if origin in places
    }
    return list(found)


def _timeline(graphs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The stages of all graphs as parts, in percent, of the time from the first to the last."""
    spans = [
        (graph["location"], name, began, seconds)
        for graph in graphs
        for name, began, seconds in graph["timeline"]
    ]
    if not spans:
        return []
    start = min(began for *_, began, _ in spans)
    whole = max(max(began + seconds for *_, began, seconds in spans) - start, 1e-9)
    return [
        {
            "location": location,
            "stage": name,
            "seconds": seconds,
            "left": 100 * (began - start) / whole,
            "width": max(100 * seconds / whole, 0.15),
        }
        for location, name, began, seconds in spans
    ]
