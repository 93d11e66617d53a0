"""What can be chosen by name: backends, and code generators by device type."""

from __future__ import annotations

import functools
import importlib.metadata
import importlib.util
from collections.abc import Callable
from typing import Any

import torch.fx
from weft_loop_ir import Codegen

from .errors import WeftError

CODEGEN_GROUP = "weft.codegen"
BACKEND_GROUP = "weft.backend"

BackendFunction = Callable[[torch.fx.GraphModule, list[Any]], Callable[..., Any]]


def _eager(graph_module: torch.fx.GraphModule, example_inputs: list[Any]) -> Callable[..., Any]:
    """Run the captured graph as it is: capture alone, to tell its faults from a compiler's."""
    forward: Callable[..., Any] = graph_module.forward
    return forward


_backends: dict[str, BackendFunction] = {"eager": _eager}


def register_backend(name: str) -> Callable[[BackendFunction], BackendFunction]:
    """Decorator: make a backend available as ``weft.compile(backend=name)``."""

    def register(function: BackendFunction) -> BackendFunction:
        _backends[name] = function
        return function

    return register


def list_backends() -> list[str]:
    """Names that ``backend=`` takes, beside any callable with torch's backend protocol."""
    installed = {entry.name for entry in _installed(BACKEND_GROUP)}
    return sorted({"weft", *_backends, *installed})


def find_backend(name: str) -> BackendFunction:
    """The backend registered or installed under ``name``; raises RuntimeError naming those there are."""
    if name in _backends:
        return _backends[name]
    for entry in _installed(BACKEND_GROUP):
        if entry.name == name:
            function: BackendFunction = entry.load()
            return function
    raise RuntimeError(f"Invalid backend: {name!r}, known backends are {list_backends()}")


@functools.cache
def _installed(group: str) -> tuple[importlib.metadata.EntryPoint, ...]:
    """What installed packages offer; looked for once, since that reads the metadata of all of them."""
    return tuple(importlib.metadata.entry_points(group=group))


@functools.cache
def stage_packages() -> frozenset[str]:
    """The packages that give what compiled programs are made of: weft's stages and code generators."""
    entries = _installed(CODEGEN_GROUP)
    return frozenset({"weft", *_STAGES, *(entry.module.partition(".")[0] for entry in entries)})


@functools.cache
def stage_folders() -> frozenset[str]:
    """Folders of the packages whose code runs inside compiled calls: stages, code generators, backends."""
    backends = {entry.module.partition(".")[0] for entry in _installed(BACKEND_GROUP)}
    packages = (stage_packages() - {"weft"}) | backends
    specs = filter(None, map(importlib.util.find_spec, packages))
    return frozenset(f for spec in specs for f in spec.submodule_search_locations or ())


_STAGES = ("weft_aot_autograd", "weft_functionalize", "weft_loop_ir")


def find_codegen(
    device_type: str, mode: str = "default", cache_limit: int | None = None
) -> Codegen:
    """A code generator for ``device_type``, as ``mode`` of :func:`weft.compile` asks for it.

    ``cache_limit``: bytes that its cache may have, if that is up to us.

    An installed package that is not weft's own wins over weft's, so that a third party can take a
    device's place by being installed.
    """
    entries = [entry for entry in _installed(CODEGEN_GROUP) if entry.name == device_type]
    foreign_first = sorted(
        entries, key=lambda entry: (entry.value.startswith("weft_codegen_"), entry.value)
    )
    for entry in foreign_first:
        codegen: Any = entry.load()()
        if hasattr(codegen, "for_mode"):
            codegen = codegen.for_mode(mode)
        if cache_limit is not None and hasattr(codegen, "with_cache_limit"):
            codegen = codegen.with_cache_limit(cache_limit)
        found: Codegen = codegen
        return found
    raise WeftError(
        f"no code generator is installed for device type {device_type!r}: "
        f"install a package that provides the entry point group {CODEGEN_GROUP!r} for it"
    )
