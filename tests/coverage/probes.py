"""A plugin of pytest that writes what each test reaches: branches of weft's own code, operators in graphs.

``-p tests.coverage.probes`` with ``WEFT_COVERAGE=folder`` writes a file a process there, a line a test: its
id, its seconds of CPU and its features, tab-separated.  Weft's modules are compiled with a probe in each
branch, by a finder of modules rather than a trace function, which the frame hook would meet.
"""

from __future__ import annotations

import ast
import importlib.machinery
import os
import resource
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

import pytest

PROBE = "_weft_probe"
CAPTURED = ("symbolic/polyfills/", "runtime/device_functions.py")
"""Parts of paths of code that isn't run as it stands, but captured or compiled by Triton."""

UNSEEN = "unseen"
"""The feature of a test that reaches more than what is written here."""

hits = bytearray()
names: list[str] = []
others: set[str] = set()


class Probing(ast.NodeTransformer):
    """A probe at the start of each function, and in both branches of what decides."""

    def __init__(self, file: str) -> None:
        self.file = file

    def new(self, node: ast.AST, branch: str) -> int:
        names.append(f"{self.file}:{getattr(node, 'lineno', 0)}{branch}")
        hits.append(0)
        return len(names) - 1

    def block(self, node: Any, branch: str, body: list[ast.stmt]) -> list[ast.stmt]:
        target = f"{PROBE}[{self.new(node, branch)}] = 1"
        probe = ast.parse(target).body[0]
        place = body[0] if body else node
        for part in ast.walk(probe):
            ast.copy_location(part, place)
        return [probe, *body]

    def value(self, node: ast.expr, branch: str) -> ast.expr:
        found = ast.parse(
            f"{PROBE}.__setitem__({self.new(node, branch)}, 1) or 0", mode="eval"
        ).body
        assert isinstance(found, ast.BoolOp)
        for part in ast.walk(found):
            ast.copy_location(part, node)
        found.values[-1] = node
        return found

    def visit_FunctionDef(self, node: Any) -> Any:
        self.generic_visit(node)
        first = node.body[0]
        documented = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant)
        kept = node.body[:1] if documented else []
        node.body = [*kept, *self.block(node, f" {node.name}", node.body[len(kept) :])]
        return node

    visit_AsyncFunctionDef = visit_FunctionDef  # noqa: N815

    def visit_Lambda(self, node: ast.Lambda) -> Any:
        self.generic_visit(node)
        node.body = self.value(node.body, " lambda")
        return node

    def visit_If(self, node: ast.If) -> Any:
        self.generic_visit(node)
        if isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            return node
        node.body = self.block(node, " if", node.body)
        node.orelse = self.block(node, " else", node.orelse)
        return node

    def visit_IfExp(self, node: ast.IfExp) -> Any:
        self.generic_visit(node)
        node.body = self.value(node.body, " if")
        node.orelse = self.value(node.orelse, " else")
        return node

    def visit_BoolOp(self, node: ast.BoolOp) -> Any:
        self.generic_visit(node)
        node.values[-1] = self.value(node.values[-1], " operand")
        return node

    def visit_For(self, node: Any) -> Any:
        self.generic_visit(node)
        node.body = self.block(node, " loop", node.body)
        return node

    visit_While = visit_For  # noqa: N815

    def visit_ExceptHandler(self, node: ast.ExceptHandler) -> Any:
        self.generic_visit(node)
        node.body = self.block(node, " except", node.body)
        return node

    def visit_match_case(self, node: ast.match_case) -> Any:
        self.generic_visit(node)
        node.body = self.block(node.body[0], " case", node.body)
        return node


class ProbingLoader(importlib.machinery.SourceFileLoader):
    def get_code(self, fullname: str) -> CodeType:
        path = self.get_filename(fullname)
        tree = ast.parse(self.get_data(path), path)
        if not any(part in path for part in CAPTURED):
            tree = ast.fix_missing_locations(Probing("/".join(Path(path).parts[-4:])).visit(tree))
        return compile(tree, path, "exec", dont_inherit=True)

    def exec_module(self, module: ModuleType) -> None:
        module.__dict__[PROBE] = hits
        super().exec_module(module)


class ProbingFinder:
    """Finds weft's modules as the path does."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name.partition(".")[0].split("_")[0] != "weft":
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is not None and isinstance(spec.loader, importlib.machinery.SourceFileLoader):
            spec.loader = ProbingLoader(spec.loader.name, spec.loader.path)
        return spec


def watch_graphs() -> None:
    """What graphs call is a feature, too."""
    from torch import _ops, fx

    made = fx.Graph.create_node

    def create_node(self: fx.Graph, op: str, target: Any, *args: Any, **kwargs: Any) -> fx.Node:
        if op == "call_method" or isinstance(target, _ops.OpOverload):
            others.add(f"{op} {target}")
        elif op == "call_function":
            name = getattr(target, "__qualname__", "")
            if "<locals>" not in name:
                others.add(f"{op} {getattr(target, '__module__', '')}.{name}")
        return made(self, op, target, *args, **kwargs)

    fx.Graph.create_node = create_node  # type: ignore[method-assign,assignment]


def watch_processes(event: str, arguments: tuple[Any, ...]) -> None:
    """What a process of Python reaches isn't seen."""
    if event == "os.fork" or (event == "subprocess.Popen" and "python" in str(arguments[:2])):
        others.add(UNSEEN)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """What a test that fails would reach isn't seen, either."""
    if report.failed:
        others.add(UNSEEN)


def seconds() -> float:
    used = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in used)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    before = seconds()
    hits[:] = bytes(len(hits))
    others.clear()
    try:
        return (yield)
    finally:
        reached = sorted({names[i] for i in range(len(hits)) if hits[i]} | others)
        folder = Path(os.environ["WEFT_COVERAGE"])
        with (folder / f"{os.getpid()}.tsv").open("a") as file:
            file.write("\t".join((item.nodeid, f"{seconds() - before:.3f}", *reached)) + "\n")


sys.meta_path.insert(0, ProbingFinder())  # type: ignore[arg-type]
sys.addaudithook(watch_processes)


def pytest_configure() -> None:
    watch_graphs()
