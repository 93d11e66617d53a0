"""From an operator that writes to the one that computes the same and does not."""

from __future__ import annotations

import functools

import torch

from .._torch import OpOverload, OpOverloadPacket, schema_arguments

aten = torch.ops.aten

# Operators that write to an argument although their schemas don't say so: the arguments' names.
HIDDEN_WRITES: dict[OpOverload, tuple[str, ...]] = {
    aten.native_batch_norm.default: ("running_mean", "running_var"),
    aten.cudnn_batch_norm.default: ("running_mean", "running_var"),
    aten.miopen_batch_norm.default: ("running_mean", "running_var"),
    aten.rrelu_with_noise.default: ("noise",),
}

# Where the naming rule below does not lead to the counterpart.
_COUNTERPARTS: dict[OpOverload, OpOverload] = {
    aten.native_batch_norm.default: aten._native_batch_norm_legit_functional.default,
    aten.rrelu_with_noise.default: aten.rrelu_with_noise_functional.default,
}


@functools.cache
def written_arguments(operator: OpOverload) -> tuple[str, ...]:
    """Names of the arguments whose data the operator may write, in the schema's order."""
    hidden = HIDDEN_WRITES.get(operator)
    if hidden is not None:
        return hidden
    return tuple(
        str(argument.name)
        for argument in schema_arguments(operator)
        if argument.alias_info is not None and argument.alias_info.is_write
    )


@functools.cache
def functional_counterpart(operator: OpOverload) -> OpOverload | None:
    """The operator with the same arguments (without those of ``out=``) that writes nothing.

    Its results are those of ``operator`` that are not written arguments, then the new values of the
    written arguments in order.  None if there is none.
    """
    if operator in _COUNTERPARTS:
        return _COUNTERPARTS[operator]
    wanted = [(a.name, str(a.type)) for a in schema_arguments(operator) if not a.is_out]
    for left_out in (frozenset[str](), FACTORY_OPTIONS):
        for packet in _candidate_packets(operator):
            for name in packet.overloads():
                candidate: OpOverload = getattr(packet, name)
                arguments = schema_arguments(candidate)
                writes = bool(written_arguments(candidate))
                given = [(a.name, str(a.type)) for a in arguments if a.name not in left_out]
                if not writes and given == wanted:
                    return candidate
    return None


FACTORY_OPTIONS = frozenset({"dtype", "layout", "device", "pin_memory"})
"""Arguments of what makes tensors (``zeros``), in whose place ``out=`` says what is made."""


def _candidate_packets(operator: OpOverload) -> list[OpOverloadPacket]:
    namespace, _, name = operator._schema.name.partition("::")
    names = [name, f"{name}_functional"]
    if name.startswith("__i") and name.endswith("__"):
        names.append("__" + name[3:])  # __ilshift__ -> __lshift__
    elif name.endswith("_"):
        names += [name[:-1], f"{name[:-1]}_functional"]
    library = getattr(torch.ops, namespace)
    return [getattr(library, candidate) for candidate in names if hasattr(library, candidate)]
