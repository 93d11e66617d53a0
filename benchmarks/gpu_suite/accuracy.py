"""How far results are from the same model's in float64.

The float64 results are computed once for a model and a task, on the device where memory suffices and on the
CPU otherwise, by whichever process comes first; the others read them from a file, in float32, whose rounding
is far below the errors of 16 bits that are measured.
"""

from __future__ import annotations

import copy
import fcntl
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch

Values = dict[str, list[torch.Tensor]]
"""``outputs`` of inference; ``loss`` and ``gradients``, one for each parameter that has one, of training."""

_ELEMENTS_AT_ONCE = 2**24


def reference(path: Path, compute: Callable[[], Values]) -> Values:
    """The values in ``path``, by ``compute`` if no other process has stored them there before."""
    with Path(f"{path}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not path.exists():
            values = {
                kind: [tensor.float().cpu() for tensor in tensors]
                for kind, tensors in compute().items()
            }
            unfinished = Path(f"{path}.unfinished")
            torch.save(values, unfinished)
            unfinished.rename(path)
    loaded: Values = torch.load(path, mmap=True)
    return loaded


def on_some_device(
    compute: Callable[[torch.nn.Module, dict[str, Any]], Values],
    model: torch.nn.Module,
    inputs: dict[str, Any],
) -> Values:
    """``compute`` with copies of model and inputs in float64, on the CPU where memory is short."""
    try:
        return compute(copy.deepcopy(model).double(), _in_double(inputs))
    except torch.cuda.OutOfMemoryError:
        pass  # what the failed try holds goes with its frame
    torch.cuda.empty_cache()
    inputs = {name: value.cpu() for name, value in inputs.items()}
    return compute(copy.deepcopy(model).cpu().double(), _in_double(inputs))


def _in_double(inputs: dict[str, Any]) -> dict[str, Any]:
    return {
        name: value.double() if value.is_floating_point() else value
        for name, value in inputs.items()
    }


def errors(values: Values, references: Values) -> dict[str, float]:
    """Relative errors: the norm of the difference over the norm of the reference.

    ``outputs`` is the largest of all outputs; ``gradients`` that of all gradients taken as one vector;
    ``worst gradient`` the largest of single parameters, where the norm of the reference is increased by a
    hundredth of the gradients' root mean square, since some are zero but for rounding (biases of keys).
    """
    found = {}
    for kind, tensors in values.items():
        pairs = list(zip(tensors, references[kind], strict=True))
        norms = [_norms(value, wanted) for value, wanted in pairs]
        if kind != "gradients":
            found[kind] = _largest(_ratio(wrong, whole) for wrong, whole in norms)
            continue
        wrongs, wholes = (torch.tensor(n, dtype=torch.float64) for n in zip(*norms, strict=True))
        found[kind] = _ratio(wrongs.norm().item(), wholes.norm().item())
        least = 0.01 * wholes.square().mean().sqrt().item()
        found["worst gradient"] = _largest(_ratio(a, b + least) for a, b in norms)
    return found


def _norms(value: torch.Tensor, wanted: torch.Tensor) -> tuple[float, float]:
    """Norms of the difference and of ``wanted``, in float64, piece by piece on the device of ``value``."""
    if value.shape != wanted.shape:
        raise AssertionError(f"a result of shape {tuple(value.shape)}, not {tuple(wanted.shape)}")
    wrong = whole = 0.0
    pieces = (t.detach().reshape(-1).split(_ELEMENTS_AT_ONCE) for t in (value, wanted))
    for ours, theirs in zip(*pieces, strict=True):
        exact = theirs.to(ours.device).double()
        wrong += (ours.double() - exact).square().sum().item()
        whole += exact.square().sum().item()
    return wrong**0.5, whole**0.5


def _ratio(wrong: float, whole: float) -> float:
    return wrong / max(whole, 1e-30)


def _largest(numbers: Iterable[float]) -> float:
    """Their maximum; NaN, which ``max`` may lose, if one of them is."""
    return torch.tensor([*numbers, 0.0], dtype=torch.float64).max().item()
