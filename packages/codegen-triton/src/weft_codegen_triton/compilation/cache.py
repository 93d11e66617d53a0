"""Compiled kernels on disk, found by a hash of everything that they depend on."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from dataclasses import asdict
from pathlib import Path

from weft_codegen_triton.compilation.binary import KernelBinary


def cache_directory(chosen: Path | None) -> Path:
    """``chosen``, else ``$WEFT_CACHE_DIR/triton``, else ``weft/triton`` in the user's cache directory."""
    if chosen is not None:
        return chosen
    named = os.environ.get("WEFT_CACHE_DIR")
    if named:
        return Path(named) / "triton"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "weft" / "triton"


def write_binary(folder: Path, key: str, binary: KernelBinary) -> None:
    """Put ``binary`` into the cache; safe beside other writers of the same key."""
    fields = asdict(binary)
    cubin = fields.pop("cubin")
    fields["sha256"] = hashlib.sha256(cubin).hexdigest()
    put(folder / f"{key}.cubin", cubin)
    put(folder / f"{key}.json", json.dumps(fields).encode())


def read_binary(folder: Path, key: str) -> KernelBinary | None:
    """The kernel ``key``; None if it isn't there whole."""
    try:
        fields = json.loads((folder / f"{key}.json").read_text())
        cubin = (folder / f"{key}.cubin").read_bytes()
    except (OSError, ValueError):
        return None
    if hashlib.sha256(cubin).hexdigest() != fields.pop("sha256", None):
        return None
    return KernelBinary(cubin=cubin, **fields)


def put(path: Path, content: bytes) -> None:
    """Write a file in one step."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent)
    with os.fdopen(handle, "wb") as file:
        file.write(content)
    os.replace(name, path)
