"""What a printer knows of values beside their dtypes, so that cheaper forms of an operation will do."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
from weft_loop_ir.bodies import ADD, MUL, SUB, Operation, operation_named

ROUND = {torch.bfloat16: "math.round_to_bfloat16", torch.float16: "math.round_to_float16"}
"""Functions that round float32 as a conversion to 16 bits and back does."""

INVERSE_ROOT = operation_named("rsqrt")
BOUNDS = {operation_named("maximum"): max, operation_named("minimum"): min}
"""Operations that bound values by others."""
ANY = (-math.inf, math.inf)
PACKED = (ADD, SUB, MUL)
"""Operations that the hardware has on pairs of 16 bits, rounding included."""
SIGNS = tuple(map(operation_named, ("neg", "abs")))
CHOICES = tuple(BOUNDS)
"""Operations that give an operand but for its sign, and one of several operands."""


@dataclass
class KnownValues:
    """Facts about the values of a kernel, by the names that hold them.

    ``at_least_one``: no less than 1, or NaN.  ``sources``: what values in 16 bits were rounded from.
    ``exact``: the float32 values that values in 16 bits are equal to.
    ``ranges``: the least and the largest that values may be that are not NaN, where bounded by constants.
    ``widened``: float32 values, and the 16-bit dtype that holds them exactly.  ``packed``: those that one
    operation makes of two such of one dtype.  ``held``: the dtypes of 16 bits that hold a float32 value
    exactly.  ``inverse_roots``: results of ``rsqrt``.
    """

    at_least_one: set[str] = field(default_factory=set)
    sources: dict[str, str] = field(default_factory=dict)
    exact: dict[str, str] = field(default_factory=dict)
    widened: dict[str, torch.dtype] = field(default_factory=dict)
    packed: set[str] = field(default_factory=set)
    held: dict[str, frozenset[torch.dtype]] = field(default_factory=dict)
    inverse_roots: set[str] = field(default_factory=set)
    ranges: dict[str, tuple[float, float]] = field(default_factory=dict)

    def note_operation(self, operation: Operation, operands: tuple[str, ...], result: str) -> None:
        """``result`` is ``operation`` of ``operands``."""
        if operation is INVERSE_ROOT:
            self.inverse_roots.add(result)
        if operation in BOUNDS:
            ranges = [self.ranges.get(operand, ANY) for operand in operands]
            low, high = (BOUNDS[operation](ends) for ends in zip(*ranges, strict=True))
            self.ranges[result] = low, high
        if operation in SIGNS or operation in CHOICES:
            self.note_choice(operands, result)
        if operation in PACKED:
            dtypes = {self.widened.get(operand) for operand in operands}
            if len(dtypes) == 1 and None not in dtypes:
                self.packed.add(result)

    def note_choice(self, operands: tuple[str, ...], result: str) -> None:
        """``result`` is one of ``operands``, but perhaps for its sign."""
        self.held[result] = frozenset.intersection(*map(self._dtypes_of, operands))

    def note_widening(self, dtype: torch.dtype, result: str) -> None:
        """``result`` is float32 of a value of ``dtype``, of 16 bits."""
        self.widened[result] = dtype
        self.held[result] = frozenset((dtype,))

    def _dtypes_of(self, value: str) -> frozenset[torch.dtype]:
        """Those of 16 bits that hold ``value`` exactly."""
        low, high = self.ranges.get(value, ANY)
        if low == high:
            return frozenset(d for d in ROUND if torch.tensor(low, dtype=d).item() == low)
        return self.held.get(value, frozenset())

    def is_within(self, value: str, limit: float) -> bool:
        """Whether ``value`` is known to be from ``-limit`` to ``limit``, or NaN."""
        low, high = self.ranges.get(value, ANY)
        return -limit <= low and high <= limit

    def note_conversion(self, source: str, target: torch.dtype, result: str) -> None:
        """``result`` is the float32 value ``source`` in ``target``."""
        if target in ROUND:
            self.sources[result] = source
            if target in self._dtypes_of(source):
                self.exact[result] = source

    def widening(self, value: str, dtype: torch.dtype) -> str | None:
        """float32 of a 16-bit ``value``: by a function that rounds what it was made of, None for no such."""
        source = self.sources.get(value)
        if source is None or source in self.packed or dtype not in ROUND:
            return None
        return f"{ROUND[dtype]}({source})"
