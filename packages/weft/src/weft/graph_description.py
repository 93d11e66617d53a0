"""A captured graph, and what its compilation depends on besides, as a text: equal texts, equal programs.

What has no description that is the same in every process (symbolic sizes, operators and functions of the
user, regions, subclasses of tensors) is refused, so a text never leaves something out.
"""

from __future__ import annotations

import importlib
import os
import platform
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.fx

from ._torch import NATIVE_MODULES, FakeTensor, OpOverload, storage_identity

IGNORED_META = frozenset({"example_value", "val", "stack_trace"})
"""What nodes carry that is described by itself, or only read for messages."""

TRUSTED_MODULES = frozenset({"torch", "operator", "_operator", "math", "builtins"})
"""Top-level modules whose functions do the same in every process with these versions."""

TRUSTED_OPERATORS = frozenset({"aten", "prims"})
"""Namespaces of operators that nobody but torch defines."""

ATOMS = (bool, int, float, complex, str, type(None), torch.dtype, torch.device)
ATOMS_BY_NAME = (torch.memory_format, torch.layout, type(Ellipsis))

UNRELATED_VARIABLES = frozenset({"WEFT_CACHE_DIR", "WEFT_LOGS", "TRITON_CACHE_DIR"})
"""Variables of the environment that change no program."""


class NotDescribable(Exception):
    """A graph has something that may be another thing in another process; the text says what."""


def describe_graph(graph_module: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> str:
    """``graph_module`` with its inputs and attributes, but not the values of these.

    :raises NotDescribable: where equal texts would not mean equal programs.
    """
    storages: dict[int, int] = {}
    objects: dict[int, int] = {}
    lines = [_value(value, storages) for value in example_inputs]
    for node in graph_module.graph.nodes:
        unknown = node.meta.keys() - IGNORED_META
        if unknown:
            raise NotDescribable(f"a node with {', '.join(sorted(unknown))}")
        arguments = f"{_argument(node.args)} {_argument(node.kwargs)}"
        lines.append(f"{node.op} {node.name} {_target(node)} {arguments}")
        if node.op == "get_attr":
            attribute = _attribute(graph_module, node)
            number = objects.setdefault(id(attribute), len(objects))
            lines.append(f"{number}: {_value(attribute, storages)}")
        if "example_value" in node.meta:
            lines.append(_value(node.meta["example_value"], storages))
    return "\n".join(lines)


def describe_settings() -> str:
    """torch's settings on this thread, versions of what compiles, and the environment's variables."""
    cudnn, cuda = torch.backends.cudnn, torch.backends.cuda
    settings: list[Any] = [
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        torch.get_default_dtype(),
        torch.get_default_device(),
        torch.get_num_threads(),
        torch.get_float32_matmul_precision(),
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
        torch.is_autocast_cache_enabled(),
        [(torch.is_autocast_enabled(d), torch.get_autocast_dtype(d)) for d in ("cpu", "cuda")],
        [cudnn.enabled, cudnn.benchmark, cudnn.deterministic, cudnn.allow_tf32],
        torch.backends.mkldnn.enabled,
        [cuda.flash_sdp_enabled(), cuda.mem_efficient_sdp_enabled(), cuda.cudnn_sdp_enabled()],
        cuda.math_sdp_enabled(),
        cuda.matmul.allow_tf32,
        cuda.matmul.allow_fp16_reduced_precision_reduction,
        cuda.matmul.allow_bf16_reduced_precision_reduction,
    ]
    variables = sorted(
        (name, value)
        for name, value in os.environ.items()
        if name.startswith(("WEFT_", "TRITON_")) and name not in UNRELATED_VARIABLES
    )
    versions = [sys.version, platform.machine(), torch.__version__, torch.version.git_version]
    return "\n".join(map(str, [*settings, variables, *versions]))


def describe_sources(folders: Sequence[str]) -> str:
    """Sizes and times of change of the Python files in ``folders``: they are not edited without either."""
    found = sorted(path for folder in folders for path in Path(folder).rglob("*.py"))
    stats = ((path, path.stat()) for path in found)
    return "\n".join(f"{path} {stat.st_size} {stat.st_mtime_ns}" for path, stat in stats)


def _attribute(graph_module: torch.fx.GraphModule, node: torch.fx.Node) -> torch.Tensor:
    value: Any = graph_module
    for name in str(node.target).split("."):
        value = getattr(value, name)
    if type(value) not in (torch.Tensor, torch.nn.Parameter):
        raise NotDescribable(f"an attribute of type {type(value).__name__}")
    found: torch.Tensor = value
    return found


def _value(value: Any, storages: dict[int, int]) -> str:
    """An input or what a node gives; ``storages`` numbers those seen so far."""
    if isinstance(value, torch.Tensor):
        return _tensor(value, storages)
    if isinstance(value, tuple | list):
        parts = ", ".join(_value(part, storages) for part in value)
        return f"{type(value).__name__}({parts})"
    return _argument(value)


def _tensor(tensor: torch.Tensor, storages: dict[int, int]) -> str:
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter, FakeTensor):
        raise NotDescribable(f"a tensor of type {type(tensor).__name__}")
    if tensor.layout is not torch.strided:
        raise NotDescribable(f"a tensor of layout {tensor.layout}")
    numbers = (*tensor.shape, *tensor.stride(), tensor.storage_offset())
    if any(type(number) is not int for number in numbers):
        raise NotDescribable("symbolic sizes")
    storage = storages.setdefault(storage_identity(tensor), len(storages))
    flags = [
        isinstance(tensor, torch.nn.Parameter),
        tensor.requires_grad,
        tensor.is_leaf,
        tensor.is_conj(),
        tensor.is_neg(),
        tensor.is_inference(),
    ]
    place = f"{storage}+{tensor.storage_offset()} of {tensor.untyped_storage().nbytes()}"
    layout = f"{tuple(tensor.shape)} {tensor.stride()}"
    return f"{tensor.dtype} {tensor.device} {layout} {place} {flags}"


def _target(node: torch.fx.Node) -> str:
    if node.op == "call_module":
        raise NotDescribable("a call of a module")
    if node.op != "call_function":
        return str(node.target)
    target: Any = node.target
    if isinstance(target, OpOverload):
        if target.namespace not in TRUSTED_OPERATORS:
            raise NotDescribable(f"the operator {target}")
        return str(target)
    for place in _places(target):
        for name in (getattr(target, "__name__", None), getattr(target, "__qualname__", None)):
            if name is not None and _resolve(place, name) is target:
                return f"{place}:{name}"
    raise NotDescribable(f"the function {target!r}")


def _places(target: Callable[..., Any]) -> Iterator[str]:
    """Modules in which a trusted function may be found by its name."""
    module = getattr(target, "__module__", None)
    if module is None:
        yield from NATIVE_MODULES
    elif module.partition(".")[0] in TRUSTED_MODULES:
        yield module


def _resolve(module: str, name: str) -> Any:
    found: Any = importlib.import_module(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    return found


def _argument(argument: Any) -> str:
    """An argument, with a node's name in its place."""
    if isinstance(argument, torch.fx.Node):
        return f"%{argument.name}"
    if type(argument) in ATOMS:
        return repr(argument)
    if isinstance(argument, ATOMS_BY_NAME):
        return str(argument)
    if isinstance(argument, slice):
        return f"slice{_argument((argument.start, argument.stop, argument.step))}"
    if isinstance(argument, Mapping):
        parts = [f"{_argument(key)}: {_argument(value)}" for key, value in argument.items()]
        return f"{{{', '.join(parts)}}}"
    if isinstance(argument, tuple | list):
        return f"{type(argument).__name__}({', '.join(map(_argument, argument))})"
    raise NotDescribable(f"an argument of type {type(argument).__name__}")
