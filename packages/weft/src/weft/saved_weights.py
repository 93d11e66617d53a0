"""The tensors of a saved program: each storage once in the file, and mapped from it."""

from __future__ import annotations

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
        self._numbers: dict[int, int] = {}
        self._storages: dict[Any, int] = {}
        self._kept: list[torch.Tensor] = []
        self._names = _names_of(function)

    def add_block(self, content: bytes) -> int:
        """The number of a block that is no weight."""
        self.blocks.append(content)
        return len(self.blocks) - 1

    def number(self, tensor: torch.Tensor) -> int:
        """Which of the described tensors it is; it is described if it was not yet."""
        if id(tensor) in self._numbers:
            return self._numbers[id(tensor)]
        if tensor.device.type != "cpu" or tensor.layout is not torch.strided:
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
    plain: Any = torch.empty(0, dtype=torch.uint8).set_(storage)
    return memoryview(plain.numpy())


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
    for weight in described:
        size, stride, offset, dtype = decode(weight["layout"], _no_tensor)
        tensor = given.get(weight["name"])
        if tensor is None:
            tensor = _tensor_of(blocks[weight["block"]], size, stride, offset, dtype)
        elif (tuple(tensor.shape), tensor.stride(), tensor.dtype) != (size, stride, dtype):
            raise SavedProgramError(
                f"the program was compiled for {weight['name']} of shape {size}, strides {stride} and "
                f"{dtype}, not {tuple(tensor.shape)}, {tensor.stride()} and {tensor.dtype}"
            )
        elif tensor.device.type != "cpu":
            raise SavedProgramError(f"{weight['name']} is on {tensor.device}, not on the CPU")
        requires_grad = training and bool(weight["requires_grad"])
        if not requires_grad or not tensor.requires_grad:
            tensor = tensor.detach().requires_grad_(requires_grad)
        tensors.append(tensor)
    named = {w["name"]: t for w, t in zip(described, tensors, strict=True) if w["name"] is not None}
    return tensors, named


def _tensor_of(
    block: memoryview, size: Any, stride: Any, offset: int, dtype: torch.dtype
) -> torch.Tensor:
    if not len(block):
        return torch.empty_strided(size, stride, dtype=dtype)
    flat = torch.frombuffer(block, dtype=torch.uint8)
    made = torch.empty(0, dtype=dtype)
    return made.set_(flat.untyped_storage(), offset, size, stride)


def _no_tensor(number: Any) -> torch.Tensor:
    raise NotPlain(f"tensor {number} in a layout")
