"""``torch.cov`` and ``torch.corrcoef`` without weights, as eager composes them: its checks ask data."""

from __future__ import annotations

import torch
from torch import Tensor


def cov(x: Tensor, correction: int) -> Tensor:
    """The covariances of the rows of ``x [rows, observations]``: ``[rows, rows]``, or one number."""
    rows = x.view(1, -1) if x.ndim < 2 else x
    count = rows.size(1)
    rows = rows - (rows.sum(1) / count).unsqueeze(1)
    return (torch.mm(rows, rows.t().conj()) / (count - correction)).squeeze()


def corrcoef(x: Tensor) -> Tensor:
    """The correlations of the rows of ``x [rows, observations]``, within one of zero."""
    found = cov(x, 1)
    if found.ndim == 0:
        return found / found
    variances = found.diag()
    deviations = torch.sqrt(variances.real if variances.is_complex() else variances)
    found = found / deviations.view(-1, 1)
    found = found / deviations.view(1, -1)
    if found.is_complex():
        return torch.complex(found.real.clip(-1, 1), found.imag.clip(-1, 1))
    return found.clip(-1, 1)
