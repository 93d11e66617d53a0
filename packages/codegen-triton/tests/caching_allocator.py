"""What torch's caching allocator for GPUs reserves for a host program, without a GPU.

The rules are those of c10/cuda/CUDACachingAllocator.cpp: sizes are rounded to 512 bytes; blocks of at most
1 MiB come from segments of 2 MiB, those below 10 MiB from segments of 20 MiB, others from segments of their
size in steps of 2 MiB; a block is the smallest free one that does, cut in two where enough is left over; free
neighbours are joined.  Tensors are of the device ``meta``, so that sizes may be a real model's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from weft_codegen_triton import TritonCodegen, load_launches
from weft_codegen_triton.kernel.kernel_printer import Function
from weft_codegen_triton.runtime.interpreter import InterpretedDevice
from weft_codegen_triton.runtime.launch_list import Launches
from weft_loop_ir import Schedule

MIB = 1 << 20
GRAIN = 512


@dataclass
class Block:
    """A part of a segment."""

    size: int
    is_free: bool = True


@dataclass
class Segment:
    """Memory that is reserved at once; ``blocks`` are its parts in order."""

    size: int
    is_small: bool
    blocks: list[Block] = field(default_factory=list)


class CachingAllocator:
    """One pool, from which nothing is given back."""

    def __init__(self) -> None:
        self.segments: list[Segment] = []

    @property
    def reserved(self) -> int:
        """Bytes of all segments."""
        return sum(segment.size for segment in self.segments)

    def allocate(self, size: int) -> Callable[[], None]:
        """Take a block of ``size`` bytes; gives what frees it."""
        size = max(GRAIN, -(-size // GRAIN) * GRAIN)
        is_small = size <= MIB
        found = [
            (block.size, number, segment, block)
            for number, segment in enumerate(self.segments)
            for block in segment.blocks
            if segment.is_small == is_small and block.is_free and block.size >= size
        ]
        if found:
            _, _, segment, block = min(found, key=lambda entry: entry[:2])
        else:
            segment = _segment(size, is_small)
            (block,) = segment.blocks
            self.segments.append(segment)
        rest = block.size - size
        if rest >= GRAIN if is_small else rest > MIB:
            segment.blocks.insert(segment.blocks.index(block) + 1, Block(rest))
            block.size = size
        block.is_free = False
        return lambda: _free(segment, block)


def _segment(size: int, is_small: bool) -> Segment:
    if is_small:
        size = 2 * MIB
    elif size < 10 * MIB:
        size = 20 * MIB
    else:
        size = -(-size // (2 * MIB)) * 2 * MIB
    return Segment(size, is_small, [Block(size)])


def _free(segment: Segment, block: Block) -> None:
    block.is_free = True
    joined: list[Block] = []
    for part in segment.blocks:
        if joined and joined[-1].is_free and part.is_free:
            joined[-1] = Block(joined[-1].size + part.size)
        else:
            joined.append(part)
    segment.blocks = joined


class _Tracked(TorchDispatchMode):
    """Puts new tensors on the device ``meta`` and has ``allocator`` give them memory while they live."""

    def __init__(self, allocator: CachingAllocator) -> None:
        super().__init__()
        self.allocator = allocator
        self._alive: dict[int, tuple[StorageWeakRef, Callable[[], None]]] = {}

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        given = dict(kwargs or {})
        if "device" in given:
            given["device"] = torch.device("meta")
        for key in [k for k, (storage, _) in self._alive.items() if storage.expired()]:
            self._alive.pop(key)[1]()
        result = function(*args, **given)
        known = {_key(t) for t in tree_leaves((args, given)) if isinstance(t, torch.Tensor)}
        for tensor in tree_leaves(result):
            key = _key(tensor)
            if key in known or key in self._alive or not tensor.untyped_storage().nbytes():
                continue
            free = self.allocator.allocate(tensor.untyped_storage().nbytes())
            self._alive[key] = StorageWeakRef(tensor.untyped_storage()), free
        return result


def _key(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage()._cdata


def recorded_pool(
    schedule: Schedule, generator: TritonCodegen, monkeypatch: pytest.MonkeyPatch
) -> CachingAllocator:
    """The pool of a recording of ``schedule``'s program, which is the first there."""

    def reserve(size: int, device: torch.device, multiplies: bool) -> None:
        torch.empty(size, dtype=torch.uint8, device=device)

    printed = generator.print(schedule)
    host = printed.host
    with monkeypatch.context() as patch:
        patch.setattr(load_launches, "reserve", reserve)
        compute = load_launches.host_functions(printed, _IdleDevice()).compute

    def like(name: Any) -> torch.Tensor:
        layout = schedule.buffers[name].layout
        size, stride = map(int, layout.size), map(int, layout.stride)
        return torch.empty_strided(tuple(size), tuple(stride), dtype=layout.dtype, device="meta")

    inputs, constants = map(like, host.inputs), map(like, host.constants)
    allocator = CachingAllocator()
    given = list(inputs), list(constants)
    with _Tracked(allocator):
        compute(*given, 0)
    return allocator


class _IdleDevice(InterpretedDevice):
    """Loads nothing, and launches nothing."""

    def __init__(self) -> None:
        pass

    def load(self, functions: Mapping[str, Function]) -> dict[str, Callable[..., None]]:
        return dict.fromkeys(functions, _launch_nothing)

    def launch_list(self, launches: Launches) -> Callable[..., None]:
        return _launch_nothing


def _launch_nothing(*values: int) -> None:
    """Stands for launches."""
