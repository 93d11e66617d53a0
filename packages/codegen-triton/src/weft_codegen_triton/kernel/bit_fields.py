"""Bits of words that hold several numbers: what masks and shifts make of them becomes floats in one step.

``(word >> 4) & 15`` in float32 is three instructions: a shift, the bits put into the last places of 2**23,
and that taken away again, with a number that is added to the result.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import sympy
import torch
from weft_loop_ir.bodies import ADD, SUB, Number, Operation, operation_named

AND = operation_named("bitwise_and")
LEFT, RIGHT = operation_named("left_shift"), operation_named("right_shift")

MAX_WIDTH = 16
"""Bits of a number that is made a float so: 2**23 and what is added leave as many exact."""
MAX_ADDED = 1 << 20
EXACT, HALF_WORD = 22, 16
EXACT_HALVES = {torch.bfloat16: 1 << 8, torch.float16: 1 << 11}
"""Whole numbers up to these are exact."""


@dataclass(frozen=True)
class Word:
    """``count`` elements side by side, of which the wanted one is at ``position``; ``index`` counts words.

    ``is_alone``: a thread loads no other beside it.
    """

    index: sympy.Expr
    count: int
    position: int
    is_alone: bool = True


@dataclass(frozen=True)
class BitField:
    """``width`` bits of ``word``, the name of 32 bits, above ``shift`` others; the first may be a sign."""

    word: str
    shift: int
    width: int
    is_signed: bool

    def fits(self, dtype: torch.dtype) -> bool:
        """Whether the number is the same in ``dtype``."""
        bits = 8 * dtype.itemsize
        return self.width <= bits and (
            dtype.is_signed if self.is_signed else self.width < bits or not dtype.is_signed
        )

    def single(self, added: int) -> str:
        """float32 of the number and ``added``."""
        return self._printed(added, self.shift, 0)

    def half(self, added: int, dtype: torch.dtype) -> str | None:
        """The number and ``added`` in ``dtype``, of 16 bits; None where it may not be exact."""
        limit = EXACT_HALVES[dtype]
        place = self.shift % HALF_WORD
        if self.width > 8 or place + self.width > HALF_WORD:
            return None
        least = added - (1 << (self.width - 1)) * self.is_signed
        if max(abs(least), abs(least + (1 << self.width))) > limit:
            return None
        constant = least - limit // 2
        if dtype is torch.bfloat16 and self.width == 8:
            constant = added + 128 * (not self.is_signed)
        held = torch.tensor(float(constant), dtype=dtype)
        if held != constant:
            return None
        bits = int(held.view(torch.int16)) & 0xFFFF
        both = (bits | bits << 16) - (bits >> 15 << 32)
        arguments = (self.word, self.shift, self.width, self.is_signed, float(added), both)
        return f"math.{str(dtype)[6:]}_of_bits({', '.join(map(str, arguments))})"

    def scaled(self, added: int) -> tuple[str, int]:
        """:meth:`single` times a power of two, and its exponent: the bits stay where they are in the word.

        Those of the upper half are moved together, so that few shifts are left.
        """
        moved = 0 if self.shift + self.width <= EXACT else HALF_WORD
        place = self.shift - moved
        if place < 0 or place + self.width > EXACT or abs(added) << place >= 1 << EXACT:
            return self.single(added), 0
        return self._printed(added, moved, place), place

    def _printed(self, added: int, shift: int, place: int) -> str:
        kind = "signed_bits" if self.is_signed else "bits"
        return f"weft.float_of_{kind}({self.word}, {shift}, {self.width}, {float(added)}, {place})"


@dataclass
class BitFields:
    """What is known of values that are parts of words, and of floats made of those, by their names.

    ``numbers``: constants.  ``floats``: float32 of a field and a whole number.  ``lessened``: one of
    ``floats`` less another value.  ``raised``: a field shifted left.  ``differences``: integers.
    """

    fields: dict[str, BitField] = field(default_factory=dict)
    numbers: dict[str, Number] = field(default_factory=dict)
    floats: dict[str, tuple[BitField, int]] = field(default_factory=dict)
    lessened: dict[str, tuple[str, str]] = field(default_factory=dict)
    raised: dict[str, tuple[BitField, int]] = field(default_factory=dict)
    differences: dict[str, tuple[BitField, BitField]] = field(default_factory=dict)

    def note_operation(
        self, operation: Operation, operands: tuple[str, ...], result: str, dtype: torch.dtype
    ) -> None:
        """``result`` is ``operation`` of ``operands`` of ``dtype``."""
        if dtype is torch.float32 and operation is SUB and operands[0] in self.floats:
            self.lessened[result] = operands[0], operands[1]
        if dtype.is_floating_point or dtype is torch.bool:
            return
        value, other = operands[0], operands[-1]
        found: BitField | None = None
        if operation is AND:
            found = _and(self._field(value, dtype), self.numbers.get(other))
            found = found or _and(self._field(other, dtype), self.numbers.get(value))
        elif operation is RIGHT:
            found = self._shifted(value, self.numbers.get(other), dtype)
        elif operation is LEFT:
            self._raise(value, self.numbers.get(other), result, dtype)
        elif operation is SUB:
            self._subtract(value, other, result, dtype)
        if found is not None:
            self.fields[result] = found

    def _field(self, value: str, dtype: torch.dtype) -> BitField | None:
        found = self.fields.get(value)
        return BitField(value, 0, 32, True) if found is None and dtype is torch.int32 else found

    def _shifted(self, value: str, count: Number | None, dtype: torch.dtype) -> BitField | None:
        if value in self.raised:  # the bits above are gone, the last that is left may be a sign
            known, raised = self.raised[value]
            width = known.width - raised
            return (
                replace(known, width=width, is_signed=dtype.is_signed) if raised == count else None
            )
        found = self._field(value, dtype)
        if found is None or count is None or not 0 <= count < found.width:
            return None
        return replace(found, shift=found.shift + int(count), width=found.width - int(count))

    def _raise(self, value: str, count: Number | None, result: str, dtype: torch.dtype) -> None:
        """``result`` is ``value`` shifted left: bits are lost where it has all of its dtype's."""
        known = self.fields.get(value)
        if known is None or count is None or known.width != 8 * dtype.itemsize:
            return
        if 0 < count < known.width:
            self.raised[result] = known, int(count)

    def _subtract(self, value: str, other: str, result: str, dtype: torch.dtype) -> None:
        """``result`` is a difference that ``dtype`` holds, of numbers without signs."""
        pair = self.fields.get(value), self.fields.get(other)
        if pair[0] is None or pair[1] is None or not dtype.is_signed:
            return
        most = min(MAX_WIDTH, 8 * dtype.itemsize - 1)
        if all(one.width <= most and not one.is_signed for one in (pair[0], pair[1])):
            self.differences[result] = pair[0], pair[1]

    def note_conversion(self, source: str, result: str, dtype: torch.dtype) -> None:
        """``result`` is the integer ``source`` in another ``dtype``."""
        found = self.fields.get(source)
        if found is not None and found.fits(dtype):
            self.fields[result] = found
        number = self.numbers.get(source)
        if number is not None and torch.iinfo(dtype).min <= number <= torch.iinfo(dtype).max:
            self.numbers[result] = number
        pair = self.differences.get(source)
        if pair is not None and dtype.is_signed and dtype.itemsize >= 4:
            self.differences[result] = pair

    def single(self, value: str) -> BitField | None:
        """What float32 of ``value`` is made of, None where that is not known to be exact."""
        found = self.fields.get(value)
        return None if found is None or found.width > MAX_WIDTH else found

    def scaled(self, value: str) -> tuple[str, int]:
        """float32 ``value`` times a power of two, and its exponent, where that is cheaper than ``value``."""
        if value in self.floats:
            known, added = self.floats[value]
            return known.scaled(added)
        if value in self.lessened:
            number, other = self.lessened[value]
            code, exponent = self.scaled(number)
            if exponent:
                return f"({code} - {other} * {2.0**exponent})", exponent
        return value, 0

    def half(self, single: str, dtype: torch.dtype) -> str | None:
        """In ``dtype``, of 16 bits, what ``single`` is in float32; None where no bits are known of it."""
        known = self.floats.get(single)
        return None if known is None else known[0].half(known[1], dtype)

    def is_small(self, value: str) -> bool:
        """Whether dtypes of 16 bits hold ``value`` exactly."""
        found = (self.fields.get(value), *self.differences.get(value, ()))
        return any(found) and all(one is None or one.width <= 8 for one in found)

    def difference(self, value: str) -> str | None:
        """float32 of ``value`` where it is the difference of two numbers."""
        pair = self.differences.get(value)
        if pair is None:
            return None
        codes = (f"{one.word}, {one.shift}, {one.width}" for one in pair)
        return f"weft.float_of_difference({', '.join(codes)})"

    def added(self, operation: Operation, operands: tuple[str, ...]) -> tuple[BitField, int] | None:
        """The number, and what is added to it, that ``operation`` on ``operands`` in float32 gives."""
        if operation not in (ADD, SUB):
            return None
        for value, other in (operands, operands[::-1])[: 2 if operation is ADD else 1]:
            found, number = self.floats.get(value), self.numbers.get(other)
            if found is None or number is None or not float(number).is_integer():
                continue
            total = found[1] + (int(number) if operation is ADD else -int(number))
            if abs(total) <= MAX_ADDED:
                return found[0], total
        return None


def _and(known: BitField | None, mask: Number | None) -> BitField | None:
    width = 0 if mask is None else int(mask).bit_length()
    if known is None or width == 0 or mask != (1 << width) - 1:
        return None
    if width > known.width:
        return None if known.is_signed else known
    return replace(known, width=width, is_signed=False)
