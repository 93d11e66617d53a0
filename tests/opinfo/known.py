"""Differences from eager that are understood: by operator and dtype, with the reason."""

from __future__ import annotations

import torch

from tests.opinfo.checking import Case, Outcome

KNOWN: dict[tuple[str, torch.dtype | None], str] = {}
"""From (operator, dtype or None for all) to why results differ."""

if torch.__version__ < "2.12":
    for _name in ("fft", "ifft", "ihfft", "rfft"):
        KNOWN[f"fft.{_name}", None] = "the meta function gives other strides than the kernel"


def explained(case: Case, outcome: Outcome) -> bool:
    """Whether the case's failure is one that :data:`KNOWN` lists."""
    if outcome.kind not in ("wrong", "error"):
        return False
    return (case.name, case.dtype) in KNOWN or (case.name, None) in KNOWN
