"""What can be chosen by name: backends, and code generators by device type."""

from __future__ import annotations

import functools
import importlib.metadata
import importlib.util
import sys
from collections.abc import Callable
from typing import Any

import torch
import torch.fx
from weft_loop_ir import Codegen

from .errors import WeftError
from .torch_backends import torch_backend

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
    found = {entry.name for entry in installed(BACKEND_GROUP)}
    return sorted({"weft", *_backends, *found})


def find_backend(name: str) -> BackendFunction:
    """The backend registered or installed under ``name``, or torch's; raises RuntimeError naming those."""
    if name in _backends:
        return _backends[name]
    for entry in installed(BACKEND_GROUP):
        if entry.name == name:
            function: BackendFunction = entry.load()
            return function
    if (of_torch := _torch_backend(name)) is not None:
        return of_torch
    raise RuntimeError(
        f"Invalid backend: {name!r}, known backends are {list_backends()}, and those of torch: "
        f"{torch.compiler.list_backends()}"
    )


@functools.cache
def _torch_backend(name: str) -> BackendFunction | None:
    """One for each name, since what is compiled is shared by backend."""
    return torch_backend(name)


@functools.cache
def installed(group: str) -> tuple[importlib.metadata.EntryPoint, ...]:
    """What installed packages offer; looked for once, since that reads the metadata of all of them."""
    return tuple(importlib.metadata.entry_points(group=group))


@functools.cache
def stage_packages() -> frozenset[str]:
    """The packages that give what compiled programs are made of: weft's stages and code generators."""
    entries = installed(CODEGEN_GROUP)
    return frozenset({"weft", *_STAGES, *(entry.module.partition(".")[0] for entry in entries)})


@functools.cache
def stage_folders() -> frozenset[str]:
    """Folders of the packages whose code runs inside compiled calls: stages, code generators, backends."""
    backends = {entry.module.partition(".")[0] for entry in installed(BACKEND_GROUP)}
    classes = [make for make in codegens.values() if isinstance(make, type)]
    registered = {name for kind in classes if (name := _regular_package(kind.__module__))}
    packages = (stage_packages() - {"weft"}) | backends | registered
    specs = filter(None, map(importlib.util.find_spec, packages))
    return frozenset(f for spec in specs for f in spec.submodule_search_locations or ())


def _regular_package(module: str) -> str:
    """The package that ``module`` is, or is in; "" for a script, and in a folder without ``__init__.py``.

    A program's own functions are in such a folder, beside the code generator that it tries.
    """
    package = module if hasattr(sys.modules[module], "__path__") else module.rpartition(".")[0]
    return package if getattr(sys.modules.get(package), "__file__", None) else ""


_STAGES = ("weft_aot_autograd", "weft_functionalize", "weft_loop_ir")


codegens: dict[str, Callable[[], Codegen]] = {}
"""Those that :func:`register_codegen` was given, by device type."""


def register_codegen(device_type: str, make: Callable[[], Codegen]) -> None:
    """Let ``make()`` give the code generator of ``device_type``, before all that are installed.

    ``weft.register_codegen("cpu", MyCodegen)`` is for this process what an entry point of the group
    ``weft.codegen`` is for all.
    """
    codegens[device_type] = make
    stage_folders.cache_clear()


def codegen_device_types() -> list[str]:
    """The device types that have a code generator, registered or installed."""
    return sorted({*codegens, *(entry.name for entry in installed(CODEGEN_GROUP))})


def find_codegen(
    device_type: str,
    mode: str = "default",
    cache_limit: int | None = None,
    *,
    eager_numerics: bool = False,
) -> Codegen:
    """A code generator for ``device_type``, as ``mode`` of :func:`weft.compile` asks for it.

    ``cache_limit``: bytes that its cache may have, if that is up to us.  ``eager_numerics``: its programs are
    to give eager's bits.

    One that was registered comes first, then an installed package that is not weft's own, so that a third
    party can take a device's place by being installed.
    """
    codegen = _make_codegen(device_type).for_mode(mode)
    if eager_numerics:
        codegen = codegen.with_eager_numerics()
    return codegen if cache_limit is None else codegen.with_cache_limit(cache_limit)


def _make_codegen(device_type: str) -> Codegen:
    if device_type in codegens:
        return codegens[device_type]()
    entries = [entry for entry in installed(CODEGEN_GROUP) if entry.name == device_type]
    if not entries:
        raise WeftError(
            f"no code generator is installed for device type {device_type!r}: "
            f"install a package that provides the entry point group {CODEGEN_GROUP!r} for it"
        )
    # weft's own last
    entry = min(entries, key=lambda e: (e.value.startswith("weft_codegen_"), e.value))
    codegen = entry.load()()
    if not isinstance(codegen, Codegen):
        raise WeftError(f"{entry.value} is no subclass of weft_loop_ir.Codegen")
    return codegen
