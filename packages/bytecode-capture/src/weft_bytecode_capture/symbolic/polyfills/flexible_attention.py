"""``flex_attention`` in plain Python.

Scores are computed in float32 (float64 for float64), changed and masked by the program's own functions, which
see positions as tensors that broadcast.  Arguments have been checked.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..._torch import safe_softmax


def flex_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    score_mod: Callable[..., Any] | None,
    mask_mod: Callable[..., Any] | None,
    scale: float | None,
) -> Tensor:
    """``query [b, h, l, e]``, ``key [b, g, s, e]``, ``value [b, g, s, d]``: ``[b, h, l, d]``.

    Rows without a visible key give zeros.
    """
    group = query.size(1) // key.size(1)
    if group > 1:
        key = key[:, :, None].expand(-1, -1, group, -1, -1).flatten(1, 2)
        value = value[:, :, None].expand(-1, -1, group, -1, -1).flatten(1, 2)
    kind = torch.float64 if query.dtype == torch.float64 else torch.float32
    if scale is None:
        scale = 1.0 / math.sqrt(query.size(-1))
    scores = query.to(kind) @ key.to(kind).transpose(-2, -1) * scale
    device, size = query.device, scores.shape
    batch = torch.arange(size[0], device=device).view(-1, 1, 1, 1)
    head = torch.arange(size[1], device=device).view(-1, 1, 1)
    row = torch.arange(size[2], device=device).view(-1, 1)
    column = torch.arange(size[3], device=device)
    if score_mod is not None:
        scores = score_mod(scores, batch, head, row, column)
    if mask_mod is not None:
        scores = torch.where(mask_mod(batch, head, row, column), scores, -math.inf)
    weights = safe_softmax(scores.to(kind).expand(size), -1)
    return weights.to(query.dtype) @ value
