"""A hypothesis strategy of small Python programs: source text of a function over tensors and containers.

``program(x, y, items, table, n)`` is given two tensors, a list, a dict and an int.  Variables are named by
what they hold: ``t0`` a tensor, ``i0`` an int, ``l0`` a list of ints, ``d0`` a dict of ints by letters,
``s0`` a set of ints, ``u0`` a tuple, ``w0`` a string, ``f0`` a function of an int, ``b0`` a ``Box``.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from hypothesis import strategies as st

LOG: list[Any] = []
STATE: dict[str, Any] = {"total": 0}
TOTAL = 0

_KINDS = "tildsuwfb"
_LETTERS = ("a", "b", "c", "d")


class Box:
    """An object with state, a property, and operators of its own."""

    def __init__(self, value: Any) -> None:
        self.value = value
        self.reads = 0

    @property
    def twice(self) -> Any:
        self.reads += 1
        return self.value * 2

    def __add__(self, other: Any) -> Box:
        return Box(self.value + (other.value if isinstance(other, Box) else other))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Box) and bool(self.value == other.value)

    __hash__ = None  # type: ignore[assignment]

    def __getitem__(self, key: int) -> Any:
        if key > 2:
            raise IndexError(key)
        return self.value + key

    def __enter__(self) -> Any:
        LOG.append("enter")
        return self.value

    def __exit__(self, *exception: object) -> bool:
        LOG.append(exception[0] is not None and exception[0].__name__)  # type: ignore[attr-defined]
        return exception[0] is KeyError


@contextlib.contextmanager
def noted(name: str) -> Iterator[str]:
    LOG.append(f"begin {name}")
    try:
        yield name
    finally:
        LOG.append(f"end {name}")


class Writer:
    """Writes one program; every choice is drawn from hypothesis."""

    simple: tuple[str, ...] = (
        "assign_tensor", "assign_tensor", "assign_integer", "new_list", "change_list", "new_dict",
        "change_dict", "sets", "tuples", "text", "boxes", "barrier", "mutate_tensor", "global_state",
        "call", "alias", "delete",
    )  # fmt: skip
    compound: tuple[str, ...] = (
        "if_else", "for_loop", "while_loop", "try_except", "with_block", "function", "generator", "match",
        "closures_in_loop", "raising",
    )  # fmt: skip

    def __init__(self, draw: Callable[[st.SearchStrategy[Any]], Any]) -> None:
        self.draw = draw
        self.lines: list[str] = []
        self.known: dict[str, list[str]] = {kind: [] for kind in _KINDS}
        self.known["t"] = ["x", "y"]
        self.known["l"] = ["items"]
        self.known["d"] = ["table"]
        self.known["i"] = ["n"]
        self.count = 0
        self.depth = 1
        self.loops = 0

    # Choices.

    def one_of(self, *options: Any) -> Any:
        return self.draw(st.sampled_from(options))

    def number(self) -> int:
        return int(self.draw(st.integers(-3, 5)))

    def some(self, kind: str) -> str | None:
        """A variable of a kind that is bound here; None if there is none."""
        known = self.known[kind]
        return str(self.draw(st.sampled_from(known))) if known else None

    def new(self, kind: str) -> str:
        self.count += 1
        return f"{kind}{self.count}"

    def bind(self, kind: str, expression: str) -> None:
        again = self.known[kind] and self.one_of(False, False, True)
        name = self.some(kind) if again else self.new(kind)
        self.add(f"{name} = {expression}")
        if not again:
            self.known[kind].append(str(name))

    def add(self, line: str) -> None:
        self.lines.append("    " * self.depth + line)

    @contextlib.contextmanager
    def block(self, header: str) -> Iterator[None]:
        """An indented block; what it binds may be unbound behind it."""
        self.add(header)
        before = {kind: list(names) for kind, names in self.known.items()}
        self.depth += 1
        start = len(self.lines)
        yield
        if len(self.lines) == start:
            self.add("pass")
        self.depth -= 1
        self.known = before

    # Expressions.

    def tensor(self) -> str:
        name = self.some("t")
        form = self.one_of(
            "{t} + {u}", "{t} * {i}", "{t} - {u}", "torch.relu({t})", "{t}.sin()", "{t}[:1] + {t}",
            "torch.stack([{t}, {u}]).sum(0)", "{t}.clone().add_({i})", "({t} > 0).float()",
            "{t}.reshape(-1)", "{t} / 2 + len({l})", "sum([{t}, {u}])", "torch.cat([{t}, {u}])[:2]",
        )  # fmt: skip
        return str(form.format(t=name, u=self.some("t"), i=self.integer(), l=self.some("l")))

    def integer(self) -> str:
        form = self.one_of(
            "{c}", "{c}", "{i}", "{i} + {c}", "{i} * {j}", "len({l})", "sum({l})", "{t}.dim()",
            "{t}.shape[0]", "max({i}, {j})", "({i} if {i} > {j} else {c})", "abs({i})",
            "{d}.get({k!r}, {c})", "len({d})", "({i} and {j})", "-{i}", "{i} % 3", "bool({l}) + {i}",
            "({l} or [{c}])[-1]", "min({l}, default={c})", "int({k!r} in {d})", "next(iter({l}), {c})",
            "{l}.count({i})", "divmod({i}, 3)[1]", "sum(v for v in {l} if v > {c})",
        )  # fmt: skip
        return str(
            form.format(
                c=self.number(), i=self.some("i"), j=self.some("i"), l=self.some("l"),
                t=self.some("t"), d=self.some("d"), k=self.one_of(*_LETTERS),
            )
        )  # fmt: skip

    def condition(self) -> str:
        form = self.one_of(
            "{i} > {j}", "{i} == {c}", "{l}", "not {d}", "{i} in {l}", "{k!r} not in {d}",
            "{i} <= {j} < {c}", "{i} > 0 and {l}", "(v := {i}) > {c} and v < 9", "{l} is {m}",
            "{l} == {m}", "all(v < {c} for v in {l})", "isinstance({i}, int) and any({l})",
        )  # fmt: skip
        return str(
            form.format(
                c=self.number(), i=self.integer(), j=self.some("i"), l=self.some("l"),
                m=self.some("l"), d=self.some("d"), k=self.one_of(*_LETTERS),
            )
        )  # fmt: skip

    # Statements.

    def statement(self) -> None:
        names = (*self.simple, *(self.compound if self.depth < 4 else ()))
        getattr(self, self.one_of(*names))()

    def body(self, most: int = 3) -> None:
        for _ in range(self.draw(st.integers(1, most))):
            self.statement()

    def assign_tensor(self) -> None:
        self.bind("t", self.tensor())

    def assign_integer(self) -> None:
        self.bind("i", self.integer())

    def mutate_tensor(self) -> None:
        self.add(self.one_of("{t}.add_({i})", "{t}[0] = {i}", "{t} += 1", "{t}.mul_(2)").format(
            t=self.some("t"), i=self.integer()))  # fmt: skip

    def new_list(self) -> None:
        form = self.one_of(
            "[{i}, {j}]", "[v + 1 for v in {l}]", "{l}[:2]", "{l} + [{i}]", "sorted({l})", "list({l})",
            "list(range({c} % 5))", "[v for v in {l} if v % 2]", "list(reversed({l}))", "{l} * 2",
            "[*{l}, {i}][:6]", "list({d}.values())", "list(map(lambda v: v - 1, {l}))",
            "[a + b for a, b in zip({l}, [{i}, {j}])]", "[k for k, _ in enumerate({l})]",
        )  # fmt: skip
        self.bind("l", form.format(
            i=self.integer(), j=self.integer(), l=self.some("l"), c=self.number(), d=self.some("d")
        ))  # fmt: skip

    def change_list(self) -> None:
        form = self.one_of(
            "{l}.append({i})", "{l}.extend([{i}])", "{l}.insert(0, {i})", "{l}.reverse()", "{l}.sort()",
            "{l}[:1] = [{i}]", "{l} += [{i}]", "del {l}[1:]", "{l}.clear()", "{l}[{i}] = {c}",
            "{l}.pop()", "{l}.remove({i})", "{l}.extend(v for v in [{i}, {c}])", "{l}.sort(key=lambda v: -v)",
        )  # fmt: skip
        self.add(form.format(l=self.some("l"), i=self.integer(), c=self.number()))

    def new_dict(self) -> None:
        form = self.one_of(
            "{{{k!r}: {i}}}", "dict({d})", "{{**{d}, {k!r}: {i}}}", "dict.fromkeys('ab', {i})",
            "{{k: v + 1 for k, v in {d}.items()}}", "{d} | {{{k!r}: {i}}}", "dict(zip('abc', {l}))",
            "dict({k}={i})", "{d}.copy()",
        )  # fmt: skip
        self.bind("d", form.format(
            k=self.one_of(*_LETTERS), i=self.integer(), d=self.some("d"), l=self.some("l")))  # fmt: skip

    def change_dict(self) -> None:
        form = self.one_of(
            "{d}[{k!r}] = {i}", "{d}.update({k}={i})", "{d}.pop({k!r}, None)", "{d}.setdefault({k!r}, {i})",
            "del {d}[{k!r}]", "{d}[{k!r}] += {i}", "{d}.clear()", "{d} |= {{{k!r}: {i}}}",
            "{d}.update([({k!r}, {i})])", "{d}.popitem()",
        )  # fmt: skip
        self.add(form.format(d=self.some("d"), k=self.one_of(*_LETTERS), i=self.integer()))

    def sets(self) -> None:
        known = self.some("s")
        if known is None or self.one_of(True, False):
            form = self.one_of("{{{i}, {j}}}", "set({l})", "{{v % 3 for v in {l}}}")
            self.bind("s", form.format(i=self.integer(), j=self.integer(), l=self.some("l")))
            return
        form = self.one_of(
            "{s}.add({i})", "{s}.discard({i})", "{s} |= {{{i}}}", "{s}.update({l})", "{s} &= set({l})",
            "{s} -= {{{i}}}", "LOG.append(sorted({s}))", "LOG.append({i} in {s})", "LOG.append(list({s}))",
        )  # fmt: skip
        self.add(form.format(s=known, i=self.integer(), l=self.some("l")))

    def tuples(self) -> None:
        form = self.one_of("({i}, {j})", "({t}, {i})", "tuple({l})", "({i},) * 2", "*{l}, {i}")
        self.bind("u", form.format(
            i=self.integer(), j=self.integer(), t=self.some("t"), l=self.some("l")))  # fmt: skip
        if self.one_of(True, False):
            first, rest = self.new("i"), self.new("l")
            self.add(f"{first}, *{rest} = [{self.integer()}, *{self.some('l')}]")
            self.known["i"].append(first)
            self.known["l"].append(rest)

    def text(self) -> None:
        form = self.one_of(
            'f"{{{i}:>3}}|{{{l}!r}}"', "str({i})", "'%d-%s' % ({i}, {d})", "'{{}}{{}}'.format({i}, {l})",
            "', '.join(str(v) for v in {l})", "repr({d})", "'ab' * ({i} % 3)", "'abc'[{i}:]",
            "'abc'.replace('b', str({i}))", "'-'.join(sorted({d}))",
        )  # fmt: skip
        self.bind("w", form.format(i=self.integer(), l=self.some("l"), d=self.some("d")))

    def boxes(self) -> None:
        known = self.some("b")
        if known is None or self.one_of(True, False):
            self.bind("b", self.one_of("Box({i})", "Box({t})").format(
                i=self.integer(), t=self.some("t")))  # fmt: skip
            return
        form = self.one_of(
            "{b}.value = {i}", "LOG.append({b}.twice)", "{b}.extra = {l}", "LOG.append({b} == {c})",
            "{b} += {i}", "LOG.append({b}[{i}])", "{b}.value += 1", "LOG.append(vars({b}))",
            "LOG.append(getattr({b}, 'extra', None))", "del {b}.reads", "LOG.append([*zip({b}, 'ab')])",
        )  # fmt: skip
        self.add(form.format(b=known, c=self.some("b"), i=self.integer(), l=self.some("l")))

    def barrier(self) -> None:
        """A graph break, which notes what it is given."""
        kind = self.one_of("t", "i", "l", "d", "s", "u", "w", "b", "f")
        name = self.some(kind)
        if name is not None:
            value = f"barrier({name})"
            self.add(self.one_of(f"{name} = {value}", value))

    def global_state(self) -> None:
        self.add(self.one_of(
            "TOTAL += {i}", "STATE['total'] = {i}", "STATE['total'] += {i}", "LOG.append({i})",
            "LOG.append({l})", "LOG.append(TOTAL)", "STATE['items'] = {l}", "STATE.pop('items', None)",
        ).format(i=self.integer(), l=self.some("l")))  # fmt: skip

    def alias(self) -> None:
        kind = self.one_of("l", "d", "t", "s", "b")
        known = self.some(kind)
        if known is not None:
            self.bind(kind, known)

    def delete(self) -> None:
        name = self.some(self.one_of("l", "i", "d"))
        if name is not None and self.depth == 1 and name[-1].isdigit():
            self.add(f"del {name}")
            for names in self.known.values():
                if name in names:
                    names.remove(name)

    def call(self) -> None:
        known = self.some("f")
        if known is not None:
            self.bind("i", self.one_of("{f}({i})", "{f}(a={i})", "{f}({i}, b={j})", "{f}(*[{i}])").format(
                f=known, i=self.integer(), j=self.integer()))  # fmt: skip

    # Compound statements.

    def if_else(self) -> None:
        with self.block(f"if {self.condition()}:"):
            self.body()
        if self.one_of(True, False):
            with self.block("else:"):
                self.body()

    def for_loop(self) -> None:
        name = self.new("i")
        header = self.one_of(
            "for {v} in range(3):", "for {v} in list({l})[:4]:", "for _, {v} in enumerate({l}[:3]):",
            "for {v} in list({d}.values()):", "for {v}, _ in zip([1, 2], 'ab'):", "for {v} in (1, {i}):",
            "for {v} in map(abs, {l}[:3]):", "for _, {v} in {d}.items():", "for {v} in reversed({l}):",
            "for {v} in filter(None, {l}[:3]):",
        ).format(v=name, l=self.some("l"), d=self.some("d"), i=self.integer())  # fmt: skip
        if not self.count_loop():
            return
        with self.block(header):
            self.known["i"].append(name)
            self.body()
            if self.one_of(True, False, False):
                word = self.one_of("break", "continue")
                with self.block(f"if {self.condition()}:"):
                    self.add(word)
            self.statement()
        if self.one_of(True, False, False):
            with self.block("else:"):
                self.body(1)
        self.loops -= 1

    def count_loop(self) -> bool:
        """Loops nest twice at most: a program ends in time."""
        if self.loops >= 2:
            self.assign_tensor()
            return False
        self.loops += 1
        return True

    def while_loop(self) -> None:
        if not self.count_loop():
            return
        name = self.new("k")
        self.add(f"{name} = {self.one_of(1, 2, 3)}")
        with self.block(f"while {name} > 0:"):
            self.add(f"{name} -= 1")
            self.body(2)
        self.loops -= 1

    def try_except(self) -> None:
        with self.block("try:"):
            self.body(2)
            self.one_of(self.raising, self.statement)()
        kinds = self.one_of("KeyError", "(IndexError, ValueError)", "LookupError", "Exception")
        named = self.one_of(True, False)
        with self.block(f"except {kinds}{' as error' if named else ''}:"):
            if named:
                self.add("LOG.append((type(error).__name__, str(error)))")
            self.body(2)
            if self.one_of(True, False, False, False):
                self.add(
                    self.one_of(
                        "raise", "raise RuntimeError('again')", "raise ValueError(1) from None"
                    )
                )
        if self.one_of(True, False):
            with self.block("else:"):
                self.body(1)
        if self.one_of(True, False):
            with self.block("finally:"):
                self.add("LOG.append('finally')")
                self.body(1)

    def raising(self) -> None:
        """A statement that raises, mostly inside try."""
        if self.depth == 1 and self.one_of(True, True, True, False):
            self.assign_integer()
            return
        form = self.one_of(
            "{d}['missing']", "{l}[99]", "raise ValueError({i})", "int('x')", "1 // ({i} - {i})",
            "raise KeyError('k') from ValueError({i})", "next(iter([]))", "{l}.index(77)",
            "assert {i} < -50, {i}", "{i}.nothing", "a, b = [{i}]", "undefined_name",
        )  # fmt: skip
        self.add(form.format(d=self.some("d"), l=self.some("l"), i=self.some("i")))

    def with_block(self) -> None:
        known = self.some("b")
        header = self.one_of(
            "with noted('w') as w0:", "with torch.no_grad():", "with Box({i}) as v0:"
        )
        if known is not None and self.one_of(True, False):
            header = f"with {known}:"
        with self.block(header.format(i=self.integer())):
            self.body()

    def function(self) -> None:
        """A closure that reads and may write variables around it."""
        name = self.new("f")
        shared = [n for n in self.known["i"] if n[0] == "i" and n[1:].isdigit() and self.depth == 1]
        with self.block(f"def {name}(a, b={self.number()}, *rest, c=1, **more):"):
            if shared and self.one_of(True, False):
                target = self.one_of(*shared)
                self.add(f"nonlocal {target}")
                self.add(f"{target} += a")
            held, self.known["f"] = self.known["f"], []
            before = {kind: list(names) for kind, names in self.known.items()}
            self.known = {kind: [] for kind in _KINDS} | {"i": ["a", "b"], "l": ["items"]}
            self.known |= {"t": before["t"][:2], "d": ["table"]}
            form = self.one_of(
                "items.append(a)", "LOG.append((a, b, rest))", "table['a'] = a", "barrier(a)", "pass",
                "if a > 2: return b", "b = [v * a for v in items[:3]]; b = sum(b)", "STATE['total'] = a",
                "if a < -2: raise KeyError(a)",
            )  # fmt: skip
            self.add(form)
            self.add(
                f"return {self.one_of('a + b', 'a * c', 'b', 'int(x.sum() > 0) + a', 'len(items)')}"
            )
            self.known = before
            self.known["f"] = held
        self.known["f"].append(name)

    def generator(self) -> None:
        name, values = self.new("g"), self.new("l")
        with self.block(f"def {name}(count):"):
            with self.block("try:"), self.block("for step in range(count % 4):"):
                self.add(self.one_of("got = yield step", "yield step * 2", "yield from (step, 1)"))
            with self.block("finally:"):
                self.add("LOG.append(count)")
        form = self.one_of(
            "list({g}({i}))", "[v + 1 for v in {g}({i})]", "[next({g}({i}), -1)]", "sorted({g}(3))[::-1]",
            "[*{g}(2), *{g}({i})]", "[a + b for a, b in zip({g}(3), {l})]",
        )  # fmt: skip
        self.add(f"{values} = " + form.format(g=name, i=self.integer(), l=self.some("l")))
        self.known["l"].append(values)

    def match(self) -> None:
        subject = self.one_of("{l}", "{d}", "({i}, {j})", "{i}", "'ab'").format(
            l=self.some("l"), d=self.some("d"), i=self.integer(), j=self.integer()
        )
        with self.block(f"match {subject}:"):
            for pattern in (
                self.one_of("case [first, *others]:", "case {'a': first}:", "case int(first):"),
                self.one_of(
                    "case (first, 2) | (2, first):", "case str() as first:", "case [] as first:"
                ),
            ):
                with self.block(pattern):
                    self.add("LOG.append(first)")
                    self.body(1)
            with self.block("case _:"):
                self.body(1)

    def closures_in_loop(self) -> None:
        name, values = self.new("c"), self.new("l")
        self.add(f"{name} = [lambda v, k=k: v + k + len(items) for k in range(2)]")
        self.add(f"{values} = [each({self.integer()}) for each in {name}]")
        self.known["l"].append(values)

    def program(self) -> str:
        self.body(8)
        kept = [name for names in self.known.values() for name in names if name[0] != "f"]
        self.add(f"return [{', '.join(dict.fromkeys(kept))}]")
        return "\n".join(
            ["def program(x, y, items, table, n):", "    global TOTAL", *self.lines, ""]
        )
