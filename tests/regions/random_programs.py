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
    """One random program: ``source`` defines ``program(a, b)``."""

    def __init__(self, seed: int, length: int = 6) -> None:
        self._random = random.Random(seed)
        self._names = ["a", "b", "c"]  # matrices; v is a view of some of them
        self._counters: list[str] = []
        lines = ["def program(a, b):", "    c = a * 2"]
        for _ in range(length):
            lines += self._statement(1)
        lines.append("    return a + 0, b + 0, c + 0")
        self.source = "\n".join(lines)

    def _pick(self, choices: tuple[str, ...] | list[str]) -> str:
        return self._random.choice(choices)

    def _fill(self, text: str) -> str:
        names = {"t": self._pick(self._names), "u": self._pick(self._names)}
        row = str(self._random.randrange(ROWS))
        if self._counters and self._random.random() < 0.7:
            row = self._pick(self._counters)
        return text.format(
            **names,
            row=row,
            column=self._random.randrange(COLUMNS),
            n=self._random.choice((-2, -1, 1, 2, 3)),
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
            write = self._pick(_WRITES).format(v=name, n=self._random.choice((-1, 1, 2)))
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
