"""The tensors of a saved program: each storage once in the file, and mapped from it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from weft_functionalize import storage_identity

from .plain_data import NotPlain, decode, encode
from .saved_file import SavedProgramError


class SavedWeights:
    """Describes the tensors that programs hold; ``blocks`` are those of the file, its first ones given."""

    def __init__(self, function: Any) -> None:
        self.blocks: list[bytes | memoryview] = []
        self.described: list[dict[str, Any]] = []
        self._codes: dict[str, int] = {}
        self._numbers: dict[int, int] = {}
        self._storages: dict[Any, int] = {}
        self._kept: list[torch.Tensor] = []
        self._names = _names_of(function)

    def name(self, tensor: torch.Tensor, name: str) -> None:
        """Let a tensor that has no name have this one, if no other has it."""
        if name not in self._names.values():
            self._names.setdefault(id(tensor), name)

    def add_code(self, content: bytes) -> tuple[int, str]:
        """The number of the block that is this piece of code, and its checksum; once in the file."""
        digest = hashlib.sha256(content).hexdigest()
        if digest not in self._codes:
            self._codes[digest] = len(self.blocks)
            self.blocks.append(content)
        return self._codes[digest], digest

    def number(self, tensor: torch.Tensor) -> int:
        """Which of the described tensors it is; it is described if it was not yet."""
        if id(tensor) in self._numbers:
            return self._numbers[id(tensor)]
        if tensor.device.type == "meta" or tensor.layout is not torch.strided:
            raise NotPlain(f"a tensor on {tensor.device} of layout {tensor.layout}")
        storage = storage_identity(tensor)
        if storage not in self._storages:
            self._storages[storage] = len(self.blocks)
            self.blocks.append(_bytes_of(tensor))
        self.described.append(
            {
                "name": self._names.get(id(tensor)),
                "block": self._storages[storage],
                "layout": encode(_layout(tensor), self.number),
                "device": str(tensor.device),
                "requires_grad": tensor.requires_grad,
            }
        )
        self._kept.append(tensor)
        self._numbers[id(tensor)] = len(self.described) - 1
        return self._numbers[id(tensor)]


def _names_of(function: Any) -> dict[int, str]:
    """The names of a module's parameters and buffers, by identity; of a method's module too."""
    module = getattr(function, "__self__", function)
    if not isinstance(module, torch.nn.Module):
        return {}
    named = (*module.named_parameters(), *module.named_buffers())
    return {id(tensor): name for name, tensor in named}


def _bytes_of(tensor: torch.Tensor) -> memoryview:
    storage = tensor.detach().untyped_storage()
    plain: Any = torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(storage)
    return memoryview(plain.cpu().numpy())


def _layout(tensor: torch.Tensor) -> tuple[Any, ...]:
    return tuple(tensor.shape), tensor.stride(), tensor.storage_offset(), tensor.dtype


def load_weights(
    described: Sequence[Mapping[str, Any]],
    blocks: Sequence[memoryview],
    given: Mapping[str, torch.Tensor],
    training: bool,
) -> tuple[list[torch.Tensor], dict[str, torch.Tensor]]:
    """The tensors by number, and those that have a name; ``given`` ones take the place of the file's.

    For ``training`` those that required gradients do so again; a given one that does is taken itself.
    """
    names = {weight["name"] for weight in described} - {None}
    unknown = given.keys() - names
    if unknown:
        raise SavedProgramError(f"the program has no weights {sorted(unknown)}")
    tensors = []
    storages = _Storages(blocks)
    for weight in described:
        device = torch.device(weight["device"])
        size, stride, offset, dtype = decode(weight["layout"], _no_tensor)
        tensor = given.get(weight["name"])
        if tensor is None:
            made = torch.empty_strided((0,), (1,), dtype=dtype, device=device)
            tensor = made.set_(storages.get(weight["block"], device), offset, size, stride)
        elif (tuple(tensor.shape), tensor.stride(), tensor.dtype) != (size, stride, dtype):
            raise SavedProgramError(
                f"the program was compiled for {weight['name']} of shape {size}, strides {stride} and "
                f"{dtype}, not {tuple(tensor.shape)}, {tensor.stride()} and {tensor.dtype}"
            )
        elif tensor.device != device:
            raise SavedProgramError(f"{weight['name']} is on {tensor.device}, not on {device}")
        requires_grad = training and bool(weight["requires_grad"])
        if not requires_grad or not tensor.requires_grad:
            tensor = tensor.detach().requires_grad_(requires_grad)
        tensors.append(tensor)
    named = {w["name"]: t for w, t in zip(described, tensors, strict=True) if w["name"] is not None}
    return tensors, named


class _Storages:
    """The memory of weights, once for each block and device; on the CPU it is the file's own pages."""

    def __init__(self, blocks: Sequence[memoryview]) -> None:
        self._blocks = blocks
        self._made: dict[tuple[int, torch.device], torch.UntypedStorage] = {}

    def get(self, block: int, device: torch.device) -> torch.UntypedStorage:
        """The storage on ``device`` with a block's content."""
        if (block, device) not in self._made:
            content = self._blocks[block]
            flat = torch.empty(0, dtype=torch.uint8)
            if len(content):
                flat = torch.frombuffer(content, dtype=torch.uint8)
            self._made[block, device] = flat.to(device).untyped_storage()
        return self._made[block, device]


def _no_tensor(number: Any) -> torch.Tensor:
    raise NotPlain(f"tensor {number} in a layout")
