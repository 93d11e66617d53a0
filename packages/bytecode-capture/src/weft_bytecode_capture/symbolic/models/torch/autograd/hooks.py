"""``Tensor.register_hook`` and ``retain_grad`` of what the graph computes; backward calls the hooks."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ....._torch import push_saved_tensor_hooks
from .....gradient_rule import replace_gradient
from .....unsupported import EntersHooks, Unsupported
from ....captured_exception import CapturedException
from ....graph.storages import version_of
from ....graph.tensor_hooks import KIND, HookedTensor
from ....protocol import Evaluator
from ....variables.base import Arguments, Keywords, Variable
from ....variables.constant import ConstantVariable
from ...containers.sequences import TupleVariable
from ...functions.python_functions import FunctionVariable
from ...table import model
from ..tensor import TensorVariable
from .gradient_calls import BACKWARD, gradients_of, tensors_among


@model(torch.Tensor.register_hook)
def _register_hook(evaluator: Evaluator, self: Variable, hook: Variable) -> Variable:
    if not isinstance(self, TensorVariable):
        raise Unsupported("hook of a tensor", f"{self!r}.register_hook")
    hooked = evaluator.graph.hooks.of(evaluator, self)
    if hooked is None:
        raise self.refused_method(evaluator, "register_hook")
    handle = HookHandleVariable(hooked)
    hooked.hooks[handle] = hook
    return handle


@model(torch.Tensor.retain_grad)
def _retain_grad(evaluator: Evaluator, self: Variable) -> None:
    if not isinstance(self, TensorVariable):
        raise Unsupported("hook of a tensor", f"{self!r}.retain_grad")
    hooked = evaluator.graph.hooks.of(evaluator, self)
    if hooked is None:
        raise self.refused_method(evaluator, "retain_grad")
    hooked.retains = True


@model(push_saved_tensor_hooks)
def _enter_hooks(evaluator: Evaluator, pack: Variable, unpack: Variable) -> None:
    """Compiled programs save other tensors than eager, which shows where a hook changes their values.

    Those of torch's own (checkpoints, ``save_on_cpu``) give back what they were given.
    """
    error = Unsupported if _is_of_torch(evaluator, pack) else EntersHooks
    raise error(
        "call of a builtin function",
        f"hooks for saved tensors: {pack!r}, {unpack!r}",
        "they are given what autograd saves, and compiled programs save other tensors",
    )


def _is_of_torch(evaluator: Evaluator, function: Variable) -> bool:
    if not isinstance(function, FunctionVariable):
        return False
    module = function.globals_dictionary(evaluator).get("__name__", "")
    return isinstance(module, str) and module.partition(".")[0] == "torch"


class HookHandleVariable(Variable):
    """What ``register_hook`` gives: it takes the hook away again."""

    kind = torch.utils.hooks.RemovableHandle

    def __init__(self, hooked: HookedTensor) -> None:
        self._hooked = hooked
        self.created_at = hooked.position

    def call_method(
        self, evaluator: Evaluator, name: str, arguments: Arguments, keywords: Keywords
    ) -> Variable:
        if name != "remove" or arguments or keywords:
            return super().call_method(evaluator, name, arguments, keywords)
        self._hooked.hooks.pop(self, None)
        return ConstantVariable(None)

    def get_attribute(self, evaluator: Evaluator, name: str) -> Variable:
        if name == "remove":
            from ...builtins.methods import BuiltinMethodVariable

            return BuiltinMethodVariable(self, name)
        return super().get_attribute(evaluator, name)


def call_hooks(evaluator: Evaluator, given: Keywords, leaves: Sequence[TensorVariable]) -> None:
    """Call the hooks that a backward meets, in its order, with the gradients that reach them.

    ``given``: the arguments of ``torch.autograd.grad`` for the gradients of ``leaves``.
    """
    outputs = [fake for _, fake in tensors_among(evaluator, [given["outputs"]])]
    hooked = evaluator.graph.hooks.behind(outputs)
    if not hooked:
        return
    if any(h.is_replaced or version_of(h.tensor.fake) != h.version for h in hooked):
        raise Unsupported(BACKWARD, "backward: by a tensor with hooks, again or after a write")
    kept = {**given, "retain_graph": ConstantVariable(True)}
    tensors = [one.tensor for one in hooked]
    for place in autograds_order(evaluator, given, tensors, leaves):
        one = hooked[place]
        asked = {**kept, "inputs": TupleVariable([one.tensor])}
        (gradient,) = gradients_of(evaluator, asked).iterate(evaluator)
        hooks = list(one.hooks.values())
        _keep(evaluator, one, gradient, hooked_gradient(evaluator, hooks, gradient, leaves))


def autograds_order(
    evaluator: Evaluator,
    given: Keywords,
    tensors: Sequence[TensorVariable],
    leaves: Sequence[TensorVariable],
) -> list[int]:
    """The places of those of ``tensors`` that a gradient reaches, as autograd comes to them."""
    found: list[int] = []
    handles = [
        tensor.fake.register_hook(lambda _, place=place: found.append(place))
        for place, tensor in enumerate(tensors)
    ]
    outputs, seeds = (
        [fake for _, fake in tensors_among(evaluator, [given[name]])]
        for name in ("outputs", "grad_outputs")
    )
    graph = evaluator.graph
    try:
        with graph.fake_mode, torch.autograd.set_multithreading_enabled(False):
            torch.autograd.grad(
                outputs,
                [leaf.fake for leaf in leaves],
                seeds or None,
                retain_graph=True,
                allow_unused=True,
            )
    except RuntimeError as error:
        raise Unsupported(BACKWARD, f"backward: {error}") from error
    finally:
        for handle in handles:
            handle.remove()
    return found


def hooked_gradient(
    evaluator: Evaluator,
    hooks: Sequence[Variable],
    gradient: Variable,
    leaves: Sequence[TensorVariable],
) -> Variable:
    """What hooks make of a gradient, one after the other; ``leaves`` have none of theirs for sure."""
    assert isinstance(gradient, TensorVariable)
    with evaluator.graph.modes.without_gradients(), evaluator.graph.hooks.running(leaves):
        for hook in hooks:
            version = version_of(gradient.fake)
            result = _called(evaluator, hook, gradient)
            if version_of(gradient.fake) != version:
                raise Unsupported(KIND, "which writes to the gradient")
            if not result.is_none():
                gradient = _alike(result, gradient)
    return gradient


def call_with_leaf(evaluator: Evaluator, hooks: Sequence[Variable], leaf: TensorVariable) -> None:
    """Call the hooks of a leaf that has its gradient now."""
    with evaluator.graph.modes.without_gradients():
        for hook in hooks:
            result = _called(evaluator, hook, leaf)
            if not result.is_none():
                raise Unsupported(KIND, f"which gives {result!r}")


def _called(evaluator: Evaluator, hook: Variable, given: TensorVariable) -> Variable:
    """What a hook gives.

    :raises Unsupported: it raises.
    """
    try:
        return hook.call(evaluator, [given], {})
    except CapturedException as error:
        raise Unsupported(KIND, f"which raises {error.exception!r}") from error


def _keep(evaluator: Evaluator, hooked: HookedTensor, first: Variable, last: Variable) -> None:
    """Note what a tensor's hooks have made of its gradient."""
    assert isinstance(last, TensorVariable)
    if hooked.retains:
        with evaluator.graph.modes.without_gradients():
            _retain(evaluator, hooked.tensor, last)
    if last is not first:
        hooked.is_replaced = True
        nodes = (hooked.tensor.node, last.node)
        evaluator.graph.add_call(evaluator, replace_gradient, nodes)


def _alike(result: Variable, gradient: TensorVariable) -> TensorVariable:
    """What a hook has given in the stead of ``gradient``.

    :raises Unsupported: autograd refuses, or changes, that.
    """
    names = ("shape", "dtype", "device", "layout")
    if isinstance(result, TensorVariable) and type(result) is TensorVariable:
        own, given = gradient.fake, result.fake
        if all(getattr(own, name) == getattr(given, name) for name in names):
            return result
    raise Unsupported(KIND, f"which gives {result!r}")


def _retain(evaluator: Evaluator, tensor: TensorVariable, gradient: TensorVariable) -> None:
    """Keep or add up the gradient, as ``retain_grad`` has it."""
    kept = tensor.attributes.get("grad")
    if kept is None or kept.is_none():
        contiguous: Keywords = {"memory_format": ConstantVariable(torch.contiguous_format)}
        made = evaluator.graph.call_method(evaluator, "clone", gradient, [], contiguous)
    else:
        made = evaluator.graph.call_method(evaluator, "add", kept, [gradient], {})
    tensor.attributes["grad"] = made
