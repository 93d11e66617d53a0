"""Some of CPython's own test modules under the hook; the nox session ``cpython`` runs them all."""

import importlib.util

import cpython_suite
import pytest

QUICK = (
    "test_super", "test_scope", "test_extcall", "test_augassign", "test_binop", "test_contains",
    "test_raise", "test_decorators",
)  # fmt: skip


@pytest.mark.parametrize("name", QUICK)
def test_module_passes_as_it_does_plainly(name):
    if importlib.util.find_spec(f"test.{name}") is None:
        pytest.skip("an interpreter without its test modules")
    _, result = cpython_suite.run_in_process(name, seconds=60)
    assert result.failed == {}
    assert result.passed > 0
