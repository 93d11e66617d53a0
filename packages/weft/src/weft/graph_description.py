"""A captured graph, and what its compilation depends on besides, as a text: equal texts, equal programs.

What has no description that is the same in every process (functions of the user, gradients of the user's
operators, subclasses of tensors) is refused, so a text never leaves something out.  Symbols are described by
what is known of them, not by what they are in this call.
"""

from __future__ import annotations

import functools
import hashlib
import importlib
import os
import platform
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import sympy
import torch
import torch.fx
from weft_bytecode_capture import made_environment
from weft_functionalize import is_gradient_rule, storage_identity

from ._torch import (
    NATIVE_MODULES,
    REGION_OPERATORS,
    SYMBOLIC_TYPES,
    FakeTensor,
    FakeTensorMode,
    OpOverload,
    OpOverloadPacket,
    add_symbol,
    describe_environment,
    describe_opaque_operator,
    expression_of,
    rely_on,
    stands_for_others,
)

IGNORED_META = frozenset({"example_value", "val", "stack_trace", "region"})
"""What nodes carry that is described by itself, or only read for messages."""

DESCRIBED_META = frozenset(
    {"data_dependent", "checks", "gives_zero_gradients", "read_as_eager", "views_as_eager"}
)
"""Whether a node gives, or checks, numbers that depend on data, what gradients a branch gives, whether
backward reads what eager's would, and whether results are views as eager's are."""

TRUSTED_MODULES = frozenset({"torch", "operator", "_operator", "math", "builtins"})
"""Top-level modules whose functions do the same in every process with these versions."""

TRUSTED_OPERATORS = frozenset({"aten", "prims"})
"""Namespaces of operators that nobody but torch defines."""

ATOMS = (bool, int, float, complex, str, type(None), torch.dtype, torch.device)
ATOMS_BY_NAME = (torch.memory_format, torch.layout, type(Ellipsis))

UNRELATED_VARIABLES = frozenset(
    {"WEFT_CACHE_DIR", "WEFT_LOGS", "WEFT_SHARED_CACHE", "TRITON_CACHE_DIR"}
)
"""Variables of the environment that change no program."""


class NotDescribable(Exception):
    """A graph has something that may be another thing in another process; the text says what."""


@dataclass(frozen=True)
class GraphDescription:
    """A text that stands for a captured graph, and the capture whose symbols are in it.

    ``relations`` and ``symbols`` are how many the ShapeEnv had when the text was made, ``hints`` what symbols
    are in this call.
    """

    text: str
    fake_mode: FakeTensorMode | None
    relations: int
    symbols: int
    hints: Mapping[Any, Any]

    @property
    def _environment(self) -> Any:
        return None if self.fake_mode is None else made_environment(self.fake_mode)

    def relations_since(self) -> tuple[Any, ...]:
        """The conditions on symbols, as expressions, that have been relied on since the text was made."""
        environment = self._environment
        return (
            ()
            if environment is None
            else tuple(g.expr for g in environment.guards[self.relations :])
        )

    def symbols_since(self) -> tuple[tuple[Any, Any], ...]:
        """The symbols that stages have made since then, for loop counters and the like, and their bounds."""
        environment = self._environment
        return (
            () if environment is None else tuple(environment.var_to_range.items())[self.symbols :]
        )

    def rely_on(self, conditions: Sequence[Any], symbols: Sequence[tuple[Any, Any]]) -> bool:
        """Make ``conditions`` relations of this capture, and ``symbols`` its own.

        False, and no relation made, where a condition does not hold or a symbol cannot be made.
        """
        if any(condition.xreplace(self.hints) != sympy.true for condition in conditions):
            return False
        if not conditions and not symbols:
            return True  # most often, and where no ShapeEnv has been needed
        environment = None if self.fake_mode is None else self.fake_mode.shape_env
        if environment is None:
            return not symbols
        if not all(add_symbol(environment, symbol, bounds) for symbol, bounds in symbols):
            return False
        return all(rely_on(environment, condition) for condition in conditions)


def describe_capture(
    graph_module: torch.fx.GraphModule, example_inputs: Sequence[Any], settings: Sequence[str]
) -> GraphDescription:
    """The graph with its inputs, what is known of their symbols, and ``settings``.

    :raises NotDescribable: where equal texts would not mean equal programs.
    """
    values = [node.meta.get("example_value") for node in graph_module.graph.nodes]
    modes = [v.fake_mode for v in (*example_inputs, *values) if isinstance(v, FakeTensor)]
    mode = modes[0] if modes else None
    environment = None if mode is None else made_environment(mode)
    parts = [*settings, describe_graph(graph_module, example_inputs)]
    parts.append("" if environment is None else describe_environment(environment))
    if environment is None:
        return GraphDescription("\n".join(parts), mode, 0, 0, {})
    hints = {
        expression_of(number): number.node.hint
        for value in example_inputs
        for number in (_numbers(value) if isinstance(value, torch.Tensor) else (value,))
        if isinstance(number, SYMBOLIC_TYPES) and number.node.has_hint()
    }
    sympified = {symbol: sympy.sympify(hint) for symbol, hint in hints.items()}
    counts = len(environment.guards), len(environment.var_to_range)
    return GraphDescription("\n".join(parts), mode, *counts, sympified)


def describe_graph(graph_module: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> str:
    """``graph_module`` with its inputs and attributes, but not the values of these.

    :raises NotDescribable: where equal texts would not mean equal programs.
    """
    return "\n".join(_Describer(example_inputs).lines(graph_module))


class _Describer:
    """Describes a graph and its regions; tensors that share memory, or are one, have equal numbers."""

    def __init__(self, example_inputs: Sequence[Any]) -> None:
        self._storages: dict[int, int] = {}
        self._objects: dict[int, int] = {}
        self._inputs = [_value(value, self._storages) for value in example_inputs]
        self._users_operator: OpOverload | None = None
        self._has_gradients = False

    def lines(self, graph_module: torch.fx.GraphModule) -> Iterator[str]:
        yield from self._inputs
        yield from self._nodes(graph_module)
        if self._users_operator is not None and self._has_gradients:
            raise NotDescribable(f"the operator {self._users_operator}")

    def _nodes(self, graph_module: torch.fx.GraphModule) -> Iterator[str]:
        for node in graph_module.graph.nodes:
            unknown = node.meta.keys() - IGNORED_META - DESCRIBED_META
            if unknown:
                raise NotDescribable(f"a node with {', '.join(sorted(unknown))}")
            arguments = f"{_argument(node.args)} {_argument(node.kwargs)}"
            yield f"{node.op} {node.name} {_target(node)} {arguments}"
            if is_gradient_rule(node.target):
                yield from self._rule(node.target)
            self._note_gradients(node)
            yield from (f"{k}: {node.meta[k]!r}" for k in sorted(DESCRIBED_META & node.meta.keys()))
            if node.op == "get_attr":
                yield from self._attribute(graph_module, node)
            if "example_value" in node.meta:
                yield _value(node.meta["example_value"], self._storages)

    def _rule(self, rule: Any) -> Iterator[str]:
        """The gradients that the program wrote for some results, as they were captured."""
        yield "begin"
        yield from self._nodes(rule.backward)
        yield "end"

    def _note_gradients(self, node: torch.fx.Node) -> None:
        """Remember the user's operators, and whether autograd, which may call their formulas, is at work."""
        for operator in _overloads(node.target):
            if operator.namespace not in TRUSTED_OPERATORS:
                self._users_operator = operator
        if node.op.startswith("call_"):
            value = node.meta.get("example_value")
            results = value if isinstance(value, tuple | list) else (value,)
            self._has_gradients |= any(
                isinstance(r, torch.Tensor) and r.requires_grad for r in results
            )

    def _attribute(self, graph_module: torch.fx.GraphModule, node: torch.fx.Node) -> Iterator[str]:
        value: Any = graph_module
        for name in str(node.target).split("."):
            value = getattr(value, name)
        number = self._objects.setdefault(id(value), len(self._objects))
        if isinstance(value, torch.fx.GraphModule):
            yield f"{number}: begin"
            yield from self._nodes(value)
            yield "end"
        elif type(value) in (torch.Tensor, torch.nn.Parameter):
            yield f"{number}: {_value(value, self._storages)}"
        else:
            raise NotDescribable(f"an attribute of type {type(value).__name__}")


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
    found = sorted(file for folder in folders for file in _python_files(folder))
    return "\n".join(f"{path} {size} {changed}" for path, size, changed in found)


def _python_files(folder: str) -> Iterator[tuple[str, int, int]]:
    """Paths, sizes and times of change, in any order; a third of the time of ``Path.rglob``."""
    with os.scandir(folder) as items:
        for item in items:
            if item.is_dir(follow_symlinks=False):
                yield from _python_files(item.path)
            elif item.name.endswith(".py"):
                stat = item.stat()
                yield item.path, stat.st_size, stat.st_mtime_ns


def describe_contents(folders: Sequence[str]) -> str:
    """A digest of the Python files in ``folders``, and of their places in these."""
    digest = hashlib.sha256()
    for folder in sorted(folders, key=lambda folder: Path(folder).name):
        for path in sorted(Path(folder).rglob("*.py")):
            digest.update(f"{Path(folder).name}/{path.relative_to(folder)}\0".encode())
            digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()


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
    if stands_for_others(tensor):  # in a function transform: the nodes say of what it is made
        return f"{tensor.dtype} {tensor.device} {_argument(tuple(tensor.shape))} of a level"
    storage = storages.setdefault(storage_identity(tensor), len(storages))
    flags = [
        isinstance(tensor, torch.nn.Parameter),
        tensor.requires_grad,
        _is_leaf(tensor),
        tensor._is_view(),
        tensor.is_conj(),
        tensor.is_neg(),
        tensor.is_inference(),
    ]
    offset, nbytes = tensor.storage_offset(), tensor.untyped_storage().nbytes()
    numbers = (tuple(tensor.shape), tensor.stride(), offset, nbytes)
    if all(type(n) is int for n in (*numbers[0], *numbers[1], offset, nbytes)):
        before, behind = _layout(tensor.dtype, tensor.device, *numbers)  # as of many others
    else:
        before, behind = _layout.__wrapped__(tensor.dtype, tensor.device, *numbers)
    return f"{before}{storage}{behind}{flags}"


@functools.lru_cache(4096)
def _layout(
    dtype: torch.dtype, device: torch.device, shape: Any, strides: Any, offset: Any, nbytes: Any
) -> tuple[str, str]:
    """What a tensor's description says of how it lies, before and behind the number of its storage."""
    lies = f"{_argument(shape)} {_argument(strides)}"
    return f"{dtype} {device} {lies} ", f"+{_argument(offset)} of {_argument(nbytes)} "


def _is_leaf(tensor: torch.Tensor) -> bool | None:
    """None where autograd refuses to say: it is a view, made under ``no_grad``, of what was written to."""
    try:
        return tensor.is_leaf
    except RuntimeError:
        return None


def _numbers(tensor: torch.Tensor) -> tuple[Any, ...]:
    strides = tensor.stride() if tensor.layout is torch.strided else ()
    return (*tensor.shape, *strides, tensor.storage_offset())


def _target(node: torch.fx.Node) -> str:
    if node.op == "call_module":
        raise NotDescribable("a call of a module")
    if node.op != "call_function":
        return str(node.target)
    target: Any = node.target
    if is_gradient_rule(target):
        return f"rule {target.__name__} {target.once}"
    overloads = _overloads(target)
    if overloads:
        return f"{target}: {[_operator(overload) for overload in overloads]}"
    if target in REGION_OPERATORS:
        return f"region {target.name()}"
    for place in _places(target):
        for name in (getattr(target, "__name__", None), getattr(target, "__qualname__", None)):
            if name is not None and _resolve(place, name) is target:
                return f"{place}:{name}"
    raise NotDescribable(f"the function {target!r}")


def _overloads(target: Any) -> list[OpOverload]:
    """The operators that a call of ``target`` may be of; none where it is something else."""
    if isinstance(target, OpOverloadPacket):
        return [getattr(target, name) for name in target.overloads()]
    return [target] if isinstance(target, OpOverload) else []


def _operator(operator: OpOverload) -> str:
    if operator.namespace in TRUSTED_OPERATORS:
        return str(operator)
    description = describe_opaque_operator(operator)
    if description is None:
        raise NotDescribable(f"the operator {operator}")
    return description


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
    if isinstance(argument, SYMBOLIC_TYPES):
        return f"{type(argument).__name__} {sympy.srepr(expression_of(argument))}"
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
