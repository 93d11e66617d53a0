"""Cases of the conformance suite, and what a code generator's program is checked for."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext

from weft_loop_ir._torch import FakeTensorMode, enable_python_dispatcher
from weft_loop_ir.codegen import Codegen, CompiledProgram
from weft_loop_ir.evaluate import evaluate
from weft_loop_ir.ir import Schedule
from weft_loop_ir.lowering import lower
from weft_loop_ir.schedule import schedule
from weft_loop_ir.testing.programs import PROGRAMS, Program, inputs_of
from weft_loop_ir.unsupported import Unsupported
from weft_loop_ir.verify import verify
from weft_loop_ir.write_back import write_back

EXTENTS = (9, 4, 17)
"""The extent that varies: that of the call that a schedule is made for, and of later ones."""

TOLERANCES = {torch.float16: 4e-3, torch.bfloat16: 3e-2, torch.float32: 2e-5, torch.float64: 1e-9}
"""By the least precise dtype of a case: kernels may add numbers up in another order, and round less often."""


@dataclass(frozen=True)
class Case:
    """A program in one dtype, for one size or, ``is_dynamic``, for all."""

    program: Program = field(repr=False)
    dtype: torch.dtype
    is_dynamic: bool

    @property
    def kind(self) -> str:
        """The kind of loop nest: what a code generator may declare that it refuses."""
        return self.program.kind

    def __str__(self) -> str:
        name = f"{self.program.kind}: {self.program.name}-{str(self.dtype)[6:]}"
        return f"{name}-dynamic" if self.is_dynamic else name


def conformance_cases(
    kinds: Collection[str] | None = None, *, sample: bool = False
) -> tuple[Case, ...]:
    """All cases, of ``kinds`` if they are given; a ``sample`` has each program once, dtypes taking turns."""
    cases: list[Case] = []
    for number, program in enumerate(PROGRAMS):
        if kinds is not None and program.kind not in kinds:
            continue
        dtypes = program.dtypes
        if sample:
            dynamic = program.varies and number % 3 == 0
            cases.append(Case(program, dtypes[number % len(dtypes)], dynamic))
            continue
        varies = (False, True) if program.varies else (False,)
        cases += [Case(program, dtype, is_dynamic) for dtype in dtypes for is_dynamic in varies]
    return tuple(cases)


def check(
    codegen: Codegen, case: Case, *, device: str = "cpu", may_refuse: Collection[str] = ()
) -> None:
    """Compile the schedule of ``case`` with ``codegen`` and compare each call with the reference evaluator.

    Compared are values, dtypes, sizes, strides, which results share memory with one another and with inputs,
    what becomes of inputs, numbers among the results, errors, and that a call leaves the results of the one
    before alone.  ``device`` is where the tensors lie.

    :raises Unsupported: ``codegen`` refuses the schedule, and its kind is not in ``may_refuse``.
    :raises AssertionError: the program is wrong.
    """
    made = schedule_of(case, codegen, "cpu")
    verify(made)
    bound = {str(made.inputs[k]): k for k in case.program.constants}
    calls = _calls(case)
    constants = {name: calls[0][k].to(device) for name, k in bound.items()}
    try:
        program = codegen.compile(schedule_of(case, codegen, device), dict(constants))
    except Unsupported:
        if case.kind in may_refuse:
            return
        raise
    before: list[tuple[torch.Tensor, torch.Tensor]] = []
    for inputs in calls:
        given = [x.to(device, copy=True) for x in inputs]
        for name, k in bound.items():  # a constant's memory is read anew at each call
            given[k] = constants[name].copy_(inputs[k])
        passed = [x for k, x in enumerate(given) if k not in bound.values()]
        if case.program.raises is not None:
            _check_error(case, program, passed)
            continue
        expected = evaluate(made, inputs)  # which may write to them
        results = program(*passed)
        _compare(case, (*results, *given), (*expected, *inputs))
        for result, copy in before:
            assert torch.equal(result, copy), f"{case}: a call changes results of the one before"
        own = [r for r in results if isinstance(r, torch.Tensor) and not _shares(r, given)]
        before = [(r, r.clone()) for r in own if not r.isnan().any()]


def _calls(case: Case) -> list[tuple[torch.Tensor, ...]]:
    """The inputs of each call: of other sizes where the case is dynamic, else of other values."""
    if case.is_dynamic:
        return [inputs_of(case.program, case.dtype, extent) for extent in EXTENTS]
    inputs = inputs_of(case.program, case.dtype, EXTENTS[0])
    other = tuple(x.flip(0) if x.dim() else x + 1 for x in inputs)
    return [inputs, other]


def schedule_of(case: Case, codegen: Codegen, device: str = "cpu") -> Schedule:
    """The schedule of ``case`` as ``codegen`` wants it, for inputs on ``device``."""
    inputs = [x.to(device) for x in inputs_of(case.program, case.dtype, EXTENTS[0])]
    shape_env = ShapeEnv(duck_shape=False)
    mode = FakeTensorMode(shape_env=shape_env, allow_non_fake_inputs=True)
    fakes = [mode.from_tensor(x, symbolic_context=_context(x, case)) for x in inputs]
    with mode, enable_python_dispatcher():  # else some operators take sizes as numbers
        graph = make_fx(case.program.function)(*fakes)
    graph.graph.eliminate_dead_code()
    lowered = lower(
        graph, constant_inputs=frozenset(case.program.constants), options=codegen.lowering_options
    )
    if case.program.writes and codegen.writes_inputs:
        lowered = write_back(lowered, dict(case.program.writes))
    return schedule(lowered, codegen.schedule_options)


def _context(x: torch.Tensor, case: Case) -> StatelessSymbolicContext[Any, Any]:
    varies = case.is_dynamic and x.dtype is case.dtype
    kinds = [
        DimDynamic.DYNAMIC if varies and n == EXTENTS[0] else DimDynamic.STATIC for n in x.shape
    ]
    return StatelessSymbolicContext(dynamic_sizes=kinds)


def _check_error(case: Case, program: CompiledProgram, inputs: Sequence[Any]) -> None:
    assert case.program.raises is not None
    try:
        program(*inputs)
        if any(x.is_cuda for x in inputs):
            torch.cuda.synchronize()
    except case.program.raises:
        return
    raise AssertionError(f"{case}: no {case.program.raises.__name__} is raised")


def _compare(case: Case, results: Sequence[Any], expected: Sequence[Any]) -> None:
    assert len(results) == len(expected), f"{case}: {len(results)} results"
    tensors = [
        (r, e) for r, e in zip(results, expected, strict=True) if isinstance(e, torch.Tensor)
    ]
    dtypes = [case.dtype, *(e.dtype for _, e in tensors)]
    tolerance = max(TOLERANCES.get(dtype, 0.0) for dtype in dtypes)
    for number, (result, value) in enumerate(zip(results, expected, strict=True)):
        where = f"{case}: result {number}"
        if not isinstance(value, torch.Tensor):
            assert type(result) is type(value), f"{where} is {result!r} rather than {value!r}"
            assert result == value, f"{where} is {result!r} rather than {value!r}"
            continue
        try:
            torch.testing.assert_close(
                result.cpu(), value, rtol=tolerance, atol=tolerance, equal_nan=True
            )
        except AssertionError as error:
            raise AssertionError(f"{where}: {error}") from error
        dims = zip(value.shape, result.stride(), value.stride(), strict=True)
        same = value.numel() < 2 or all(n == 1 or a == b for n, a, b in dims)
        assert same, f"{where} has strides {result.stride()} rather than {value.stride()}"
    for k, (result, value) in enumerate(tensors):
        for other, beside in tensors[:k]:
            shared = _shares(value, [beside])
            assert _shares(result, [other]) == shared, f"{case}: results share memory, or don't"


def _shares(x: torch.Tensor, others: Sequence[torch.Tensor]) -> bool:
    """Whether ``x`` lies in the storage of one of ``others``; what has no element lies nowhere."""
    places = {o.untyped_storage().data_ptr() for o in others if o.numel()}
    return x.numel() > 0 and x.untyped_storage().data_ptr() in places


@dataclass(frozen=True)
class Report:
    """What came of cases: how many are right, which of the others are refused or wrong, and why."""

    right: int
    refused: Mapping[str, str]
    wrong: Mapping[str, str]

    def __str__(self) -> str:
        lines = [f"{self.right} right, {len(self.refused)} refused, {len(self.wrong)} wrong"]
        for word, found in (("refused", self.refused), ("wrong", self.wrong)):
            lines += [f"{word}: {case}: {why}" for case, why in found.items()]
        return "\n".join(lines)


def report(codegen: Codegen, cases: Iterable[Case] | None = None, *, device: str = "cpu") -> Report:
    """Check every case, and say of each that is not right why."""
    right, refused, wrong = 0, {}, {}
    for case in conformance_cases() if cases is None else cases:
        try:
            check(codegen, case, device=device)
        except Unsupported as error:
            refused[str(case)] = str(error)
        except Exception as error:
            wrong[str(case)] = f"{type(error).__name__}: {error}"
        else:
            right += 1
    return Report(right, refused, wrong)
