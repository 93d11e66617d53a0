"""A compiled kernel, and what it is compiled from."""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

RUNTIME = Path(__file__).parents[1] / "runtime"


def triton_version() -> str:
    """The version of Triton, which is not imported for that; "none" where it isn't installed."""
    try:
        return importlib.metadata.version("triton")
    except importlib.metadata.PackageNotFoundError:
        return "none"


@dataclass(frozen=True)
class KernelBinary:
    """Machine code.  ``scratch_parameters`` pointers (null here) follow the kernel's own arguments."""

    name: str
    cubin: bytes
    shared_bytes: int
    warps: int
    scratch_parameters: int


@dataclass(frozen=True)
class CompileJob:
    """One kernel to compile for ``capability`` (90 for compute capability 9.0).

    ``module`` is the text of a Python module that defines the function ``name``.  ``signature`` gives each
    parameter's type by Triton's names, ``constexpr`` for those in ``constants``.  Pointers and sizes named in
    ``aligned`` are multiples of 16.  ``checks`` compiles assertions in.
    """

    module: str
    name: str
    signature: Mapping[str, str]
    constants: Mapping[str, int]
    aligned: tuple[str, ...]
    warps: int
    stages: int
    capability: int
    checks: bool

    def key(self) -> str:
        """The name of the result in a cache: a hash of everything that it depends on."""
        digest = hashlib.sha256()
        for file in ("device_functions.py", "device_math.py"):
            digest.update((RUNTIME / file).read_bytes())
        digest.update(triton_version().encode())
        digest.update(json.dumps(asdict(self), sort_keys=True).encode())
        return digest.hexdigest()[:32]
