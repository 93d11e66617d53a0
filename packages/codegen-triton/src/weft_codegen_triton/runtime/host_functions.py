"""The functions of a host program, which :mod:`weft_codegen_triton.host.host_printer` tells of."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from weft_codegen_triton.runtime.cuda_graph import Compute

Prepare = Callable[
    [list[Any], Sequence[torch.Tensor]], tuple[tuple[torch.Tensor, ...], tuple[torch.Tensor, ...]]
]
Finish = Callable[[list[Any], Sequence[torch.Tensor], int, Sequence[torch.Tensor]], tuple[Any, ...]]


class HostFunctions(NamedTuple):
    """What a host program's module defines; not all have a head to ``prepare``."""

    prepare: Prepare | None
    compute: Compute
    finish: Finish
