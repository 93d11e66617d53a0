"""Calls of :class:`OrdinaryProgram`: arguments that change between them, and all that is seen after one."""

from __future__ import annotations

import contextlib
import dataclasses
import random
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

import torch

from .ordinary_programs import OrdinaryProgram

LAYOUTS = ("plain",) * 5 + (
    "transposed",
    "expanded",
    "sliced",
    "same",
    "rows of one",
    "columns of one",
)
CONTEXTS: dict[str, Callable[[], Any]] = {
    "plain": contextlib.nullcontext,
    "no_grad": torch.no_grad,
    "inference": torch.inference_mode,
    "autocast": lambda: torch.autocast("cpu"),
}


@dataclasses.dataclass(frozen=True)
class Call:
    """What one call is given, the same for eager and compiled."""

    seed: int
    rows: int
    number: int
    scale: float
    flag: bool
    name: str | None
    layout: str
    dtypes: tuple[torch.dtype, torch.dtype]
    gradients: str  # "none", "leaf" or "inner"
    context: str


def calls_of(seed: int, count: int = 4) -> list[Call]:
    """Calls that differ in one thing or in several."""
    choose = random.Random(seed * 7 + 1)
    wanting = choose.choice(("none", "inner", "inner", "leaf"))
    call = Call(
        seed, choose.choice((4, 4, 5, 3)), choose.randint(-1, 5), choose.choice((0.5, 2.0, -1.0)),
        choose.random() < 0.5,
        choose.choice((None, "a", "b")), choose.choice(LAYOUTS), (torch.float32, torch.float32), wanting,
        "plain",
    )  # fmt: skip
    calls = [call]
    while len(calls) < count:
        changes: dict[str, Any] = {"seed": call.seed + 1}
        for _ in range(choose.choice((0, 1, 1, 2, 4))):
            changes |= _change(choose)
        call = dataclasses.replace(call, **changes)
        calls.append(call)
    return calls


def _change(choose: random.Random) -> dict[str, Any]:
    dtypes = (torch.float32, torch.float64)
    changes: tuple[dict[str, Any], ...] = (
        {"rows": choose.choice((4, 5, 6, 2))},
        {"rows": choose.choice((1, 0, 3, 7))},
        {"number": choose.randint(-2, 6)},
        {"number": choose.randint(0, 9)},
        {"scale": choose.choice((0.5, 1.5, -2.0, 0.0, 3.0))},
        {"flag": choose.random() < 0.5},
        {"name": choose.choice((None, "a", "b", "long"))},
        {"layout": choose.choice(LAYOUTS)},
        {"dtypes": (choose.choice(dtypes), choose.choice((*dtypes, torch.int64)))},
        {"gradients": choose.choice(("none", "inner", "inner", "leaf"))},
        {"context": choose.choice(tuple(CONTEXTS))},
    )
    return choose.choice(changes)


class World:
    """The functions and lasting objects of one program, of which eager and compiled have one each."""

    def __init__(
        self, program: OrdinaryProgram, name: str, compile_function: Callable[[Any], Any]
    ) -> None:
        module = types.ModuleType(name)
        sys.modules[name] = module  # where dataclasses look for it
        self.scope = module.__dict__
        exec(compile(program.source, f"<{name}>", "exec"), self.scope)
        self.table = {"a": torch.ones(1, 3), "n": torch.zeros(1, 3)}
        self.meter = self.scope["Meter"]()
        self.layer = self.scope["Layer"]()
        self.program = compile_function(self.scope["program"])

    def call(self, call: Call) -> tuple[Any, list[torch.Tensor]]:
        """What there is to see after a call, and the leaves that may have gradients then."""
        x, y, leaves = _matrices(call)
        items = [x, y * 1, x + 1]
        table = {"a": x, "b": y}
        given = (
            x,
            y,
            call.number,
            call.scale,
            call.flag,
            call.name,
            items,
            table,
            self.meter,
            self.layer,
        )
        try:
            with CONTEXTS[call.context]():
                outcome: Any = self.program(*given)
        except Exception as error:
            outcome = type(error).__name__, str(error)
        kept = {name: self.scope[name] for name in ("LOG", "COUNTS", "TOTAL")}
        return (outcome, given, kept), [*leaves, self.layer.weight]


def _matrices(call: Call) -> tuple[torch.Tensor, torch.Tensor, list[torch.Tensor]]:
    generator = torch.Generator().manual_seed(call.seed)

    def whole(*size: int, dtype: torch.dtype) -> torch.Tensor:
        made = torch.randint(-3, 4, size, generator=generator).to(dtype)
        return made.requires_grad_(call.gradients != "none" and dtype.is_floating_point)

    def inner(made: torch.Tensor) -> torch.Tensor:
        return made * 1 if call.gradients == "inner" else made

    rows, (first, second) = call.rows, call.dtypes
    if call.layout in ("rows of one", "columns of one"):
        base = whole(2 * rows, 6, dtype=first)
        leaves, made = [base], inner(base)
        if call.layout == "rows of one":
            return made[:rows, :3], made[rows // 2 : rows // 2 + rows, :3], leaves
        return made[:rows, ::2], made[:rows, 1::2], leaves
    if call.layout == "same":
        leaf = whole(rows, 3, dtype=first)
        x = inner(leaf)
        return x, x, [leaf]
    left, right = whole(*_sizes(call), dtype=first), whole(rows, 3, dtype=second)
    x, y = inner(left), inner(right)
    if call.layout == "transposed":
        x = x.t()
    elif call.layout == "expanded":
        x = x.expand(rows, 3)
    elif call.layout == "sliced":
        x = x[::2]
    return x, y, [left, right]


def _sizes(call: Call) -> tuple[int, int]:
    return {"transposed": (3, call.rows), "expanded": (1, 3), "sliced": (2 * call.rows, 3)}.get(
        call.layout, (call.rows, 3)
    )


def _parts(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return [part for item in value.items() for part in item]
    if isinstance(value, (list, tuple)):
        return list(value)
    if hasattr(value, "__dict__") and not isinstance(value, (type, torch.Tensor)):
        return [part for item in vars(value).items() for part in item]
    return []


def objects_in(value: Any, met: set[int] | None = None) -> Iterator[Any]:
    """A value and everything in it; what is in an object that was there before is left out."""
    met = set() if met is None else met
    yield value
    if id(value) in met:
        return
    if not isinstance(value, (str, int, float, type(None))):
        met.add(id(value))
    for part in _parts(value):
        yield from objects_in(part, met)


def seen(value: Any) -> list[Any]:
    """Of every object in a value: what it is, and where it was met first.  Tensors' values are not there."""
    first: dict[int, int] = {}
    storages: dict[int, int] = {}
    found: list[Any] = []
    for number, part in enumerate(objects_in(value)):
        if isinstance(part, torch.Tensor):
            storage = storages.setdefault(part.untyped_storage()._cdata, number)
            about = (
                str(part.dtype),
                tuple(part.shape),
                part.requires_grad,
                _is_leaf(part),
                part.is_inference(),
            )
            place = (part.stride(), part.storage_offset()) if part.numel() > 1 else ()
            found.append((first.setdefault(id(part), number), storage, *about, *place))
        elif isinstance(part, float):
            found.append("nan" if part != part else part)
        elif isinstance(part, (bool, int, str, type(None))):
            found.append((type(part).__name__, part))
        elif isinstance(part, (type, torch.dtype, torch.device)) or (
            callable(part) and hasattr(part, "__qualname__")
        ):
            found.append(getattr(part, "__qualname__", str(part)))
        else:
            found.append((type(part).__name__, first.setdefault(id(part), number)))
    return found


def _is_leaf(tensor: torch.Tensor) -> bool | str:
    try:
        return tensor.is_leaf
    except RuntimeError as error:  # a view of what was written to since
        return str(error)


def tensors_in(value: Any) -> list[torch.Tensor]:
    return [part for part in objects_in(value) if isinstance(part, torch.Tensor)]


def gradients(outcome: Any, leaves: list[torch.Tensor]) -> Any:
    """Of the sum of all there is after a call; the error where there are none."""
    roots = [
        tensor
        for tensor in tensors_in(outcome)
        if tensor.requires_grad and _is_leaf(tensor) is False
    ]
    wanted = [leaf for leaf in leaves if leaf.requires_grad]
    if not roots or not wanted:
        return []
    weights = [
        torch.arange(1.0, root.numel() + 1, dtype=root.dtype).view(root.shape) for root in roots
    ]
    try:
        return list(torch.autograd.grad(roots, wanted, weights, allow_unused=True))
    except RuntimeError as error:
        return [str(error)]
