"""What is private to torch is reached in one file a package, so that a release breaks one file."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGES = Path(__file__).resolve().parent.parent / "packages"
DOCUMENTED = ("torch._check", "torch._foreach_")
"""How names begin that torch's reference documents although they have an underscore."""


def dotted(node: ast.expr) -> str | None:
    """``torch._C._nn`` for the attribute access of that name, None for any other expression."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        owner = dotted(node.value)
        return owner and f"{owner}.{node.attr}"
    return None


def torch_names(node: ast.AST) -> Iterator[tuple[int, str]]:
    """The line and full name of everything of torch that is imported or reached by attribute."""
    if isinstance(node, ast.Import):
        yield from ((node.lineno, alias.name) for alias in node.names)
    elif isinstance(node, ast.ImportFrom) and node.level == 0:
        yield from ((node.lineno, f"{node.module}.{alias.name}") for alias in node.names)
    elif isinstance(node, ast.Attribute) and (name := dotted(node)):
        yield node.lineno, name
        return  # the owner is part of this name
    for child in ast.iter_child_nodes(node):
        yield from torch_names(child)


def is_private(name: str) -> bool:
    package, *parts = name.split(".")
    if parts[:1] == ["ops"]:
        return False  # what follows names an operator, not a place in torch
    # A dunder is part of a public protocol, such as torch.__version__.
    if name.startswith(DOCUMENTED):
        return False
    return package == "torch" and any(
        part.startswith("_") and not part.startswith("__") for part in parts
    )


@pytest.mark.parametrize("package", [path.name for path in sorted(PACKAGES.iterdir())])
def test_private_names_are_reached_in_one_file(package: str) -> None:
    found = {
        f"{path.relative_to(PACKAGES)}:{line}: {name}"
        for path in (PACKAGES / package / "src").rglob("*.py")
        if path.name != "_torch.py"
        for line, name in torch_names(ast.parse(path.read_text()))
        if is_private(name)
    }
    assert not found, "move to the package's _torch.py:\n" + "\n".join(sorted(found))
