"""Interpreter-wide state of torch that changes what code computes."""

from __future__ import annotations

from dataclasses import dataclass, fields

import torch

from . import _torch


@dataclass(frozen=True)
class GlobalState:
    """Interpreter-wide state of torch that changes what code computes; :meth:`current` reads it.

    Read it where the check will run, on entry to the frame: code that runs under modes of its own (a
    capture under a fake-tensor mode) sees another state.  Modes other than that of the default device are
    counted, not told apart: code captured under a mode of the user's is to be guarded on that mode itself.
    """

    grad_enabled: bool
    inference_mode: bool
    autocast: tuple[tuple[str, bool, torch.dtype], ...]  # (device type, enabled, dtype)
    autocast_cache_enabled: bool
    default_dtype: torch.dtype
    default_device: str | None  # None when no mode sets one
    deterministic_algorithms: bool
    allowed_libraries: tuple[
        bool, ...
    ]  # attention's flash, memory-efficient, plain, cuDNN's; cuDNN; oneDNN
    torch_function_modes: int  # depth of the mode stack
    torch_dispatch_modes: int = 0  # depth of the mode stack
    transform_active: bool = False  # inside vmap, grad, a level of forward-mode gradients, ...
    saved_tensors_hooked: bool = False  # by hooks that may change what backward is given

    @classmethod
    def current(cls) -> GlobalState:
        """The state of this thread now."""
        return cls(
            grad_enabled=torch.is_grad_enabled(),
            inference_mode=torch.is_inference_mode_enabled(),
            autocast=tuple(
                (name, torch.is_autocast_enabled(name), torch.get_autocast_dtype(name))
                for name in _torch.autocast_devices()
            ),
            autocast_cache_enabled=torch.is_autocast_cache_enabled(),
            default_dtype=torch.get_default_dtype(),
            default_device=_torch.default_device(),
            deterministic_algorithms=torch.are_deterministic_algorithms_enabled(),
            allowed_libraries=_torch.allowed_libraries(),
            torch_function_modes=_torch.torch_function_modes(),
            torch_dispatch_modes=_torch.torch_dispatch_modes(),
            transform_active=_torch.transform_active(),
            saved_tensors_hooked=_torch.saved_tensors_hooked(),
        )

    def differences(self, found: GlobalState) -> list[tuple[str, object, object]]:
        """The fields that differ: (name, in this state, in ``found``)."""
        pairs = ((f.name, getattr(self, f.name), getattr(found, f.name)) for f in fields(self))
        return [(name, mine, other) for name, mine, other in pairs if mine != other]
