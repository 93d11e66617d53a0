"""What calls a saved program is for: containers, layouts, values, and sizes that vary."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import sympy
import torch
from weft_functionalize import symbols_of

from ._torch import SYMBOLIC_TYPES, expression_of, symbols_of_capture
from .plain_data import decode, encode
from .saved_file import SavedProgramError
from .trees import flatten

PLAIN = (bool, int, float, str, type(None))
"""Types of arguments and results, besides tensors."""

MAX_KNOWN = 1024
"""Combinations of sizes that are remembered to fit."""


def describe_arguments(
    arguments: Any, leaves: Sequence[Any], fakes: Mapping[int, Any], training: bool
) -> dict[str, Any]:
    """The part of a header that :class:`Arguments` reads; ``fakes`` are what capture had for leaves."""
    symbols: list[Any] = []
    relations: list[Any] = []
    modes = {fake.fake_mode.shape_env for fake in fakes.values() if fake.fake_mode.shape_env}
    for environment in modes:
        found, known = symbols_of_capture(environment)
        symbols += found
        relations += known
    given = {s for fake in fakes.values() for s in _given_by(fake)}
    unknown = {str(s) for relation in relations for s in relation.free_symbols - given}
    unknown |= {str(s) for fake in fakes.values() for s in symbols_of(fake) - given}
    if unknown:
        raise SavedProgramError(
            f"this program can't be saved: it depends on numbers that no argument's size says: "
            f"{sorted(unknown)}"
        )
    described = [
        describe_leaf(leaf, training)
        if k not in fakes
        else _describe_fake(leaf, fakes[k], training)
        for k, leaf in enumerate(leaves)
    ]
    return {
        "arguments": arguments,
        "leaves": described,
        "training": training,
        "symbols": _encoded(symbols),
        "relations": _encoded(relations),
    }


def _given_by(fake: torch.Tensor) -> list[Any]:
    """The symbols that are sizes, or strides, of a tensor by themselves."""
    numbers = (*fake.shape, *fake.stride())
    found = (expression_of(n) for n in numbers if isinstance(n, SYMBOLIC_TYPES))
    return [expression for expression in found if expression.is_Symbol]


def _describe_fake(leaf: torch.Tensor, fake: torch.Tensor, training: bool) -> list[Any]:
    kind, size, stride, *rest = describe_leaf(leaf, training)
    for actual, numbers in ((size, fake.shape), (stride, fake.stride())):
        for k, number in enumerate(numbers):
            if isinstance(number, SYMBOLIC_TYPES) and expression_of(number).free_symbols:
                actual[k] = _encoded(expression_of(number))
    return [kind, size, stride, *rest]


def describe_leaf(leaf: Any, training: bool) -> list[Any]:
    """A tensor's layout, or a plain value."""
    if isinstance(leaf, torch.Tensor):
        places = zip(leaf.shape, leaf.stride(), strict=True)
        stride = [step if size > 1 else 0 for size, step in places]  # of one element: any
        has_gradient = leaf.requires_grad and training
        return ["tensor", list(leaf.shape), stride, str(leaf.dtype), str(leaf.device), has_gradient]
    if type(leaf) in PLAIN:
        return ["value", leaf, type(leaf).__name__]
    raise SavedProgramError(f"an argument is a {type(leaf).__qualname__}, which can't be saved")


class Arguments:
    """The calls that one program of a file is for."""

    def __init__(self, header: Mapping[str, Any]) -> None:
        """:raises NotPlain: the header is damaged."""
        self._arguments = header["arguments"]
        self._training = bool(header["training"])
        self._relations = _decoded(header["relations"])
        self._leaves = header["leaves"]
        self._numbers = [_numbers(leaf) for leaf in self._leaves]
        varies = any(isinstance(n, sympy.Basic) for numbers in self._numbers for n in numbers)
        self._known: set[tuple[int, ...]] | None = set() if varies else None

    def refusal(self, arguments: Any, leaves: Sequence[Any]) -> str | None:
        """Why a call with these arguments is none of those; None if it is."""
        if arguments != self._arguments:
            return (
                f"was saved for other arguments: {_shown(self._arguments)}, not {_shown(arguments)}"
            )
        found = [describe_leaf(leaf, self._training) for leaf in leaves]
        if found != self._leaves:
            reason = self._leaf_refusal(found)
            if reason is not None:
                return reason
        tensors = [id(leaf) for leaf in leaves if isinstance(leaf, torch.Tensor)]
        return "one tensor is passed twice" if len(set(tensors)) < len(tensors) else None

    def _leaf_refusal(self, found: Sequence[list[Any]]) -> str | None:
        fits = (len(f) == len(s) and _fixed(f, s) for f, s in zip(found, self._leaves, strict=True))
        for number, is_alike in enumerate(fits):
            if not is_alike:
                return (
                    f"argument {number} is {_told(found[number])}, "
                    f"and the program was saved for {_told(self._leaves[number])}"
                )
        if self._known is None:
            return None
        key = tuple(n for leaf in found if leaf[0] == "tensor" for n in (*leaf[1], *leaf[2]))
        if key in self._known:
            return None
        reason = self._size_refusal(found)
        if reason is None and len(self._known) < MAX_KNOWN:
            self._known.add(key)
        return reason

    def _size_refusal(self, found: Sequence[list[Any]]) -> str | None:
        values: dict[Any, Any] = {}
        numbers = [[*leaf[1], *leaf[2]] if leaf[0] == "tensor" else [] for leaf in found]
        for saved, actual in zip(self._numbers, numbers, strict=True):
            for expression, number in zip(saved, actual, strict=True):
                if isinstance(expression, sympy.Symbol):
                    values.setdefault(expression, sympy.Integer(number))
        for k, (saved, actual) in enumerate(zip(self._numbers, numbers, strict=True)):
            rank = len(saved) // 2
            for place, (expression, number) in enumerate(zip(saved, actual, strict=True)):
                if place >= rank and actual[place - rank] <= 1:
                    continue  # the stride of one element: any
                wanted = sympy.sympify(expression).xreplace(values)
                if wanted != number:
                    what = "size" if place < rank else "stride"
                    return (
                        f"argument {k} has {what} {number} in dimension {place % rank}, "
                        f"and the program was saved for {expression} = {wanted}"
                    )
        for relation in self._relations:
            if relation.xreplace(values) != sympy.true:
                named = ", ".join(f"{s} = {values[s]}" for s in sorted(values, key=str))
                return f"the program was saved for sizes with {relation}, these are {named}"
        return None


def _fixed(found: Sequence[Any], saved: Sequence[Any]) -> bool:
    """Whether two leaves are alike but for numbers that vary."""
    if found[0] != "tensor" or saved[0] != "tensor":
        return found == saved
    if found[3:] != saved[3:] or any(len(found[k]) != len(saved[k]) for k in (1, 2)):
        return False
    size, stride = found[1], found[2]
    sizes = all(type(s) is not int or s == n for n, s in zip(size, saved[1], strict=True))
    steps = zip(stride, saved[2], size, saved[1], strict=True)
    return sizes and all(
        type(s) is not int or s == n or (type(of) is not int and extent <= 1)
        for n, s, extent, of in steps
    )


def _numbers(leaf: Sequence[Any]) -> list[Any]:
    """Sizes and strides, those that vary as expressions."""
    if leaf[0] != "tensor":
        return []
    return [n if type(n) is int else _decoded(n) for n in (*leaf[1], *leaf[2])]


def _encoded(value: Any) -> Any:
    return encode(value, _no_tensor)


def _decoded(encoded: Any) -> Any:
    return decode(encoded, _no_tensor)


def _no_tensor(value: Any) -> Any:
    raise SavedProgramError("a tensor among sizes")


def decode_symbols(header: Mapping[str, Any]) -> Any:
    """The symbols of a header, as ``fake_mode_of`` takes them."""
    return _decoded(header["symbols"])


def flat(args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Any, list[Any]]:
    """A call's arguments as a tree, and its leaves."""
    leaves: list[Any] = []
    return flatten([list(args), dict(kwargs)], leaves), leaves


def _shown(tree: Any) -> str:
    """Positional and named arguments, by how they lie in one another."""
    _, (positional, named) = tree
    names = [str(key) for key, _ in named[1]]
    return f"{len(positional[1])} positional and {names} named"


def _told(described: Sequence[Any]) -> str:
    if described[0] == "value":
        return repr(described[1])
    size, stride, dtype, device, has_gradient = described[1:]
    shown = [tuple(n if type(n) is int else _decoded(n) for n in part) for part in (size, stride)]
    text = f"a {dtype} tensor of shape {shown[0]} and strides {shown[1]} on {device}"
    return f"{text} that requires gradients" if has_gradient else text
