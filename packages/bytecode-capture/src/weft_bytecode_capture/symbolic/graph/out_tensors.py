"""The tensors that a call is to write its results to, as fakes tell of them."""

from __future__ import annotations

from typing import Any

import torch

from ...unsupported import Unsupported
from .storages import UNCOUNTED, version_of


class OutTensors:
    """What is given to a call as ``out=``; made before the call."""

    def __init__(self, keywords: dict[str, Any]) -> None:
        out = keywords.get("out")
        self._tensors = [out] if isinstance(out, torch.Tensor) else list(out or ())
        self._before = [(tensor.shape, version_of(tensor)) for tensor in self._tensors]

    def require_written(self, target: Any) -> None:
        """The call of ``target`` has left their sizes, and has written to each as far as its fake tells.

        :raises Unsupported: it has not, as in fakes of ``linalg.matrix_rank``: the write would be lost.
        """
        for tensor, (shape, version) in zip(self._tensors, self._before, strict=True):
            if tensor.shape != shape:
                raise Unsupported("storage of a tensor", f"out= that {target} resizes")
            if version_of(tensor) == version != UNCOUNTED:
                raise Unsupported(
                    "storage of a tensor", f"out= that fakes of {target} do not write"
                )
