"""Ranks and sizes that eager's kernels refuse and the operators' fakes let pass, of tensors of any size.

A kernel of ours that took them would read or write beside a tensor's memory: ``index_add`` of a source with
more columns, ``x.lt_(y)`` where ``y`` is larger (whose fake gives ``x`` another size).  What is asked of
symbolic sizes here is guarded, and what depends on data is asserted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

from ._torch import OpOverload, is_data_dependent, known_at_most, schema_arguments
from .tensor_ssa.functional_counterparts import functional_counterpart, written_arguments
from .unsupported import Unsupported

aten = torch.ops.aten
Given = Mapping[str, Any]


def check_shapes(
    operator: OpOverload, arguments: Sequence[Any], keywords: Mapping[str, Any]
) -> None:
    """Raise :class:`Unsupported` where eager raises an error for the sizes of fake ``arguments``.

    The graph then runs as it was captured, so that the error is eager's own.
    """
    namespace, _, name = operator._schema.name.partition("::")
    if namespace != "aten":  # prims have operators of the same names and other arguments
        return
    fits = _RULES.get(name.removesuffix("_"))
    if fits is None and not _computes_in_place(operator):
        return
    names = (argument.name for argument in schema_arguments(operator))
    given = dict(zip(names, arguments, strict=False)) | dict(keywords)
    if not (fits or _keeps_its_size)(given):
        raise Unsupported(
            "operands of sizes that the operator refuses",
            str(operator),
            "give it tensors of the sizes that eager takes",
        )


def _computes_in_place(operator: OpOverload) -> bool:
    """Whether an operator writes to its first operand what it computes from it by element."""
    if written_arguments(operator) != ("self",):
        return False
    return torch.Tag.pointwise in (functional_counterpart(operator) or operator).tags


def _holds(condition: Any) -> bool:
    """A condition on sizes, guarded; one on data is taken to hold, and asserted when the graph runs."""
    if isinstance(condition, torch.SymBool) and is_data_dependent(condition):
        torch._check(condition)
        return True
    return bool(condition)


def _same(left: Sequence[Any], right: Sequence[Any]) -> bool:
    return len(left) == len(right) and all(_holds(a == b) for a, b in zip(left, right, strict=True))


def _spreads_to(size: Sequence[Any], target: Sequence[Any]) -> bool:
    """Whether a tensor of ``size`` broadcasts to one of ``target``."""
    if len(size) > len(target):
        return False
    pairs = zip(reversed(size), reversed(target), strict=False)
    return all(_spreads_along(own, wanted) for own, wanted in pairs)


def _spreads_along(own: Any, wanted: Any) -> bool:
    """Whether elements are as many as wanted, or one for all."""
    return own is wanted or _is_one(own) or _holds(own == wanted)


def _is_one(size: Any) -> bool:
    return not is_data_dependent(size) and bool(size == 1)


def _keeps_its_size(given: Given) -> bool:
    target = given["self"]
    others = (value for value in given.values() if isinstance(value, torch.Tensor))
    return all(_spreads_to(other.shape, target.shape) for other in others if other is not target)


def _adds_rows(given: Given) -> bool:
    """``index_add(self, dim, index, source)``: as many indices as rows, as long as those of self."""
    target, index, source = given["self"], given["index"], given["source"]
    dim, rank = given["dim"], target.dim()
    if source.dim() != rank or index.dim() > 1 or not -max(rank, 1) <= dim < max(rank, 1):
        return False
    if not rank:
        return _holds(index.numel() == 1)
    rows = (*target.shape[: dim % rank], index.numel(), *target.shape[dim % rank + 1 :])
    return _same(source.shape, rows)


def _selects(given: Given) -> bool:
    tensor, index = given["self"], given["index"]
    return index.dim() <= 1 and (tensor.dim() > 0 or _holds(index.numel() == 1))


def _puts(given: Given) -> bool:
    return _holds(given["source"].numel() == given["index"].numel())


def _masks_fit(given: Given) -> bool:
    """Whether each mask among indices has the sizes of the dims that it chooses from."""
    shape, place = given["self"].shape, 0
    for index in given["indices"]:
        mask = index if index is not None and _is_mask(index) else None
        dims = 1 if mask is None else mask.dim()
        if mask is not None and not _same(mask.shape, shape[place : place + dims]):
            return False
        place += dims
    return place <= len(shape)


def _is_mask(index: torch.Tensor) -> bool:
    return index.dtype in (torch.bool, torch.uint8)


def _spreads_around_mask(given: Given, mask: torch.Tensor) -> bool:
    """Whether values broadcast to what a mask chooses, of which data says how many there are."""
    place = next(k for k, index in enumerate(given["indices"]) if index is mask)
    shape = given["self"].shape
    chosen = [*shape[:place], None, *shape[place + mask.dim() :]]
    pairs = zip(reversed(given["values"].shape), reversed(chosen), strict=False)
    return all(wanted is None or _spreads_along(own, wanted) for own, wanted in pairs)


def _puts_at_indices(given: Given) -> bool:
    target, values = given["self"], given["values"]
    indices = [index for index in given["indices"] if index is not None]
    if any(map(_is_mask, indices)) or not indices:
        if not _masks_fit(given):
            return False
        return len(indices) != 1 or _spreads_around_mask(given, indices[0])
    taken = aten.index.Tensor(target, given["indices"])
    return _spreads_to(values.shape, taken.shape)


def _scatters(view: Callable[..., torch.Tensor]) -> Callable[[Given], bool]:
    """Of an operator that writes to a view of its first operand: whether ``src`` has the view's size."""

    def fits(given: Given) -> bool:
        operands = {name: value for name, value in given.items() if name != "src"}
        try:
            return _same(given["src"].shape, view(**operands).shape)
        except (RuntimeError, IndexError):
            return False

    return fits


def _within_storage(given: Given) -> bool:
    """``as_strided``: whether all elements lie in the memory of the tensor."""
    tensor, size, stride = given["self"], given["size"], given["stride"]
    if any(isinstance(n, int) and n < 0 for n in (*size, *stride)) or len(size) != len(stride):
        return False
    offset = given.get("storage_offset")
    offset = tensor.storage_offset() if offset is None else offset
    if any(_is_empty(n) for n in size):
        return True
    last = offset + sum((n - 1) * s for n, s in zip(size, stride, strict=True)) + 1
    needed, there = last * tensor.element_size(), tensor.untyped_storage().nbytes()
    if known_at_most(needed, there):
        return True
    if any(map(is_data_dependent, size)):
        for n in filter(is_data_dependent, size):
            needed *= torch.sym_min(n, 1)  # no elements lie anywhere
    return _holds(needed <= there)


def _is_empty(size: Any) -> bool:
    return not is_data_dependent(size) and bool(size == 0)


def _scatters_within_storage(given: Given) -> bool:
    return _within_storage(given) and _same(given["src"].shape, given["size"])


def _alike(*names: str) -> Callable[[Given], bool]:
    """Whether operands have one size."""

    def fits(given: Given) -> bool:
        first, *others = (given[name] for name in names)
        return all(_same(first.shape, other.shape) for other in others)

    return fits


def _by_channel(*names: str) -> Callable[[Given], bool]:
    """Whether operands, where they are given, are vectors of a number for each channel."""

    def fits(given: Given) -> bool:
        image = given["input"]
        if image.dim() < 2:
            return False
        vectors = (given[name] for name in names if given.get(name) is not None)
        return all(_same(vector.shape, image.shape[1:2]) for vector in vectors)

    return fits


def _has_area(first: int) -> Callable[[Given], bool]:
    """Whether the image, of which dims from ``first`` on are resampled, has elements there, and gets some."""

    def fits(given: Given) -> bool:
        image = given["self"] if "self" in given else given["input"]
        wanted = given.get("output_size") or ()
        return not any(map(_is_empty, (*image.shape[first:], *wanted)))

    return fits


def _names_dims_once(given: Given) -> bool:
    """Whether no dim is named twice, which fakes whose sizes are symbols let pass."""
    dims, rank = given.get("dim"), max(given["self"].dim(), 1)
    return not isinstance(dims, list | tuple) or len({d % rank for d in dims}) == len(dims)


def _rules() -> Iterator[tuple[str, Callable[[Given], bool]]]:
    yield from (("index_add", _adds_rows), ("index_reduce", _adds_rows))
    yield from (("index_select", _selects), ("put", _puts), ("index_put", _puts_at_indices))
    yield from (("as_strided", _within_storage), ("as_strided_copy", _within_storage))
    yield from (("as_strided_scatter", _scatters_within_storage), ("squeeze", _names_dims_once))
    for name in ("select", "slice", "diagonal"):
        yield f"{name}_scatter", _scatters(getattr(aten, name))
    for name in ("_softmax_backward_data", "_log_softmax_backward_data"):
        yield name, _alike("grad_output", "output")
    for name in ("native_batch_norm", "_native_batch_norm_legit", "_batch_norm_with_update"):
        yield name, _by_channel("weight", "bias", "running_mean", "running_var")
    for name in ("nearest1d", "nearest2d", "nearest3d", "linear1d", "bilinear2d", "bicubic2d"):
        yield f"upsample_{name}", _has_area(2)
    for name in ("upsample_trilinear3d", "grid_sampler_2d", "grid_sampler_3d"):
        yield name, _has_area(2)


_RULES: dict[str, Callable[[Given], bool]] = dict(_rules())
"""By the operator's name without a final "_": whether eager takes operands of these sizes."""
