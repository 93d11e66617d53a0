"""Few files of a package import one another, imports inside functions and for type checkers included."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import networkx
import pytest

pytestmark = pytest.mark.kept

PACKAGES = Path(__file__).resolve().parent.parent / "packages"
LARGEST = {
    "aot-autograd": 2, "bytecode-capture": 34, "codegen-triton": 2, "guards": 2, "loop-ir": 4, "weft": 2,
}  # fmt: skip
"""How many files may be in one circle; none where nothing is said."""


def modules_of(source: Path) -> dict[str, Path]:
    """The modules of a package by their names."""
    names = {}
    for path in source.rglob("*.py"):
        parts = path.relative_to(source).with_suffix("").parts
        names[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return names


def imports(name: str, path: Path) -> Iterator[str]:
    """What may be modules among all that a module imports."""
    tree = ast.parse(path.read_text())
    package = name.split(".") if path.name == "__init__.py" else name.split(".")[:-1]
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            base = package[: len(package) + 1 - node.level] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            yield from (module, *(f"{module}.{alias.name}" for alias in node.names))


@pytest.mark.parametrize("package", [path.parent.name for path in sorted(PACKAGES.glob("*/src"))])
def test_circles_are_small(package):
    modules = modules_of(PACKAGES / package / "src")
    graph = networkx.DiGraph()
    for name, path in modules.items():
        found = {f for f in imports(name, path) if f in modules and "." in f} - {name}
        graph.add_edges_from((name, other) for other in found)
    largest = max(networkx.strongly_connected_components(graph), key=len)
    assert len(largest) <= LARGEST.get(package, 1), sorted(largest)
