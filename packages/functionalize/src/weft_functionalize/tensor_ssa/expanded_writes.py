"""Writes through a part of an expanded tensor: ``x.expand(4, -1)[0].add_(1)``.

The copies that ``expand`` shows are one place in memory, of which the write changes what one of them shows.
So that one becomes the base, wherever it lies: a mask goes up the same views as the written value, and for
each element of the base tells which copy was written, if any was.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.fx

from .._torch import known_equal
from ..unsupported import Unsupported
from .alias_graph import ViewEdge
from .emitter import Emitter
from .layout import overlaps_itself
from .view_operators import emit_assign, emit_reshape

aten = torch.ops.aten

_OF_OTHER_DTYPES = (aten.view.dtype, aten.view_as_complex.default, aten.view_as_real.default)


def shows_copies(edge: ViewEdge) -> bool:
    """Whether the edge's view may show elements of its base several times."""
    if edge.access.target is not aten.expand.default:
        return False
    return not known_equal(edge.view.meta["val"].numel(), edge.base.meta["val"].numel())


def emit_written_copy(
    emit: Emitter, value: torch.fx.Node, edge: ViewEdge, below: Sequence[ViewEdge]
) -> torch.fx.Node:
    """The new version of what is expanded at ``edge``; ``below`` are the edges from it to what was written.

    ``value`` is the expanded tensor with the written elements, beside copies that show what was there before.

    :raises Unsupported: several elements of the written tensor are one place in memory, or may be.
    """
    if not below or overlaps_itself(below[0].view.meta["val"]):
        raise Unsupported(
            "write through an expanded tensor",
            "several elements of the written tensor are one place in memory",
            "clone() the tensor before writing to it",
        )
    mask = _mask(emit, below)
    base = edge.base.meta["val"]
    for dim in _expanded(edge):
        written = emit.call(aten._to_copy.default, mask, dtype=torch.int64)
        which = emit.call(aten.argmax.default, written, dim, True)
        value = emit.call(aten.gather.default, value, dim, which)
        mask = emit.call(aten.any.dim, mask, dim, True)
    value, mask = (emit_reshape(emit, node, list(base.shape)) for node in (value, mask))
    return emit.call(aten.where.self, mask, value, edge.base)


def _mask(emit: Emitter, below: Sequence[ViewEdge]) -> torch.fx.Node:
    """Which elements of the expanded tensor were written."""
    mask = _full(emit, below[0].view, True)
    for edge in below:
        if edge.access.target in _OF_OTHER_DTYPES:
            raise Unsupported("write through an expanded tensor", str(edge.access.target))
        if shows_copies(edge):
            for dim in _expanded(edge):
                mask = emit.call(aten.any.dim, mask, dim, True)
            mask = emit_reshape(emit, mask, list(edge.base.meta["val"].shape))
        else:
            mask = emit_assign(emit, _full(emit, edge.base, False), mask, edge)
    return mask


def _full(emit: Emitter, like: torch.fx.Node, value: bool) -> torch.fx.Node:
    known = like.meta["val"]
    return emit.call(
        aten.full.default, list(known.shape), value, dtype=torch.bool, device=known.device
    )


def _expanded(edge: ViewEdge) -> list[int]:
    """The dimensions in which the edge's view shows its base more than once."""
    view, base = edge.view.meta["val"], edge.base.meta["val"]
    lead = view.dim() - base.dim()
    inner = [
        d for d in range(lead, view.dim()) if not known_equal(view.size(d), base.size(d - lead))
    ]
    return [*range(lead), *inner]
