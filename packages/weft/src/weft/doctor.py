"""``weft doctor``: what this machine has of what weft needs, and what to do where it doesn't."""

from __future__ import annotations

import difflib
import importlib.metadata
import os
import platform
import re
import shutil
import sys
import sysconfig
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from weft_loop_ir.disk_cache import size_limit

from .api import compile as weft_compile
from .caches import cache_infos
from .registry import BACKEND_GROUP, CODEGEN_GROUP, codegen_device_types, find_codegen, installed

OLDEST_PYTHON, NEWEST_PYTHON = (3, 11), (3, 15)
OLDEST_TORCH, NEWEST_TORCH = (2, 11), (2, 15)
MIN_FREE = 1 << 30
"""Bytes that are left of a file system from which on nothing is said."""

VARIABLES: Mapping[str, str] = {
    "WEFT_CACHE_DIR": "the folder of all caches",
    "WEFT_CACHE_LIMIT": "bytes that each cache may have (500M, 2G)",
    "WEFT_COMPILER_SECONDS": "how long one run of a compiler may take",
    "WEFT_DUMP": "the folder that every stage's result is written to",
    "WEFT_LOGS": "what is told on standard error (help: the names)",
    "WEFT_PROGRESS": "0: no progress line on terminals",
    "WEFT_SHARED_CACHE": "a folder that machines share compiled programs in, by its URL",
    "WEFT_STRICT": "1: errors are raised where weft would run eagerly",
    "WEFT_UNOPTIMIZED_LENGTH": "characters from which C++ is compiled without optimization",
}
"""The environment variables that weft reads, each with what it says."""


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at.  ``remedy``: what to do, None where nothing is amiss.

    ``is_fatal``: programs run eagerly, or not at all, until that is done.
    """

    name: str
    found: str
    remedy: str | None = None
    is_fatal: bool = False


def examine() -> tuple[Finding, ...]:
    """Look at all that weft needs, and compile a small program; nothing is changed but weft's caches."""
    return (
        *_versions(),
        *_codegens(),
        _python_headers(),
        *_cache_findings(),
        *_variables(os.environ),
        _trial(),
    )


def _versions() -> Iterator[Finding]:
    python = sys.version_info[:2]
    remedy: str | None = None
    if not OLDEST_PYTHON <= python <= NEWEST_PYTHON:
        remedy = f"use CPython {_dotted(OLDEST_PYTHON)} to {_dotted(NEWEST_PYTHON)}"
    found = f"{platform.python_implementation()} {platform.python_version()}, {sys.executable}"
    yield Finding("Python", found, remedy, remedy is not None)
    major, minor = map(int, re.findall(r"\d+", torch.__version__)[:2])
    remedy = None
    if not OLDEST_TORCH <= (major, minor) <= NEWEST_TORCH:
        remedy = f"install torch {_dotted(OLDEST_TORCH)} to {_dotted(NEWEST_TORCH)}"
    device = f"CUDA {torch.version.cuda}" if torch.version.cuda else "for the CPU"
    yield Finding("torch", f"{torch.__version__}, {device}", remedy, remedy is not None)
    yield _packages()


def _dotted(version: tuple[int, int]) -> str:
    return ".".join(map(str, version))


def _packages() -> Finding:
    """The versions of weft's own packages, which go together."""
    versions = {
        name: found.version
        for found in importlib.metadata.distributions()
        if (name := str(found.metadata["Name"])).startswith("weft-") or name == "weft"
    }
    text = ", ".join(f"{name} {version}" for name, version in sorted(versions.items()))
    series = {tuple(version.split(".")[:2]) for version in versions.values()}
    remedy = None
    if len(series) > 1:
        remedy = "install one version of all: pip install --upgrade weft"
    return Finding("weft", text or "not installed as a package", remedy)


def _codegens() -> Iterator[Finding]:
    """The code generator of each device type, and what each needs."""
    for device_type in codegen_device_types():
        try:
            codegen = find_codegen(device_type)
        except Exception as error:  # a third party's, of which nothing is known
            remedy = "mend or remove the package that provides it"
            text = f"{type(error).__name__}: {error}"
            is_fatal = device_type == "cpu"
            yield Finding(f"code generator for {device_type}", text, remedy, is_fatal)
            continue
        kind = type(codegen)
        yield Finding(f"code generator for {device_type}", f"{kind.__module__}.{kind.__qualname__}")
        for need in codegen.prerequisites():
            is_fatal = need.remedy is not None and device_type == "cpu"
            yield Finding(f"  {need.name}", need.found, need.remedy, is_fatal)
    others = sorted({entry.name for entry in installed(BACKEND_GROUP)})
    if others:
        yield Finding("other backends", ", ".join(others))
    if not codegen_device_types():
        remedy = f"install weft-codegen-cpp, which provides the entry point group {CODEGEN_GROUP}"
        yield Finding("code generators", "none", remedy, is_fatal=True)


def _python_headers() -> Finding:
    header = Path(sysconfig.get_paths()["include"]) / "Python.h"
    if header.is_file():
        return Finding("Python's headers", str(header))
    package = f"python{_dotted(sys.version_info[:2])}-dev"
    remedy = f"only to build weft from source, and for Triton's own launcher: install {package}"
    return Finding("Python's headers", f"no {header}", remedy)


def _cache_findings() -> Iterator[Finding]:
    limit = size_limit()
    for info in cache_infos():
        name = f"cache {info.name}"
        if info.problem is not None:
            advice = "what is compiled is not kept; name a folder of your own in WEFT_CACHE_DIR"
            yield Finding(name, info.problem, advice)
            continue
        bound = f" of {_bytes(limit)}" if limit else ""
        found = f"{info.folder}: {info.entries} entries, {_bytes(info.size)}{bound}"
        free = shutil.disk_usage(info.folder).free
        remedy = None
        if free < MIN_FREE:
            remedy = f"{_bytes(free)} are free there: make room, or run `weft cache clear`"
        yield Finding(name, found, remedy)


def _bytes(number: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if number < 1024 or unit == "GiB":
            break
        number /= 1024
    return f"{number:.0f} {unit}" if unit == "B" else f"{number:.1f} {unit}"


def _variables(environment: Mapping[str, str]) -> Iterator[Finding]:
    for name in sorted(environment):
        if not name.startswith("WEFT_"):
            continue
        found = f"{environment[name]}" + (f" ({VARIABLES[name]})" if name in VARIABLES else "")
        remedy = None
        if name not in VARIABLES:
            near = difflib.get_close_matches(name, VARIABLES, 1)
            remedy = "weft reads no such variable" + (f": {near[0]}?" if near else "")
        yield Finding(name, found, remedy)


def _trial() -> Finding:
    """Whether a small program compiles and gives what eager gives."""
    x = torch.linspace(-1.0, 1.0, 64)
    start = time.perf_counter()
    try:
        with torch.no_grad():
            result = weft_compile(_small_program, options={"strict": True})(x)
    except Exception as error:  # whatever it is: that is what was asked
        text = f"{type(error).__name__}: {str(error).splitlines()[0]}"
        return Finding("a small program", text, "see the lines above, or report this", True)
    seconds = time.perf_counter() - start
    if not torch.allclose(result, _small_program(x)):
        return Finding("a small program", "wrong results", "report this", is_fatal=True)
    return Finding("a small program", f"compiled and right, {seconds:.2f} s")


def _small_program(x: torch.Tensor) -> torch.Tensor:
    return (x.sin() * 2 + 1).softmax(0)
