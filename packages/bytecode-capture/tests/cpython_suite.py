"""Runs CPython's own test modules under the frame hook: ``python cpython_suite.py test_scope test_with ...``.

Every test method runs twice, plainly and compiled with a do-nothing backend.  One that passes plainly and
not compiled is a fault of capture; so is a crash, and one that does not end in time.  Modules are copied out
of the standard library's folder, whose frames capture leaves alone.  Each runs in a process of its own, and
in another one from behind a test that ended the process.  ``--fullgraph`` counts the tests that are captured
without any break, each with all that it calls: others fail, and are not printed.  ``--table FILE`` writes
the counts into a table, which keeps its rows of modules that did not run.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import contextlib
import doctest
import faulthandler
import importlib.util
import itertools
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import unittest
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

MODULES = (
    "test_generators", "test_scope", "test_descr", "test_exceptions", "test_with", "test_contextlib",
    "test_dataclasses", "test_functools", "test_itertools", "test_collections", "test_dict",
    "test_class", "test_super",
    "test_extcall", "test_patma", "test_enum", "test_traceback", "test_sys_settrace", "test_list",
    "test_tuple", "test_set", "test_deque", "test_listcomps", "test_genexps", "test_named_expressions",
    "test_raise", "test_except_star", "test_property", "test_decorators", "test_augassign",
    "test_compare", "test_unpack", "test_unpack_ex", "test_slice", "test_range", "test_iter", "test_bool",
    "test_operator", "test_string", "test_fstring", "test_keywordonlyarg", "test_positional_only_arg",
    "test_contains", "test_binop", "test_isinstance", "test_metaclass", "test_subclassinit", "test_weakref",
    "test_copy", "test_opcodes", "test_ordered_dict", "test_defaultdict", "test_userdict", "test_userlist",
    "test_exception_group", "test_exception_variations", "test_sys_setprofile", "test_generator_stop",
    "test_coroutines", "test_asyncgen", "test_call",
)  # fmt: skip

LEFT_OUT = {
    "test_remove_subclass": "a compiled function keeps the classes that it knows alive",
    "test_callback_in_cycle_resurrection": "a compiled function keeps the classes that it knows alive",
    "test_lru_cache_weakrefable": "a compiled function keeps the classes that it knows alive",
    "ClassPropertiesAndMethods.test_slots": "counts all objects, those of compiled code among them",
    "test_subclasses": "sizes of dicts: an object that nobody sees is not made",
    "test_splittable_popitem": "sizes of dicts",
    "test_vicious_descriptor_nonsense": "a key in an instance's dict whose __eq__ changes the class",
    "test_type_lookup_mro_reference": "a key in a class's dict whose __eq__ changes the bases",
    "test_memory_error_cleanup": "a local that nothing reads again, seen through a traceback",
    "test_recursion_error_cleanup": "a local that nothing reads again, seen through a traceback",
    "test_format_locals": "locals that nothing reads again, seen through a frame",
    "MiscTracebackCases.test_clear": "locals that nothing reads again, seen through a traceback",
    "test_lookup_lines": "capture reads lines of source, which fills the cache of lines",
    "test_reference_loop": "a compiled function keeps the classes it knows alive",
    "TestSingleDispatch.test_cache_invalidation": "puts another dict in place of dispatch's weak cache",
    "ReferencesTestCase.test_classes": "a compiled function keeps the classes that it knows alive",
    "test_weak_keyed_union_operators": "a compiled function keeps the keys of dicts that it knows alive",
    "test_testcapi_settrace_error": "a function of a test extension sets a tracer behind the back of all",
    "test_no_line_event_after_creating_generator": "a function of a test extension sets a tracer",
    "test_lru_reentrancy_with_len": "takes len away, which the hook itself calls",
    "test_reduce_mutating_builtins_iter": "takes builtins away that the hook itself calls",
}
"""Tests that ask for more than captured code promises, by the ends of their names."""


def run_graph(graph_module: Any, example_inputs: list[Any]) -> Any:
    return graph_module.forward


def cases(suite: unittest.TestSuite | unittest.TestCase) -> Iterator[unittest.TestCase]:
    if isinstance(suite, unittest.TestCase):
        yield suite
        return
    for part in suite:
        yield from cases(part)


def passes(case: unittest.TestCase, compiled: bool, fullgraph: bool = False) -> str | None:
    """None if a test passes or skips itself, else the end of its traceback."""
    from weft_bytecode_capture import CaptureOptions, compile_frames

    if compiled:
        name = case._testMethodName
        method = getattr(case, name)
        options = CaptureOptions(recompile_limit=2, fullgraph=fullgraph)
        setattr(case, name, compile_frames(method, run_graph, options))
    result = unittest.TestResult()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        case.run(result)
    if compiled:
        del case.__dict__[name]
    problems = [*result.errors, *result.failures]
    return None if not problems else problems[0][1][-2500:]


def doctest_cases(module: Any) -> list[unittest.TestCase]:
    """The module's docstrings as tests; none where it has none."""
    try:
        return list(cases(doctest.DocTestSuite(module)))
    except ValueError:
        return []


def load_cases(name: str, folder: str) -> list[unittest.TestCase]:
    """The tests of a module of CPython's, imported from a copy in ``folder``."""
    found = importlib.util.find_spec(f"test.{name}")
    assert found is not None and found.origin is not None
    original = Path(found.origin)
    package = original.name == "__init__.py"
    if package:
        shutil.copytree(original.parent, Path(folder, name))
    copied = Path(folder, name, original.name) if package else shutil.copy(original, folder)
    spec = importlib.util.spec_from_file_location(f"test.{name}", copied)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    kinds = [kind for kind in vars(module).values() if isinstance(kind, type)]
    suite = unittest.TestSuite(
        unittest.defaultTestLoader.loadTestsFromTestCase(kind)
        for kind in dict.fromkeys(kinds)
        if issubclass(kind, unittest.TestCase)
    )
    if hasattr(module, "load_tests"):
        # Its load_tests adds its docstrings, which doctest runs line by line.
        suite.addTests(doctest_cases(module))
    return list(cases(suite))


def warm_up() -> None:
    """Let capture and torch import what they import late: some tests put other modules in the way."""
    import torch
    from weft_bytecode_capture import compile_frames

    compiled = compile_frames(lambda x, n: x.new_zeros(n), run_graph)
    for size in (2, 3, 4):
        compiled(torch.ones(2), size)


class ClassFixtures:
    """Runs what test classes set up for all their tests, and take down."""

    def __init__(self) -> None:
        self._present: type[unittest.TestCase] | None = None

    def enter(self, kind: type[unittest.TestCase]) -> None:
        """Be ready for the tests of ``kind``."""
        if kind is not self._present:
            self.close()
            kind.setUpClass()
            self._present = kind

    def close(self) -> None:
        if self._present is not None:
            self._present.tearDownClass()
            self._present.doClassCleanups()
        self._present = None


def run_here(
    names: Sequence[str], only: str, start: int, seconds: float, fullgraph: bool = False
) -> None:
    """Run the tests of modules from number ``start`` on, and print a line of JSON before and after each.

    One that takes ``seconds`` more than 20 times what it takes plainly ends the process with a traceback.
    """
    warm_up()
    fixtures = ClassFixtures()
    with tempfile.TemporaryDirectory() as folder, contextlib.closing(fixtures):
        found = itertools.chain.from_iterable(load_cases(name, folder) for name in names)
        for number, case in enumerate(found):
            if number < start or only not in case.id():
                continue
            fixtures.enter(type(case))
            test = case.id()
            _say(number=number, test=test)
            if test.endswith(tuple(LEFT_OUT)):
                _say(left_out=True)
                continue
            before = time.perf_counter()
            plain = passes(case, False)
            between = time.perf_counter()
            if plain is not None:
                _say(fails_plainly=True)
                continue
            faulthandler.dump_traceback_later(seconds + 20 * (between - before), exit=True)
            problem = passes(case, True, fullgraph)
            faulthandler.cancel_dump_traceback_later()
            _say(problem=problem, plain=between - before, compiled=time.perf_counter() - between)


def _say(**row: Any) -> None:
    print("\n@" + json.dumps(row), file=sys.__stdout__, flush=True)


@dataclass
class ModuleResult:
    """What became of a module's tests; ``failed`` has the ends of tracebacks by test.

    ``slow`` has the seconds, plain and compiled, of tests that take more than 20 times longer compiled, and
    more than :data:`SLOW_SECONDS`.
    """

    passed: int = 0
    left_out: int = 0
    fails_plainly: int = 0
    failed: dict[str, str] = field(default_factory=dict)
    slow: dict[str, tuple[float, float]] = field(default_factory=dict)

    def count(self, test: str, row: dict[str, Any]) -> None:
        """Take in the line that follows a test."""
        if "left_out" in row or "fails_plainly" in row:
            self.left_out += "left_out" in row
            self.fails_plainly += "fails_plainly" in row
            return
        if row["problem"] is None:
            self.passed += 1
        else:
            self.failed[test] = row["problem"]
        if row["compiled"] > max(SLOW_SECONDS, 20 * row["plain"]):
            self.slow[test] = (row["plain"], row["compiled"])

    def counts(self) -> list[int]:
        """How many tests passed, failed, were left out, and failed plainly too."""
        return [self.passed, len(self.failed), self.left_out, self.fails_plainly]


SLOW_SECONDS = 5.0


def run_in_process(
    names: Sequence[str], seconds: int, only: str = "", fullgraph: bool = False
) -> ModuleResult:
    """Run modules' tests, one module after another, in as many processes as it takes."""
    result = ModuleResult()
    start = 0
    while True:
        command = [sys.executable, os.path.abspath(__file__), "--here", *names, "--only", only]
        command += ["--start", str(start), "--seconds", str(seconds)]
        command += ["--fullgraph"] if fullgraph else []
        folder = tempfile.mkdtemp()  # tests leave files where they run
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        lines = [line[1:] for line in done.stdout.splitlines() if line.startswith("@")]
        test: str | None = None
        for row in map(json.loads, lines):
            if "number" in row:
                test, start = row["test"], row["number"] + 1
            else:
                assert test is not None
                result.count(test, row)
                test = None
        if done.returncode == 0:
            return result
        end = "\n".join(done.stderr.strip().splitlines()[-40:])
        result.failed[test or " ".join(names)] = f"exit {done.returncode}: {end}"
        if test is None:
            return result


def read_table(path: Path) -> dict[str, list[int]]:
    """The counts by module of a table written earlier, empty where there is none."""
    if not path.exists():
        return {}
    rows = [line.strip("|").split("|") for line in path.read_text().splitlines()]
    return {
        row[0].strip(): [int(cell) for cell in row[2:]]
        for row in rows
        if row[0].strip().startswith("test_")
    }


def table(counts: dict[str, list[int]]) -> str:
    """The counts (pass, fail, left out, plainly failing) by module as a table in Markdown."""
    version = ".".join(map(str, sys.version_info[:3]))
    lines = [
        "# CPython's own tests under the frame hook",
        "",
        f"CPython {version}. Written by `nox -s cpython -- --table packages/bytecode-capture/CPYTHON.md`.",
        "*Plainly failing* tests fail or crash without capture too; *left out* are those of `LEFT_OUT` in",
        "`tests/cpython_suite.py`, each with its reason.",
        "",
        "| module | tests | pass | fail | left out | plainly failing |",
        "|---|---|---|---|---|---|",
    ]
    total = [sum(column) for column in zip(*counts.values(), strict=True)]
    for name, row in [*sorted(counts.items()), ("all", total)]:
        lines.append(f"| {name} | {' | '.join(map(str, [sum(row), *row]))} |")
    return "\n".join(lines) + "\n"


def main() -> int:
    """Run modules side by side and print what only fails under the hook; gives the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("modules", nargs="*", default=MODULES)
    parser.add_argument("--here", action="store_true", help="run the modules in this process")
    parser.add_argument("--start", type=int, default=0, help="number of the first test to run here")
    parser.add_argument("--only", default="", help="only tests whose name contains this")
    parser.add_argument(
        "--seconds", type=int, default=60, help="a test's limit beyond 20 times plain"
    )
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--fullgraph", action="store_true", help="count tests without any break")
    parser.add_argument("--table", help="write the counts into this file, whose other rows stay")
    options = parser.parse_args()
    if options.here:
        run_here(options.modules, options.only, options.start, options.seconds, options.fullgraph)
        return 0
    results: dict[str, ModuleResult] = {}
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        found = pool.map(
            lambda name: run_in_process([name], options.seconds, options.only, options.fullgraph),
            options.modules,
        )
        for name, result in zip(options.modules, found, strict=True):
            results[name] = result
            print(
                f"{name}: {result.passed} pass, {len(result.failed)} fail, {result.left_out} left out, "
                f"{result.fails_plainly} fail plainly",
                flush=True,
            )
            if options.fullgraph:
                continue
            for test, problem in result.failed.items():
                print(f"FAILED {test}\n{problem}\n", flush=True)
            for test, (plain, compiled) in result.slow.items():
                print(f"SLOW {test}: {plain:.3f} s plainly, {compiled:.1f} s compiled", flush=True)
    if options.table:
        path = Path(options.table)
        path.write_text(table(read_table(path) | {name: r.counts() for name, r in results.items()}))
    if options.fullgraph:
        passed = sum(result.passed for result in results.values())
        tried = passed + sum(len(result.failed) for result in results.values())
        print(f"{passed} of {tried} tests are captured without any break")
        return 0
    return int(any(result.failed for result in results.values()))


if __name__ == "__main__":
    sys.exit(main())
