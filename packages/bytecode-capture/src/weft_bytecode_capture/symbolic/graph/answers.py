"""Questions about tensors that capture answers, and the guards that hold the answers.

A question that no guard holds is not answered: a later call would be given the first call's answer.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from weft_guards import AttributeSource, IsNotObject, IsObject, Source

from ..._torch import storage_identity
from ..._torch.symbols import has_symbolic_layout
from ...sources import StorageOffsetIs
from ...unsupported import Unsupported
from ..protocol import Evaluator
from ..regions.decisions import refuse_by
from .storages import leaves, node_values, version_of

Given = tuple[Source, torch.Tensor, torch.Tensor]
"""A tensor from outside: where it was found, itself, and its fake."""


def _of_tensors(names: str) -> frozenset[str]:
    """Those of the names that this torch's tensors have: 2.13 has done away with ``names``."""
    return frozenset(name for name in names.split() if hasattr(torch.Tensor, name))


HELD_METHODS = _of_tensors(
    "size dim numel nelement stride is_contiguous element_size is_floating_point is_complex ndimension "
    "is_signed get_device storage_offset is_inference __len__ is_conj is_neg dim_order "
    "sparse_dim dense_dim has_names"
)
"""Methods whose answers ``TensorMatches`` holds; ``storage_offset``'s :func:`guard_offset` does."""

HELD_ATTRIBUTES = _of_tensors(
    "dtype device layout ndim requires_grad is_cuda is_cpu is_leaf is_sparse is_quantized is_meta "
    "itemsize names is_mps is_xpu is_sparse_csr is_mkldnn is_nested"
)
"""Attributes whose values ``TensorMatches`` holds; ``is_leaf``'s :func:`guard_leaf` does."""

_HELD_FUNCTIONS = (HELD_METHODS - {"storage_offset"}) | set(
    "result_type promote_types can_cast broadcast_shapes is_same_size type _parse_to _nnpack_available "
    "_has_compatible_shallow_copy_type _use_cudnn_rnn_flatten_weight item".split()
)
_ABSOLUTE = {"as_strided": 3, "as_strided_": 3, "as_strided_copy": 3, "as_strided_scatter": 4}
"""Operators that are given a place in the storage, whatever their operand's own: the argument's position."""


def require_held(target: Any, value: Any) -> None:
    """Refuse an operator's result that is no tensor, where no guard holds it.

    :raises Unsupported: it is such a result.
    """
    name = target if isinstance(target, str) else getattr(target, "__name__", str(target))
    if name.partition(".")[0] not in _HELD_FUNCTIONS and any(map(_is_answer, leaves(value))):
        raise Unsupported("question about a tensor", f"{name}: {value!r}")


def _is_answer(value: Any) -> bool:
    symbolic = (torch.SymInt, torch.SymFloat, torch.SymBool)
    return value is not None and not isinstance(value, (torch.Tensor, *symbolic))


def gradient_of(evaluator: Evaluator, source: Source, tensor: torch.Tensor) -> torch.Tensor | None:
    """What ``tensor.grad`` is.

    :raises Unsupported: reading it gives a warning, each time and for the line that does.
    """
    guard_leaf(evaluator, source, tensor)
    if tensor.requires_grad and not (tensor.is_leaf or tensor.retains_grad):
        raise Unsupported("attribute of a tensor", "grad of a tensor that is not a leaf")
    return tensor.grad


def guard_leaf(evaluator: Evaluator, source: Source, tensor: torch.Tensor) -> None:
    """Guard whether a tensor from outside that has gradients is a leaf of autograd's graph.

    One that is a view of a tensor without gradients is guarded to be one: autograd lets more be written to
    views of it.
    """
    if tensor.requires_grad:
        evaluator.guard(AttributeSource(source, "is_leaf"), IsObject(tensor.is_leaf))
        if tensor.is_leaf and tensor._is_view():
            evaluator.guard(AttributeSource(source, "_base"), IsNotObject(None))


def guard_offset(evaluator: Evaluator, fake: torch.Tensor) -> None:
    """Guard where in the storage the tensors from outside begin that ``fake`` may be a view of.

    :raises Unsupported: the fake does not tell where that is.
    :raises RegionRefused: a region gave the fake, which has storage of its own in the graph alone.
    """
    builder, state = evaluator.graph, evaluator.state
    if builder.is_in_region:
        raise Unsupported("storage of a tensor", "an offset inside a region")
    place = state.aliases.giver(storage_identity(fake))
    if place is not None:
        reason = "the offset of a result in its storage is asked for"
        raise refuse_by(state.cache, place, reason)
    for source, tensor, base in evaluator.graph.given:
        if storage_identity(base) != storage_identity(fake):
            continue
        offset = int(tensor.storage_offset())
        if base.storage_offset() != offset:
            raise Unsupported("storage of a tensor", f"offset of {source.name()}")
        evaluator.guard(source, StorageOffsetIs(offset))


def _has_gaps(tensor: torch.Tensor) -> bool:
    """Whether memory between the elements of a tensor belongs to none of them."""
    if has_symbolic_layout(tensor):
        return False  # made by the graph: what a gap holds is nobody's
    strided = [(n, s) for n, s in zip(tensor.shape, tensor.stride(), strict=True) if s]
    reach = 1 + sum((n - 1) * s for n, s in strided)
    return tensor.numel() > 0 and math.prod(n for n, _ in strided) < reach


def guard_absolute_place(
    evaluator: Evaluator, target: Any, fakes: tuple[Any, ...], keywords: dict[str, Any]
) -> None:
    """Guard an operand's storage offset where the operator is given a place in the storage itself.

    :raises Unsupported: the operand begins elsewhere than its storage, or was written to and has gaps in it,
        of which later stages do not know what is there.
    :raises RegionRefused: the operator depends on strides that only some iterations of a loop give.
    """
    name = target if isinstance(target, str) else getattr(target, "__name__", "")
    name = name.partition(".")[0]
    evaluator.state.aliases.strides.before(evaluator.state.cache, name)
    position = _ABSOLUTE.get(name)
    if position is None or not fakes or not isinstance(fakes[0], torch.Tensor):
        return
    kind, owners = "storage of a tensor", _owners(evaluator, fakes[0])
    gaps = any(map(_has_gaps, (*owners, fakes[0])))
    if gaps and (evaluator.graph.is_in_region or _is_written(evaluator, fakes[0])):
        raise Unsupported(kind, f"{name} of what has gaps in its memory and was written to")
    given = fakes[position] if len(fakes) > position else keywords.get("storage_offset")
    if given is None:
        return
    guard_offset(evaluator, fakes[0])
    if any(owner.storage_offset() != 0 for owner in owners):
        raise Unsupported(kind, f"{name} of what begins behind its memory's beginning")


def _is_written(evaluator: Evaluator, fake: torch.Tensor) -> bool:
    storage = storage_identity(fake)
    return any(
        version_of(known) != version
        for node, version in evaluator.graph.first_versions.items()
        if storage_identity(known := node.meta["example_value"]) == storage
    )


def _owners(evaluator: Evaluator, fake: torch.Tensor) -> list[torch.Tensor]:
    """The tensors from outside with the memory of ``fake``, or else the graph's first."""
    storage = storage_identity(fake)
    given = [
        tensor for _, tensor, base in evaluator.graph.given if storage_identity(base) == storage
    ]
    made = leaves(node_values(evaluator.graph.outermost.nodes))
    tensors = (value for value in made if isinstance(value, torch.Tensor))
    return given or [v for v in tensors if storage_identity(v) == storage][:1]
