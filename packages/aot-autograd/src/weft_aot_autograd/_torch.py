"""The private torch API that this package uses, in one place.  Checked on torch 2.11 and 2.13."""

from __future__ import annotations

import functools
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch._decomp import _core_aten_decompositions_post_autograd, core_aten_decompositions
from torch._export.utils import _get_decomp_for_cia, _is_preservable_cia_op
from torch._ops import HigherOrderOperator, OpOverload
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
    UnsupportedOperatorException,
)
from torch.autograd import forward_ad
from torch.export.decomp_utils import PRESERVED_ATEN_CIA_OPS
from torch.fx._lazy_graph_module import _LazyGraphModule as LazyGraphModule
from torch.fx.experimental.symbolic_shapes import (
    GuardOnDataDependentSymNode,
    free_unbacked_symbols,
)
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves as tree_leaves
from torch.utils._pytree import tree_map as tree_map

__all__ = [
    "COMMUNICATES",
    "DATA_DEPENDENT_ERRORS",
    "CustomFormula",
    "FakeTensor",
    "FakeTensorMode",
    "HigherOrderOperator",
    "LazyGraphModule",
    "OpOverload",
    "TorchDispatchMode",
    "UnsupportedOperatorException",
    "apply_beside_transforms",
    "apply_to_plain",
    "are_any_wrapped",
    "core_aten_decompositions",
    "core_decomposition",
    "custom_formula",
    "inplace_variant",
    "is_data_dependent",
    "keeps_graph",
    "packed_saved_tensors",
    "packs_saved_tensors",
    "relation_count",
    "rename_data_dependent",
    "schema_arguments",
    "set_grad_enabled",
    "stands_for_another",
    "will_visit",
    "without_transforms",
]

# What fake tensors raise where a result's value or shape, or a formula's way, depends on the data.
DATA_DEPENDENT_ERRORS: tuple[type[Exception], ...] = (
    DataDependentOutputException,
    DynamicOutputShapeException,
    GuardOnDataDependentSymNode,
)

COMMUNICATES = "_c10d_functional"
"""The namespace of collectives."""


def core_decomposition(operator: OpOverload) -> Callable[..., Any] | None:
    """What ``core_aten_decompositions()`` has for ``operator``, None if nothing.

    Making that table takes torch longer than compiling a small model: it looks at every operator there is.
    """
    rule = _core_rules().get(operator)
    if rule is None and operator not in PRESERVED_ATEN_CIA_OPS and _is_preservable_cia_op(operator):
        rule = _get_decomp_for_cia(operator)
    return rule


@functools.cache
def _core_rules() -> Mapping[Any, Callable[..., Any]]:
    """Torch's rules for operators that are not composed of others already."""
    rules: Mapping[Any, Callable[..., Any]] = _core_aten_decompositions_post_autograd()
    return rules


set_grad_enabled = torch._C._set_grad_enabled


def keeps_graph() -> bool:
    """Whether the backward pass that is running may be run again (``retain_graph``)."""
    return bool(torch._C._autograd._get_current_graph_task_keep_graph())


def will_visit(node: Any) -> bool:
    """Whether the backward pass that is running gets to a node of autograd's graph."""
    try:
        return bool(torch._C._will_engine_execute_node(node))
    except RuntimeError:  # so for a leaf that torch.autograd.grad was asked for
        return True


def relation_count(mode: FakeTensorMode | None) -> int:
    """How many relations between symbolic sizes a fake mode has come to rely on."""
    env = None if mode is None else mode.shape_env
    if env is None:
        return 0
    return len(env.guards) + len(env.replacements) + int(env.num_deferred_runtime_asserts)


def inplace_variant(operator: OpOverload) -> Any:
    """The packet of ``name_`` for an operator ``name``, None if there is none."""
    namespace, _, name = operator._schema.name.partition("::")
    return getattr(getattr(torch.ops, namespace), f"{name}_", None)


def _keys(*names: str) -> Any:
    """The set of some dispatch keys, by name."""
    kind: Any = torch._C.DispatchKeySet
    parse = torch._C._dispatch_key_parse  # some keys have no name in Python
    return functools.reduce(
        lambda keys, name: keys | kind(parse(name)), names, kind(parse("Undefined"))
    )


# Wrappers with the Python type of plain tensors: of functorch's transforms, of the older vmap by which
# autograd batches gradients, of C++ functionalization, of the zeros that autograd makes without memory.
_WRAPPERS: int = _keys(
    "FuncTorchBatched", "FuncTorchGradWrapper", "Batched", "Functionalize", "ZeroTensor", "Python"
).raw_repr()
_TRANSFORMS = _keys("FuncTorchDynamicLayerFrontMode", "FuncTorchDynamicLayerBackMode", "VmapMode")


def stands_for_another(tensor: torch.Tensor) -> bool:
    """Whether what a program reads at a tensor's address need not be the tensor's values.

    So for wrappers of a transform, dual tensors, subclasses, and tensors of other layouts or without memory.
    """
    if type(tensor) is not torch.Tensor and type(tensor) is not torch.nn.Parameter:
        return True
    if tensor.layout is not torch.strided or tensor.device.type == "meta":
        return True
    keys: int = torch._C._dispatch_keys(tensor).raw_repr()
    return bool(keys & _WRAPPERS) or forward_ad._current_level >= 0


def without_transforms() -> Any:
    """A context in which operators take plain tensors as they are, whatever transform is running."""
    return torch._C._ExcludeDispatchKeyGuard(_TRANSFORMS)


def packs_saved_tensors() -> bool:
    """Whether hooks for saved tensors are set, which would be given each tensor that is saved now."""
    return torch._C._autograd._top_saved_tensors_default_hooks(False) is not None


def hooks_of(tensor: torch.Tensor) -> dict[int, Any]:
    """The hooks of a tensor, by their handles' keys: the very dict that autograd reads, or none."""
    return tensor._backward_hooks or {}


def hooks_behind(leaf: torch.Tensor) -> dict[int, Any]:
    """The hooks that are called when a leaf's gradient has been accumulated: the very dict, or none."""
    hooks: dict[int, Any] | None = leaf._post_accumulate_grad_hooks
    return hooks or {}


def attached_hooks(tensor: torch.Tensor) -> dict[int, Any]:
    """The dict that will have the hooks of a tensor, which is no leaf, for as long as its node lives."""
    if tensor._backward_hooks is None:
        # Of a view that was written to since, torch makes the node anew; with a first hook it crashes then.
        node: Any = tensor.grad_fn
        tensor._backward_hooks = OrderedDict()
        node._register_hook_dict(tensor)  # as ``register_hook`` does for the first
    hooks: Any = tensor._backward_hooks
    return cast("dict[int, Any]", hooks)


def are_any_wrapped(tensors: Iterable[torch.Tensor]) -> bool:
    """Whether any is the wrapper of a transform, which may be over."""
    return any(map(torch._C._functorch.is_functorch_wrapped_tensor, tensors))


def apply_to_plain(function: type[torch.autograd.Function], *arguments: Any) -> Any:
    """``function.apply`` where the tensors are no leftovers of transforms, for which it looks at each."""
    if torch._C._are_functorch_transforms_active():
        return function.apply(*arguments)
    return super(torch.autograd.Function, function).apply(*arguments)  # type: ignore[misc]


def apply_beside_transforms(function: type[torch.autograd.Function], *arguments: Any) -> Any:
    """``function.apply`` of tensors that no transform, though one may run, has wrapped.

    The transforms are set aside meanwhile: those of torch 2.14 and later are asked for in C.
    """
    functorch: Any = torch._C._functorch
    layers = []
    while functorch.peek_interpreter_stack() is not None:
        layers.append(functorch.pop_dynamic_layer_stack())
    try:
        return function.apply(*arguments)
    finally:
        for layer in reversed(layers):
            functorch.push_dynamic_layer_stack(layer)


def backward_number() -> int:
    """Which of all backward passes, also of one in another, is running; -1 where none is."""
    return int(torch._C._current_graph_task_id())


def behind_backward(callback: Callable[[], None]) -> None:
    """Call ``callback`` at the end of the backward that is running."""
    torch.autograd.Variable._execution_engine.queue_callback(callback)


def packed_saved_tensors(ctx: Any) -> tuple[Any, ...]:
    """What a context of ``torch.autograd.Function`` has saved, for :func:`unpacked` one by one."""
    packed: tuple[Any, ...] = ctx._raw_saved_tensors
    return packed


def unpacked(packed: Any, is_argument: bool) -> torch.Tensor:
    """A saved tensor with its history, which may have been written to since.

    ``unpack()``, which torch 2.11 does not have, raises eager's error for one that was, but can't give the
    function's own outputs; ``data`` can.
    """
    tensor: torch.Tensor = (
        packed.unpack() if is_argument and hasattr(packed, "unpack") else packed.data
    )
    return tensor


def rename_data_dependent(made: Any, known: Any) -> None:
    """Let a new symbol of a number that depends on data be that by which this number is known.

    ``made`` and ``known`` are numbers that are the same in every call; what is no such symbol stays.
    """
    if not isinstance(made, torch.SymInt) or not isinstance(known, torch.SymInt):
        return
    new, old = made.node.expr, known.node.expr
    if new == old or not new.is_Symbol or not free_unbacked_symbols(new):
        return
    env = made.node.shape_env
    if old.is_Symbol and free_unbacked_symbols(old):
        env._rename_unbacked_to(new, old)
    elif not free_unbacked_symbols(old):
        # Data has to give a number that the inputs say: a size that must fit.
        env._eliminate_unbacked(new, old)


def is_data_dependent(size: Any) -> bool:
    """Whether a size or a stride is computed from what data decides."""
    return isinstance(size, torch.SymInt) and bool(free_unbacked_symbols(size))


def schema_arguments(operator: OpOverload) -> list[Any]:
    """The arguments of an operator's schema, in order (``torch._C.Argument``)."""
    return list(operator._schema.arguments)


@dataclass(frozen=True)
class CustomFormula:
    """The derivative that ``torch.library.register_autograd`` was given for an operator."""

    backward: Callable[..., Any]
    setup: Callable[..., Any] | None

    def set_up(
        self, context: Any, inputs: tuple[Any, ...], keywords: Any, results: tuple[Any, ...]
    ) -> None:
        """Call ``setup_context`` as torch does."""
        output = results if len(results) > 1 else results[0]
        if self.setup is not None and keywords:
            self.setup(ctx=context, inputs=inputs, keyword_only_inputs=keywords, output=output)
        elif self.setup is not None:
            self.setup(ctx=context, inputs=inputs, output=output)


def custom_formula(operator: OpOverload) -> CustomFormula | None:
    """The derivative in Python of an operator of ``torch.library.custom_op``, None where it has none."""
    definition = torch._library.custom_ops.OPDEFS.get(operator._schema.name)
    if definition is None or definition._backward_fn is None:
        return None
    return CustomFormula(definition._backward_fn, definition._setup_context_fn)
