"""Some of CPython's own test modules under the hook; the nox session ``cpython`` runs them all."""

import importlib.util

import cpython_suite
import pytest

QUICK = (
    "test_super", "test_scope", "test_extcall", "test_augassign", "test_binop", "test_contains",
    "test_raise", "test_decorators",
)  # fmt: skip


def test_modules_pass_as_they_do_plainly():
    """In one process, which takes longer to start than to run a module."""
    has_tests = importlib.util.find_spec("test") is not None
    names = [name for name in QUICK if has_tests and importlib.util.find_spec(f"test.{name}")]
    if not names:
        pytest.skip("an interpreter without its test modules")
    result = cpython_suite.run_in_process(names, seconds=60)
    assert result.failed == {}
    assert result.passed > 10 * len(names)
