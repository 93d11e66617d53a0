"""One random program compiled and beside eager: results, arguments, objects, gradients, exceptions."""

from __future__ import annotations

import contextlib
import os
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import weft

from .programs import Call, Program, World, tensors_of
from .rounding import OtherRoundings

FLOAT32, HALF = ("float32", "autocast", ".float(", "int", "bool"), ("float16", "autocast")
"""Words of programs that compute in such a dtype: float64 results may have been rounded to it before.

Functions of integers are float32.
"""

NUDGES: tuple[tuple[float, float, tuple[str, ...]], ...] = (
    (1e-11, 1e-4, ()),
    (1e-6, 1.0, (*FLOAT32, *HALF)),
    (1e-2, 1.0, HALF),
)
"""Relative changes of arguments, the part of a tolerance that results may then change by, and the words of
which a program must have one."""


@dataclass(frozen=True)
class Outcome:
    """``kind``: "right", "wrong", "fault", "refused" (a stage said so, nothing ran) or "unstable"."""

    kind: str
    detail: str = ""

    @property
    def bad(self) -> bool:
        return self.kind in ("wrong", "fault")


REFUSED_GRADIENTS = (
    "has been modified by an inplace operation",
    "its base or another view of its base has been modified inplace",
    "Found dtype",
    "Expected isFloatingType(grad.scalar_type())",
)
"""Eager's errors where backward needs a value that was written over, which a graph may keep, and where a
derivative takes fewer dtypes than the operator does (``mse_loss`` of a float and integers, torch 2.11; a
write of floats to a part of a complex tensor, whose gradient stays complex on its way to the floats).
"""

AS_NEAR = 2.0
"""How far from the right number a result may be where eager's own is not right, in eager's distances; from
eager's, in what rounding otherwise changes."""

ROUNDINGS = range(7, 11)
"""Seeds of what eager's results are changed by, to find out how much rounding changes them."""

Compile = Callable[[Any, bool | None], Any]


def compiled_by_weft(function: Any, dynamic: bool | None) -> Any:
    return weft.compile(function, dynamic=dynamic, options={"strict": True, "verify": True})


def check(program: Program, compile_function: Compile = compiled_by_weft) -> Outcome:
    """Run all calls of a program, compiled and as it is; the first difference decides."""
    weft.reset()
    plain = World(program.source)
    compiled = World(program.source, lambda f: compile_function(f, program.dynamic))
    for number, call in enumerate(program.calls):
        wanted = _observe(plain, program, call)
        try:
            found = _observe(compiled, program, call)
        except weft.StageError as error:
            refused = type(error.__cause__).__name__ == "Unsupported"
            return Outcome("refused" if refused else "fault", f"call {number}: {error}"[:2000])
        difference = _difference(found, wanted, tolerance(program))
        if difference:
            judged = program, number, found, wanted
            if _unstable(program, number, wanted) or _nearer(*judged) or _rounded_so(*judged):
                return Outcome("unstable", f"call {number}: {difference}")
            return Outcome("wrong", f"call {number}: {difference}"[:2000])
    return Outcome("right")


@dataclass(frozen=True)
class Observation:
    """``facts`` are compared as they are, ``values`` and ``gradients`` within rounding (or as an error).

    Gradients' strides are the compiler's to choose.
    """

    facts: list[Any]
    values: list[torch.Tensor | float]
    gradients: list[torch.Tensor | None] | str


def _observe(
    world: World, program: Program, call: Call, nudge: float = 0.0, wide: bool = False
) -> Observation:
    """All that there is to see after a call.

    ``nudge`` changes the tensors by so much, relatively; ``wide`` makes their floats float64.
    """
    given, leaves = tensors_of(program, call, wide)
    if nudge:
        _nudge(leaves or given, nudge)
    try:
        outcome: Any = world.call(given, call)
    except weft.StageError:
        raise
    except Exception as error:
        outcome = (type(error).__name__, str(error))
    scope = world.scope
    lasting = [scope["LOG"], vars(scope["meter"]), scope["layer"].seen, scope["layer"].scale]
    state = torch.get_rng_state().sum().item()
    wanted = [*leaves, scope["layer"].weight]
    facts, values = _look([outcome, given, lasting, state])
    gradients = _gradients((outcome, given, lasting), wanted)
    return Observation(facts, values, gradients)


def _nudge(tensors: list[torch.Tensor], by: float) -> None:
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for x in {x.untyped_storage().data_ptr(): x for x in tensors}.values():
            for d, stride in enumerate(x.stride()):
                x = x if stride else x[(slice(None),) * d + (slice(1),)]  # each element once
            if x.is_floating_point():
                noise = torch.rand(x.shape, generator=generator, dtype=torch.float64) - 0.5
                x.mul_((1 + by * noise).to(x.dtype))


def _parts(value: Any, met: set[int]) -> Iterator[Any]:
    """A value and what is in it, each container once."""
    yield value
    if isinstance(value, (list, tuple, dict)) and id(value) not in met:
        met.add(id(value))
        for part in value.items() if isinstance(value, dict) else value:
            yield from _parts(part, met)


def _look(value: Any) -> tuple[list[Any], list[torch.Tensor | float]]:
    """Facts and values of everything in a value: which objects are one, which storages, layouts."""
    first: dict[int, int] = {}
    storages: dict[int, int] = {}
    facts: list[Any] = []
    values: list[torch.Tensor | float] = []
    for number, part in enumerate(_parts(value, set())):
        if isinstance(part, torch.Tensor):
            values.append(part.detach())
            facts.append((first.setdefault(id(part), number), *_metadata(part, storages, number)))
        elif isinstance(part, float):
            values.append(part)
            facts.append("float")
        elif isinstance(part, (bool, int, str, type(None))):
            facts.append((type(part).__name__, part))
        else:
            facts.append((type(part).__name__, first.setdefault(id(part), number)))
    return facts, values


class Unsaid:
    """Equal to anything: a result need not be a view because eager's is one."""

    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = None  # type: ignore[assignment]


class Refused(str):
    """What eager says instead of whether a tensor has a history; a graph may know the history."""


def _metadata(x: torch.Tensor, storages: dict[int, int], number: int) -> tuple[Any, ...]:
    strides = tuple(s for s, n in zip(x.stride(), x.shape, strict=True) if n > 1)
    layout = (strides,) if x.numel() > 1 else ()
    storage = storages.setdefault(x.untyped_storage()._cdata, number) if x.numel() else -1
    try:
        leaf: bool | Refused = x.is_leaf
        unrecorded = x._is_view() and x.grad_fn is None  # under no_grad: says what its base says
        needed: Any = Unsaid() if unrecorded else x.requires_grad
    except RuntimeError as error:  # a view of what was written to since, made by whichever operator
        leaf, needed = Refused(_told(error)), True
    return str(x.dtype), tuple(x.shape), needed, leaf, storage, layout


def _told(error: Exception) -> str:
    """What autograd says, without the operator that a view was made by."""
    return re.sub(r"Output \d+ of \w+", "It", str(error))


def _gradients(value: Any, leaves: list[torch.Tensor]) -> list[torch.Tensor | None] | str:
    """Of a weighted sum of all floating tensors in a value."""
    found = [part for part in _parts(value, set()) if isinstance(part, torch.Tensor)]
    try:
        roots = [x for x in found if x.requires_grad and not x.is_leaf]
    except RuntimeError as error:
        return _told(error)
    wanted = [leaf for leaf in leaves if leaf.requires_grad]
    if not roots or not wanted:
        return []
    weights = [torch.linspace(0.5, 1.5, x.numel()).view(x.shape).to(x.dtype) for x in roots]
    try:
        return list(torch.autograd.grad(roots, wanted, weights, allow_unused=True))
    except weft.StageError:
        raise
    except Exception as error:  # of a hook too
        return str(error)


def _difference(found: Observation, wanted: Observation, epsilon: float) -> str:
    if not _agree(found.facts, wanted.facts):
        pairs = zip(found.facts, wanted.facts, strict=False)
        differing = (f"{a} where eager has {b}" for a, b in pairs if not _agree(a, b))
        return f"facts: {next(differing, 'more or fewer parts')}"
    return _apart("values", found.values, wanted.values, epsilon) or _gradients_apart(
        found.gradients, wanted.gradients, epsilon
    )


def _agree(found: Any, wanted: Any) -> bool:
    if not isinstance(wanted, (list, tuple)) or type(found) is not type(wanted):
        return bool(isinstance(wanted, Refused) or found == wanted)
    return len(found) == len(wanted) and all(map(_agree, found, wanted))


def _gradients_apart(found: Any, wanted: Any, epsilon: float) -> str:
    if isinstance(wanted, str) and any(text in wanted for text in REFUSED_GRADIENTS):
        return ""
    if isinstance(found, str) or isinstance(wanted, str) or len(found) != len(wanted):
        return "" if found == wanted else f"gradients: {found} where eager has {wanted}"
    return _apart("gradients", found, wanted, epsilon)


def _apart(what: str, found: Sequence[Any], wanted: Sequence[Any], epsilon: float) -> str:
    for mine, plain in zip(found, wanted, strict=True):
        if mine is None or plain is None:
            if mine is not plain:
                return f"{what}: {mine} where eager has {plain}"
            continue
        left, right = torch.as_tensor(mine), torch.as_tensor(plain)
        if (left.shape, left.dtype) != (right.shape, right.dtype) or not _close(
            left, right, epsilon
        ):
            told = left.flatten()[:12].tolist(), right.flatten()[:12].tolist()
            return f"{what}: {told[0]} where eager has {told[1]}"
    return ""


def _close(left: torch.Tensor, right: torch.Tensor, epsilon: float) -> bool:
    if not _inexact(right):
        return torch.equal(left, right)
    if right.is_complex():
        left, right = (
            torch.view_as_real(left.resolve_conj()),
            torch.view_as_real(right.resolve_conj()),
        )
    left, right = left.double().flatten(), right.double().flatten()  # allclose takes 64 dims
    finite = right[right.isfinite()]
    largest = max(finite.abs().max().item() if finite.numel() else 1.0, 1e-3)
    return torch.allclose(left, right, rtol=epsilon, atol=epsilon * largest, equal_nan=True)


def _inexact(x: torch.Tensor) -> bool:
    return x.is_floating_point() or x.is_complex()


def tolerance(program: Program) -> float:
    """How far apart results may lie, relative to their size, by the narrowest dtype of a program."""
    text = program.text("") + str(program.inputs)
    if any(word in text for word in HALF):
        return 0.1
    return 1e-4 if any(word in text for word in FLOAT32) else 1e-8


def _unstable(program: Program, number: int, wanted: Observation) -> bool:
    """Whether eager's own results change as much where its arguments change by rounding."""
    text = program.source + str(program.inputs)
    for nudge, scale, words in NUDGES:
        if words and not any(word in text for word in words):
            continue
        world = World(program.source)
        for call in program.calls[:number]:
            _observe(world, program, call)
        changed = _observe(world, program, program.calls[number], nudge)
        if _difference(changed, wanted, tolerance(program) * scale):
            return True
    return False


def _rounded_so(*judged: Any) -> bool:
    """Whether eager's own results change about as much where what it computes is rounded otherwise."""
    return any(_within_rounding(*judged, seed) for seed in ROUNDINGS)


def _within_rounding(
    program: Program, number: int, found: Observation, wanted: Observation, seed: int
) -> bool:
    with OtherRoundings(seed=seed):
        world = World(program.source)
        for call in program.calls[:number]:
            _observe(world, program, call)
        changed = _observe(world, program, program.calls[number])
    if not _agree(found.facts, wanted.facts):
        return bool(_difference(changed, wanted, 1.0).startswith("facts"))
    gradients = (found.gradients, wanted.gradients, changed.gradients)
    if any(isinstance(one, str) for one in gradients):
        gradients = ([], [], []) if found.gradients == wanted.gradients else ([None], [0], [0])
    epsilon = tolerance(program)
    return all(
        not _apart("", [mine], [plain], epsilon)
        or _distance(mine, plain) <= AS_NEAR * _distance(other, plain)
        for one in ((found.values, wanted.values, changed.values), gradients)
        for mine, plain, other in zip(*one, strict=True)
    )


def _distance(left: Any, right: Any) -> float:
    """The largest, NaN where they can't be compared."""
    if left is None or right is None:
        return float("nan")
    left, right = torch.as_tensor(left).cdouble(), torch.as_tensor(right).cdouble()
    same = left.shape == right.shape and left.numel() > 0
    return (left - right).abs().max().item() if same else float("nan")


def _nearer(program: Program, number: int, found: Observation, wanted: Observation) -> bool:
    """Whether all that is apart from eager's is about as near to what eager gives in float64 as eager's own.

    Eager's batch norm of a constant gives 1e-4 where the number is not a float's: it should be 0.
    """
    if not _agree(found.facts, wanted.facts):
        return False
    with _wide_floats():
        world = World(program.source)
        for call in program.calls[:number]:
            _observe(world, program, call, wide=True)
        exact = _observe(world, program, program.calls[number], wide=True)
    epsilon = tolerance(program)
    return _all_nearer(found.values, wanted.values, exact.values, epsilon) and _all_nearer(
        found.gradients, wanted.gradients, exact.gradients, epsilon
    )


@contextlib.contextmanager
def _wide_floats() -> Iterator[None]:
    """Have what floats are computed from integers be float64."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def _all_nearer(found: Any, wanted: Any, exact: Any, epsilon: float) -> bool:
    if isinstance(found, str) or isinstance(wanted, str) or isinstance(exact, str):
        return bool(found == wanted)
    if not len(found) == len(wanted) == len(exact):
        return False
    for mine, plain, true in zip(found, wanted, exact, strict=True):
        if not _apart("", [mine], [plain], epsilon) or not _apart("", [mine], [true], epsilon):
            continue
        if any(x is None for x in (mine, plain, true)):
            return False
        ours, theirs, right = (torch.as_tensor(x).cdouble() for x in (mine, plain, true))
        if ours.shape != right.shape or not _inexact(torch.as_tensor(plain)):
            return False
        distances = [(x - right).abs().max().item() for x in (ours, theirs)]
        if not distances[0] <= AS_NEAR * distances[1]:
            return False
    return True


os.environ.setdefault("WEFT_STRICT", "1")
warnings.filterwarnings("ignore", module="torch")
