"""Compiled kernels on disk, found by a hash of everything that they depend on.

The compile server writes them, which has no torch and so none of ``weft_loop_ir``; who asks it has made sure
that the folder is the user's.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import json
import os
import shutil
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from weft_codegen_triton.compilation.binary import KernelBinary


def cache_directory(chosen: Path | None, limit: int | None = None) -> Path:
    """``chosen``, else ``$WEFT_CACHE_DIR/triton``, else in the user's cache directory, or a private one."""
    from weft_loop_ir.disk_cache import cache_folder

    return cache_folder("triton", chosen, limit)


def write_binary(folder: Path, key: str, binary: KernelBinary) -> None:
    """Put ``binary`` into the cache; safe beside other writers of the same key."""
    fields = asdict(binary)
    cubin = fields.pop("cubin")
    fields["sha256"] = hashlib.sha256(cubin).hexdigest()
    put(folder / f"{key}.cubin", cubin)
    put(folder / f"{key}.json", json.dumps(fields).encode())


def read_binary(folder: Path, key: str) -> KernelBinary | None:
    """The kernel ``key``; None if it isn't there whole."""
    from weft_loop_ir.disk_cache import DamagedEntry, mark_used, read_entry

    try:
        fields = json.loads(read_entry(folder, f"{key}.json"))
        cubin = read_entry(folder, f"{key}.cubin")
        if hashlib.sha256(cubin).hexdigest() != fields.pop("sha256"):
            return None
        binary = KernelBinary(cubin=cubin, **fields)
    except (OSError, DamagedEntry, ValueError, TypeError, KeyError, AttributeError):
        return None
    mark_used(folder / f"{key}.json")
    return binary


def holds(path: Path, content: bytes) -> bool:
    """Whether that is what the file holds."""
    from weft_loop_ir.disk_cache import DamagedEntry, read_entry

    try:
        return read_entry(path.parent, path.name) == content
    except (OSError, DamagedEntry):
        return False


def choice_path(folder: Path, texts: Iterable[str], kind: str) -> Path:
    """Where a choice of some ``kind`` is kept that depends on ``texts``."""
    return folder / f"{hashlib.sha256(chr(10).join(texts).encode()).hexdigest()[:32]}.{kind}"


def read_choice(path: Path) -> dict[str, Any]:
    """What was measured once, by name; empty if it isn't there whole."""
    from weft_loop_ir.disk_cache import DamagedEntry, read_entry

    try:
        found = json.loads(read_entry(path.parent, path.name))
    except (OSError, DamagedEntry, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def keep_choice(path: Path, found: Mapping[str, Any]) -> None:
    """Keep what was measured, if that is possible."""
    with contextlib.suppress(OSError):
        put(path, json.dumps(dict(found)).encode())


def put(path: Path, content: bytes) -> None:
    """Write a file in one step."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        if path.is_dir() and not path.is_symlink():  # what has no place here, and can't be replaced
            shutil.rmtree(path)
        os.replace(name, path)
    except BaseException:  # after an interrupt too
        Path(name).unlink(missing_ok=True)
        raise


def load_module(path: Path) -> Any:
    """The module of a kernel whose text is at ``path``."""
    specification = importlib.util.spec_from_file_location(f"weft_kernel_{path.stem}", path)
    assert specification is not None and specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module
