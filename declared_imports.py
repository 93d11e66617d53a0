"""A contract for import-linter: a package imports the standard library, itself, and what it declares.

What it declares are the dependencies and optional dependencies of its ``pyproject.toml``; a distribution's
top-level module has its name, with underscores.  import-linter knows third-party packages by their top level
only, so torch's own compiler is banned by ruff.
"""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

from grimp import ImportGraph
from importlinter import Contract, ContractCheck, output

PACKAGES = Path(__file__).parent / "packages"


class DeclaredImports(Contract):
    """No package imports what its metadata does not declare."""

    type_name = "declared"

    def check(self, graph: ImportGraph, verbose: bool) -> ContractCheck:
        undeclared = []
        for project in PACKAGES.glob("*/pyproject.toml"):
            package, allowed = declared_modules(project)
            for module in sorted({package, *graph.find_descendants(package)}):
                for imported in graph.find_modules_directly_imported_by(module):
                    if imported.partition(".")[0] not in allowed:
                        undeclared.append(f"{module} imports {imported}")
        return ContractCheck(kept=not undeclared, metadata={"undeclared": undeclared})

    def render_broken_contract(self, check: ContractCheck) -> None:
        for line in check.metadata["undeclared"]:
            output.print_error(f"{line}, which its pyproject.toml does not declare")


def declared_modules(project: Path) -> tuple[str, set[str]]:
    """The package of a ``pyproject.toml``, and the top-level modules that it may import."""
    table = tomllib.loads(project.read_text())["project"]
    extras = table.get("optional-dependencies", {}).values()
    requirements = [table["name"], *table["dependencies"], *(r for extra in extras for r in extra)]
    names = {re.split(r"[^\w.-]", r)[0].replace("-", "_") for r in requirements}
    return table["name"].replace("-", "_"), names | set(sys.stdlib_module_names)
