"""A plugin of pytest that writes what each test reaches: branches of weft's code, operators and their dtypes.

``-p tests.coverage.probes`` with ``WEFT_COVERAGE=folder`` writes a file a process there, a line a test: its
id, its seconds of CPU and the numbers of its features, tab-separated.  A line with a tab before it names the
next feature, from 0.  Weft's modules are compiled with a probe in each branch, by a finder of modules rather
than a trace function, which the frame hook would meet.  Processes of Python that a test starts write lines of
their own, where this folder's `children` is on their path.
"""

from __future__ import annotations

import ast
import atexit
import importlib.machinery
import itertools
import marshal
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

POLYFILL = "polyfill"
"""The decorator of functions that are captured in the place of others, wherever they are."""

UNSEEN = "unseen"
"""The feature of a test that reaches more than what is written here."""

STARTS = "starts"
"""The feature of one that starts a process of Python, with its number: it writes a line, too, if it can."""

CHILD = "child"
"""The feature of the line of such a process."""

TEST = "PYTEST_CURRENT_TEST"
"""What pytest tells the processes that a test starts: the test's id, and in brackets its stage."""

probes: list[tuple[bytearray, list[str]]] = []
"""Of each module those that were reached, and the branches that they are in."""

others: set[str] = set()
numbers: dict[str, int] = {}
"""Of the features that this process has written."""

starts = 0


class Probing(ast.NodeTransformer):
    """A probe at the start of each function, and in both branches of what decides."""

    def __init__(self, file: str) -> None:
        self.file = file
        self.branches: list[str] = []

    def new(self, node: ast.AST, branch: str) -> int:
        self.branches.append(f"{self.file}:{getattr(node, 'lineno', 0)}{branch}")
        return len(self.branches) - 1

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
        decorators = {getattr(called, "func", called) for called in node.decorator_list}
        if any(isinstance(name, ast.Name) and name.id == POLYFILL for name in decorators):
            return node
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
        """That with probes, which the run's first process that needs it writes for the others."""
        path = self.get_filename(fullname)
        kept = Path(os.environ["WEFT_COVERAGE"]) / f"{fullname}.code"
        if kept.is_file():
            code, self.branches = marshal.loads(kept.read_bytes())
            return code  # type: ignore[no-any-return]
        tree = ast.parse(self.get_data(path), path)
        self.branches = []
        if not any(part in path for part in CAPTURED):
            probing = Probing("/".join(Path(path).parts[-4:]))
            tree = ast.fix_missing_locations(probing.visit(tree))
            self.branches = probing.branches
        code = compile(tree, path, "exec", dont_inherit=True)
        unfinished = kept.with_suffix(f".{os.getpid()}")
        unfinished.write_bytes(marshal.dumps((code, self.branches)))
        unfinished.replace(kept)
        return code

    def exec_module(self, module: ModuleType) -> None:
        code = self.get_code(module.__name__)
        hits = module.__dict__[PROBE] = bytearray(len(self.branches))
        probes.append((hits, self.branches))
        exec(code, module.__dict__)
        if module.__name__ in WATCHED:
            WATCHED[module.__name__](module)


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


def watch_lowering(module: Any) -> None:
    """Which operators are lowered, and the dtypes of what they give."""
    lower_node = module.Driver.lower_node

    def watched(self: Any, node: Any) -> Any:
        value = node.meta.get("val")
        name = getattr(node.target, "__name__", node.target)
        if node.op == "call_function":
            others.add(f"lowers {name} {getattr(value, 'dtype', type(value).__name__)}")
        return lower_node(self, node)

    module.Driver.lower_node = watched


def watch_bodies(module: Any) -> None:
    """Which operations loop bodies have, and their dtypes."""
    append = module.BodyRecorder._append

    def watched(self: Any, instruction: Any) -> Any:
        others.add(f"body {instruction.operation.name} {instruction.dtype}")
        return append(self, instruction)

    module.BodyRecorder._append = watched


WATCHED = {
    "weft_loop_ir.lowering.lower": watch_lowering,
    "weft_loop_ir.recording": watch_bodies,
}


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
    """What a process of Python reaches is seen if it writes that, at its end; what a fork does is not."""
    global starts
    if event == "os.fork":
        others.add(UNSEEN)
    elif event == "subprocess.Popen":
        command = arguments[1] if isinstance(arguments[1], (list, tuple)) else [arguments[1]]
        if "python" in os.path.basename(str(command[0])) or arguments[0] == sys.executable:
            starts += 1
            others.add(f"{STARTS} {starts}")


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """What a test that fails would reach isn't seen, either."""
    if report.failed:
        others.add(UNSEEN)


def seconds() -> float:
    used = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in used)


def write(test: str, taken: float) -> None:
    branches = (itertools.compress(names, hits) for hits, names in list(probes))
    reached = sorted(others.union(*branches))
    lines = []
    for feature in reached:
        if feature not in numbers:
            numbers[feature] = len(numbers)
            lines.append(f"\t{feature}")
    lines.append("\t".join((test, f"{taken:.3f}", *(str(numbers[name]) for name in reached))))
    with (Path(os.environ["WEFT_COVERAGE"]) / f"{os.getpid()}.tsv").open("a") as file:
        file.write("".join(f"{line}\n" for line in lines))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    global starts
    before, starts = seconds(), 0
    for hits, _ in probes:
        hits[:] = bytes(len(hits))
    others.clear()
    try:
        return (yield)
    finally:
        write(item.nodeid, seconds() - before)


def write_of_child() -> None:
    others.add(CHILD)
    write(os.environ[TEST].rpartition(" (")[0], 0)


def watch() -> None:
    """See what this process reaches from now on."""
    sys.meta_path.insert(0, ProbingFinder())  # type: ignore[arg-type]
    sys.addaudithook(watch_processes)
    if TEST in os.environ:
        atexit.register(write_of_child)


def pytest_configure() -> None:
    watch_graphs()


watch()
