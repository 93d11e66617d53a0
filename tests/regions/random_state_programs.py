"""Random programs whose loops and branches change Python state, as source text."""

from __future__ import annotations

from .random_programs import WiderProgram

_STATE = """
    def sent(t):
        while True:
            got = yield t
            t = (t + (1 if got is None else got)) % 17
    def caught(t):
        while True:
            try:
                t = (t + ((yield t) or 1)) % 13
            except ValueError as error:
                t = (t * 2 + error.args[0]) % 11
    def filled():
        held = []
        while True:
            held.append((yield len(held) % 7) or 0)
    def delegating():
        while True:
            yield from (x % 3 for x in range(4))
            yield from relay
    def counting(by):
        nonlocal total
        total = (total + by) % 19
        return total
    def defaulted(by, log=[]):
        log.append(by)
        return len(log) % 5
    total, relay = 0, iter([1, 2] * 200)
    g, h, e, y = sent(0), caught(1), filled(), delegating()
    next(g), next(h), next(e)
    it, pairs = iter([k % 5 for k in range(3000)]), zip(itertools.count(), itertools.cycle([3, 1]))
    log, d, o, z = [0], {'n': 0}, Row(0, 0), collections.deque([1, 2, 3])
""".strip("\n").split("\n")

_CHANGES = (
    "c = (c + g.send({n})).clamp(-99, 99)",
    "c = (c - next(g)).clamp(-99, 99)",
    "g.send({n})",
    "c = (c + h.throw(ValueError(1))).clamp(-99, 99)",
    "n = (n + h.send({n})) % 7",
    "c = (c + e.send(2)).clamp(-99, 99)",
    "next(e)",
    "c = (c + next(y)).clamp(-99, 99)",
    "y.close()",
    "for x in y:\n        c = (c + x).clamp(-99, 99)\n        if x == 2:\n            break",
    "c = (c + next(it)).clamp(-99, 99)",
    "c = (c + sum(next(pairs)) % 4).clamp(-99, 99)",
    "next(it)",
    "c = (c + counting({n})).clamp(-99, 99)",
    "counting(1)",
    "c = (c + defaulted(1)).clamp(-99, 99)",
    "log.append(n)",
    "log[0] = (log[0] + 1) % 9",
    "log[-1] = {n}",
    "log.reverse()",
    "d['n'] = (d['n'] + {n}) % 9",
    "d[len(d) % 4] = n",
    "d['n'] = d.pop('n')",
    "o.count = (o.count + 1) % 9",
    "o.value, o.count = o.count, o.value",
    "z.rotate(1)",
    "z.append(n)",
    "c = (c + z[0] + log[0] + d['n'] + o.count).clamp(-99, 99)",
    "c = (c + (3 if len(log) > 4 else 1)).clamp(-99, 99)",
)

_SEEN = (
    "g.send(1), h.send(1), e.send(1), next(y, -1), next(it), next(pairs), counting(1), defaulted(1), "
    "list(log), list(d.items()), o.count, o.value, list(z)"
)


class StatefulProgram(WiderProgram):
    """One with generators that are sent to, iterators, closures, defaults, containers and an instance."""

    def _first_lines(self) -> list[str]:
        return [*super()._first_lines(), *_STATE]

    def _finish(self, lines: list[str]) -> str:
        return "\n".join([*lines, f"    return a + 0, b + 0, c + n, n, f, m, p + 0, {_SEEN}"])

    def _statement(self, depth: int) -> list[str]:
        indent = "    " * depth
        if self._random.random() < 0.4:
            change = self._fill(self._pick(_CHANGES)).split("\n")
            return [indent + change[0], *(indent[4:] + line for line in change[1:])]
        return [
            line.replace("return a + 1, b + 0, c + n,", f"return a + 1, b + 0, {_SEEN},")
            for line in super()._statement(depth)
        ]
