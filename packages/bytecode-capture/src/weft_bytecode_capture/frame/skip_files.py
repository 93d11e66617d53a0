"""Which frames are left to CPython because of the file they come from.

Frames reached from a compiled call but not captured inside its root frame (after a break, from C code, by a
callback) are root frames of their own, if there is something to capture in them.
"""

from __future__ import annotations

import functools
import os
import sysconfig
import types
from pathlib import Path
from typing import Any

from .. import _frame_hook
from ..symbolic.frame_result import Skip
from ..symbolic.policy import LEFT_TO_CPYTHON, is_beneath_operators, is_other_compiler
from ..symbolic.replaced_builtins import builtins_replaced

# Below the installed torch: code written in terms of tensors, as a user's would be.
_TORCH_CAPTURED = ("nn/modules", "nn/utils", "optim", "distributions")
# The calling of modules, and what is left to CPython: what they call, a forward, a hook or a closure, is
# captured on its own.
_TORCH_PLUMBING = (
    "nn/modules/module.py",
    *(f"{name.removeprefix('torch.').replace('.', '/')}.py" for name in LEFT_TO_CPYTHON),
)
# Methods of the classes below nn/modules.
_BUILDS_MODULES = ("__init__", "__setattr__", "reset_parameters", "_infer_parameters")

# Installed packages whose own code computes nothing with tensors; what it calls is captured on its own.
_WITHOUT_TENSORS = "filelock numpy PIL matplotlib pandas rich scipy tqdm yaml".split()

# What containers of modules do beside calling their members.
_CONTAINERS = "nn/modules/container.py"
_FINDS_MEMBERS = frozenset(
    (
        "__getitem__ __len__ __iter__ __contains__ _get_abs_string_index _get_item_by_idx "
        "keys values items __iadd__ extend append"
    ).split()
)


def answer_of(skip: Skip) -> int:
    """What the frame hook is told of a frame that the evaluation leaves to CPython."""
    if skip.with_callees:
        return _frame_hook.DISABLE
    return _frame_hook.SKIP if skip.forever else _frame_hook.PASS


def left_to_python(
    globals_dictionary: dict[str, Any], code: types.CodeType, backend_folders: frozenset[str]
) -> int | None:
    """What the frame hook is told of a frame that is left to CPython; None of any other."""
    if builtins_replaced():  # before anything that calls one
        return _frame_hook.PASS
    module = globals_dictionary.get("__name__")
    is_apart = is_other_compiler(module, code.co_qualname)
    if is_apart or is_beneath_operators(module) or builds_module(code) or imports(code):
        return _frame_hook.DISABLE
    return None if skip_reason(code, backend_folders) is None else _frame_hook.SKIP


def skip_reason(code: types.CodeType, backend_folders: frozenset[str]) -> str | None:
    """Why a root frame of ``code`` isn't captured; None if it is."""
    if _hands_on(code):
        return "it has no tensor operation"
    if has_two_cells_of_a_name(code):
        return "a comprehension's variable has the name of a free one"
    return _reason(code.co_filename, backend_folders)


def has_two_cells_of_a_name(code: types.CodeType) -> bool:
    """Whether a name is a cell of the code's own and one of another function's: what is read then is a slot.

    Only of inlined comprehensions (3.12): ``[lambda: T for T in T.names]`` where ``T`` is free.
    """
    return not set(code.co_cellvars).isdisjoint(code.co_freevars)


def _hands_on(code: types.CodeType) -> bool:
    """Whether ``code`` only finds or keeps objects: a container's member, the fields of a dataclass."""
    if code.co_filename == "<string>":
        return code.co_qualname == "__create_fn__.<locals>.__init__"
    return code.co_name in _FINDS_MEMBERS and _inside_torch(code.co_filename) == _CONTAINERS


def builds_module(code: types.CodeType) -> bool:
    """Whether ``code`` makes a module of torch's own: it and all that it calls compute no results."""
    return code.co_name in _BUILDS_MODULES and _is_module_of_torch(code.co_filename)


def imports(code: types.CodeType) -> bool:
    """Whether ``code`` is the import system's: what it runs are modules' bodies and their finders."""
    return code.co_filename.startswith("<frozen importlib.")


@functools.lru_cache(maxsize=4096)
def _reason(file: str, backend_folders: frozenset[str]) -> str | None:
    if file.startswith("<frozen "):
        return "part of the interpreter"
    if not backend_folders.isdisjoint(map(str, Path(file).parents)):
        return "part of the compiler"
    for folder, reason, captured in _folders():
        if file.startswith(folder):
            inner = file[len(folder) :].replace(os.sep, "/")
            if not inner.startswith(captured) or inner in _TORCH_PLUMBING:
                return reason
            return None
    return None


@functools.lru_cache(maxsize=4096)
def _is_module_of_torch(file: str) -> bool:
    inner = _inside_torch(file)
    return inner.startswith("nn/modules/") and inner not in _TORCH_PLUMBING


@functools.lru_cache(maxsize=4096)
def _inside_torch(file: str) -> str:
    """A file's path below torch's folder; the whole path of another file."""
    import torch

    return Path(file).as_posix().removeprefix(Path(_folder(torch.__file__)).as_posix() + "/")


@functools.cache
def _folders() -> tuple[tuple[str, str, tuple[str, ...]], ...]:
    """(folder, reason, what of it is captured all the same); inner folders first."""
    import torch
    import weft_guards

    rows: list[tuple[str, str, tuple[str, ...]]] = [
        (_folder(torch.__file__), "part of torch", _TORCH_CAPTURED),
        (_folder(weft_guards.__file__), "part of weft", ()),
        (str(Path(__file__).parents[1]) + os.sep, "part of weft", ()),
    ]
    paths = sysconfig.get_paths()
    for name in ("purelib", "platlib"):
        for package in _WITHOUT_TENSORS:
            rows.append(
                (os.path.join(paths[name], package) + os.sep, "a library without tensors", ())
            )
        # Packages of a virtual environment are often below the standard library's folder.
        rows.append((paths[name] + os.sep, "", ("",)))
    for name in ("stdlib", "platstdlib"):
        rows.append((paths[name] + os.sep, "part of the standard library", ()))
    return tuple(rows)


def _folder(file: str | None) -> str:
    assert file is not None
    return str(Path(file).parent) + os.sep
