"""Functions of torch: those that become nodes of the graph, and queries that are answered at once."""

from __future__ import annotations

import inspect
import types
from typing import Any

import torch
from weft_guards import IsObject, Source

from ...._torch import (
    MODULE_CALL,
    NATIVE_FUNCTIONS,
    OpOverload,
    OpOverloadPacket,
    TensorBase,
    group_tensors,
    is_autocast_available,
    private_backend_name,
    python_of_script,
    torch_dispatch_modes,
)
from ...._torch.transforms import ARE_ACTIVE
from ....unsupported import Unsupported
from ...protocol import Evaluator
from ...regions.filled_lists.rows import join_rows
from ...variables.base import Arguments, Keywords, Variable
from ...variables.builder import (
    held_by_identity,
    register_object,
    register_predicate,
    register_wrapper,
)
from ...variables.constant import ConstantVariable
from ...variables.graph_arguments import graph_argument
from ...variables.hashing import hashed_key
from ...variables.keys import HashedKey
from ..containers.mappings import DictVariable
from ..containers.sequences import ListVariable, SequenceVariable, TupleVariable
from ..functions.identified_functions import IdentifiedFunctionVariable
from ..numbers.symbolic_number import SymbolicNumberVariable
from ..table import model, models
from .calls_on_entry import call_on_entry
from .packed_sequences import packed_network
from .python_kernels import check_kernels
from .tensor import TensorVariable, wrap_graph_result

_MODULES = (
    *("torch.functional", "torch.nn.functional", "torch._C._nn", "torch._tensor"),
    *("torch._lobpcg", "torch._lowrank"),
)
_VALUE = "value of a tensor as a Python object"
_DEFAULTS = "change of torch's defaults"
_RANDOM = "state of a random number generator"
_NUMPY = "NumPy array"

# Functions that are no operators, and the kind of break that a call of each is.
_REFUSED: dict[str, str] = {
    "is_nonzero": _VALUE,
    **dict.fromkeys(
        ("set_default_dtype", "set_default_device", "set_default_tensor_type"), _DEFAULTS
    ),
    **dict.fromkeys(("use_deterministic_algorithms", "set_float32_matmul_precision"), _DEFAULTS),
    **dict.fromkeys(("set_deterministic_debug_mode", "set_num_threads"), _DEFAULTS),
    **dict.fromkeys(("set_warn_always", "set_printoptions", "set_flush_denormal"), _DEFAULTS),
    **dict.fromkeys(("seed", "initial_seed"), _RANDOM),
    **dict.fromkeys(("get_rng_state", "set_rng_state"), _RANDOM),
    **dict.fromkeys(("from_numpy", "frombuffer"), _NUMPY),
    **dict.fromkeys(("save", "load"), "file read or written"),
    **dict.fromkeys(("get_num_threads", "get_num_interop_threads"), "setting that may change"),
    **dict.fromkeys(("_fused_adam_", "_fused_adamw_"), "fused update of parameters"),
    **dict.fromkeys(("_fused_sgd_", "_fused_adagrad_"), "fused update of parameters"),
}


# Written in Python, of a function that the program gives: inlined.
_INLINED = (torch.nn.functional.triplet_margin_with_distance_loss,)


def goes_into_graph(value: Any) -> bool:
    """Whether a function is one of torch's operators on tensors."""
    kind = type(value)  # asking the value itself may run its own code
    if issubclass(kind, (OpOverload, OpOverloadPacket)):
        return True
    if kind not in _FUNCTIONS:
        return False
    name = value.__name__
    if name in _REFUSED or value in (*_INLINED, torch.allclose, torch.equal):
        return False
    if kind is types.BuiltinFunctionType:
        if value.__self__ is None:
            return getattr(torch, name, None) is value
        return any(value is getattr(module, name, None) for module in NATIVE_FUNCTIONS)
    if kind is types.FunctionType:
        return value.__module__ in _MODULES or (
            name.startswith("sym_") and getattr(torch, name, None) is value
        )
    return value.__objclass__ in (torch.Tensor, TensorBase)


_FUNCTIONS = (types.BuiltinFunctionType, types.FunctionType, types.MethodDescriptorType)


_STAYS_EAGER = "function that stays eager in training"


class TorchFunctionVariable(IdentifiedFunctionVariable):
    """A function of torch whose calls are nodes."""

    def call(self, evaluator: Evaluator, arguments: Arguments, keywords: Keywords) -> Variable:
        if isinstance(self.value, types.MethodDescriptorType) and arguments:
            name = self.value.__name__
            return arguments[0].call_method(evaluator, name, arguments[1:], keywords)
        check_kernels(evaluator, self.value)
        result = packed_network(evaluator, self.value, arguments, keywords)
        if result is not None:
            return result
        if self.value in _RECURRENT and _is_of_library(evaluator, arguments):
            raise Unsupported("recurrent network that a library computes", repr(self))
        if torch.is_grad_enabled() and self._stays_eager(evaluator, arguments, keywords):
            needs_gradient = self._needs_gradient(evaluator, [*arguments, *keywords.values()])
            if needs_gradient and self.value in evaluator.state.options.sparse_gradients:
                return self._called_on_entry(evaluator, arguments, keywords)
            if needs_gradient:
                raise Unsupported(_STAYS_EAGER, repr(self))
        if self.value is torch.nn.functional.pad:
            arguments, keywords = _with_counts(evaluator, arguments, keywords)
            padded = _padded_with_number(evaluator, arguments, keywords)
            if padded is not None:
                return padded
        joined = join_rows(evaluator.frame, self.value, arguments, keywords)
        if joined is not None:
            return joined
        if self.value in _DROPOUTS:
            arguments, keywords = _with_known_numbers(arguments, keywords)
        operand = undropped(evaluator, self.value, arguments, keywords)
        if operand is not None:
            return operand
        return evaluator.graph.call_function(evaluator, self.value, arguments, keywords)

    def _stays_eager(self, evaluator: Evaluator, arguments: Arguments, keywords: Keywords) -> bool:
        options = evaluator.state.options
        if self.value in options.eager_in_training:
            return True
        steps = options.steps_in_training.get(self.value)
        if steps is not None:
            count = _recurrent_steps(evaluator, arguments)
            return count is None or count > steps
        position = options.sparse_gradients.get(self.value)
        if position is None:
            return False
        sparse = keywords.get("sparse", arguments[position] if position < len(arguments) else None)
        return sparse is not None and sparse.truth(evaluator)

    def _needs_gradient(self, evaluator: Evaluator, arguments: Arguments) -> bool:
        return any(
            self._needs_gradient(evaluator, argument.items(evaluator))
            if isinstance(argument, SequenceVariable)
            else isinstance(argument, TensorVariable) and argument.fake.requires_grad
            for argument in arguments
        )

    def _called_on_entry(
        self, evaluator: Evaluator, arguments: Arguments, keywords: Keywords
    ) -> Variable:
        result = evaluator.graph.call_function(evaluator, self.value, arguments, keywords)
        if not isinstance(result, TensorVariable) or not call_on_entry(evaluator, result):
            raise Unsupported(_STAYS_EAGER, repr(self))
        return result

    def get_attribute(self, evaluator: Evaluator, name: str) -> Variable:
        if isinstance(self.value, OpOverloadPacket) and name in self.value.overloads():
            return evaluator.wrap_known(getattr(self.value, name))
        return super().get_attribute(evaluator, name)

    def __repr__(self) -> str:
        return f"TorchFunction({getattr(self.value, '__name__', self.value)})"


def _with_counts(
    evaluator: Evaluator, arguments: Arguments, keywords: Keywords
) -> tuple[Arguments, Keywords]:
    """The arguments of ``pad`` with numbers in the place of tensors that say how far."""
    named = dict(zip(("input", "pad"), arguments, strict=False)) | keywords
    pad = named.get("pad")
    if not isinstance(pad, SequenceVariable):
        return arguments, keywords
    items = pad.items(evaluator)
    if not any(isinstance(item, TensorVariable) for item in items):
        return arguments, keywords
    counts = [
        item.call_method(evaluator, "item", [], {}) if isinstance(item, TensorVariable) else item
        for item in items
    ]
    if len(arguments) > 1:
        return [arguments[0], TupleVariable(counts), *arguments[2:]], keywords
    return arguments, keywords | {"pad": TupleVariable(counts)}


def _padded_with_number(
    evaluator: Evaluator, arguments: Arguments, keywords: Keywords
) -> Variable | None:
    """What ``pad`` gives for a value that varies, which it takes as a plain float; None for others."""
    names = ("input", "pad", "mode", "value")
    given = dict(zip(names, arguments, strict=False)) | keywords
    value, mode = given.get("value"), given.get("mode")
    if not isinstance(value, SymbolicNumberVariable) or not {"input", "pad"} <= given.keys():
        return None
    if mode is not None and not (mode.is_constant() and mode.as_constant() == "constant"):
        return None
    if evaluator.state.overrides.modes or type(given["input"]) is not TensorVariable:
        return None
    operands = [given["input"], given["pad"], value]
    return evaluator.graph.call_function(evaluator, torch.constant_pad_nd, operands, {})


_RECURRENT = (torch.lstm, torch.gru, torch.rnn_tanh, torch.rnn_relu)


def _is_of_library(evaluator: Evaluator, arguments: Arguments) -> bool:
    """Whether a library computes a recurrent function of these arguments."""
    sequence = arguments[0] if arguments else None
    if not isinstance(sequence, TensorVariable):
        return False
    kind, dtype = sequence.fake.device.type, sequence.fake.dtype
    if torch.is_autocast_enabled(kind):
        dtype = torch.get_autocast_dtype(kind)
    return (kind, dtype) in evaluator.state.options.library_recurrences


def _recurrent_steps(evaluator: Evaluator, arguments: Arguments) -> int | None:
    """How many steps a recurrent function takes on the CPU; None for packed sequences and other devices."""
    sequence, state = arguments[:2]
    if not isinstance(sequence, TensorVariable) or isinstance(state, TensorVariable):
        return None  # its second argument is the sizes of batches
    if len(arguments) < 9 or sequence.fake.device.type != "cpu" or sequence.fake.dim() != 3:
        return None
    layers, bidirectional, batch_first = (
        arguments[position].as_constant() for position in (4, 7, 8)
    )
    length = evaluator.graph.shapes.specialise(sequence.fake.shape[1 if batch_first else 0])
    return int(length * layers * (2 if bidirectional else 1))


_QUERIES: dict[Any, Any] = {
    torch.is_grad_enabled: torch.is_grad_enabled,
    torch.is_inference_mode_enabled: torch.is_inference_mode_enabled,
    torch.is_autocast_enabled: torch.is_autocast_enabled,
    is_autocast_available: is_autocast_available,
    private_backend_name: private_backend_name,
    torch.is_autocast_cache_enabled: torch.is_autocast_cache_enabled,
    torch.get_autocast_dtype: torch.get_autocast_dtype,
    torch_dispatch_modes: torch_dispatch_modes,
    torch.is_floating_point: torch.is_floating_point,
    torch.is_complex: torch.is_complex,
    torch.get_default_dtype: torch.get_default_dtype,
    torch.are_deterministic_algorithms_enabled: torch.are_deterministic_algorithms_enabled,
    torch.numel: torch.numel,
    ARE_ACTIVE: ARE_ACTIVE,
    vars(torch.jit)["is_scripting"]: False,
    vars(torch.jit)["is_tracing"]: False,
    torch.cuda.is_available: torch.cuda.is_available,
    torch.cuda.device_count: torch.cuda.device_count,
}


@models(*_QUERIES)
def _query(
    function: Any, evaluator: Evaluator, /, *arguments: Any, **keywords: Variable
) -> Variable:
    """A function of torch that is answered during capture."""
    answer = _QUERIES[function]
    if not callable(answer):
        return ConstantVariable(answer)
    if function is torch.numel and isinstance(arguments[0], TensorVariable):
        return arguments[0].call_method(evaluator, "numel", [*arguments[1:]], keywords)
    values = [a.fake if isinstance(a, TensorVariable) else a.snapshot() for a in arguments]
    return wrap_graph_result(evaluator, None, evaluator.pure(answer, *values))


@models(
    torch.cuda.get_device_capability,
    torch.cuda.get_device_name,
    torch.cuda.get_device_properties,
    torch.cuda.is_bf16_supported,
)
def _property_of_device(
    function: Any, evaluator: Evaluator, /, *arguments: Variable, **keywords: Variable
) -> Variable:
    """What a GPU is, which stays as it is; of the current one, which may change, where all are alike."""
    given, named = evaluator.snapshots(arguments, keywords, f"torch.cuda.{function.__name__}")
    values = [evaluator.pure(function, *given, **named)]
    kinds = {type(value) for value in (*given, *named.values())}
    if kinds.isdisjoint((int, str, torch.device)):
        for device in range(torch.cuda.device_count()):
            with torch.cuda.device(device):
                values.append(evaluator.pure(function, *given, **named))
    if any(repr(value) != repr(values[0]) for value in values):
        raise Unsupported("property of the current device", f"torch.cuda.{function.__name__}()")
    if function is torch.cuda.get_device_properties:
        return ConstantVariable(values[0])
    return evaluator.wrap_result(values[0])


@model(torch.compiler.is_compiling)
def _is_compiling(evaluator: Evaluator) -> Variable:
    """True, but where a module's call asks.

    There it leaves out the hooks that run after an exception, which capture does not.
    """
    return ConstantVariable(evaluator.frame.code is not MODULE_CALL)


@model(torch.is_tensor)
def _is_tensor(evaluator: Evaluator, obj: Variable, /) -> Variable:
    return ConstantVariable(issubclass(obj.python_type(), torch.Tensor))


@models(*(getattr(torch, name) for name in _REFUSED))
def _refused(
    function: Any, evaluator: Evaluator, /, *arguments: Variable, **keywords: Variable
) -> Variable:
    """A function of torch whose calls are known not to fit into a graph."""
    name = function.__name__
    raise Unsupported(_REFUSED[name], f"torch.{name}({', '.join(map(repr, arguments))})")


# Registered one by one: an exact type, such as a Python function's, is asked for before predicates.
_PYTHON_FUNCTIONS = [
    value
    for module in (torch.functional, torch.nn.functional)
    for name, value in vars(module).items()
    if isinstance(value, types.FunctionType) and not name.startswith("_") and goes_into_graph(value)
]


@register_object(*_PYTHON_FUNCTIONS)
@register_predicate(goes_into_graph, 100)
def _wrap_function(evaluator: Evaluator, value: Any, source: Source) -> Variable:
    evaluator.guard(source, IsObject(value))
    return TorchFunctionVariable(value, source)


def put_into_graph(function: Any) -> None:
    """Make calls of ``function`` nodes of the graph, whatever it is."""
    register_object(function)(_wrap_function)


# Dropout that drops nothing, or of nothing, gives its operand, where torch's Python version gives a copy.


_PARAMETERS: dict[Any, tuple[str, ...]] = {
    torch.nn.functional.dropout: ("input", "p", "training"),
    torch.dropout: ("input", "p", "train"),
    torch.feature_dropout: ("input", "p", "train"),
}


_DROPOUTS = frozenset(
    (
        *_PARAMETERS,
        *(getattr(torch.nn.functional, f"dropout{dims}d") for dims in (1, 2, 3)),
        *(torch.nn.functional.alpha_dropout, torch.nn.functional.feature_alpha_dropout),
        *(torch.alpha_dropout, torch.feature_alpha_dropout),
    )
)


def _with_known_numbers(arguments: Arguments, keywords: Keywords) -> tuple[Arguments, Keywords]:
    """Arguments of a dropout with what varies as it is now: one of 0 or of 1 draws no random numbers."""

    def known(argument: Variable) -> Variable:
        if isinstance(argument, SymbolicNumberVariable):
            return argument.specialised()
        return argument

    return list(map(known, arguments)), {name: known(k) for name, k in keywords.items()}


def undropped(
    evaluator: Evaluator, function: Any, arguments: Arguments, keywords: Keywords
) -> Variable | None:
    """The operand of a dropout that leaves it as it is; None for calls that have to be made."""
    names = _PARAMETERS.get(function)
    if names is None or evaluator.state.overrides.modes:
        return None
    given = dict(zip(names, arguments, strict=False)) | keywords
    operand, share, training = (given.get(name) for name in names)
    if type(operand) is not TensorVariable or not (training is None or training.is_constant()):
        return None
    if share is not None and not share.is_constant():
        return None
    dropped: Any = 0.5 if share is None else share.as_constant()
    if type(dropped) not in (int, float) or not 0 <= dropped <= 1:
        return None  # eager's own error
    trains = training is None or training.as_constant()
    is_empty = any(type(size) is int and size == 0 for size in operand.fake.shape)
    return None if trains and dropped > 0 and not is_empty else operand


# Functions of ``torch.jit.script``: the Python that they were compiled from is evaluated in their place.


_ASKS_FOR_SCRIPTING = frozenset({"is_scripting", "is_tracing"})
"""What gives another answer in a script than in Python."""


@held_by_identity(register_wrapper(torch.jit.ScriptFunction), weak=True)
class ScriptedFunctionVariable(IdentifiedFunctionVariable):
    """Such a function; one of ``torch.jit.trace`` has no Python that does the same."""

    def call(self, evaluator: Evaluator, arguments: Arguments, keywords: Keywords) -> Variable:
        function = python_of_script(self.value)
        if function is None or not _ASKS_FOR_SCRIPTING.isdisjoint(function.__code__.co_names):
            raise Unsupported("call of a scripted function", repr(self))
        parameters = inspect.signature(function).parameters
        try:
            bound = inspect.signature(function).bind(*arguments, **keywords)
        except TypeError as error:
            raise Unsupported("call of a scripted function", f"{self!r}: {error}") from error
        for name, argument in bound.arguments.items():
            annotation = parameters[name].annotation
            takes_tensor = annotation in (
                inspect.Parameter.empty,
                torch.Tensor,
                "Tensor",
                "torch.Tensor",
            )
            if takes_tensor and not isinstance(argument, TensorVariable):
                raise Unsupported("call of a scripted function", f"{self!r}: {name} is no tensor")
        return evaluator.wrap_known(function).call(evaluator, arguments, keywords)


@model(group_tensors)
def _group_tensors(
    evaluator: Evaluator, lists: Variable, with_indices: Variable | None = None
) -> Variable:
    """A dict from (device, dtype) to lists of tensors and their positions, in torch's own order."""
    rows = [row.iterate(evaluator) for row in lists.iterate(evaluator)]
    fakes = [[graph_argument(evaluator, item)[1] for item in row] for row in rows]
    known = {id(fake): item for row, part in zip(rows, fakes, strict=True)
             for item, fake in zip(row, part, strict=True)}  # fmt: skip
    wanted = with_indices is not None and with_indices.truth(evaluator)
    groups = evaluator.pure(group_tensors, fakes, wanted)
    entries: dict[HashedKey, Variable] = {}
    for key, (members, positions) in groups.items():
        parts = [ListVariable([known[id(fake)] for fake in row]) for row in members]
        value = TupleVariable([ListVariable(parts), evaluator.wrap_result(positions)])
        entries[hashed_key(evaluator, TupleVariable([*map(ConstantVariable, key)]))] = value
    return DictVariable(entries)
