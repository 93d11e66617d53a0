"""``torch.distributed``'s functions that write their results, and torch's functional ones.

Registered when a program's function of those modules is met first.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from ....._torch import distributed_functions, finished_work, functional_collectives
from .....frame.emitter import Emitter
from .....unsupported import Unsupported
from ....polyfills import torch_functions as polyfills
from ....protocol import Evaluator
from ....variables.base import Arguments, Keywords, Variable
from ....variables.constant import ConstantVariable
from ....variables.python_protocols import pure_call
from ...builtins.methods import BuiltinMethodVariable
from ...containers.sequences import ListVariable
from ...table import bound_arguments, model, models
from ..tensor import TensorVariable
from .process_groups import ProcessGroupVariable

COLLECTIVE = "collective with unusual arguments"


@dataclass(frozen=True)
class Collective:
    """A function's polyfill, and whether the polyfill does what it does.

    ``accepts`` takes the arguments by name (tensors as fake tensors) and the number of processes.
    """

    polyfill: Callable[..., None]
    accepts: Callable[[Mapping[str, Any], int], bool]


def _takes_anything(given: Mapping[str, Any], processes: int) -> bool:
    return True


def _is_row_of(whole: torch.Tensor, part: torch.Tensor, processes: int) -> bool:
    """Whether ``whole`` is as large as the parts of all processes, concatenated."""
    if whole.dtype != part.dtype or part.dim() == 0:
        return False
    return tuple(whole.shape) == (processes * part.shape[0], *part.shape[1:])


def _gathers(given: Mapping[str, Any], processes: int) -> bool:
    return _is_row_of(given["output_tensor"], given["input_tensor"], processes)


def _scatters(given: Mapping[str, Any], processes: int) -> bool:
    return _is_row_of(given["input"], given["output"], processes)


def _gathers_list(given: Mapping[str, Any], processes: int) -> bool:
    outputs, tensor = given["tensor_list"], given["tensor"]
    return len(outputs) == processes and all(
        (output.shape, output.dtype) == (tensor.shape, tensor.dtype) for output in outputs
    )


def _exchanges(given: Mapping[str, Any], processes: int) -> bool:
    output, input = given["output"], given["input"]
    sizes = given["output_split_sizes"], given["input_split_sizes"]
    return (
        output.dtype == input.dtype
        and output.dim() > 0
        and input.dim() > 0
        and output.shape[1:] == input.shape[1:]
        and all(len(part) == processes for part in sizes)
        and (output.shape[0], input.shape[0]) == tuple(map(sum, sizes))
    )


_ROWS: dict[str, Collective] = {
    "all_reduce": Collective(polyfills.all_reduce, _takes_anything),
    "broadcast": Collective(polyfills.broadcast, _takes_anything),
    "all_gather": Collective(polyfills.all_gather, _gathers_list),
    "all_to_all_single": Collective(polyfills.all_to_all_single, _exchanges),
    **dict.fromkeys(
        ("all_gather_single", "all_gather_into_tensor"),
        Collective(polyfills.all_gather_single, _gathers),
    ),
    **dict.fromkeys(
        ("reduce_scatter_single", "reduce_scatter_tensor"),
        Collective(polyfills.reduce_scatter_single, _scatters),
    ),
}


@models(*(getattr(torch.distributed, n) for n in _ROWS if hasattr(torch.distributed, n)))
def _collective(
    function: Any, evaluator: Evaluator, /, *arguments: Variable, **keywords: Variable
) -> Variable:
    """A function of ``torch.distributed`` that writes its result: an operator, its wait, and a copy.

    With ``async_op`` too: the graph waits where the result is read, whatever the program does.
    """
    name = function.__name__
    given = bound_arguments(function, arguments, keywords, COLLECTIVE)
    is_asynchronous = given.pop("async_op", ConstantVariable(False)).truth(evaluator)
    group = given["group"] = _group(evaluator, given.get("group"))
    _complete(evaluator, name, given, group.value)
    row = _ROWS[name]
    values = {key: _checked(evaluator, name, value) for key, value in given.items()}
    if not row.accepts(values, group.value.size()):
        raise Unsupported(COLLECTIVE, f"{name} of these sizes or types")
    evaluator.wrap_known(row.polyfill).call(evaluator, [], given)
    return WorkVariable() if is_asynchronous else ConstantVariable(None)


def _group(evaluator: Evaluator, group: Variable | None) -> ProcessGroupVariable:
    if group is None or group.is_none():
        find = evaluator.wrap_known(distributed_functions()._get_default_group)
        group = find.call(evaluator, [], {})
    if not isinstance(group, ProcessGroupVariable):
        raise Unsupported(COLLECTIVE, f"group {group!r}")
    group.identify(evaluator)
    return group


def _complete(evaluator: Evaluator, name: str, given: dict[str, Variable], group: Any) -> None:
    """Put in what a polyfill takes and the call leaves out, or says in another way."""
    if "op" in inspect.signature(_ROWS[name].polyfill).parameters:
        op = given.get("op", ConstantVariable(torch.distributed.ReduceOp.SUM))
        names = functional_collectives().REDUCE_OP_TO_STR
        if not op.is_constant() or op.as_constant() not in names:
            raise Unsupported(COLLECTIVE, f"{name} with op {op!r}")
        given["op"] = ConstantVariable(names[op.as_constant()])
    if name == "broadcast":
        given["src"] = _rank(evaluator, given, group)
    if name == "all_to_all_single":
        for key, tensor in (("output_split_sizes", "output"), ("input_split_sizes", "input")):
            if key not in given or not _elements(evaluator, given[key]):
                given[key] = _equal_parts(evaluator, given[tensor], group.size())


def _rank(evaluator: Evaluator, given: dict[str, Variable], group: Any) -> Variable:
    """The sender's rank within the group, which a call gives as that or as one among all processes."""
    inside = given.pop("group_src", ConstantVariable(None)).snapshot()
    among_all = given.get("src", ConstantVariable(None)).snapshot()
    if (inside is None) == (among_all is None):
        raise Unsupported(COLLECTIVE, "broadcast from both or neither of src and group_src")
    if inside is None:
        inside = evaluator.pure(torch.distributed.get_group_rank, group, among_all)
    return ConstantVariable(inside)


def _elements(evaluator: Evaluator, sizes: Variable) -> list[Variable]:
    if sizes.is_none():
        return []
    return sizes.iterate(evaluator)


def _equal_parts(evaluator: Evaluator, tensor: Variable, processes: int) -> Variable:
    length = tensor.call_method(evaluator, "size", [ConstantVariable(0)], {})
    part = evaluator.binary_operation("floordiv", length, ConstantVariable(processes))
    return ListVariable([part] * processes)


def _checked(evaluator: Evaluator, name: str, variable: Variable) -> Any:
    """An argument's value, tensors as fakes; Unsupported for a tensor that eager treats in its own way."""
    if isinstance(variable, ProcessGroupVariable):
        return variable.value
    if variable.is_constant():
        return variable.as_constant()
    if not isinstance(variable, TensorVariable):
        if variable.node is not None:  # a symbolic size
            return variable.snapshot()
        return [_checked(evaluator, name, item) for item in variable.iterate(evaluator)]
    fake = variable.fake
    if type(variable) is not TensorVariable or fake.layout != torch.strided:
        raise Unsupported(COLLECTIVE, f"{name} of {variable!r}")
    if torch.is_grad_enabled() and fake.requires_grad:
        raise Unsupported(COLLECTIVE, f"{name} of a tensor that needs gradients: {variable!r}")
    if fake.is_complex() or not fake.is_contiguous():
        raise Unsupported(COLLECTIVE, f"{name} of a complex or non-contiguous tensor")
    return fake


class WorkVariable(Variable):
    """What a collective with ``async_op`` returns; by the time that Python sees it, the graph has waited."""

    kind: Any = torch.distributed.Work

    def truth(self, evaluator: Evaluator) -> bool:
        return True

    def get_attribute(self, evaluator: Evaluator, name: str) -> Variable:
        if name in _WORK_METHODS:
            return BuiltinMethodVariable(self, name)
        return super().get_attribute(evaluator, name)

    def call_method(
        self, evaluator: Evaluator, name: str, arguments: Arguments, keywords: Keywords
    ) -> Variable:
        if name in _WORK_METHODS:
            return ConstantVariable(True)
        return super().call_method(evaluator, name, arguments, keywords)

    def reconstruct(self, emitter: Emitter) -> None:
        emitter.load_call(finished_work)


_WORK_METHODS = frozenset({"wait", "is_completed"})


@model(functional_collectives()._are_we_tracing)
def _is_tracing(evaluator: Evaluator) -> Variable:
    """What torch's functional collectives ask to know whether to return a plain tensor."""
    return ConstantVariable(True)


@models(distributed_functions()._get_group_size_by_name)
def _group_size(function: Any, evaluator: Evaluator, group_name: Variable) -> Variable:
    """The size of a group given by name, which names it for as long as the default group lives."""
    if isinstance(group_name, ProcessGroupVariable):
        return group_name.get_attribute(evaluator, "size").call(evaluator, [], {})
    _group(evaluator, None)
    return pure_call(evaluator, function, [group_name], {})
