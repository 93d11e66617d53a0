"""Differences from eager that are understood: by operator and dtype, with the reason."""

from __future__ import annotations

import torch

from tests.opinfo.checking import Case, Outcome

KNOWN: dict[tuple[str, torch.dtype | None], str] = {}
"""From (operator, dtype or None for all) to why results or gradients differ."""

KNOWN_GRADIENTS = {
    "as_strided_scatter": "eager's gradient keeps what the scattered values have overwritten",
}
"""The same for gradients alone, by operator."""

if torch.__version__ < "2.12":
    for _name in ("fft", "ifft", "ihfft", "rfft"):
        KNOWN[f"fft.{_name}", None] = "the meta function gives other strides than the kernel"


def explained(case: Case, outcome: Outcome, gradients: bool = False) -> bool:
    """Whether the case's failure is one that :data:`KNOWN` or :data:`KNOWN_GRADIENTS` lists."""
    if outcome.kind not in ("wrong", "error"):
        return False
    if gradients and case.name in KNOWN_GRADIENTS:
        return True
    return (case.name, case.dtype) in KNOWN or (case.name, None) in KNOWN
