"""A compiled kernel, and what it is compiled from."""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path

RUNTIME = Path(__file__).parents[1] / "runtime"


def triton_version() -> str:
    """The version of Triton, which is not imported for that; "none" where it isn't installed."""
    try:
        return importlib.metadata.version("triton")
    except importlib.metadata.PackageNotFoundError:
        return "none"


ENTRY = f"kernel{'_' * 58}"
"""What every function is called in its module, so that kernels that are alike have one binary.

It is long enough for the names that they are given when they are loaded (:meth:`KernelBinary.called`).
"""


@dataclass(frozen=True)
class KernelBinary:
    """Machine code.  ``scratch_parameters`` pointers (null here) follow the kernel's own arguments."""

    name: str
    cubin: bytes
    shared_bytes: int
    warps: int
    scratch_parameters: int

    def called(self, name: str) -> KernelBinary:
        """The same under another name, without the number at its end, for profilers.

        Strings of an ELF file end with a zero byte and are found by where they begin, so that a shorter name
        takes the place of a longer one.
        """
        text = _NUMBER.sub("", name)[: len(ENTRY)].encode("ascii", "replace")
        if self.name != ENTRY or not text or self.cubin.count(ENTRY.encode()) == 0:
            return self
        old, new = ENTRY.encode() + b"\0", text.ljust(len(ENTRY), b"\0") + b"\0"
        return replace(self, name=text.decode(), cubin=self.cubin.replace(old, new))


_NUMBER = re.compile(r"(_(extern)?\d+)+$")


@dataclass(frozen=True)
class CompileJob:
    """One kernel to compile for ``capability`` (90 for compute capability 9.0).

    ``module`` is the text of a Python module that defines the function ``name``; ``rolled`` is the same
    without unrolled loops, None if it has none.  ``signature`` gives each parameter's type by Triton's names,
    ``constexpr`` for those in ``constants``.  Pointers and sizes named in ``aligned`` are multiples of 16.
    ``checks`` compiles assertions in.
    """

    module: str
    rolled: str | None
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
