"""Methods behind ``functools.lru_cache``, as libraries' ``warning_once``: bound as functions are."""

import functools
import logging
import sys
import types

import pytest
import torch
from weft_bytecode_capture import capture

SOURCE = """
import functools

@functools.lru_cache(None)
def warning_once(self, text, *args):
    self.warning(text, *args)

class Table:
    def __init__(self, scale):
        self.scale = scale

    @functools.lru_cache(None)
    def factor(self, n):
        return self.scale * n
"""


@pytest.fixture
def library(monkeypatch):
    """A module of a library's, as far as capture asks."""
    module = types.ModuleType("transformers.of_tests")
    exec(compile(SOURCE, module.__name__, "exec"), vars(module))
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr(logging.Logger, "warning_once", module.warning_once, raising=False)
    return module


def test_a_logger_warns_once(library, caplog) -> None:
    logger = logging.getLogger("of_tests")

    def warns(x):
        y = x * 2
        logger.warning_once(f"of {x.shape[0]}")
        return y + 1

    captured = capture(warns)
    result = captured(torch.ones(3))
    assert (len(result.graphs), len(result.breaks)) == (1, 0)
    torch.testing.assert_close(result.result, torch.full((3,), 3.0))
    captured(torch.ones(3))
    warns(torch.ones(3))
    assert [record.message for record in caplog.records] == ["of 3"]


def test_a_cached_method_of_the_program_answers_as_eager(library) -> None:
    table = library.Table(3.0)

    def scaled(x):
        return x * table.factor(2)

    torch.testing.assert_close(capture(scaled)(torch.ones(2)).result, torch.full((2,), 6.0))
    assert isinstance(vars(library.Table)["factor"], functools._lru_cache_wrapper)
