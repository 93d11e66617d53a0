"""How the versions of CPython's bytecode differ: a file for each, which says what is new in it."""

import sys

from . import python_3_11, python_3_12, python_3_13, python_3_14, python_3_15
from .dialect import Dialect as Dialect

_DIALECTS = {
    (3, 11): python_3_11.DIALECT,
    (3, 12): python_3_12.DIALECT,
    (3, 13): python_3_13.DIALECT,
    (3, 14): python_3_14.DIALECT,
    (3, 15): python_3_15.DIALECT,
}

if sys.version_info[:2] not in _DIALECTS:
    versions = ", ".join(f"{major}.{minor}" for major, minor in _DIALECTS)
    raise ImportError(f"weft_bytecode_capture reads the bytecode of CPython {versions} only")

DIALECT = _DIALECTS[sys.version_info[:2]]
"""That of the interpreter which is running."""
