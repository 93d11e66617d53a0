"""Random whole programs: statements over tensors of any layout and dtype, and the calls that they are given.

A statement is kept where eager runs every call of the program so far, so that most programs run to their end;
some end with an expression that raises for some arguments.  A program is a tree of statements, which
:mod:`tests.fuzz.shrinking` makes smaller.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import random
import signal
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import CodeType
from typing import Any

import torch

from .templates import CONDITIONS, HEADS, LEAVING, NUMBERS, PRELUDE, RISKY, VALUES, WRITES

EAGER_SECONDS = 0.3
"""Processor time that a call of a program may take in eager, however busy the machine is."""

LARGEST = 4000
"""Elements that a value may have."""

DTYPES = (torch.float64,) * 4 + (
    torch.float32,
    torch.float32,
    torch.int64,
    torch.bool,
    torch.bfloat16,
)
LAYOUTS = (
    "plain",
    "plain",
    "transposed",
    "sliced",
    "offset",
    "expanded",
    "channels last",
    "same",
    "overlap",
)
SIZES = (
    ("r", "c"),
    ("r", "c"),
    ("r",),
    ("k", "r", "c"),
    ("r", "r"),
    ("k", 3, "r", "c"),
    (),
    ("c", "k"),
)
DRAWN_DTYPES = (
    "torch.float32",
    "torch.int32",
    "torch.bfloat16",
    "torch.float64",
    "torch.int64",
    "torch.bool",
)


class Late(BaseException):
    """A program takes too long; no program handles it."""


@contextlib.contextmanager
def at_most(seconds: float) -> Iterator[None]:
    """Raise :class:`Late` in what takes longer; for the main thread."""

    def late(signal_number: int, frame: Any) -> None:
        raise Late(f"more than {seconds:g} s")

    before = signal.signal(signal.SIGPROF, late)
    signal.setitimer(signal.ITIMER_PROF, seconds, 0.05)  # again: a callback may swallow one
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


@dataclass(frozen=True)
class Statement:
    """A line, or headers with a block of statements each."""

    line: str = ""
    blocks: tuple[tuple[str, tuple[Statement, ...]], ...] = ()

    def lines(self, indent: str) -> list[str]:
        if not self.blocks:
            return [indent + self.line]
        found = []
        for header, body in self.blocks:
            inner = [line for part in body for line in part.lines(indent + "    ")]
            found += [indent + header, *(inner or [indent + "    pass"])]
        return found


@dataclass(frozen=True)
class Input:
    """A tensor argument: its sizes by letter or number."""

    size: tuple[str | int, ...]
    dtype: torch.dtype


@dataclass(frozen=True)
class Call:
    """What one call is given."""

    seed: int
    sizes: tuple[tuple[str, int], ...]
    layouts: tuple[str, ...]
    number: int
    scale: float
    flag: bool
    gradients: bool
    no_grad: bool


@dataclass(frozen=True)
class Program:
    """``source`` defines ``program(x0, x1, n, s, g)``."""

    seed: int
    inputs: tuple[Input, ...]
    calls: tuple[Call, ...]
    dynamic: bool | None
    statements: tuple[Statement, ...] = ()
    results: tuple[str, ...] = ("x0",)

    def text(self, last: str) -> str:
        names = ", ".join(f"x{k}" for k in range(len(self.inputs)))
        lines = [f"def program({names}, n, s, g):"]
        lines += ["    out, table, numbers = [x0], {'k': x1}, counting()", "    next(numbers)"]
        lines += [line for statement in self.statements for line in statement.lines("    ")]
        return "\n".join([PRELUDE, *lines, f"    {last}", ""])

    @property
    def source(self) -> str:
        return self.text(f"return {', '.join(self.results)},")


def tensors_of(
    program: Program, call: Call, wide: bool = False
) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """The tensor arguments of a call, made anew, and the leaves that may have gradients.

    ``wide``: floats are float64, of the same values.
    """
    generator = torch.Generator().manual_seed(call.seed)
    sizes = dict(call.sizes)
    made: list[torch.Tensor] = []
    leaves: list[torch.Tensor] = []
    for given, layout in zip(program.inputs, call.layouts, strict=True):
        shape = [sizes[n] if isinstance(n, str) else n for n in given.size]
        if layout == "same" and made:
            made.append(made[0])
            continue
        if layout == "overlap" and made and made[0].dim() and made[0].shape[0] > 1:
            made.append(made[0][1:])
            continue
        leaf, x = _laid_out(shape, layout, given.dtype, generator, wide)
        if call.gradients and leaf.is_floating_point():
            leaf.requires_grad_()
            leaves.append(leaf)
            if call.seed % 3:
                x = x * 1 if layout in ("plain", "same", "overlap") else x
        made.append(_view(leaf, shape, layout) if x is None else x)
    return made, leaves


def _laid_out(
    shape: list[int], layout: str, dtype: torch.dtype, generator: torch.Generator, wide: bool
) -> tuple[torch.Tensor, Any]:
    """A leaf of which :func:`_view` gives a tensor of ``shape``; the leaf itself where that is one."""
    whole = list(shape)
    if layout == "transposed":
        whole = shape[::-1]
    elif layout == "sliced":
        whole = [2 * n for n in shape]
    elif layout == "offset":
        whole = [shape[0] + 2, *shape[1:]] if shape else [3]
    elif layout == "expanded" and shape:
        whole = [1, *shape[1:]]
    x = torch.randn(whole, dtype=torch.float64, generator=generator) * 2
    x = x > 0 if dtype == torch.bool else x.to(dtype)
    x = x.double() if wide and x.is_floating_point() else x
    if layout == "channels last" and len(shape) == 4:
        x = x.contiguous(memory_format=torch.channels_last)
    return x, (x if layout in ("plain", "same", "overlap", "channels last") else None)


def _view(leaf: torch.Tensor, shape: list[int], layout: str) -> torch.Tensor:
    if layout == "transposed":
        return leaf.permute(tuple(range(leaf.dim()))[::-1])
    if layout == "sliced":
        return leaf[tuple(slice(k % 2, None, 2) for k in range(len(shape)))]
    if layout == "offset":
        return leaf[2:] if shape else leaf[1]
    return leaf.expand(shape)


@functools.cache
def _compiled_prelude() -> CodeType:
    return compile(PRELUDE, "<prelude>", "exec")


class World:
    """The functions and lasting objects of a program, of which eager and compiled have one each."""

    def __init__(self, source: str, compile_function: Callable[[Any], Any] = lambda f: f) -> None:
        self.scope: dict[str, Any] = {}
        exec(_compiled_prelude(), self.scope)
        exec(compile(source.removeprefix(PRELUDE), "<program>", "exec"), self.scope)
        self.program = compile_function(self.scope["program"])

    def call(self, tensors: list[torch.Tensor], call: Call) -> Any:
        # torch.manual_seed notes for each absent device where it was called, which takes a millisecond
        torch.default_generator.manual_seed(call.seed)
        with torch.set_grad_enabled(not call.no_grad), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return self.program(*tensors, call.number, call.scale, call.flag)


def random_program(seed: int) -> Program:
    """A program that eager runs, but for some that raise in the end."""
    return _Writer(seed).program


class _Writer:
    """Adds random statements to ``program`` that eager runs for all its calls."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        choose = self.random
        kinds = [choose.choice(SIZES) for _ in range(2)]
        if choose.random() < 0.4:
            kinds[1] = kinds[0]
        inputs = tuple(Input(size, choose.choice(DTYPES)) for size in kinds)
        self.count = 0
        self.loops = 0
        self.values: dict[str, Any] = {}
        self.program = Program(
            seed, inputs, self._calls(), choose.choice((None, None, True, False))
        )
        self._grow(lambda body: body, choose.randint(3, 10), 1)
        if choose.random() < 0.05:
            line = f"last = {self._fill(choose.choice(RISKY))}"
            added = (*self.program.statements, Statement(line))
            self.program = dataclasses.replace(self.program, statements=added)
            self.values["last"] = None
        own = [name for name in self.values if name[0] == "v"]
        names = [name for name in self.values if name[0] in "vxsg" or name in ("out", "table", "n")]
        kept = choose.sample(names, min(len(names), choose.randint(1, 4))) + own[-1:]
        if "last" in self.values:
            kept = [*kept, "last"]
        self.program = dataclasses.replace(self.program, results=tuple(kept) or ("x0",))

    def _calls(self) -> tuple[Call, ...]:
        choose = self.random
        gradients = choose.random() < 0.4
        sizes = {letter: choose.choice((1, 2, 3, 4, 5, 7, 8)) for letter in "rck"}
        layouts = [choose.choice(LAYOUTS) for _ in range(2)]
        call = Call(
            choose.randrange(10**6), tuple(sizes.items()), tuple(layouts), choose.randint(0, 4),
            choose.choice((0.5, 2.0, -1.0)), choose.random() < 0.5, gradients, choose.random() < 0.1,
        )  # fmt: skip
        calls = [call]
        for _ in range(choose.choice((1, 1, 2))):
            changes: dict[str, Any] = {"seed": choose.randrange(10**6)}
            for kind in choose.sample(("sizes", "layouts", "numbers", "none", "modes"), 2):
                if kind == "sizes":
                    letter = choose.choice("rck")
                    size = choose.choice((0, 1, 2, 3, 6, 9, 16, 33))
                    changes["sizes"] = tuple({**dict(call.sizes), letter: size}.items())
                elif kind == "layouts":
                    changes["layouts"] = tuple(choose.choice(LAYOUTS) for _ in range(2))
                elif kind == "numbers":
                    changes |= {"number": choose.randint(-1, 6), "flag": choose.random() < 0.5}
                    changes["scale"] = choose.choice((0.5, 1.5, -2.0, 0.0))
                elif kind == "modes":
                    changes |= {
                        "gradients": choose.random() < 0.5,
                        "no_grad": choose.random() < 0.3,
                    }
            call = dataclasses.replace(call, **changes)
            calls.append(call)
        return tuple(calls)

    def _grow(
        self,
        place: Callable[[tuple[Statement, ...]], tuple[Statement, ...]],
        length: int,
        depth: int,
    ) -> tuple[Statement, ...]:
        """Statements for the block that ``place`` puts into the program's statements."""
        body: tuple[Statement, ...] = ()
        for _ in range(4 * length):
            if len(body) == length:
                break
            before = body
            statement = self._statement(lambda inner: place((*before, inner)), depth)  # noqa: B023
            if statement is not None and self._keep(place((*body, statement))):
                body = (*body, statement)
        return body

    def _keep(self, statements: tuple[Statement, ...]) -> bool:
        """Take the statements where eager runs them."""
        found = dataclasses.replace(self.program, statements=statements)
        values = locals_of(found)
        if values is None:
            return False
        self.program, self.values = found, values
        return True

    def _statement(
        self, place: Callable[[Statement], tuple[Statement, ...]], depth: int
    ) -> Statement | None:
        if not self.values:
            self._keep(())
        choose, chance = self.random, self.random.random()
        if depth < 4 and chance < 0.2:
            return self._compound(place, depth)
        if chance < 0.27:
            return Statement(self._fill(choose.choice(NUMBERS)))
        if chance < 0.55:
            return Statement(self._fill(choose.choice(WRITES)))
        if depth > 1 and chance < 0.6:
            return self._leaving()
        known = self._tensors()
        old = [name for name in known if not name.startswith("x")]
        if old and choose.random() < (0.6 if depth > 1 else 0.25):
            name = choose.choice(old)
        else:
            self.count += 1
            name = f"v{self.count}"
        return Statement(f"{name} = {self._fill(choose.choice(VALUES))}")

    def _leaving(self) -> Statement | None:
        kinds = LEAVING if self.loops else LEAVING[2:3]
        test, leave = self._fill("if {c}:"), self._fill(self.random.choice(kinds))
        return Statement(blocks=((test, (Statement(leave),)),))

    def _compound(
        self, place: Callable[[Statement], tuple[Statement, ...]], depth: int
    ) -> Statement | None:
        head, second = self.random.choice(HEADS)
        header, loop = self._fill(head), head.startswith(("for", "while"))
        headers = (header,) if second is None else (header, second)

        def whole(*bodies: tuple[Statement, ...]) -> Statement:
            filled = (*bodies, (), ())
            return Statement(blocks=tuple((h, filled[k]) for k, h in enumerate(headers)))

        if not self._keep(place(whole())):
            return None
        self.loops += loop
        length = self.random.randint(1, 3)
        body = self._grow(lambda inner: place(whole(inner)), length, depth + 1)
        if head == "try:" and second != "finally:" and self.random.random() < 0.5:
            body = (*body, Statement(self._fill(self.random.choice(RISKY))))
        other: tuple[Statement, ...] = ()
        if second is not None:
            other = self._grow(lambda inner: place(whole(body, inner)), 1, depth + 1)
        self.loops -= loop
        return whole(body, other)

    def _tensors(self) -> list[str]:
        return [
            name
            for name, value in self.values.items()
            if isinstance(value, torch.Tensor) and value.numel() <= LARGEST
        ]

    def _fill(self, template: str) -> str:
        choose, names = self.random, self._tensors() or ["x0"]
        first = names[-1] if choose.random() < 0.5 else choose.choice(names)
        value = self.values.get(first)
        rank = max(value.dim() if isinstance(value, torch.Tensor) else 1, 1)
        d = choose.randrange(rank)
        condition = self._fill(choose.choice(CONDITIONS)) if "{c}" in template else ""
        return template.format(
            a=first, b=choose.choice(names), d=d if choose.random() < 0.7 else d - rank, c=condition,
            e=choose.randrange(rank), n=choose.choice(("1", "2", "3", "n")), l="out",
            f=choose.choice(("0.5", "-1.25", "2.0", "0.0", "s")), t=choose.choice(DRAWN_DTYPES),
            s=f"{first}.shape[{d}]",
        )  # fmt: skip


def locals_of(program: Program) -> dict[str, Any] | None:
    """The variables at the end of the last call, None where some call raises."""
    try:
        world = World(program.text("return dict(locals())"))
    except SyntaxError:  # a loop's ``continue`` behind a block that is no loop
        return None
    found: Any = None
    for call in program.calls:
        try:
            with at_most(EAGER_SECONDS):
                found = world.call(tensors_of(program, call)[0], call)
        except (Exception, Late):
            return None
        if not isinstance(found, dict):
            found = {f"x{k}": x for k, x in enumerate(tensors_of(program, call)[0])}
        if any(isinstance(v, torch.Tensor) and v.numel() > 4 * LARGEST for v in found.values()):
            return None
    return dict(found) if found is not None else None
