"""weft for the CPU without a C++ compiler: schedules are printed, and run by loop-ir's reference evaluator.

All stages but the compiler and what it makes are the same, so a program takes a third of the time.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
import weft_loop_ir
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd.grad_mode import _unsafe_preserve_version_counter
from weft_codegen_cpp import CppCodegen
from weft_codegen_cpp.program import GeneratedProgram
from weft_loop_ir import Schedule


class EvaluatedProgram:
    """A schedule that the reference evaluator runs, in the memory that it plans."""

    def __init__(
        self,
        generated: GeneratedProgram,
        schedule: Schedule,
        constants: Mapping[str, torch.Tensor],
    ) -> None:
        self.source = generated.unit.whole
        self.kernel_count, self.extern_count = generated.kernel_count, generated.extern_count
        self.may_fail = generated.may_fail
        known = {"IndexError": IndexError, "Exception": Exception}
        self.early_errors = known.get(generated.early_errors)
        self._schedule, self._constants = schedule, constants
        self._left_changes = False

    def left_changes(self) -> bool:
        """Whether the last call that raised had written to an input, or drawn a number."""
        return self._left_changes

    def __call__(self, *inputs: Any) -> tuple[Any, ...]:
        rest = iter(inputs)
        every = [
            self._constants[e] if e in self._constants else next(rest)
            for e in self._schedule.inputs
        ]
        before = _state(every)
        counted = [x for x in every if isinstance(x, torch.Tensor) and not x.is_inference()]
        with _unsafe_preserve_version_counter(tuple(counted)), torch.no_grad():
            try:  # native programs count no writes: who calls them does
                results = weft_loop_ir.evaluate(self._schedule, every, use_arena=True)
            except Exception:
                self._left_changes = _state(every) != before
                raise
        places = {_place(x): x for x in reversed(counted)}
        return tuple(
            places.get(_place(r), _apart(r)) if isinstance(r, torch.Tensor) else r for r in results
        )


def _state(inputs: Sequence[Any]) -> list[Any]:
    """What tells of a write to an input, or of a number drawn."""
    versions = [x._version for x in inputs if isinstance(x, torch.Tensor) and not x.is_inference()]
    return [*versions, torch.get_rng_state().tolist()]


def _place(tensor: torch.Tensor) -> Any:
    """What an argument and a result have in common where native programs return the argument itself."""
    if tensor.layout != torch.strided:
        return id(tensor)
    flags = tensor.dtype, tensor.is_conj(), tensor.is_neg()
    steps = [step for n, step in zip(tensor.shape, tensor.stride(), strict=True) if n != 1]
    where = tensor.untyped_storage()._cdata, tensor.storage_offset()  # no elements have no address
    return *where, tensor.shape, *steps, *flags


def _apart(result: torch.Tensor) -> torch.Tensor:
    """A tensor of the same memory that is no view of another, as native programs return."""
    made = torch.empty(0, dtype=result.dtype)
    place = result.storage_offset(), result.shape, result.stride()
    return made.set_(result.untyped_storage(), *place).data  # which nobody has written to


class EvaluatedCpp(CppCodegen):
    """The code generator for the CPU up to the text of C++."""

    def compile(  # type: ignore[override]
        self, schedule: Schedule, constants: Mapping[str, torch.Tensor]
    ) -> EvaluatedProgram:
        return EvaluatedProgram(self._generate(schedule, constants), schedule, constants)

    def begin(  # type: ignore[override]
        self, schedule: Schedule, constants: Mapping[str, torch.Tensor]
    ) -> Callable[[], EvaluatedProgram]:
        program = self.compile(schedule, constants)
        return lambda: program

    def environment(self) -> None:  # type: ignore[override]
        """Its programs are not kept."""


@contextlib.contextmanager
def cache_fakes(wanted: bool) -> Iterator[None]:
    """Whether torch keeps what operators give of fake tensors; random programs hardly ask again.

    Without it a program takes two thirds of the time.
    """
    begin = FakeTensorMode.__init__

    def begin_without(self: FakeTensorMode, *arguments: Any, **options: Any) -> None:
        begin(self, *arguments, **options)
        self.cache_enabled = False

    if not wanted:
        FakeTensorMode.__init__ = begin_without  # type: ignore[method-assign]
    try:
        yield
    finally:
        FakeTensorMode.__init__ = begin  # type: ignore[method-assign]
