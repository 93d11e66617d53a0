"""The contract of imports sees what a package's metadata does not declare."""

from __future__ import annotations

from pathlib import Path

import pytest

grimp = pytest.importorskip("grimp", reason="import-linter is not installed")
from declared_imports import DeclaredImports, declared_modules  # noqa: E402

pytestmark = pytest.mark.kept


@pytest.mark.parametrize(
    ("imported", "kept"),
    [
        ("sympy", True),
        ("weakref", True),
        ("weft_guards.tree", True),
        ("rich", False),
        ("weft_loop_ir.ir", False),
    ],
)
def test_imports(imported: str, kept: bool) -> None:
    graph = grimp.ImportGraph()
    packages = [project.parent.name for project in Path("packages").glob("*/pyproject.toml")]
    assert "guards" in packages
    for name in packages:
        graph.add_module("weft" if name == "weft" else "weft_" + name.replace("-", "_"))
    graph.add_module("weft_guards.source")
    graph.add_module(imported, is_squashed="." not in imported)
    graph.add_import(importer="weft_guards.source", imported=imported)
    check = DeclaredImports("declared", {}, {}).check(graph, verbose=False)
    assert check.kept is kept
    assert check.metadata["undeclared"] == (
        [] if kept else [f"weft_guards.source imports {imported}"]
    )


def test_declared_modules(tmp_path: Path) -> None:
    project = tmp_path / "pyproject.toml"
    project.write_text(
        '[project]\nname = "weft-a"\ndependencies = ["b-c>=1,<2", "d; sys_platform == \'linux\'"]\n'
        '[project.optional-dependencies]\ngpu = ["weft-e[gpu]>=0.1"]\n'
    )
    package, allowed = declared_modules(project)
    assert package == "weft_a"
    assert {"weft_a", "b_c", "d", "weft_e", "os"} <= allowed
    assert "e" not in allowed
