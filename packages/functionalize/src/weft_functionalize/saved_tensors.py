"""What nodes of autograd's graph have saved for backward, and what they raise if it was written to since."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch

from ._torch import size_hint, storage_identity


class SavedTensor:
    """What hooks keep in the place of a saved tensor, whose version autograd then checks no longer."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor
        self._version = tensor._version

    @property
    def is_overwritten(self) -> bool:
        return self.tensor._version != self._version

    def unpack(self) -> torch.Tensor:
        """The tensor; raises :class:`_Overwritten` if it was written to."""
        if self.is_overwritten:
            raise _Overwritten(self)
        return self.tensor

    def told(self, function: Any, number: int) -> str:
        """Autograd's error; the tensor was result ``number`` of ``function``, None for an input."""
        source = "" if function is None else f", which is output {number} of {_name(function)},"
        size = [size_hint(n) for n in self.tensor.shape]
        return (
            f"{_BEGINNING}[{self.tensor.type()} {size}]{source} is at version {self.tensor._version}; "
            f"expected version {self._version}{_END}"
        )

    def source(self, values: Iterable[torch.Tensor]) -> tuple[Any, int]:
        """Which result it is now of which node: that of the first of ``values`` that is the same."""
        own = self.tensor
        for value in values:
            if (
                storage_identity(value) == storage_identity(own)
                and value.requires_grad
                and (value.shape, value.stride(), value.storage_offset())
                == (own.shape, own.stride(), own.storage_offset())
            ):
                return value.grad_fn, value.output_nr
        return None, 0


class _Overwritten(RuntimeError):
    """Autograd would have found that ``saved`` was written to."""

    def __init__(self, saved: SavedTensor) -> None:
        super().__init__(str(saved))
        self.saved = saved


def saved_names(function: Any) -> Iterator[str]:
    """The attributes of a node that are what it has saved."""
    return (name for name in dir(function) if name.startswith("_saved_") or name == "saved_tensors")


def error_of(
    function: Any, inside: Sequence[SavedTensor], values: Iterable[torch.Tensor]
) -> str | None:
    """What a node raises in backward, if it does so whatever gradients it is given.

    ``inside``: what is saved by nodes that are in it.  ``values``: all tensors of the program.
    """
    names = list(saved_names(function))
    for name in names:
        try:
            getattr(function, name)
        except _Overwritten as error:
            if name.startswith(_RESULTS):
                return error.saved.told(function, int(name.removeprefix(_RESULTS) or 0))
            return error.saved.told(*error.saved.source(values))
        except RuntimeError as error:
            return str(error)
    for saved in inside:
        if saved.is_overwritten:
            return saved.told(*saved.source(values))
    return None if names else _missing_derivative(function)


_RESULTS = "_saved_result"


def _missing_derivative(function: Any) -> str | None:
    """The error of an operator's node that has saved nothing, if it has no formula."""
    if not re.search(r"Backward\d+$|^NotImplemented$", type(function).__name__):
        return None
    given = (torch.zeros(m.shape, dtype=m.dtype, device=m.device) for m in function._input_metadata)
    try:
        function(*given)
    except RuntimeError as error:
        if "derivative for" in str(error):
            return str(error)
        raise
    return None


def _written_error() -> str:
    """What this version of torch says."""
    result = torch.ones((), requires_grad=True).exp()
    function: Any = result.grad_fn
    with torch.no_grad():
        result.add_(1)
    try:
        return str(function._saved_result)
    except RuntimeError as error:
        return str(error)


_TEXT = _written_error()
_BEGINNING, _, _ = _TEXT.partition("[")
_, _, _END = _TEXT.partition("expected version 0")


def _name(function: Any) -> str:
    """What the error calls a node: since torch 2.13 by its operator."""
    name: str = function.name()
    return name if "ExpBackward" in _TEXT else re.sub(r"Backward\d+$", "", name)
