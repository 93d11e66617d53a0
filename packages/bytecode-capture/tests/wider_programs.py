"""What programs of :mod:`programs` also have: deques, iterators and generators that wait over graph breaks,
classes and subclasses of containers, chains of exceptions, and breaks in the middle of all these."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st
from programs import Writer


class Row(list[Any]):
    """A list with attributes."""


class Table(dict[str, Any]):
    """A dict that answers for absent keys."""

    def __missing__(self, key: str) -> str:
        return f"no {key}"


class WiderWriter(Writer):
    """``q0`` is a deque, ``n0`` a namespace, ``r0`` a :class:`Row`, ``m0`` a :class:`Table`."""

    simple = (
        *Writer.simple, "deques", "namespaces", "rows", "tables", "iterators", "groups", "breaking_calls",
    )  # fmt: skip
    compound = (
        *Writer.compound, "nested_try", "chained_exceptions", "waiting_generator", "definition", "exit_stack",
        "leaving_finally", "recursion", "exception_group",
    )  # fmt: skip

    def __init__(self, draw: Callable[[st.SearchStrategy[Any]], Any]) -> None:
        super().__init__(draw)
        self.known |= {kind: [] for kind in "qnrm"}

    def made_or_changed(self, kind: str, makers: tuple[str, ...], changes: tuple[str, ...]) -> None:
        """A new object of a kind, or a change of a known one."""
        known = self.some(kind)
        values = {
            "i": self.integer(), "j": self.number(), "l": self.some("l"), "d": self.some("d"),
            "t": self.some("t"), "k": self.one_of("a", "b", "c"), "v": known,
        }  # fmt: skip
        if known is None or self.one_of(True, False, False):
            self.bind(kind, self.one_of(*makers).format(**values))
        else:
            self.add(self.one_of(*changes).format(**values))

    # Data.

    def deques(self) -> None:
        self.made_or_changed(
            "q",
            ("deque({l})", "deque({l}, 3)", "deque([{i}, {j}], maxlen=2)", "deque()"),
            (
                "{v}.append({i})", "{v}.appendleft({t})", "{v}.pop()", "{v}.popleft()", "{v}.rotate({j})",
                "{v}.extend({l})", "{v}.extendleft([{i}])", "LOG.append(list({v}))", "LOG.append(len({v}))",
                "LOG.append({j} in [*{v}][:0])", "{v}[0] = {i}", "del {v}[0]", "barrier({v})", "{v}.clear()",
                "{v} += [{i}]", "LOG.append({v}.maxlen)", "{v} = {v}.copy()",
            ),
        )  # fmt: skip

    def namespaces(self) -> None:
        self.made_or_changed(
            "n",
            ("SimpleNamespace(a={i}, b={l})", "SimpleNamespace(**{d})", "SimpleNamespace()"),
            (
                "{v}.a = {i}", "{v}.c = {t}", "LOG.append(getattr({v}, 'b', None))", "del {v}.a",
                "LOG.append(sorted(vars({v})))", "LOG.append({v} == SimpleNamespace(a={j}))", "barrier({v})",
                "{v}.a += {j}", "LOG.append(vars({v}).get({k!r}))",
            ),
        )  # fmt: skip

    def rows(self) -> None:
        self.made_or_changed(
            "r",
            ("Row({l})", "Row([{i}, {j}])"),
            (
                "{v}.append({i})", "{v} += [{i}]", "{v}.name = {i}", "LOG.append([*{v}])", "barrier({v})",
                "LOG.append(({v} + [{i}], {v} == {l}, len({v}), {v}[-1:]))", "{v}.sort()", "{v}.pop()",
                "LOG.append(getattr({v}, 'name', None))", "{v}[{j}] = {i}", "LOG.append(sorted({v}))",
            ),
        )  # fmt: skip

    def tables(self) -> None:
        self.made_or_changed(
            "m",
            ("Table({d})", "Table(a={i})", "Table(zip('ab', {l}))"),
            (
                "{v}[{k!r}] = {i}", "LOG.append({v}[{k!r}])", "{v}.update({d})", "LOG.append([*{v}.items()])",
                "LOG.append({v}.get({k!r}))", "{v}.pop({k!r})", "barrier({v})", "{v} |= {d}",
                "LOG.append({k!r} in {v})", "LOG.append({{**{v}}})", "LOG.append(dict({v}) == {d})",
            ),
        )  # fmt: skip

    def iterators(self) -> None:
        """An iterator that gives some elements before a break and the others behind it."""
        name, values = self.new("o"), self.new("l")
        form = self.one_of(
            "itertools.chain({l}, [{i}])", "itertools.islice({l}, 1, None)", "zip({l}, 'abc')", "iter({l})",
            "itertools.accumulate({l})", "enumerate({l}, {j})", "map(abs, {l})", "iter({d}.items())",
            "itertools.pairwise({l})", "itertools.takewhile(bool, {l})", "filter(None, {l})",
            "itertools.zip_longest({l}, [{i}])", "itertools.combinations({l}[:4], 2)", "reversed({l})",
            "itertools.islice(itertools.cycle({l}), 5)", "itertools.product({l}[:2], [{i}])",
            "(v * 2 for v in {l})", "itertools.starmap(divmod, [({i}, 3)])", "iter(range({j}))",
        )  # fmt: skip
        self.add(f"{name} = " + form.format(
            l=self.some("l"), d=self.some("d"), i=self.integer(), j=self.number()))  # fmt: skip
        self.add(f"LOG.append(next({name}, None))")
        self.barrier()
        self.add(self.one_of("{v} = [*{o}]", "{v} = list({o})[:3]", "{v} = [1 for _ in {o}]").format(
            v=values, o=name))  # fmt: skip
        self.add(f"LOG.append({values})")
        self.add(f"{values} = [len({values})]")
        self.known["l"].append(values)

    def groups(self) -> None:
        self.add(self.one_of(
            "LOG.append([(k, [*g]) for k, g in itertools.groupby({l})])",
            "LOG.append({{k: len([*g]) for k, g in itertools.groupby(sorted({l}), lambda v: v % 2)}})",
            "LOG.append([k for k, _ in itertools.groupby({l}, key=bool)])",
        ).format(l=self.some("l")))  # fmt: skip

    def breaking_calls(self) -> None:
        """A break in the middle of an expression."""
        form = self.one_of(
            "[barrier(v) for v in {l}[:2]]", "sorted({l}[:3], key=barrier)", "[*map(barrier, {l}[:2])]",
            "[v for v in {l}[:3] if barrier(v)]", "[{i}, *[barrier({i})], {j}]", "[barrier({l})[0] + {i}]",
            '[len(f"{{barrier({i})}}|{{{i}}}")]', "[{i} if barrier({i}) else {j}, {i}]",
            "[v + barrier(1) for v in (w for w in {l}[:2])]",
            "list({{k: barrier(v) for k, v in {d}.items()}})[:0]",
            "[barrier(a) + b for a, b in zip({l}[:2], [{i}, {j}])]", "[(lambda v: barrier(v) + 1)({i})]",
        )  # fmt: skip
        self.bind("l", form.format(
            l=self.some("l"), d=self.some("d"), i=self.integer(), j=self.number()))  # fmt: skip

    # Control flow.

    def handler(self, kinds: str) -> None:
        with self.block(f"except {kinds} as error:"):
            self.add("LOG.append((repr(error), repr(error.__context__), repr(error.__cause__)))")
            self.body(1)

    def nested_try(self) -> None:
        with self.block("try:"):
            with self.block("try:"):
                self.body(2)
                self.raising()
            self.handler(self.one_of("KeyError", "ValueError", "(IndexError, TypeError)"))
            with self.block("finally:"):
                self.add("LOG.append('inner')")
                self.barrier()
        self.handler("Exception")

    def chained_exceptions(self) -> None:
        with self.block("try:"):
            with self.block("try:"):
                self.barrier()
                self.raising()
            with self.block("except Exception as inner:"):
                self.body(1)
                self.add(self.one_of(
                    "raise ValueError('outer') from inner", "raise KeyError('outer')", "raise",
                    "raise RuntimeError('outer') from None", "LOG.append({}['gone'])", "raise inner",
                ))  # fmt: skip
        self.handler("Exception")
        self.add(self.one_of("LOG.append(sys.exception())", "LOG.append(sys.exc_info())"))

    def leaving_finally(self) -> None:
        """A loop left by ``break``, ``continue`` or an exception with a ``finally`` around."""
        if not self.count_loop():
            return
        name = self.new("i")
        with self.block(f"for {name} in range({self.one_of(2, 3)}):"):
            self.known["i"].append(name)
            with self.block("try:"):
                with self.block(f"if {self.condition()}:"):
                    self.add(self.one_of("break", "continue", "LOG.append('on')"))
                self.body(1)
            with self.block("finally:"):
                self.add(f"LOG.append(('left', {name}))")
                self.barrier()
        self.loops -= 1

    def exit_stack(self) -> None:
        with self.block("with contextlib.ExitStack() as stack:"):
            self.add("stack.callback(LOG.append, 'called back')")
            self.add("LOG.append(stack.enter_context(noted('stacked')))")
            self.body(2)

    def waiting_generator(self) -> None:
        """A generator that waits over a break, or breaks itself."""
        name, made = self.new("g"), self.new("o")
        with self.block(f"def {name}(count):"):
            opening = self.one_of("with noted('generator'):", "try:", "if count is not None:")
            with self.block(opening), self.block("for step in range(3):"):
                self.add(self.one_of("barrier(step)", "count = count + 1", "LOG.append(step)"))
                self.add(self.one_of("yield step + count", "got = yield step; LOG.append(got)"))
            if opening == "try:":
                with self.block(self.one_of("finally:", "except ValueError:")):
                    self.add("LOG.append('end')")
        self.add(f"{made} = {name}({self.integer()})")
        self.add(f"LOG.append(next({made}))")
        self.barrier()
        self.add(self.one_of(
            "LOG.append({o}.send(5))", "LOG.append([*{o}])", "{o}.close()", "LOG.append(next({o}))",
            "LOG.append(sum({o}))",
        ).format(o=made))  # fmt: skip
        self.add(f"{made}.close()")

    def definition(self) -> None:
        name, made = self.new("C"), self.new("o")
        with self.block(f"class {name}(Box):"):
            self.add(f"level = {self.number()}")
            with self.block("def __init__(self, value):"):
                self.add("super().__init__(value)")
                self.add(
                    self.one_of("self.more = [value]", "barrier(value)", "LOG.append(self.level)")
                )
        self.add(f"{made} = {name}({self.integer()})")
        self.add(f"LOG.append(({made}.twice, {made}.level, {name}.__name__))")

    def recursion(self) -> None:
        name = self.new("h")
        with self.block(f"def {name}(count):"):
            self.add(self.one_of("barrier(count)", "LOG.append(count)", "pass"))
            self.add(f"return count if count < 1 else {name}(count - 1) + {self.number()}")
        self.bind("i", f"{name}({self.one_of(0, 1, 3)})")

    def exception_group(self) -> None:
        with self.block("try:"):
            self.add(self.one_of(
                "raise ExceptionGroup('many', [ValueError(1), KeyError('k')])", "raise ValueError(2)",
                "raise ExceptionGroup('one', [KeyError('k')])", "LOG.append('none')",
            ))  # fmt: skip
        with self.block("except* ValueError as group:"):
            self.add("LOG.append(group.exceptions[0].args)")
            self.barrier()
        with self.block("except* KeyError as group:"):
            self.body(1)


@st.composite
def programs(draw: Callable[[st.SearchStrategy[Any]], Any]) -> str:
    """Source text of a function ``program(x, y, items, table, n)``."""
    return WiderWriter(draw).program()
