"""Which nodes of a graph may go when nobody uses what they give."""

from __future__ import annotations

import inspect
import re
import types
from typing import Any, cast

import torch
import torch.fx

from ..._torch import (
    NATIVE_FUNCTIONS,
    OpOverload,
    OpOverloadPacket,
    TensorBase,
    written_operands,
)
from ..._torch.transforms import LEVEL_CALLS, LEVEL_STATES, LEVEL_WRAPPERS
from ...gradient_rule import GradientRule, gradients_past_hooks, replace_gradient
from .modes import MODE_CALLS, SWITCHES
from .storages import storages, version_of

# Parts of the names of operators that draw random numbers.
_DRAWS = (
    "attention|bernoulli|binomial|cauchy$|dirichlet$|dropout|exponential$|fractional|geometric$|gru|gumbel|lstm|"
    "multinomial|normal$|poisson|rand|rnn|rrelu|standard_gamma$|uniform$"
)
# Of operators that switch a mode, or write to an argument although their name does not say so (batch_norm
# its running statistics, embedding its renormalised rows).
_WRITES = re.compile("autocast|batch_norm|embedding(?!_loss)|instance_norm|seed|set_")
_DRAWN = re.compile(f"{_DRAWS}|normal_|uniform_|exponential_|cauchy_|geometric_")
_EFFECTS = re.compile(f"{_DRAWS}|{_WRITES.pattern}")
_IN_PLACE_OPERATORS = frozenset(
    "setitem delitem iadd iand iconcat ifloordiv ilshift imatmul imod imul ior ipow irshift isub "
    "itruediv ixor __setitem__".split()
)
_MODULES = ("torch", "torch.functional", "torch.nn.functional", "torch._C._nn", "torch._tensor")


def is_effectful(node: torch.fx.Node) -> bool:
    """Whether a node must stay in the graph without users; unknown targets must."""
    if node.op in ("placeholder", "output") or node.target is torch._check:
        return True
    return "checks" in node.meta or _gives_nothing(node.target) or has_effect(node)


def _gives_nothing(target: Any) -> bool:
    """Whether a function of torch has no result at all: it is called for its errors (``_assert_async``)."""
    if isinstance(target, OpOverload):
        return not target._schema.returns
    if not isinstance(target, types.BuiltinFunctionType):
        return False
    packet = getattr(torch.ops.aten, target.__name__, None) if _is_known(target) else None
    if not isinstance(packet, OpOverloadPacket):
        return False
    return not any(getattr(packet, name)._schema.returns for name in packet.overloads())


def has_effect(node: torch.fx.Node) -> bool:
    """Whether a call does more than to give its result, or to raise where conditions on data do not hold."""
    return _has_effect(node, _WRITES if _drops_nothing(node) else _EFFECTS)


def writes(node: torch.fx.Node) -> bool:
    """Whether a node changes something that outlives it, other than the state of random numbers."""
    if is_data_of(node):
        return True  # what is written to it escapes the version counters
    if node.target in REGION_OPERATORS:
        return any(writes(inner) for region in region_graphs(node) for inner in region.nodes)
    if node.target in (torch._check, replace_gradient):
        return False
    return (
        node.op.startswith("call_")
        and _has_effect(node, _WRITES)
        and node.target not in MODE_CALLS
        and node.target not in LEVEL_CALLS
        and node.target not in LEVEL_STATES
        and not is_functional_custom_operator(node)
    )


def is_functional_custom_operator(node: torch.fx.Node) -> bool:
    """Whether a node calls an operator of a library whose schemas declare that it writes to nothing."""
    target: Any = node.target
    if isinstance(target, OpOverload):
        overloads = [target]
    elif isinstance(target, OpOverloadPacket):
        overloads = [getattr(target, name) for name in target.overloads()]
    else:
        return False
    return not any(
        overload.namespace == "aten"
        or overload._schema.is_mutable
        or torch.Tag.nondeterministic_seeded in overload.tags
        for overload in overloads
    )


_OPERATORS = torch.ops.higher_order
REGION_OPERATORS = frozenset({_OPERATORS.cond, _OPERATORS.while_loop, _OPERATORS.associative_scan})


def region_graphs(node: torch.fx.Node) -> list[torch.fx.Graph]:
    """The graphs of a region operator's blocks; of any other node none."""
    if node.target not in REGION_OPERATORS:
        return []
    given = [argument for argument in node.args if isinstance(argument, torch.fx.Node)]
    return [argument.meta["region"].graph for argument in given if "region" in argument.meta]


def possibly_written(node: torch.fx.Node) -> list[torch.fx.Node]:
    """The arguments that a node which :func:`writes` may write to."""
    target: Any = node.target
    if target in REGION_OPERATORS:
        seen = set[int]().union(*(_seen_outside(node, region) for region in region_graphs(node)))
        operands = [o for o in _operands(node) if isinstance(o, torch.fx.Node)]
        return [o for o in operands if not seen.isdisjoint(storages([_value(o)]))]
    if isinstance(target, OpOverload):
        given: list[Any] = []
        for k in written_operands(target):
            name = target._schema.arguments[k].name
            given.append(node.args[k] if k < len(node.args) else node.kwargs.get(name))
    elif target is not getattr and is_tracked_write(node) and target not in _WRITTEN_ARGUMENTS:
        given = [
            node.kwargs["out"] if "out" in node.kwargs else node.args[:1] or node.all_input_nodes
        ]
    else:
        return node.all_input_nodes
    nodes: list[torch.fx.Node] = []
    torch.fx.map_arg(given, nodes.append)
    return nodes


def draws(node: torch.fx.Node) -> bool:
    """Whether a node draws random numbers, a region operator in any of its blocks."""
    if any(draws(inner) for region in region_graphs(node) for inner in region.nodes):
        return True
    name = node.target if node.op == "call_method" else getattr(node.target, "__name__", "")
    is_drawn = node.op.startswith("call_") and _DRAWN.search(str(name)) is not None
    return is_drawn and not _drops_nothing(node)


_DROPOUTS: dict[Any, tuple[tuple[int, str, Any], ...]] = {
    torch.nn.functional.scaled_dot_product_attention: ((4, "dropout_p", 0.0),),
    torch.nn.functional.multi_head_attention_forward: (
        (10, "dropout_p", 0.0),
        (13, "training", True),
    ),
}
"""Arguments of attention, by position, name and default: it drops nothing where one is zero or false."""


def _drops_nothing(node: torch.fx.Node) -> bool:
    """Whether a node is attention that draws no random numbers."""
    rows = _DROPOUTS.get(node.target, ())
    given = [node.args[i] if i < len(node.args) else node.kwargs.get(n, d) for i, n, d in rows]
    return any(type(value) in (bool, int, float) and not value for value in given)


def is_tracked_write(node: torch.fx.Node) -> bool:
    """Whether all that a node writes to is known: by version counters, or by the table of arguments.

    What a region's blocks write to their parameters is found by :func:`storages_written_in_regions`.
    """
    target: Any = node.target
    if target is getattr:
        return False
    if target in (_OPERATORS.cond, _OPERATORS.while_loop):
        inside = (inner for region in region_graphs(node) for inner in region.nodes)
        return all(is_tracked_write(inner) for inner in inside if writes(inner))
    if target in _WRITTEN_ARGUMENTS:
        return all(isinstance(written, torch.fx.Node) for written in written_arguments(node))
    if isinstance(target, OpOverload):
        return target.namespace == "aten"
    if node.op == "call_method":
        return hasattr(torch.Tensor, str(target)) and _WRITES.search(str(target)) is None
    return _is_known(target) and _WRITES.search(target.__name__) is None


_WRITTEN_ARGUMENTS: dict[Any, tuple[tuple[int, str], ...]] = {
    torch.nn.functional.batch_norm: ((1, "running_mean"), (2, "running_var")),
    torch.nn.functional.instance_norm: ((1, "running_mean"), (2, "running_var")),
}
"""The arguments, by position and name, that functions write to behind the version counters' back."""


def written_arguments(node: torch.fx.Node) -> list[Any]:
    """The nodes that a function of the table writes to."""
    rows = () if _only_reads(node) else _WRITTEN_ARGUMENTS.get(node.target, ())
    given = [node.args[i] if i < len(node.args) else node.kwargs.get(name) for i, name in rows]
    return [argument for argument in given if argument is not None]


def _only_reads(node: torch.fx.Node) -> bool:
    """Whether a normalisation uses the statistics that it is given, and does not update them."""
    default = _USES_OWN_STATISTICS.get(node.target)
    if default is None:
        return False
    name, otherwise = default
    given = node.args[5] if len(node.args) > 5 else node.kwargs.get(name, otherwise)
    return given is False


_USES_OWN_STATISTICS: dict[Any, tuple[str, bool]] = {
    torch.nn.functional.batch_norm: ("training", False),
    torch.nn.functional.instance_norm: ("use_input_stats", True),
}
"""The parameter, the sixth, that says so, and its default."""


def _has_effect(node: torch.fx.Node, names: re.Pattern[str]) -> bool:
    """Whether a node does more than to give its result; ``names`` matches the names of operators that do."""
    if node.op == "get_attr" or isinstance(node.target, GradientRule):
        return False
    if node.target in _OF_TRANSFORMS or _only_reads(node) or _is_plain_lookup(node):
        return False
    if node.op == "call_method":
        name = str(node.target)
        return not _is_pure_name(name, names) or not hasattr(torch.Tensor, name)
    target: Any = node.target
    if isinstance(target, OpOverload):
        return (
            target.namespace != "aten"
            or target._schema.is_mutable
            or torch.Tag.nondeterministic_seeded in target.tags
        )
    if isinstance(target, OpOverloadPacket):
        return "out" in node.kwargs or not _is_pure_packet(target, names)
    if not _is_known(target) or not _is_pure_name(target.__name__, names):
        return True
    return "out" in node.kwargs or _is_in_place(node)


def _is_pure_packet(packet: OpOverloadPacket, names: re.Pattern[str]) -> bool:
    """Whether all operators of a name, but those that are given ``out=``, just give a result."""
    name = str(packet).removeprefix("aten.")
    overloads = [getattr(packet, overload) for overload in packet.overloads()]
    return (
        getattr(torch.ops.aten, name, None) is packet
        and _is_pure_name(name, names)
        and not any(
            torch.Tag.nondeterministic_seeded in overload.tags
            or not overload._schema.returns
            or overload._schema.is_mutable
            for overload in overloads
            if not any(argument.is_out for argument in overload._schema.arguments)
        )
    )


_OF_TRANSFORMS = frozenset({*LEVEL_WRAPPERS, torch.autograd.grad, gradients_past_hooks})
"""What function transforms call that changes nothing."""


def _is_plain_lookup(node: torch.fx.Node) -> bool:
    """Whether a node looks up rows of an embedding without renormalising any (``max_norm``)."""
    functions = (torch.nn.functional.embedding, torch.nn.functional.embedding_bag)
    if node.target not in functions:
        return False
    given = node.args[3] if len(node.args) > 3 else node.kwargs.get("max_norm")
    return given is None


def _is_pure_name(name: str, names: re.Pattern[str]) -> bool:
    if name.startswith("__") and name.endswith("__"):
        return not name.startswith("__i") and name != "__setitem__"
    return not name.endswith("_") and name not in _IN_PLACE_OPERATORS and names.search(name) is None


def _is_known(target: Any) -> bool:
    if target is getattr or getattr(target, "__module__", None) in ("_operator", "operator"):
        return True
    if isinstance(target, types.MethodDescriptorType):
        return target.__objclass__ in (torch.Tensor, TensorBase)
    name = getattr(target, "__name__", "")
    if isinstance(target, types.BuiltinFunctionType):
        return any(target is getattr(place, name, None) for place in (torch, *NATIVE_FUNCTIONS))
    return isinstance(target, types.FunctionType) and target.__module__ in _MODULES


def _is_in_place(node: torch.fx.Node) -> bool:
    """Whether ``inplace=True`` is among the arguments of a Python function of torch.nn.functional."""
    if not isinstance(node.target, types.FunctionType):
        return False
    parameters = inspect.signature(node.target).parameters
    if "inplace" not in parameters:
        return False
    position = list(parameters).index("inplace")
    given = node.args[position] if position < len(node.args) else node.kwargs.get("inplace", False)
    return given is not False


# What regions write to: a loop's body writes to its parameters, which stand for what the loop begins with.
#
# Parameters have fake tensors of their own, so writes to them don't show in the version counters outside; all
# else that a block takes has the fake tensors that it has outside.


_OPERANDS = {torch.ops.higher_order.cond: (3,), torch.ops.higher_order.while_loop: (2, 3)}
"""The arguments that hold what a region operator's blocks are given; a scan writes to nothing."""


def is_data_of(node: torch.fx.Node) -> bool:
    """Whether a node is ``tensor.data``, which has a version counter of its own."""
    return node.target is getattr and node.args[1] == "data"


def storages_written_as_data(graph: torch.fx.Graph) -> set[int]:
    """The storages that a graph writes to by ``tensor.data``, or by a view of that."""
    fakes = [_value(node) for node in graph.nodes if is_data_of(node)]
    told = storages_told_of(graph) if fakes else set()
    return storages([fake for fake in fakes if _has_moved(fake) or told & storages([fake])])


def storages_told_of(graph: torch.fx.Graph) -> set[int]:
    """The storages, of values of ``graph``, that its functions other than region operators say they write to.

    Version counters tell that of tensors which have one; inference tensors have none.
    """
    return storages([_value(written) for node in graph.nodes for written in _told(node)])


def storages_written_in_regions(graph: torch.fx.Graph) -> set[int]:
    """The storages, of values of ``graph``, that its region operators may write to unseen by versions.

    A region's result may be one of its operands, so a write to it counts for all of these.
    """
    found: set[int] = set()
    blocks = [(node, regions) for node in graph.nodes if (regions := region_graphs(node))]
    told = storages_told_of(graph) if blocks else set()
    for node, regions in reversed(blocks):
        results = node.meta.get("example_value", ())
        if any(map(_has_moved, results)) or (found | told) & storages(results):
            found.update(storages([_value(operand) for operand in _operands(node)]))
        if writes(node):
            found.update(*(_seen_outside(node, region) for region in regions))
    return found


def _seen_outside(node: torch.fx.Node, region: torch.fx.Graph) -> set[int]:
    """What of ``node``'s graph one of its blocks writes to."""
    inside = storages_written_in_regions(region) | storages_told_of(region)
    found = set(inside)
    parameters = region.find_nodes(op="placeholder")
    for parameter, operand in zip(parameters, _operands(node), strict=False):
        fake = _value(parameter)
        if _has_moved(fake) or inside & storages([fake]):
            found.update(storages([_value(operand)]))
    return found


def _told(node: torch.fx.Node) -> list[Any]:
    """What a node other than a region operator writes to, as its function says.

    A tensor without gradients that a write gives some has moved no further than one that had them.
    """
    if node.target in REGION_OPERATORS or is_data_of(node) or not writes(node):
        return []
    return written_arguments(node) or possibly_written(node)


def _operands(node: torch.fx.Node) -> list[Any]:
    """What a region operator's blocks are given, in the order of their placeholders."""
    arguments, target = cast("Any", node.args), cast("Any", node.target)
    return [operand for k in _OPERANDS.get(target, ()) for operand in arguments[k]]


def _value(operand: Any) -> Any:
    return operand.meta.get("example_value") if isinstance(operand, torch.fx.Node) else operand


def _has_moved(value: Any) -> bool:
    """Whether a tensor that a region is given or gives was written to; to have gradients it is, once.

    Not of inference tensors, which count no writes.
    """
    return isinstance(value, torch.Tensor) and version_of(value) > value.requires_grad


def is_idle(node: torch.fx.Node) -> bool:
    """Whether a graph of such nodes alone does nothing; one that only switches modes ends as it began."""
    return node.op in _PASSIVE or node.target in _IDLE


_IDLE = SWITCHES | LEVEL_CALLS.keys() | LEVEL_STATES.keys()
_PASSIVE = ("placeholder", "get_attr", "output")
