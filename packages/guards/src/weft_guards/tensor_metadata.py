"""What of a tensor compiled code relies on."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from . import _torch


def _sizes_match(expected: tuple[int | None, ...], found: tuple[int, ...]) -> bool:
    # A symbolic size is no int; comparing it would add a condition to its shape environment.
    return len(expected) == len(found) and all(
        wanted is None or (type(size) is int and wanted == size)
        for wanted, size in zip(expected, found, strict=True)
    )


@dataclass(frozen=True)
class TensorMetadata:
    """What of a tensor compiled code relies on.

    ``size`` and ``stride`` in elements, None in a place that may vary; ``stride`` None where the strides
    do not matter.  ``python_type`` is compared exactly (Tensor, Parameter, a subclass).

    A tensor that stands for another one inside a transform (functorch's, C++ functionalization's) or for
    zeros without memory never matches.
    """

    python_type: type
    dtype: torch.dtype
    device: torch.device
    requires_grad: bool
    size: tuple[int | None, ...]
    stride: tuple[int | None, ...] | None
    layout: torch.layout = torch.strided
    is_conjugate: bool = False
    is_negative: bool = False
    is_inference: bool = False

    def __post_init__(self) -> None:
        if self.stride is not None and len(self.stride) != len(self.size):
            raise ValueError(f"{len(self.size)} sizes but {len(self.stride)} strides")
        for extent in (*self.size, *(self.stride or ())):
            if extent is not None and (type(extent) is not int or extent < 0):
                raise ValueError(f"a size or stride is a number >= 0 or None, not {extent!r}")

    @classmethod
    def of(cls, tensor: torch.Tensor) -> TensorMetadata:
        """All of a tensor's metadata as it is now; strides only of a strided tensor.

        :raises TypeError: not a tensor, or one that never matches.
        """
        if not isinstance(tensor, torch.Tensor):
            raise TypeError(f"not a tensor but {type(tensor).__qualname__}")
        if _torch.is_wrapper(tensor):
            raise TypeError("the tensor stands for another one inside a transform")
        with _torch.without_torch_function():
            if tensor.is_nested and tensor.layout is torch.strided:
                raise TypeError("the tensor is nested: it has no size")
            return cls(
                python_type=type(tensor),
                dtype=tensor.dtype,
                device=tensor.device,
                requires_grad=tensor.requires_grad,
                size=tuple(tensor.shape),
                stride=tensor.stride() if tensor.layout is torch.strided else None,
                layout=tensor.layout,
                is_conjugate=tensor.is_conj(),
                is_negative=tensor.is_neg(),
                is_inference=tensor.is_inference(),
            )

    def differences(self, value: Any) -> Iterator[tuple[str, object, object]]:
        """What differs: (what, expected, found), most telling first; nothing when ``value`` matches.

        Raises what reading the tensor raises.
        """
        if type(value) is not self.python_type:
            yield "type", self.python_type.__qualname__, type(value).__qualname__
        if not issubclass(type(value), torch.Tensor):
            if type(value) is self.python_type:
                yield "type", "a tensor", type(value).__qualname__
            return
        if _torch.is_wrapper(value):
            yield "kind", "a tensor with memory", "one inside a transform"
            return
        with _torch.without_torch_function():
            yield from self._field_differences(value)

    def _field_differences(self, tensor: torch.Tensor) -> Iterator[tuple[str, object, object]]:
        shape = tuple(tensor.shape)
        if len(shape) != len(self.size):
            yield "number of dimensions", len(self.size), len(shape)
        if not _sizes_match(self.size, shape):
            yield "size", _with_stars(self.size), _with_stars(shape)
        if tensor.layout is not self.layout:
            yield "layout", self.layout, tensor.layout
        elif self.stride is not None and not _sizes_match(self.stride, tensor.stride()):
            yield "stride", _with_stars(self.stride), _with_stars(tensor.stride())
        plain = (
            ("dtype", self.dtype, tensor.dtype),
            ("device", self.device, tensor.device),
            ("requires_grad", self.requires_grad, tensor.requires_grad),
            ("is_conj()", self.is_conjugate, tensor.is_conj()),
            ("is_neg()", self.is_negative, tensor.is_neg()),
            ("is_inference()", self.is_inference, tensor.is_inference()),
        )
        for name, expected, found in plain:
            if expected != found:
                yield name, expected, found

    def __str__(self) -> str:
        text = f"{self.python_type.__qualname__} {self.dtype} {_with_stars(self.size)} on {self.device}"
        if self.stride is not None:
            text += f", stride {_with_stars(self.stride)}"
        if self.layout is not torch.strided:
            text += f", {self.layout}"
        flags = {
            "requires_grad": self.requires_grad,
            "conjugate": self.is_conjugate,
            "negative": self.is_negative,
            "inference": self.is_inference,
        }
        return ", ".join([text, *(name for name, holds in flags.items() if holds)])


def _with_stars(extents: tuple[int | None, ...]) -> str:
    """``(2, *, 5)``: a star where the number may vary."""
    inner = ", ".join("*" if extent is None else str(extent) for extent in extents)
    return f"({inner},)" if len(extents) == 1 else f"({inner})"
