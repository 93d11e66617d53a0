"""The accumulators of a reduction stage: which C++ type keeps each kind, and how its result is read."""

from __future__ import annotations

from dataclasses import dataclass

import sympy
import torch
from weft_loop_ir.unsupported import Unsupported

from weft_codegen_cpp.kernel.body_printer import BodyPrinter, Text
from weft_codegen_cpp.kernel.dtypes import COMPUTE_TYPE

SIMPLE = {"sum": "Sum", "prod": "Prod", "max": "Max", "min": "Min", "any": "Any", "all": "All"}
MOMENTS = {"welford_mean": "mean", "welford_m2": "m2"}


@dataclass(frozen=True)
class Accumulator:
    """One running value: ``name`` is an array of ``copies`` accumulators."""

    name: str
    type_name: str  # with ``X`` for the type of a step's values

    @property
    def is_moments(self) -> bool:
        return self.type_name.startswith("Moments<")


@dataclass(frozen=True)
class Result:
    """What a store of a reduction reads."""

    accumulator: str
    field: str  # the member of the joined accumulator
    dtype: torch.dtype
    is_position: bool


class ReductionSet:
    """Collects the accumulators of one stage while its body is printed."""

    def __init__(self, prefix: str, position: sympy.Expr, varying: bool) -> None:
        self._prefix = prefix
        self._position = position
        self._varying = varying  # accumulators hold vectors
        self.accumulators: dict[str, Accumulator] = {}
        self.results: dict[str, Result] = {}
        self._by_value: dict[tuple[str, str], str] = {}

    def reduce(self, printer: BodyPrinter, kind: str, dtype: torch.dtype, value: Text) -> str:
        """Print the step of one reduction; gives the key of its result."""
        if kind in ("any", "all"):
            value = printer.to_dtype(value, torch.bool)
        shared = "moments" if kind in MOMENTS else kind
        known = self._by_value.get((shared, value.code))
        name = known or f"{self._prefix}{shared}{len(self.accumulators)}"
        if known is None:
            self._by_value[shared, value.code] = name
            self._step(printer, kind, name, value)
        key = f"{name}.{kind}"
        is_position = kind in ("argmax", "argmin")
        result = torch.int64 if is_position else (torch.bool if kind in ("any", "all") else dtype)
        self.results[key] = Result(name, MOMENTS.get(kind, "value"), result, is_position)
        return key

    def _step(self, printer: BodyPrinter, kind: str, name: str, value: Text) -> None:
        element = COMPUTE_TYPE[value.dtype]
        x = f"Vec<{element}>" if self._varying else element
        operand = printer.vector(value) if self._varying else value.code
        if kind in SIMPLE:
            type_name = f"Accumulator<{SIMPLE[kind]}, {x}>"
            arguments = operand
        elif kind in ("argmax", "argmin"):
            type_name = f"ArgAccumulator<{'true' if kind == 'argmax' else 'false'}, {x}>"
            position = printer.index_expr(self._position, torch.int64)
            arguments = f"{operand}, {printer.vector(position) if self._varying else position.code}"
        elif kind in MOMENTS:
            type_name = f"Moments<{x}>"
            arguments = operand
        else:
            raise Unsupported("no C++ form for a reduction", repr(kind))
        self.accumulators[name] = Accumulator(name, type_name)
        printer.emit(f"{name}[which].step({printer.scope.tag}, {arguments});")

    @property
    def loses_digits(self) -> bool:
        """Whether a long running total is less accurate than a total of short ones."""
        return any(
            a.is_moments or a.type_name.startswith(("Accumulator<Sum, Vec<f", "Accumulator<Sum, f"))
            for a in self.accumulators.values()
        )

    def declare(self, copies: str) -> list[str]:
        return [f"{a.type_name} {a.name}[{copies}];" for a in self.accumulators.values()]

    def declare_totals(self, copies: str) -> list[str]:
        """The accumulators ``<name>_total`` that short runs join; moments are their own."""
        return [f"{a.type_name} {a.name}_total[{copies}];" for a in self._summed()]

    def start_run(self, copies: str) -> list[str]:
        """Set the accumulators back to their start."""
        return [
            f"for (int which = 0; which < {copies}; ++which) {a.name}[which] = {{}};"
            for a in self._summed()
        ]

    def end_run(self, copies: str) -> list[str]:
        """Join what a run has accumulated into the totals, copy by copy."""
        return self.settle(copies) + [
            f"for (int which = 0; which < {copies}; ++which) "
            f"{a.name}_total[which].join({a.name}[which]);"
            for a in self._summed()
        ]

    def take_totals(self, copies: str) -> list[str]:
        """Let the accumulators be the totals of all runs."""
        return [
            f"for (int which = 0; which < {copies}; ++which) {a.name}[which] = {a.name}_total[which];"
            for a in self._summed()
        ]

    def settle(self, copies: str) -> list[str]:
        """Make the moments those of all steps so far."""
        return [
            f"for (int which = 0; which < {copies}; ++which) {a.name}[which].settle();"
            for a in self.accumulators.values()
            if a.is_moments
        ]

    def _summed(self) -> list[Accumulator]:
        return [a for a in self.accumulators.values() if not a.is_moments]

    def join(self, copies: int) -> list[str]:
        """Join the copies into the first, then its lanes into one value ``<name>_all``."""
        lines: list[str] = []
        for a in self.accumulators.values():
            lines.extend(f"{a.name}[0].join({a.name}[{k}]);" for k in range(1, copies))
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
        return Text(f"{result.accumulator}[which].{field}", result.dtype, self._varying)
