"""Operands of one row's matmuls that are read by words: several neighbours along what is added up at once.

A thread has a word of the matrix, and what the row has beside it.  So numbers of 4 bits are taken out of
words of eight, and what all that a word holds is multiplied by, a group's scale, is a factor of their sum.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sympy
import torch
from weft_loop_ir import FloorDiv, Mod, ranges_for
from weft_loop_ir.bodies import (
    EQ,
    GE,
    GT,
    LE,
    LT,
    MUL,
    NE,
    Constant,
    Conversion,
    IndexValue,
    Instruction,
    LoopBody,
    Masked,
    Operation,
    Store,
    Value,
    Where,
)
from weft_loop_ir.bodies.edit import part_of, with_expressions, without_unused
from weft_loop_ir.contractions import INNER, Contraction, Operand
from weft_loop_ir.index_simplify import IndexRanges
from weft_loop_ir.ops import HALVES

from weft_codegen_triton.kernel.bit_fields import Word

SINGLES = (*HALVES, torch.float32)
WORD_BYTES = 4
"""Of the matrix; of the row twice as many are read at once."""


def word_of(
    index: sympy.Expr, itemsize: int, word_bytes: int, *, is_alone: bool = True
) -> Word | None:
    """The word that the element at ``index`` is in, one of a run for each ``INNER``; None without a run."""
    index = sympy.expand(index)
    step = index.coeff(INNER)
    rest = sympy.expand(index - step * INNER)
    if not step.is_Integer or step <= 0 or INNER in rest.free_symbols:
        return None
    count = max(1, word_bytes // itemsize)
    while int(step) % count:
        count //= 2
    constant, moving = rest.as_coeff_Add()
    terms = moving.as_coefficients_dict().values()
    if not all(c.is_Integer and c % count == 0 for c in terms if moving != 0):
        return None
    position = int(constant) % count
    return Word(sympy.expand((index - position) / count), count, position, is_alone)


# -- what a word's elements have in common -----------------------------------------------------------------


@dataclass(frozen=True)
class CommonFactors:
    """A value for each element of a word, ``cores``, and what all of them are multiplied by, ``factors``.

    Values are of the body of each element; factors of the first one's.  ``held``: the dtype of 16 bits that
    cores are rounded to, None where they are not.
    """

    cores: tuple[Value, ...]
    factors: tuple[Value, ...]
    held: torch.dtype | None = None


def common_factors(bodies: Sequence[LoopBody], results: Sequence[Value]) -> CommonFactors:
    """What the ``results`` of ``bodies`` are products of.

    What eager rounds between is not rounded: the product of a scale and a number that a sum is made of is
    more precise as it is.
    """
    keys = [_Keys(body) for body in bodies]
    cores, factors = list(results), []
    held: torch.dtype | None = None
    while True:
        tops = [body.at(core) for body, core in zip(bodies, cores, strict=True)]
        found = _product(tops, keys)
        if found is not None:
            factors.append(tops[0].operands[found])
            held = None
            cores = [top.operands[1 - found] for top in tops]
        elif all(_is_rounding(top, body) for top, body in zip(tops, bodies, strict=True)):
            held = tops[0].dtype if tops[0].dtype in HALVES else held
            cores = [top.operands[0] for top in tops]
        else:
            break
    return CommonFactors(tuple(cores) if factors else tuple(results), tuple(factors), held)


def _product(tops: Sequence[Instruction], keys: Sequence[_Keys]) -> int | None:
    """Which operand of products is the same in all of ``tops``."""
    if any(top.operation is not MUL or top.dtype not in SINGLES for top in tops):
        return None
    for position in (1, 0):
        if len({key(top.operands[position]) for key, top in zip(keys, tops, strict=True)}) == 1:
            return position
    return None


def _is_rounding(instruction: Instruction, body: LoopBody) -> bool:
    is_conversion = isinstance(instruction, Conversion) and instruction.dtype in SINGLES
    return is_conversion and body.at(instruction.operands[0]).dtype in SINGLES


class _Keys:
    """What is equal for values that are computed alike."""

    def __init__(self, body: LoopBody) -> None:
        self._body = body
        self._known: dict[int, Hashable] = {}

    def __call__(self, value: Value) -> Hashable:
        if value.index not in self._known:
            instruction = self._body.at(value)
            arguments = (self(a) if isinstance(a, Value) else a for a in instruction.arguments)
            self._known[value.index] = (
                instruction.operation.name,
                instruction.dtype,
                tuple((type(a), a) for a in arguments),
            )
        return self._known[value.index]


# -- conditions on places ----------------------------------------------------------------------------------

COMPARISONS: Mapping[Operation, Callable[[int, int, int, int], bool | None]] = {
    LT: lambda a, b, c, d: True if b < c else False if a >= d else None,
    LE: lambda a, b, c, d: True if b <= c else False if a > d else None,
    GT: lambda a, b, c, d: True if a > d else False if b <= c else None,
    GE: lambda a, b, c, d: True if a >= d else False if b < c else None,
    EQ: lambda a, b, c, d: True if a == b == c == d else False if b < c or a > d else None,
    NE: lambda a, b, c, d: False if a == b == c == d else True if b < c or a > d else None,
}
"""Whether a number from ``a`` to ``b`` compares so with one from ``c`` to ``d``, None if both may be."""


def with_known_conditions(body: LoopBody, ranges: IndexRanges) -> LoopBody:
    """``body`` without branches that are not taken where places are in ``ranges``."""
    if not any(i.operation in COMPARISONS for i in body.instructions):
        return body
    made: list[Instruction] = []
    places = _fold(body, ranges, made)
    result = None if body.result is None else places[body.result]
    return without_unused(LoopBody(tuple(made), result))


def _fold(body: LoopBody, ranges: IndexRanges, made: list[Instruction]) -> dict[Value, Value]:
    """Append the instructions of ``body`` to ``made``; gives where each value is there."""
    places: dict[Value, Value] = {}
    known: dict[Value, bool] = {}

    def moved(argument: Any) -> Any:
        return places[argument] if isinstance(argument, Value) else argument

    for position, instruction in enumerate(body.instructions):
        value = Value(position)
        holds = _comparison(instruction, made, places, ranges)
        if holds is not None:
            known[value] = holds
        if isinstance(instruction, Where) and instruction.condition in known:
            taken = instruction.chosen if known[instruction.condition] else instruction.other
            places[value] = places[taken]
            continue
        if isinstance(instruction, Masked) and known.get(instruction.mask):
            inside = _fold(instruction.body, ranges, made)
            assert instruction.body.result is not None
            places[value] = inside[instruction.body.result]
            continue
        places[value] = Value(len(made))
        made.append(instruction.mapped(moved))
    return places


def _comparison(
    instruction: Instruction,
    made: Sequence[Instruction],
    places: Mapping[Value, Value],
    ranges: IndexRanges,
) -> bool | None:
    decide = COMPARISONS.get(instruction.operation)
    if decide is None:
        return None
    ends: list[int] = []
    for operand in instruction.operands:
        source = made[places[operand].index]
        if isinstance(source, Constant) and isinstance(source.number, int):
            ends += [source.number, source.number]
        elif isinstance(source, IndexValue):
            low, high = ranges.bounds(source.index)
            if low is None or high is None:
                return None
            ends += [low, high]
        else:
            return None
    return decide(*ends)


# -- which elements a thread has ---------------------------------------------------------------------------

PACKED = (2, 4, 8)
"""How many numbers a byte, or a word, may hold."""
MAX_PIECES = 4


@dataclass(frozen=True)
class Parts:
    """What is added up, in parts: ``INNER`` counts ``neighbours``, of each of ``pieces`` of a ``length``."""

    neighbours: int = 1
    pieces: int = 1
    length: sympy.Expr = sympy.S.Zero

    @property
    def count(self) -> int:
        return self.neighbours * self.pieces

    def place(self, part: int) -> sympy.Expr:
        """Where the element of a part is along what is added up."""
        return self.neighbours * INNER + self.offset(part)

    def offset(self, part: int) -> sympy.Expr:
        piece, neighbour = divmod(part, self.neighbours)
        return piece * self.length + neighbour

    def body(
        self, operand: Operand, body: LoopBody, contraction: Contraction, part: int
    ) -> LoopBody:
        """``body`` of the operand's producer for the elements of a part."""
        producer = operand.producer
        assert producer is not None
        sizes = {**contraction.sizes, INNER: contraction.inner / self.count}
        ranges = ranges_for(tuple(sizes.items()))
        place = {INNER: self.place(part)}
        values = {loop.symbol: value.xreplace(place) for loop, value in producer.loops}
        moved = with_expressions(body, lambda e: ranges.simplify(sympy.expand(e.xreplace(values))))
        return with_known_conditions(moved, ranges)

    def bodies(self, operand: Operand, contraction: Contraction, piece: int) -> list[LoopBody]:
        """That of the operand's producer for each part of a piece."""
        assert operand.producer is not None
        body, count = operand.producer.kernel.stages[0].body, self.neighbours
        return [self.body(operand, body, contraction, piece * count + n) for n in range(count)]


ALONE = Parts()


def parts_of(contraction: Contraction) -> Parts:
    """In how many parts a row's matmul is added up, so that each word in memory is read once.

    4 for numbers of 2 bits, four of which lie in a byte; 1 where each is loaded.
    """
    found = Parts()
    if not contraction.inner.is_Integer:
        return found
    inner = int(contraction.inner)
    for operand in (contraction.left, contraction.right):
        if operand.producer is None:
            continue
        for body in operand.producer.kernel.bodies:
            found = _wider(found, ALONE.body(operand, body, contraction, 0), inner)
    if contraction.right.producer is not None:
        longer = Parts(found.neighbours * WORD_BYTES, found.pieces, found.length)
        if _reads_words(longer, contraction):
            found = longer
    return Parts() if inner % found.count else found


def _wider(found: Parts, body: LoopBody, inner: int) -> Parts:
    """``found`` and what ``body`` computes of one number, or joins of pieces."""
    neighbours, length = found.neighbours, inner // found.pieces
    for expression in body.expressions():
        for division in expression.atoms(FloorDiv, Mod):
            dividend, divisor = division.args
            if divisor in PACKED and INNER in dividend.free_symbols:
                neighbours = max(neighbours, int(divisor))
    for instruction in body.instructions:
        if instruction.operation in COMPARISONS:
            place, end = (body.at(operand) for operand in instruction.operands)
            is_place = isinstance(place, IndexValue) and place.index == INNER
            if is_place and isinstance(end, Constant) and isinstance(end.number, int):
                length = math.gcd(length, end.number)
    pieces = inner // length
    if pieces > MAX_PIECES:
        return Parts(neighbours, found.pieces, found.length)
    return Parts(neighbours, pieces, sympy.Integer(length if pieces > 1 else 0))


def _reads_words(parts: Parts, contraction: Contraction) -> bool:
    """Whether bytes of the right operand that lie along what is added up are read in whole words."""
    producer = contraction.right.producer
    if producer is None or int(contraction.inner) % parts.count or producer.factor is not None:
        return False
    body, found = producer.kernel.stages[0].body, False
    for part in range(parts.count):
        moved = parts.body(contraction.right, body, contraction, part)
        if moved.holds(Masked):
            return False
        for load in moved.loads():
            assert load.dtype is not None
            if load.dtype.itemsize == 1 and INNER in load.index.free_symbols:
                word = word_of(load.index, 1, WORD_BYTES)
                if word is None or word.count < WORD_BYTES:
                    return False
                found = True
    return found


def factors_of(bodies: Sequence[LoopBody]) -> CommonFactors:
    """What all that ``bodies`` store, of a word's elements, is multiplied by."""
    stores = (next(i for i in body.instructions if isinstance(i, Store)) for body in bodies)
    return common_factors(bodies, [store.value for store in stores])


def is_made_of_words(contraction: Contraction, parts: Parts, block: int) -> bool:
    """Whether the right operand is made of one word each, but for factors that ``block`` words share.

    Those are whole blocks, and what is multiplied has 16 bits in eager, too.
    """
    number, place = (sympy.Symbol(name, integer=True) for name in ("block", "place"))
    count = contraction.inner / parts.count / block
    ranges = ranges_for(((number, count), (place, sympy.Integer(block))))
    for piece in range(parts.pieces):
        bodies = parts.bodies(contraction.right, contraction, piece)
        common = factors_of(bodies)
        for factor in common.factors:
            for load in part_of(bodies[0], factor).loads():
                index = load.index.xreplace({INNER: block * number + place})
                if place in ranges.simplify(index).free_symbols:
                    return False
        if contraction.dtype not in (common.held, bodies[0].at(common.cores[0]).dtype):
            return False
        pairs = zip(bodies, common.cores, strict=True)
        loads = [load for body, core in pairs for load in part_of(body, core).loads()]
        if len({load.buffer for load in loads if INNER in load.index.free_symbols}) != 1:
            return False
    return True
