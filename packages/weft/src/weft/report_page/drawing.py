"""Pictures of a report as SVG: graphs in layers, a memory plan over the steps, stages over time."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

MAX_NODES = 400
"""Nodes of a graph up to which it is drawn."""

BOX_WIDTH, BOX_HEIGHT, COLUMN, ROW = 150, 34, 170, 62
HUES = 11
"""Colours of fusion groups, which take turns."""


@dataclass(frozen=True)
class Box:
    """A node where it is drawn; ``group`` is the number of the kernel that computes it, None for none."""

    name: str
    label: str
    title: str
    x: float
    y: float
    group: int | None

    @property
    def shown_name(self) -> str:
        return _shortened(self.name)

    @property
    def hue(self) -> int:
        return 0 if self.group is None else (self.group * 360 * 4 // HUES) % 360


@dataclass(frozen=True)
class Drawing:
    """Boxes and the lines between them, from ``(x1, y1)`` to ``(x2, y2)``."""

    boxes: tuple[Box, ...]
    lines: tuple[tuple[float, float, float, float], ...]
    width: float
    height: float


def draw_graph(nodes: Sequence[Mapping[str, Any]], groups: Mapping[str, int]) -> Drawing | None:
    """The graph from top to bottom, each node below all that it takes; None for one of too many nodes."""
    if len(nodes) > MAX_NODES:
        return None
    layers: list[list[str]] = []
    depth: dict[str, int] = {}
    place: dict[str, float] = {}
    for node in nodes:
        above = [depth[name] for name in node["inputs"] if name in depth]
        depth[node["name"]] = level = 1 + max(above, default=-1)
        while len(layers) <= level:
            layers.append([])
        layers[level].append(node["name"])
    inputs = {node["name"]: [n for n in node["inputs"] if n in depth] for node in nodes}
    for names in layers:
        wanted = {name: _mean([place[source] for source in inputs[name]]) for name in names}
        for position, name in enumerate(sorted(names, key=lambda n: (wanted[n], n))):
            place[name] = max(position, wanted[name] if len(names) == 1 else 0)
    boxes = {
        node["name"]: Box(
            node["name"],
            _shortened(node["target"] if node["op"].startswith("call") else node["name"]),
            f"{node['name']} = {node['target']}: {node['value']}\n{node['place']}\n{node['code']}",
            10 + place[node["name"]] * COLUMN,
            10 + depth[node["name"]] * ROW,
            groups.get(node["name"]),
        )
        for node in nodes
    }
    lines = tuple(
        (
            boxes[source].x + BOX_WIDTH / 2,
            boxes[source].y + BOX_HEIGHT,
            box.x + BOX_WIDTH / 2,
            box.y,
        )
        for box in boxes.values()
        for source in inputs[box.name]
    )
    width = max((box.x for box in boxes.values()), default=0) + BOX_WIDTH + 10
    return Drawing(tuple(boxes.values()), lines, width, 10 + len(layers) * ROW)


def _mean(numbers: Sequence[float]) -> float:
    return sum(numbers) / len(numbers) if numbers else 0.0


def _shortened(text: str) -> str:
    text = text.removeprefix("aten.").removesuffix(".default")
    return text if len(text) <= 20 else f"{text[:19]}…"


@dataclass(frozen=True)
class Lifetime:
    """A buffer of the arena: its bytes from ``offset`` on, in the steps ``first`` to ``last``."""

    name: str
    value: str
    offset: int
    size: int
    first: int
    last: int


def lifetimes(schedule: Mapping[str, Any]) -> list[Lifetime]:
    """The buffers that the plan has in its arena, where their bytes are numbers."""
    first: dict[str, int] = {}
    last: dict[str, int] = {}
    for number, step in enumerate(schedule["steps"]):
        for name in (*step["reads"], *step["writes"]):
            first.setdefault(name, number)
            last[name] = number
    return [
        Lifetime(name, b["value"], b["offset"], b["bytes"], first[name], last[name])
        for name, b in schedule["buffers"].items()
        if b["is_planned"] and name in first and None not in (b["offset"], b["bytes"])
    ]


def kernel_sources(source: str, names: Sequence[str]) -> dict[str, str]:
    """The part of a generated source that is about each of these kernels, by the names in its comments."""
    lines = source.splitlines()
    begins: dict[str, int] = {}
    for number, line in enumerate(lines):
        for name in names:
            is_comment = line.lstrip().startswith((f"// {name}:", f"# {name}:"))
            is_definition = line.startswith((f"def {name}(", "@")) and f"def {name}(" in line
            if name not in begins and (is_comment or is_definition):
                begins[name] = number
    ordered = sorted(set(begins.values())) + [len(lines)]
    ends = dict(itertools.pairwise(ordered))
    return {
        name: "\n".join(lines[begin : min(ends[begin], begin + 200)])
        for name, begin in begins.items()
    }
