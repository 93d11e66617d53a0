"""What lets all packages' tests run in one environment.

Each package's tests import what it declares, and their helper modules have names of their own.
"""

from __future__ import annotations

import ast
import collections
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.kept

PACKAGES = Path(__file__).resolve().parent.parent / "packages"
NAMES = sorted(path.name for path in PACKAGES.iterdir() if (path / "pyproject.toml").exists())


def module_of(package: str) -> str:
    return "weft" if package == "weft" else f"weft_{package.replace('-', '_')}"


def declared(package: str) -> set[str]:
    """The package and the siblings that it declares, directly or through one another."""
    document = tomllib.loads((PACKAGES / package / "pyproject.toml").read_text())
    siblings = [
        name
        for name in NAMES
        for requirement in document["project"]["dependencies"]
        if requirement.startswith(f"weft-{name}>")
    ]
    return {package}.union(*map(declared, siblings))


def imported(path: Path) -> Iterator[str]:
    """The top-level modules that a file imports."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            yield str(node.module).partition(".")[0]


@pytest.mark.parametrize("package", NAMES)
def test_tests_import_what_their_package_declares(package: str) -> None:
    allowed = set(map(module_of, declared(package)))
    others = set(map(module_of, NAMES)) - allowed
    found = {
        f"{path.relative_to(PACKAGES)}: {name}"
        for path in (PACKAGES / package / "tests").rglob("*.py")
        for name in imported(path)
        if name in others
    }
    assert not found, "\n".join(sorted(found))


def test_helpers_have_names_of_their_own() -> None:
    """They are imported by name: where two packages have one, the second would get the first's."""
    helpers = [
        path
        for package in NAMES
        for path in sorted((PACKAGES / package / "tests").glob("*.py"))
        if path.name != "conftest.py" and not path.name.startswith("test_")
    ]
    names = collections.Counter(path.name for path in helpers)
    assert not [str(path.relative_to(PACKAGES)) for path in helpers if names[path.name] > 1]
