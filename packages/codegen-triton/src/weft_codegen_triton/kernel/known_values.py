"""What a printer knows of values beside their dtypes, so that cheaper forms of an operation will do."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

ROUND = {torch.bfloat16: "math.round_to_bfloat16", torch.float16: "math.round_to_float16"}
"""Functions that round float32 as a conversion to 16 bits and back does."""

PACKED = ("add", "sub", "mul")
"""Operations that the hardware has on pairs of 16 bits, rounding included."""

GELU_FACTORS = {0.5: "half", 0.7071067811865476: "scaled"}
"""Numbers that gelu multiplies its operand with, and what the products are to it."""


@dataclass
class KnownValues:
    """Facts about the values of a kernel, by the names that hold them.

    ``constants``: numbers.  ``exponentials``: results of ``exp``.  ``at_least_one``: no less than 1, or NaN.
    ``sources``: what values in 16 bits were rounded from.  ``widened``: float32 values, and the 16-bit dtype
    that holds them exactly.  ``packed``: those that one operation makes of two such of one dtype.
    ``gelu_parts``: values that gelu is computed of: what each is, and of which value.
    ``negatives``: what values are the negatives of.  ``inverse_roots``: results of ``rsqrt``.
    """

    constants: dict[str, float] = field(default_factory=dict)
    exponentials: set[str] = field(default_factory=set)
    at_least_one: set[str] = field(default_factory=set)
    sources: dict[str, str] = field(default_factory=dict)
    widened: dict[str, torch.dtype] = field(default_factory=dict)
    packed: set[str] = field(default_factory=set)
    gelu_parts: dict[str, tuple[str, str]] = field(default_factory=dict)
    negatives: dict[str, str] = field(default_factory=dict)
    inverse_roots: set[str] = field(default_factory=set)

    def note_operation(self, operation: str, operands: tuple[str, ...], result: str) -> None:
        """``result`` is ``operation`` of ``operands``."""
        part = self._gelu_part(operation, operands)
        if part is not None:
            self.gelu_parts[result] = part
        if operation == "neg":
            self.negatives[result] = operands[0]
        elif operation == "rsqrt":
            self.inverse_roots.add(result)
        elif operation == "exp":
            self.exponentials.add(result)
        elif operation == "add" and self._is_one_and_exponential(*operands):
            self.at_least_one.add(result)
        if operation in PACKED:
            dtypes = {self.widened.get(operand) for operand in operands}
            if len(dtypes) == 1 and None not in dtypes:
                self.packed.add(result)

    def _is_one_and_exponential(self, left: str, right: str) -> bool:
        if left in self.exponentials:
            left, right = right, left
        return right in self.exponentials and self.constants.get(left, 0.0) >= 1.0

    def _gelu_part(self, operation: str, operands: tuple[str, ...]) -> tuple[str, str] | None:
        """What a result is as a part of ``x / 2 * (1 + erf(x / sqrt(2)))``, and ``x``."""
        if operation == "erf":
            what, value = self.gelu_parts.get(operands[0], ("", ""))
            return ("erf", value) if what == "scaled" else None
        if operation not in ("add", "mul"):
            return None
        for value, number in (operands, operands[::-1]):
            constant = self.constants.get(number)
            if operation == "mul" and constant in GELU_FACTORS:
                return GELU_FACTORS[constant], value
            what, x = self.gelu_parts.get(value, ("", ""))
            if operation == "add" and constant == 1.0 and what == "erf":
                return "twice the share", x
        return None

    def shorter(self, operation: str, operands: tuple[str, ...]) -> str | None:
        """A shorter form of an operation where results are stored in 16 bits; None for none."""
        if operation == "exp" and operands[0] in self.negatives:
            return f"weft.exp_of_negative_for_half({self.negatives[operands[0]]})"
        if operation != "mul":
            return None
        parts = dict(self.gelu_parts.get(o, ("", "")) for o in operands)
        x = parts.get("half")
        return f"weft.gelu_for_half({x})" if x and x == parts.get("twice the share") else None

    def note_conversion(self, source: str, target: torch.dtype, result: str) -> None:
        """``result`` is the float32 value ``source`` in ``target``."""
        if target in ROUND:
            self.sources[result] = source

    def widening(self, value: str, dtype: torch.dtype) -> str | None:
        """float32 of a 16-bit ``value``: by a function that rounds what it was made of, None for no such."""
        source = self.sources.get(value)
        if source is None or source in self.packed or dtype not in ROUND:
            return None
        return f"{ROUND[dtype]}({source})"
