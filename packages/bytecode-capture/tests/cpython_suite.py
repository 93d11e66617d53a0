"""Runs CPython's own test modules under the frame hook: ``python cpython_suite.py test_scope test_with ...``.

Every test method runs twice, plainly and compiled with a do-nothing backend.  One that passes plainly and
not compiled is a fault of capture; so is a crash.  Modules are copied out of the standard library's folder,
whose frames capture leaves alone.  Each runs in a process of its own.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import doctest
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
import unittest
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

MODULES = (
    "test_generators", "test_scope", "test_descr", "test_exceptions", "test_with", "test_contextlib",
    "test_functools", "test_itertools", "test_collections", "test_dict", "test_class", "test_super",
    "test_extcall", "test_patma", "test_enum", "test_traceback", "test_sys_settrace", "test_list",
    "test_tuple", "test_set", "test_deque", "test_listcomps", "test_genexps", "test_named_expressions",
    "test_raise", "test_except_star", "test_property", "test_decorators", "test_augassign",
    "test_compare", "test_unpack", "test_unpack_ex", "test_slice", "test_range", "test_iter", "test_bool",
    "test_operator", "test_string", "test_fstring", "test_keywordonlyarg", "test_positional_only_arg",
    "test_contains", "test_binop", "test_isinstance", "test_metaclass", "test_subclassinit", "test_weakref",
    "test_copy", "test_opcodes", "test_ordered_dict", "test_defaultdict", "test_userdict", "test_userlist",
)  # fmt: skip

LEFT_OUT = {
    "test_remove_subclass": "a compiled function keeps the classes that it knows alive",
    "test_subclasses": "sizes of dicts: an object that nobody sees is not made",
    "test_splittable_popitem": "sizes of dicts",
    "test_vicious_descriptor_nonsense": "a key in an instance's dict whose __eq__ changes the class",
    "test_type_lookup_mro_reference": "a key in a class's dict whose __eq__ changes the bases",
    "test_memory_error_cleanup": "a local that nothing reads again, seen through a traceback",
    "test_recursion_error_cleanup": "a local that nothing reads again, seen through a traceback",
    "test_format_locals": "locals that nothing reads again, seen through a frame",
    "MiscTracebackCases.test_clear": "locals that nothing reads again, seen through a traceback",
    "test_lookup_lines": "capture reads lines of source, which fills the cache of lines",
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


def passes(case: unittest.TestCase, compiled: bool) -> str | None:
    """None if a test passes or skips itself, else the end of its traceback."""
    from weft_bytecode_capture import CaptureOptions, compile_frames

    if compiled:
        name = case._testMethodName
        method = getattr(case, name)
        setattr(case, name, compile_frames(method, run_graph, CaptureOptions(recompile_limit=2)))
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


def run_module(name: str, only: str = "") -> dict[str, Any]:
    """Every test of one module whose name contains ``only``, in this process."""
    import test

    original = Path(test.__file__).with_name(f"{name}.py")
    with tempfile.TemporaryDirectory() as folder:
        copied = Path(shutil.copy(original, folder))
        spec = importlib.util.spec_from_file_location(f"test.{name}", copied)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module
        spec.loader.exec_module(module)
        failed: dict[str, str] = {}
        passed = left_out = 0
        kinds = [kind for kind in vars(module).values() if isinstance(kind, type)]
        suite = unittest.TestSuite(
            unittest.defaultTestLoader.loadTestsFromTestCase(kind)
            for kind in dict.fromkeys(kinds)
            if issubclass(kind, unittest.TestCase)
        )
        if hasattr(module, "load_tests"):
            # Its load_tests adds its docstrings, which doctest runs line by line.
            suite.addTests(doctest_cases(module))
        for case in cases(suite):
            if only not in case.id() or case.id().endswith(tuple(LEFT_OUT)):
                continue
            # The last line names the test that crashed.
            print(case.id(), file=sys.stderr, flush=True)
            if passes(case, False) is not None:
                left_out += 1
                continue
            problem = passes(case, True)
            if problem is None:
                passed += 1
            else:
                failed[case.id()] = problem
    return {"passed": passed, "left_out": left_out, "failed": failed}


def run_in_process(name: str, seconds: int, only: str = "") -> tuple[str, dict[str, Any]]:
    command = [sys.executable, os.path.abspath(__file__), "--here", name, "--only", only]
    folder = tempfile.mkdtemp()  # tests leave files where they run
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=seconds, check=False, cwd=folder
        )
    except subprocess.TimeoutExpired as error:
        last = (error.stderr or b"").decode().strip().splitlines()[-1:]
        return name, {
            "passed": 0,
            "left_out": 0,
            "failed": {name: f"no end after {seconds} s: {last}"},
        }
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    if done.returncode == 0 and done.stdout.strip():
        return name, json.loads(done.stdout.strip().splitlines()[-1])
    end = "\n".join(done.stderr.strip().splitlines()[-12:])
    return name, {"passed": 0, "left_out": 0, "failed": {name: f"exit {done.returncode}: {end}"}}


def main() -> int:
    """Run modules side by side and print what only fails under the hook; gives the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("modules", nargs="*", default=MODULES)
    parser.add_argument("--here", action="store_true", help="run the one module in this process")
    parser.add_argument("--only", default="", help="only tests whose name contains this")
    parser.add_argument("--seconds", type=int, default=300)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args()
    if options.here:
        print("\n" + json.dumps(run_module(options.modules[0], options.only)))
        return 0
    status = 0
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        results = pool.map(
            lambda name: run_in_process(name, options.seconds, options.only), options.modules
        )
        for name, result in results:
            print(
                f"{name}: {result['passed']} pass, {len(result['failed'])} fail, "
                f"{result['left_out']} do not pass plainly",
                flush=True,
            )
            for test, problem in result["failed"].items():
                status = 1
                print(f"FAILED {test}\n{problem}\n", flush=True)
    return status


if __name__ == "__main__":
    sys.exit(main())
