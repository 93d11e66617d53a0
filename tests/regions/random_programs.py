"""Random programs of views, writes, branches and loops, as source text of a function of two matrices.

Values stay small whole numbers, on which float64 arithmetic is exact: any difference is a fault.
"""

from __future__ import annotations

import random

ROWS, COLUMNS = 4, 3

_VIEWS = (
    "{t}[{row}]",
    "{t}[:, {column}]",
    "{t}.t()",
    "{t}[1:3]",
    "{t}[{row}, 1:]",
    "{t}.view(-1)[2:9]",
    "{t}.unsqueeze(0)",
    "{t}.diagonal()",
    "{t}.t()[{column}]",
    "{t}[:, ::2]",
)
_WRITES = (
    "{v}.add_({n})",
    "{v}.mul_({n})",
    "{v}.fill_({n})",
    "{v}.copy_({v} * -1)",
    "{v}.clamp_(-50, 50)",
    "{v}.zero_()",
)
_EXPRESSIONS = (
    "{t} + {u}",
    "{t} - {n}",
    "{t} * {n}",
    "{t}.flip(0)",
    "torch.where({t} > {u}, {t}, {u})",
    "{t}.clamp(-30, 30)",
    "{t}.clone()",
)
_CONDITIONS = ("{t}.sum() > {n}", "{t}[{row}, {column}] > {u}[0, 0]", "({t} > {n}).any()")


class Program:
    """One random program: ``source`` defines ``program(a, b)``.

    ``numbers`` are passed after the matrices in the first call, the second and so on.
    """

    numbers: tuple[tuple[float | int, ...], ...] = ((), ())
    _parameters = "a, b"

    def __init__(self, seed: int, length: int = 6) -> None:
        self._random = random.Random(seed)
        self._names = ["a", "b", "c"]  # matrices; v is a view of some of them
        self._counters: list[str] = []
        lines = [f"def program({self._parameters}):", "    c = a * 2", *self._first_lines()]
        for _ in range(length):
            lines += self._statement(1)
        self.source = self._finish(lines)

    def _first_lines(self) -> list[str]:
        return []

    def _finish(self, lines: list[str]) -> str:
        return "\n".join([*lines, "    return a + 0, b + 0, c + 0"])

    def _pick(self, choices: tuple[str, ...] | list[str]) -> str:
        return self._random.choice(choices)

    def _number(self, choices: tuple[int, ...]) -> str:
        return str(self._random.choice(choices))

    def _fill(self, text: str) -> str:
        names = {"t": self._pick(self._names), "u": self._pick(self._names)}
        row = str(self._random.randrange(ROWS))
        if self._counters and self._random.random() < 0.7:
            row = self._pick(self._counters)
        return text.format(
            **names,
            row=row,
            column=self._random.randrange(COLUMNS),
            n=self._number((-2, -1, 1, 2, 3)),
            v="{v}",
        )

    def _statement(self, depth: int) -> list[str]:
        indent = "    " * depth
        kind = self._random.random()
        if depth < 4 and kind < 0.15:
            return self._branch(depth)
        if depth < 3 and kind < 0.32:
            return self._loop(depth)
        if kind < 0.7:
            view = self._fill(self._pick(_VIEWS))
            name = "v" + str(self._random.randrange(3))
            write = self._pick(_WRITES).format(v=name, n=self._number((-1, 1, 2)))
            lines = [f"{indent}{name} = {view}", f"{indent}{write}"]
            if self._random.random() < 0.3:
                other = self._pick(self._names)
                lines.append(f"{indent}{other}[0, 0] = {name}.sum().clamp(-40, 40)")
            return lines
        target = self._pick(self._names[2:]) if self._random.random() < 0.8 else "b"
        return [
            f"{indent}{target} = {self._fill(self._pick(_EXPRESSIONS))}",
            f"{indent}{target} = {target}.clamp(-99, 99)",
        ]

    def _body(self, depth: int) -> list[str]:
        lines: list[str] = []
        for _ in range(self._random.randint(1, 3)):
            lines += self._statement(depth)
        return lines

    def _branch(self, depth: int) -> list[str]:
        indent = "    " * depth
        lines = [f"{indent}if {self._fill(self._pick(_CONDITIONS))}:", *self._body(depth + 1)]
        if self._random.random() < 0.6:
            lines += [f"{indent}else:", *self._body(depth + 1)]
        return lines

    def _loop(self, depth: int) -> list[str]:
        indent = "    " * depth
        counter = f"i{depth}"
        spans = ("range(4)", "range(1, 4)", "range(3, -1, -1)", "range(0, 4, 2)")
        lines = [f"{indent}for {counter} in {self._pick(spans)}:"]
        self._counters.append(counter)
        lines += self._body(depth + 1)
        self._counters.pop()
        if self._random.random() < 0.25:
            lines += [
                f"{indent}    if {self._fill(self._pick(_CONDITIONS))}:",
                f"{indent}        break",
            ]
        return lines


_MORE_VIEWS = (
    "{t}.unfold(0, 2, 2)",
    "{t}.as_strided((2, 2), (3, 1), 1)",
    "{t}.chunk(2)[1]",
    "{t}.split([1, 3])[1]",
    "{t}.unbind(1)[{column}]",
    "{t}.transpose(0, 1)",
    "{t}.narrow(0, 1, 2)",
    "{t}[None].squeeze(0)",
    "{t}.permute(1, 0)[1:]",
    "{t}.reshape(2, 6)[1]",
    "{t}.diagonal(-1)",
    "{t}.view(2, 2, 3).select(1, 0)",
    "{t}.detach()[{row}]",
    "{t}.expand(1, 4, 3)[0]",
    "{t}.movedim(0, 1)[{column}]",
)
_POSITIONS = (
    "{t}[p]",
    "{t}[p, {column}]",
    "{t}[:, p % 3]",
    "{t}[p, 1:]",
)
_NUMBERS = (
    "n += 1",
    "n = n - 2",
    "n = 0",
    "m = {t}.sum() > {n}",
    "m = not ({t} > {n}).any()",
    "f = n / 2",
    "f = f * 0.5 + 1",
    "n = {n} if {t}.sum() > {n} else n",
    "m = m and n > {n}",
)


class WiderProgram(Program):
    """One with more views, positions in tensors, numbers that change, ``while`` and early returns."""

    def _first_lines(self) -> list[str]:
        return ["    n, f, m, p = 1, 1.0, False, torch.tensor(0)"]

    def _finish(self, lines: list[str]) -> str:
        return "\n".join([*lines, "    return a + 0, b + 0, c + n, n, f, m, p + 0"])

    def _statement(self, depth: int) -> list[str]:
        indent = "    " * depth
        kind = self._random.random()
        if kind < 0.12:
            view = self._fill(self._pick(_MORE_VIEWS))
            write = self._pick(_WRITES).format(v="w", n=self._number((-1, 1, 2)))
            return [f"{indent}w = {view}", f"{indent}{write}"]
        if kind < 0.22:
            return [indent + self._position_statement()]
        if kind < 0.34:
            return [indent + self._fill(self._pick(_NUMBERS))]
        if kind < 0.4:
            target = self._pick(["b", "c"])
            number = self._pick(["n", "(2 if m else 1)", "n % 3"])
            return [f"{indent}{target} = ({target} * {number}).clamp(-99, 99)"]
        if kind < 0.46 and depth < 3:
            return self._while(depth)
        if kind < 0.49 and depth > 1:
            condition = self._fill(self._pick(_CONDITIONS))
            return [
                f"{indent}if {condition}:",
                f"{indent}    return a + 1, b + 0, c + n, n, f, m, p + 0",
            ]
        return super()._statement(depth)

    def _position_statement(self) -> str:
        place = self._fill(self._pick(_POSITIONS))
        forms = (
            f"p = ({place}.sum() + c[0, 0]).long() % 4",
            f"{place} += {self._random.choice((-1, 1, 2))}",
            f"{place} = {self._random.choice((-1, 0, 3))}",
            f"{place} = {place} * 2 - 1",
            f"c = (c + {place}.sum()).clamp(-40, 40)",
            self._fill("p = {t}.sum().long() % 4"),
        )
        return self._pick(forms)

    def _while(self, depth: int) -> list[str]:
        indent, counter = "    " * depth, f"k{depth}"
        first = self._fill(self._pick(_CONDITIONS))
        test = self._pick((f"{counter} < 4 and {first}", f"{first} and {counter} < 3"))
        lines = [f"{indent}{counter} = 0", f"{indent}while {test}:"]
        lines += [*self._body(depth + 1), f"{indent}    {counter} += 1"]
        if self._random.random() < 0.3:
            lines += [
                f"{indent}    if {self._fill(self._pick(_CONDITIONS))}:",
                f"{indent}        break",
            ]
        return lines


class ChangingProgram(WiderProgram):
    """One of which a float ``s`` and an integer ``k`` are passed, others in each call."""

    numbers = ((1.0, 2), (2.0, 3), (-1.0, 1), (3.0, -2))
    _parameters = "a, b, s, k"

    def _number(self, choices: tuple[int, ...]) -> str:
        number = super()._number(choices)
        return self._pick(("s", "k", "s * 2", "k + 1")) if self._random.random() < 0.5 else number


class ReturningProgram(WiderProgram):
    """One that returns its tensors themselves, which may be its inputs, views of them, or one another."""

    def _finish(self, lines: list[str]) -> str:
        return "\n".join([*lines, "    return a, b, c, p"])


_SHARED = (
    "c = {t}",
    "b = {t}",
    "b = c = ({t} - {n}).clamp(-40, 40)",
    "c = e = ({t} * {n}).clamp(-40, 40)",
    "b, c = c, b",
    "c = {t}[:]",
    "b = {t}.view(4, 3)",
    "c = ({t} + {n}).clamp(-40, 40)",
    "d = {t}[1:]",
    "d = ({t} + {n}).clamp(-40, 40)[1:]",
    "e = {t}.detach()",
    "e = {t}",
)


class SharingProgram(ReturningProgram):
    """One of names and views for one tensor, the caller's or new, and of branches and loops around them."""

    def _first_lines(self) -> list[str]:
        return [*super()._first_lines(), "    d, e = a[1:], b.view(4, 3)"]

    def _finish(self, lines: list[str]) -> str:
        returned = self._random.sample(["a", "b", "c", "d", "e", "c[1:]", "d[0]", "b.t()"], 3)
        return "\n".join([*lines, f"    return {', '.join(returned)}"])

    def _statement(self, depth: int) -> list[str]:
        indent, kind = "    " * depth, self._random.random()
        if kind < 0.25 and depth < 3:
            return self._branch(depth)
        if kind < 0.35 and depth < 3:
            return self._loop(depth)
        if kind < 0.9:
            return [indent + self._fill(self._pick(_SHARED))]
        return [f"{indent}{self._pick(('b', 'c', 'd', 'e'))}.add_({self._number((1, 2))})"]


_CONTAINERS = (
    "s = {{'a': {t} + 0, 'l': [{u} * 1, s['a'] - 1], 'n': s['n'] + 1}}",
    "s = {{'a': ({t} - s['a']).clamp(-40, 40), 'l': [s['l'][1], {u} * 1], 'n': {n}}}",
    "s['a'] = ({t} + s['l'][0]).clamp(-40, 40)",
    "s['l'][1] = {t}.clone()",
    "s['l'] = [s['l'][1], (s['a'] + {t}).clamp(-40, 40)]",
    "s['l'].append(s['l'].pop(0))",
    "s['n'] += {n}",
    "s['a'].add_({n}).clamp_(-60, 60)",
    "q = s",
    "q = {{'a': s['a'] + 1, 'l': s['l'], 'n': 0}}",
    "q['a'] = {t} * 1",
    "q['l'][0] = q['l'][0].clamp(-9, 9)",
    "r = Row({t} + 0, s['n'])",
    "r = Row((r.value + {t}).clamp(-30, 30), r.count + 1)",
    "r.value = {t} * 1",
    "r.count += 1",
    "b = (b + (1 if q is s else 2)).clamp(-99, 99)",
    "c = (c + s['l'][0] + r.value).clamp(-99, 99)",
)


class ContainerProgram(WiderProgram):
    """One that keeps state in a dict, a list and an instance, changed, made anew, and under two names."""

    def _first_lines(self) -> list[str]:
        return [
            *super()._first_lines(),
            "    s = {'a': a + 0, 'l': [b * 1, c * 1], 'n': 0}",
            "    q, r = {'a': a * 1, 'l': [b + 0], 'n': 1}, Row(b + 0, 0)",
        ]

    def _finish(self, lines: list[str]) -> str:
        return "\n".join([*lines, "    return a + 0, b + 0, c + n, s, q, (r, m), p + 0"])

    def _statement(self, depth: int) -> list[str]:
        if self._random.random() < 0.4:
            return ["    " * depth + self._fill(self._pick(_CONTAINERS)).replace("{v}", "v")]
        return [
            line.replace("return a + 1, b + 0, c + n, n, f, m, p + 0", "return a + 1, s, c + n, r")
            for line in super()._statement(depth)
        ]
