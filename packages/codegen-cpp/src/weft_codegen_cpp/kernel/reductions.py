"""The accumulators of a reduction stage: which C++ type keeps each kind, and how its result is read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import sympy
import torch
from weft_loop_ir.bodies import REDUCTIONS, Store
from weft_loop_ir.unsupported import Unsupported

from weft_codegen_cpp.kernel.body_printer import BodyPrinter, Scope, Text
from weft_codegen_cpp.kernel.expressions import COMPUTE_TYPE, indent

SIMPLE = {"sum": "Sum", "prod": "Prod", "max": "Max", "min": "Min", "any": "Any", "all": "All"}
MOMENTS = {"welford_mean": "mean", "welford_m2": "m2"}


@dataclass(frozen=True)
class Accumulator:
    """One running value: ``name`` is an array of ``copies`` accumulators.

    ``loses_digits``: a long running total is less accurate than a total of short ones.  ``is_wide``: it may
    ask for a run to be repeated.
    """

    name: str
    type_name: str
    loses_digits: bool = False
    is_moments: bool = False
    is_wide: bool = False


@dataclass(frozen=True)
class Result:
    """What a store of a reduction reads."""

    accumulator: str
    field: str  # the member of the joined accumulator
    dtype: torch.dtype
    is_position: bool


class ReductionSet:
    """Collects the accumulators of one stage while its body is printed.

    ``is_row``: lanes are parts of one result.  ``repeatable``: a run of steps may be made again, since they
    write nothing, or since it then reads what they wrote (``is_read_again``).
    """

    def __init__(
        self,
        prefix: str,
        position: sympy.Expr,
        varying: bool,
        *,
        is_row: bool = False,
        repeatable: bool = False,
        is_read_again: bool = False,
    ) -> None:
        self._prefix = prefix
        self._position = position
        self._varying = varying  # accumulators hold vectors
        self._is_row = is_row
        self._repeatable = repeatable
        self._is_read_again = is_read_again
        self._order: list[str] = []  # the accumulator of each reduction
        self.accumulators: dict[str, Accumulator] = {}
        self.results: dict[str, Result] = {}
        self._by_value: dict[tuple[str, str], str] = {}

    def reduce(self, printer: BodyPrinter, kind: str, dtype: torch.dtype, value: Text) -> str:
        """Print the step of one reduction; gives the key of its result."""
        rule = REDUCTIONS[kind]
        if rule.connective is not None:
            value = printer.to_dtype(value, torch.bool)
        shared = "moments" if kind in MOMENTS else kind
        known = self._by_value.get((shared, value.code))
        name = known or f"{self._prefix}{shared}{len(self.accumulators)}"
        self._order.append(name)
        if known is None:
            self._by_value[shared, value.code] = name
            self._step(printer, kind, name, value)
        key = f"{name}.{kind}"
        result = rule.result(dtype if rule.connective is None else torch.bool)
        if self.accumulators[name].is_wide:
            result = torch.float64
        self.results[key] = Result(name, MOMENTS.get(kind, "value"), result, rule.finds_position)
        return key

    def _step(self, printer: BodyPrinter, kind: str, name: str, value: Text) -> None:
        element = COMPUTE_TYPE[value.dtype]
        x = f"Vec<{element}>" if self._varying else element
        operand = printer.vector(value) if self._varying else value.code
        single = operand if value.dtype is torch.float32 else value.widened
        if kind in SIMPLE:
            type_name = f"Accumulator<{SIMPLE[kind]}, {x}>"
            arguments = operand
        elif REDUCTIONS[kind].finds_position:
            type_name = f"ArgAccumulator<{'true' if kind == 'argmax' else 'false'}, {x}>"
            position = printer.index_expr(self._position, torch.int64)
            arguments = f"{operand}, {printer.vector(position) if self._varying else position.code}"
        elif kind in MOMENTS and self._repeatable and single is not None:
            self.accumulators[name] = Accumulator(name, "WideMoments", True, True, True)
            self._step_wide(printer, name, single)
            return
        elif kind in MOMENTS:
            type_name = f"Moments<{x}>"
            arguments = operand
        else:
            raise Unsupported("no C++ form for a reduction", repr(kind))
        sums = kind == "sum" and value.dtype.is_floating_point
        is_moments = kind in MOMENTS
        self.accumulators[name] = Accumulator(name, type_name, sums or is_moments, is_moments)
        printer.emit(f"{name}[which].step({printer.scope.tag}, {arguments});")

    def _step_wide(self, printer: BodyPrinter, name: str, value: str) -> None:
        place, copy = ("0", "which") if self._is_row else ("which", "0")
        printer.emit(f"{name}[{place}].step({printer.scope.tag}, {copy}, {value});")

    def steps_on(self, stores: Sequence[Store], scope: Scope) -> list[str]:
        """The steps of a run that is repeated, each on what one of ``stores`` left, in reductions' order."""
        printer = BodyPrinter(scope)
        for name, store in dict(zip(self._order, stores, strict=True)).items():
            value = printer.to_dtype(printer.load(store.buffer, store.index), torch.float32)
            self._step_wide(printer, name, printer.vector(value))
        return printer.lines

    @property
    def rescales(self) -> bool:
        """Whether runs may be repeated."""
        return any(a.is_wide for a in self.accumulators.values())

    @property
    def loses_digits(self) -> bool:
        """Whether a long run is better taken in parts."""
        return any(a.loses_digits for a in self.accumulators.values())

    def declare(self, copies: str) -> list[str]:
        return [self._declaration(a, copies) for a in self.accumulators.values()]

    def _declaration(self, accumulator: Accumulator, copies: str) -> str:
        type_name = accumulator.type_name
        if accumulator.is_wide:
            copied = copies if self._is_row else "1"
            type_name = f"WideMoments<{str(self._is_row).lower()}, {copied}>"
        return f"{type_name} {accumulator.name}[{self._length(accumulator, copies)}];"

    def _length(self, accumulator: Accumulator, copies: str) -> str:
        """How many accumulators there are, where ``copies`` take turns."""
        return "1" if accumulator.is_wide and self._is_row else copies

    def declare_totals(self, copies: str) -> list[str]:
        """The accumulators ``<name>_total`` that short runs join; moments are their own."""
        return [f"TotalOf<{a.type_name}> {a.name}_total[{copies}];" for a in self._summed()]

    def start_run(self, copies: str) -> list[str]:
        """Set the accumulators back to their start."""
        return [f"{_each(copies)} {a.name}[which] = {{}};" for a in self._summed()]

    def end_run(self, copies: str) -> list[str]:
        """Join what a run has accumulated into the totals, copy by copy."""
        return self.settle(copies) + [
            f"{_each(copies)} {a.name}_total[which].join({a.name}[which]);" for a in self._summed()
        ]

    def take_totals(self, copies: str) -> list[str]:
        """Let the accumulators be the totals of all runs."""
        return [
            f"{_each(copies)} {a.name}[which] = {a.name}_total[which].get();"
            for a in self._summed()
        ]

    def settle(self, copies: str) -> list[str]:
        """Make the moments those of all steps so far."""
        return [
            f"{_each(self._length(a, copies))} {a.name}[which].settle();"
            for a in self.accumulators.values()
            if a.is_moments
        ]

    def repeated(self, run: list[str], copies: str) -> list[str]:
        """``run``, which sets other accumulators to their start, as often as moments ask for it."""
        wide = [a for a in self.accumulators.values() if a.is_wide]
        if not wide:
            return run
        each = _each(self._length(wide[0], copies))
        ask = [f"{each} again |= {a.name}[which].rescale();" for a in wide]
        restart = [f"if (again) {each} {a.name}[which].restart();" for a in wide]
        body = [*run, "again = false;", *ask, *restart]
        head = "for (bool again = true; again;) {"
        if self._is_read_again:
            head = "for (bool again = true, repeats = false; again; repeats = true) {"
        return [head, *indent(body), "}"]

    def _summed(self) -> list[Accumulator]:
        return [a for a in self.accumulators.values() if not a.is_moments]

    def join(self, copies: int) -> list[str]:
        """Join the copies into the first, then its lanes into one value ``<name>_all``."""
        lines: list[str] = []
        for a in self.accumulators.values():
            lines.extend(
                f"{a.name}[0].join({a.name}[{k}]);" for k in range(1, copies) if not a.is_wide
            )
            lines.append(f"const auto {a.name}_all = {a.name}[0].across();")
        return lines

    def joined(self, key: str) -> Text:
        """The scalar result after :meth:`join`."""
        result = self.results[key]
        is_struct = result.field in MOMENTS.values()
        code = f"{result.accumulator}_all" + (f".{result.field}" if is_struct else "")
        return Text(code, result.dtype, False)

    def by_lane(self, key: str) -> Text:
        """The result of copy ``which``, one for each lane (or one scalar)."""
        result = self.results[key]
        field = "position" if result.is_position else result.field
        if self.accumulators[result.accumulator].is_wide:
            field += "()"
        return Text(f"{result.accumulator}[which].{field}", result.dtype, self._varying)


def _each(count: str) -> str:
    """The head of a loop over so many accumulators."""
    return f"for (int which = 0; which < {count}; ++which)"
