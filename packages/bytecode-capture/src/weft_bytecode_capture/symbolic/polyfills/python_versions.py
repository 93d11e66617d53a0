"""Functions that CPython has both in C and in Python: the Python ones are evaluated.

A module of the standard library takes what its accelerator in C has, where there is one.  Run without that,
it gives its own versions, which CPython's tests hold to the same behaviour.
"""

from __future__ import annotations

import builtins
import importlib
import importlib.util
import types
from typing import Any

from ..models.table import model_of, polyfill

_ACCELERATORS = {
    "bisect": "_bisect",
    "functools": "_functools",
    "heapq": "_heapq",
    "operator": "_operator",
}

# Of another result or another error than in C.
_DIFFERENT = {("functools", "cmp_to_key"), ("operator", "index")}


def python_version(module: str, accelerator: str) -> dict[str, Any]:
    """The names of a module that has not found its accelerator."""

    def import_module(name: str, *rest: Any) -> Any:
        if name == accelerator:
            raise ImportError(name)
        return builtins.__import__(name, *rest)

    spec = importlib.util.find_spec(module)
    assert spec is not None
    loader: Any = spec.loader
    names = {"__name__": module, "__builtins__": {**vars(builtins), "__import__": import_module}}
    exec(loader.get_code(module), names)
    names["__builtins__"] = vars(builtins)
    return names


def _register(module: str, accelerator: str) -> None:
    versions = python_version(module, accelerator)
    for name, function in vars(importlib.import_module(accelerator)).items():
        version = versions.get(name)
        is_known = model_of(function) is not None or (module, name) in _DIFFERENT
        if isinstance(version, types.FunctionType) and callable(function) and not is_known:
            polyfill(function)(version)


for _module, _accelerator in _ACCELERATORS.items():
    _register(_module, _accelerator)
