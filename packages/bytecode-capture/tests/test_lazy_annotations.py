"""Annotations that are evaluated when they are read, as those of CPython 3.14 are, and may raise then."""

import sys
from typing import Any

import pytest
import torch
from differential import check

pytestmark = pytest.mark.skipif(sys.version_info < (3, 14), reason="evaluated by the statement")


def made() -> tuple[Any, Any]:
    def function(a: undefined) -> int: ...  # type: ignore[name-defined]  # noqa: F821

    class Class:
        b: undefined  # type: ignore[name-defined]  # noqa: F821

    return function, Class


def read(x, owner):
    try:
        return x + 1, owner.__annotations__
    except (AttributeError, NameError) as error:
        return x - 1, str(error)


def read_or(x, owner):
    try:
        return x + 1, getattr(owner, "__annotations__", None)
    except NameError as error:
        return x - 1, str(error)


def read_by_name(x, owner):
    import annotationlib

    kind = annotationlib.Format.STRING
    return x + 1, annotationlib.get_annotations(owner, format=kind)


def read_new(x):
    function, _ = made()
    try:
        return x + 1, function.__annotations__
    except NameError as error:
        return x - 1, str(error)


@pytest.mark.parametrize("function", [read, read_or, read_by_name], ids=lambda f: f.__name__)
@pytest.mark.parametrize("number", [0, 1], ids=["function", "class"])
def test_names_that_are_not_defined(function, number):
    owner = made()[number]
    check(function, [(torch.ones(2), owner)], fullgraph=False)


def test_instances_have_none():
    check(read, [(torch.ones(2), made()[1]())], fullgraph=False)


def test_of_functions_made_there():
    check(read_new, [(torch.ones(2),)], fullgraph=False)
