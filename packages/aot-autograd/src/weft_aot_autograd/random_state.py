"""Draws what forward drew a second time, from generators of its own.

The default generators belong to the whole process: to put one back, even for a moment, would repeat the
numbers of other threads or lose what they draw meanwhile.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch

from ._torch import OpOverload, TorchDispatchMode, tree_leaves

aten = torch.ops.aten

UNKNOWN_NUMBERS = (
    "weft: gradients of gradients run forward's operators again, but {}; leave the function that is "
    "differentiated twice uncompiled"
)


class RandomState:
    """The states of the default generators of the CPU and of ``cuda_devices`` (indices) around forward."""

    def __init__(self, cuda_devices: Sequence[int]) -> None:
        self._devices = (torch.device("cpu"), *(torch.device("cuda", i) for i in cuda_devices))
        self._before = self._now()
        self._after = self._before

    def _now(self) -> list[torch.Tensor]:
        return [
            torch.cuda.get_rng_state(device) if device.type == "cuda" else torch.get_rng_state()
            for device in self._devices
        ]

    def note_end(self) -> None:
        """Forward has drawn all its numbers."""
        self._after = self._now()

    @contextlib.contextmanager
    def drawn_again(self) -> Iterator[None]:
        """Random operators in here give what they gave in forward.

        Raises RuntimeError where that is not so, since something else drew while forward ran.
        """
        generators = {device: torch.Generator(device) for device in self._devices}
        for generator, state in zip(generators.values(), self._before, strict=True):
            generator.set_state(state)
        with _DrawsFrom(generators):
            yield
        for generator, state in zip(generators.values(), self._after, strict=True):
            if not torch.equal(generator.get_state(), state):
                reason = (
                    "another thread drew random numbers while forward ran: its own are not known"
                )
                raise RuntimeError(UNKNOWN_NUMBERS.format(reason))


class _DrawsFrom(TorchDispatchMode):
    """Has operators that would draw from a device's default generator draw from another."""

    def __init__(self, generators: dict[torch.device, torch.Generator]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._generators = generators

    def __torch_dispatch__(
        self, func: OpOverload, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if torch.Tag.nondeterministic_seeded not in func.tags or drops_nothing(func, args, kwargs):
            return func(*args, **kwargs)
        generator = self._generators[_device(args, kwargs)]
        if func is aten.native_dropout.default:
            return _dropout(*args, **kwargs, generator=generator)
        drawing = _with_generator(func)
        if drawing is None:
            raise RuntimeError(UNKNOWN_NUMBERS.format(f"{func} draws from no given generator"))
        return drawing(*args, **kwargs, generator=generator)


def drops_nothing(operator: OpOverload, args: Any, kwargs: Any) -> bool:
    """Whether an operator that draws for its dropout alone, as attention does, is told to drop nothing."""
    for position, argument in enumerate(operator._schema.arguments):
        if argument.name in ("dropout", "dropout_p"):
            given = args[position] if position < len(args) else kwargs.get(argument.name)
            return (argument.default_value if given is None else given) == 0.0
    return False


def _device(args: Any, kwargs: Any) -> torch.device:
    """Where an operator with these arguments runs, with an index if it is not the CPU."""
    named = kwargs.get("device")
    if named is not None:
        return torch.empty(0, device=named).device
    tensors = (leaf for leaf in tree_leaves(args) if isinstance(leaf, torch.Tensor))
    return next((tensor.device for tensor in tensors), torch.device("cpu"))


@functools.cache
def _with_generator(operator: OpOverload) -> OpOverload | None:
    """The overload that takes the same arguments and a generator; None if there is none."""
    own = [(argument.name, str(argument.type)) for argument in operator._schema.arguments]
    if "generator" in dict(own):
        return operator
    packet = operator.overloadpacket
    for overload in (getattr(packet, name) for name in packet.overloads()):
        arguments = [(argument.name, str(argument.type)) for argument in overload._schema.arguments]
        others = [argument for argument in arguments if argument[0] != "generator"]
        if others != arguments and others == own:
            return overload  # type: ignore[no-any-return]
    return None


def _dropout(
    tensor: torch.Tensor, p: float, train: bool | None, *, generator: torch.Generator
) -> tuple[torch.Tensor, torch.Tensor]:
    """``native_dropout``, for which there is no overload with a generator."""
    if train is False or not tensor.numel():
        return tensor.clone(), torch.ones_like(tensor, dtype=torch.bool)
    kept = torch.empty_like(tensor).bernoulli_(1 - p, generator=generator)
    scale = 0.0 if p == 1 else 1 / (1 - p)
    return tensor * kept * scale, kept.bool()


def numbers_of_forward(ctx: Any) -> AbstractContextManager[None]:
    """A context in which random operators give what they gave in forward."""
    if ctx.random_state is None:
        return contextlib.nullcontext()
    if not ctx.plan.draws_alike:
        reason = "its program draws other random numbers than they do"
        raise RuntimeError(UNKNOWN_NUMBERS.format(reason))
    again: AbstractContextManager[None] = ctx.random_state.drawn_again()
    return again
