"""Loading a compiled library, and making the Python callable that enters it.

The entry is a C function with CPython's ``METH_FASTCALL`` convention: a call from Python converts nothing.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from weft_codegen_cpp import _torch
from weft_codegen_cpp.host.api import (
    OPENMP_FUNCTIONS,
    OPTIONAL_TORCH_FUNCTIONS,
    PYTHON_FUNCTIONS,
    TORCH_FUNCTIONS,
)

CAPSULE_NAME = b"weft.program"
_loaded: dict[str, ctypes.PyDLL] = {}  # a library stays loaded: its code may be running


@functools.cache
def _memory() -> int:
    """The address of ``Memory`` in ``weft_host.h``: never freed, since programs may outlive this module."""
    allocate = ctypes.pythonapi.PyMem_RawCalloc
    allocate.restype, allocate.argtypes = ctypes.c_void_p, [ctypes.c_size_t, ctypes.c_size_t]
    address: int = allocate(3, 8)
    return address


@functools.cache
def _api_table() -> ctypes.Array[ctypes.c_void_p]:
    """The addresses that ``Api`` in ``weft_host.h`` holds, in its order."""
    functions = _torch.torch_functions()
    openmp = _torch.openmp_functions()
    python = ctypes.pythonapi
    entries: list[int] = [
        _torch.tensor_offset(),
        *(
            id(o)
            for o in (torch.Tensor, torch.nn.Parameter, IndexError, RuntimeError, TypeError, None)
        ),
        *(
            ctypes.cast(getattr(python, name), ctypes.c_void_p).value or 0
            for name in PYTHON_FUNCTIONS
        ),
        functions["wrap"],
        *(functions[name] for name in TORCH_FUNCTIONS + OPTIONAL_TORCH_FUNCTIONS),
        *(openmp[name] for name in OPENMP_FUNCTIONS),
        _memory(),
    ]
    return (ctypes.c_void_p * len(entries))(*entries)


def load_library(path: Path) -> ctypes.PyDLL:
    """Load and bind the library at ``path``, once a process."""
    key = str(path)
    library = _loaded.get(key)
    if library is None:
        library = ctypes.PyDLL(key)
        table = _api_table()
        if library.weft_api_bytes() != ctypes.sizeof(table):
            raise RuntimeError(f"{path} was made for another layout of its interface")
        library.weft_bind(table)
        _loaded[key] = library
    return library


def make_entry(library: ctypes.PyDLL, objects: Sequence[Any]) -> Callable[..., tuple[Any, ...]]:
    """A builtin that runs the program; ``objects`` must outlive it (constants, callbacks, results)."""
    addresses = (ctypes.c_void_p * max(len(objects), 1))(*(id(o) for o in objects))
    library.weft_create.restype = ctypes.c_void_p
    program = ctypes.c_void_p(library.weft_create(addresses, len(objects)))
    new_capsule = ctypes.pythonapi.PyCapsule_New
    new_capsule.restype = ctypes.py_object
    new_capsule.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
    destructor = ctypes.cast(library.weft_destroy, ctypes.c_void_p)
    capsule = new_capsule(program, CAPSULE_NAME, destructor)
    new_function = ctypes.pythonapi.PyCFunction_NewEx
    new_function.restype = ctypes.py_object
    new_function.argtypes = [ctypes.c_void_p, ctypes.py_object, ctypes.c_void_p]
    method = ctypes.cast(library.weft_method, ctypes.c_void_p)
    entry: Callable[..., tuple[Any, ...]] = new_function(method, capsule, None)
    return entry
