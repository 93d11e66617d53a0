"""The private torch API that this package uses, in one place.  Checked on torch 2.13."""

from __future__ import annotations

from typing import Any

import torch.distributed
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn.modules.module import _has_any_global_hook as has_global_hooks

__all__ = [
    "BROADCASTS",
    "NATIVE_MODULES",
    "FakeTensor",
    "OpOverload",
    "data_parallel_bucket_bytes",
    "has_global_hooks",
    "storage_identity",
]

NATIVE_MODULES = ("torch", "torch._C")
"""Modules in which functions and methods are found that name none."""


def _operators_of_broadcast() -> tuple[Any, ...]:
    if not torch.distributed.is_available():
        return ()
    packet: Any = torch.ops._c10d_functional.broadcast
    return packet, packet.default


BROADCASTS = _operators_of_broadcast()


def data_parallel_bucket_bytes() -> int | None:
    """Bytes of gradients that the data parallel module around this call sends at once, None without one."""
    if not torch.distributed.is_available():
        return None
    from torch.nn.parallel import DistributedDataParallel

    kind: Any = DistributedDataParallel
    module = kind._get_active_ddp_module()
    return None if module is None else int(module.bucket_bytes_cap)


def storage_identity(tensor: torch.Tensor) -> int:
    """What is equal for the tensors of one storage, fake ones too, while it lives."""
    return int(tensor.untyped_storage()._cdata)
