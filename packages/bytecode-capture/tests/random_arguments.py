"""Nested arguments for compiled functions, and changes of them between calls, drawn from a seed."""

from __future__ import annotations

import random
from typing import Any

import torch


class Node:
    """An object with some attributes."""

    def __init__(self, **attributes: Any) -> None:
        self.__dict__.update(attributes)


_LEAVES = ("int", "float", "str", "none", "bool", "tensor", "tensor")
_KINDS = (*_LEAVES, "list", "tuple", "dict", "node")
_SHAPES = ((), (2,), (3,), (2, 3), (3, 2), (1, 3), (0, 3))
_DTYPES = (torch.float32, torch.float32, torch.float64, torch.int64, torch.bool)


def drawn_tensor(numbers: random.Random) -> torch.Tensor:
    """A small tensor of any dtype, maybe transposed, maybe with gradients."""
    shape = torch.Size(numbers.choice(_SHAPES))
    dtype = numbers.choice(_DTYPES)
    tensor = (torch.arange(shape.numel()).reshape(shape) + numbers.randint(0, 1)).to(dtype)
    if tensor.dim() == 2 and numbers.random() < 0.3:
        tensor = tensor.t()
    if dtype.is_floating_point and numbers.random() < 0.3:
        tensor.requires_grad_()
    return tensor


def drawn(numbers: random.Random, depth: int) -> Any:
    """A value with containers and objects nested at most ``depth`` deep."""
    kind = numbers.choice(_KINDS if depth > 0 else _LEAVES)
    count = numbers.randint(0, 3)

    def inner() -> Any:
        return drawn(numbers, depth - 1)

    match kind:
        case "int":
            return numbers.choice([0, 1, 2, 3, 7])
        case "float":
            return numbers.choice([0.0, -0.0, 0.5, 1.0, 2.5, float("nan"), float("inf")])
        case "str":
            return numbers.choice(["a", "b", "sum"])
        case "none":
            return None
        case "bool":
            return numbers.random() < 0.5
        case "tensor":
            return drawn_tensor(numbers)
        case "list":
            return [inner() for _ in range(count)]
        case "tuple":
            return tuple(inner() for _ in range(count))
        case "dict":
            return {numbers.choice("abcd"): inner() for _ in range(count)}
        case _:
            return Node(**{numbers.choice("pq"): inner() for _ in range(count)})


def changed(numbers: random.Random, value: Any, depth: int) -> Any:
    """The value with a change somewhere: containers and objects in place, or another value."""
    new = max(depth - 1, 0)
    chance = numbers.random()
    if isinstance(value, list) and value and chance < 0.8:
        _change_list(numbers, value, new)
        return value
    if isinstance(value, dict) and value and chance < 0.8:
        _change_dict(numbers, value, "abcd", new)
        return value
    if isinstance(value, Node) and vars(value) and chance < 0.8:
        _change_dict(numbers, vars(value), "pq", new)
        return value
    if isinstance(value, torch.Tensor) and chance < 0.5:
        return _changed_tensor(numbers, value)
    if type(value) is int:
        return value + 1
    if type(value) is float:
        return value + 0.5
    return drawn(numbers, max(depth, 0))


def _change_list(numbers: random.Random, items: list[Any], depth: int) -> None:
    position = numbers.randrange(len(items))
    match numbers.choice(["inside"] * 6 + ["append", "pop", "reverse", "alias"]):
        case "inside":
            items[position] = changed(numbers, items[position], depth)
        case "append":
            items.append(drawn(numbers, depth))
        case "pop":
            items.pop()
        case "reverse":
            items.reverse()
        case "alias":
            items[0] = items[-1]


def _change_dict(numbers: random.Random, items: dict[str, Any], names: str, depth: int) -> None:
    key = numbers.choice(list(items))
    match numbers.choice(["inside"] * 6 + ["set", "pop", "to the end"]):
        case "inside":
            items[key] = changed(numbers, items[key], depth)
        case "set":
            items[numbers.choice(names)] = drawn(numbers, depth)
        case "pop":
            del items[key]
        case "to the end":
            items[key] = items.pop(key)


def _changed_tensor(numbers: random.Random, tensor: torch.Tensor) -> torch.Tensor:
    tensor = tensor.detach()
    match numbers.choice(["clone", "dtype", "transpose", "gradients", "size"]):
        case "dtype":
            return tensor.to(torch.float64)
        case "transpose" if tensor.dim() == 2:
            return tensor.t()
        case "gradients" if tensor.is_floating_point():
            return tensor.clone().requires_grad_()
        case "size" if tensor.dim():
            return torch.cat([tensor, tensor])
        case _:
            return tensor.clone()


def classes_of(value: Any) -> Any:
    """What two values that one compilation is to serve have in common; sizes and numbers left out."""
    if isinstance(value, torch.Tensor):
        zero_or_one = tuple(min(n, 2) for n in value.shape)
        return value.dtype, zero_or_one, value.requires_grad, value.is_contiguous()
    if isinstance(value, (list, tuple)):
        return type(value), *map(classes_of, value)
    if isinstance(value, dict):
        return dict, *((key, classes_of(item)) for key, item in value.items())
    if isinstance(value, Node):
        return Node, *((key, classes_of(item)) for key, item in vars(value).items())
    return type(value) if type(value) in (int, float) else value
