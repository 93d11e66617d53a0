"""Random ordinary programs, as source text: helpers, classes, a module with buffers, and ``program``.

Names of variables begin with what they hold, and templates say so where they want an expression (``<M>``) or
the name of a variable (``<=M>``): ``M`` a float matrix (rows, 3), ``V`` one of its rows, ``W`` one of its
columns, ``S`` a 0-dim tensor, ``K`` a matrix of int64, ``B`` one of bool, ``C`` a 0-dim bool, ``n`` an int,
``f`` a float, ``g`` a bool, ``t`` a string, ``L`` a list of matrices, ``D`` a dict of matrices, ``N`` a list
of numbers, ``P`` a ``Pair``.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterable

EXPRESSIONS: dict[str, tuple[str, ...]] = {
    "M": (
        "<M> + <M>", "<M> - <M>", "<M> * <f>", "<M> + <n>", "<f> - <M>", "-<M>", "<M>.abs()", "<M> * <S>",
        "<M>.clamp(-30, 30)", "torch.where(<B>, <M>, <M>)", "<M> + <V>", "<M> * <W>[:, None]", "<M>.relu()",
        "<M>.masked_fill(<B>, <f>)", "<M>.flip(0)", "<M>.clone()", "<M>.detach()", "<M> * <B>", "<M> + <K>",
        "<M>.double()", "<M>.float()", "torch.zeros_like(<M>)", "torch.full_like(<M>, <f>)", "<M> / 2",
        "<M>.contiguous()", "<M>[:]", "<M>.view_as(<M>)", "<M>.t().t()", "<L>[<n> % 2]", "<L>[-1]",
        "<D>['a']", "<D>.get(<t>, <M>)", "<P>.left", "<P>.both", "sum(<L>)", "<M> if <g> else <M>",
        "(<M> if <C> else <M>)", "torch.stack([<V>] * len(<M>))", "torch.cumsum(<M>, 0)", "<M>.roll(1, 0)",
        "torch.maximum(<M>, <M>)", "helper(<M>, <M>, scale=<f>)", "helper(<M>)", "helper(<M>, twice=<g>)",
        "choose(<M>, <n>)", "layer(<M>)", "<K>.to(<M>.dtype)", "<K> * 1.5", "<M>.sort(0).values",
        "<M>.requires_grad_(False) if <g> else <M>", "<M>.expand_as(<M>)", "<M>.reshape(-1, 3)", "<M> ** 2",
        "torch.cat([<M>, <M>])[: len(<M>)]", "meter.scaled(<M>)", "(lambda m, k=<n>: m + k)(<M>)",
        "torch.add(<M>, <M>, alpha=<n>)", "<M>.new_ones(<M>.shape)", "torch.ones(len(<M>), 3) * <f>",
        "<M>.sub(<V>).mul(<f>)", "next(steps(<M>, <n>))", "max(<L>, key=lambda m: float(m.sum()))",
        "F.relu(<M>)", "F.dropout(<M>, 0.5, training=False)",
        "torch.mm(<M>, torch.eye(3, dtype=<M>.dtype))", "<M>.type_as(<M>)", "<M>.tril()",
        "<M>.where(<B>, <f>)",
    ),
    "V": (
        "<M>.sum(0)", "<M>[0]", "<M>[<n> % 2]", "<M>[-1]", "<M>.amax(0)", "<V> + <V>", "<V> * <f>",
        "<M>.mean(0)", "<V>.flip(0)", "<M>[<n> % len(<M>)]", "torch.arange(3.0)", "<M>.unbind()[0]",
        "<V>.clamp(min=<n>)", "torch.tensor([<f>, <n>, 1.0])", "<M>.select(0, <n> % 2)", "<V> * <n>",
        "layer.mean", "<B>.any(0) * 1.0",
    ),
    "W": (
        "<M>.sum(1)", "<M>[:, 0]", "<M>[:, <n> % 3]", "<W> * <f>", "<M>.amin(1)", "<M> @ <V>",
        "<M>.unbind(1)[1]",
    ),
    "S": (
        "<M>.sum()", "<V>[0]", "<M>.max()", "<W>.sum()", "<S> + <S>", "<S> * <f>", "<M>[0, 1]",
        "torch.tensor(<f>)", "<M>.mean()", "<S>.abs()", "<K>.sum()", "<M>.norm()", "<S> - <n>",
        "sum(m.sum() for m in <L>)", "<B>.sum()", "((<M> - <M>) ** 2).mean()",
    ),
    "K": (
        "<M>.long()", "<K> + <n>", "<K> % 3", "<K> // 2", "<M>.argsort(0)", "<B>.long()", "<K> * <K>",
        "<K>.clamp(0, 2)", "torch.arange(len(<M>) * 3).view(-1, 3)", "-<K>", "<K>.bitwise_and(3)",
        "(<M> > 0).int().long()", "<K>.flip(1)",
    ),
    "B": (
        "<M> > <n>", "<M> == <M>", "<B> & <B>", "~<B>", "<M>.isnan()", "<K> != <n>", "<B> | <B>",
        "<M> >= <S>", "<M>.bool()", "<K> > <K>", "<M>.isfinite()",
    ),
    "C": (
        "<M>.sum() > <n>", "<B>.any()", "<S> < <S>", "<M>[0, 0] > <M>[0, 1]", "<S> > <f>", "<B>.all()",
        "<S> >= 0", "torch.allclose(<M>, <M>)", "<K>.max() > <n>",
    ),
    "n": (
        "k", "<n> + 1", "<n> * 2 % 7", "len(<L>)", "<M>.shape[0]", "<M>.size(-1)", "<M>.dim()", "<n> - <n>",
        "len(<D>)", "<n> % 3", "<n> // 2", "-<n>", "abs(<n>)", "int(<f>)", "max(<n>, 2)",
        "<n> if <g> else 1", "len(<M>)", "<M>.numel()", "int(<S>)", "meter.count", "len(<N>)",
        "<K>.sum().item() % 5", "int(<g>)", "len(<t>)", "int(<C>)", "<n> ^ 1", "sum(1 for v in <N> if v)",
        "len({*<N>})", "min(<n>, 3)", "round(<f>)",
    ),
    "f": (
        "s", "<f> * 0.5", "<f> + 1", "float(<n>)", "<n> / 2", "meter.average", "<f> - <n>", "<S>.item()",
        "min(<f>, 2.0)", "<f> if <g> else 0.5", "abs(<f>)", "float(<S>)", "math.floor(<f>) * 1.0",
        "<P>.weight", "-<f>", "<f> % 2",
    ),
    "g": (
        "flag", "not <g>", "<n> > 1", "<g> and <g>", "<g> or <n> > 2", "<M>.requires_grad", "<t> in <D>",
        "name is None", "<M> is <M>", "<f> > 0.5", "isinstance(<N>[0], int)", "bool(<n>)", "<t> == 'a'",
        "len(<L>) > 2", "bool(<C>)", "0 < <n> <= 3", "<M>.dtype == torch.float64", "layer.training",
        "torch.is_grad_enabled()", "hasattr(<P>, 'left')", "all(m.sum() > 0 for m in <L>)", "any(<N>)",
        "<M>.is_contiguous()", "<C>.item()", "extra is not None", "<M>.shape == <M>.shape",
        "<S>.dim() == 0", "<n> in <N>", "<n> == <f>", "<M>.grad_fn is None",
    ),
    "t": (
        "'a'", "'b'", "f'key{<=n> % 2}'", "str(<n> % 3)", "name or 'b'", "<t>.upper()", "<t> + '_'",
        "('a' if <g> else 'c')", "f'{<=f>:.1f}'", "str(<M>.dtype)", "'-'.join([<t>, <t>])",
        "type(<S>).__name__", "<t>[:1]",
    ),
    "L": (
        "[<M>, <M>]", "[m * 2 for m in <L>]", "<L>[:2] + [<M>]", "[<M> * i for i in range(1, <n> % 3 + 2)]",
        "list(<L>)", "[*<L>, <M>]", "<L>[::-1]", "[v for v in <D>.values()] or [<M>]",
        "sorted(<L>, key=lambda m: float(m.sum()))", "[a + b for a, b in zip(<L>, <L>)]",
        "list(steps(<M>, <n> % 3 + 1))", "[<M> for _ in range(2)]", "items",
        "[m for m in <L> if m.sum() > <n>] or [<M>]", "list(<M>.unbind(0)) and [<M>]", "<L> * 1",
        "[<M> + i * m for i, m in enumerate(<L>)]", "<L>.copy()", "list(map(helper, <L>))",
    ),
    "D": (
        "{'a': <M>, <t>: <M>}", "dict(<D>)", "{**<D>, 'b': <M>}", "{k_: v_ * 2 for k_, v_ in <D>.items()}",
        "table", "dict(a=<M>, b=<M>)", "<D>.copy()", "{'a': <M>} | <D>",
        "dict(zip(['a', 'b'], [<M>, <M>]))", "{f'{i}': m for i, m in enumerate(<L>)} | {'a': <M>}",
    ),
    "N": (
        "[<n>, <f>, <n>]", "[i * <n> for i in range(3)]", "[*<N>, <n>]", "sorted(<N>)", "<M>.shape + (1,)",
        "[len(<t>), <n>]", "[v * 2 for v in <N>]", "[v for v in <N> if v > 0] + [<n>]",
        "list(range(<n> % 4)) + [1]", "<M>[0].tolist()",
    ),
    "P": (
        "Pair(<M>)", "Pair(<M>, <M>, weight=<f>)", "Pair(<M>, weight=<n>)",
        "dataclasses.replace(<P>, left=<M>)", "<P>.swapped()", "Pair(right=<M>, left=<M>)",
    ),
}  # fmt: skip

SIMPLE: tuple[str, ...] = (
    "<=M> += <M>", "<=M> *= <f>", "<=M>.add_(<n>)", "<=M>.mul_(<f>)", "<=M>[0] = <V>", "<=M>[:, 1] = <f>",
    "<=M>[<B>] = <n>", "<=M>[0, 1] += <n>", "<=M>.t()[0].mul_(2)", "<=M>[<n> % 2].copy_(<V>)",
    "<=M>.clamp_(-50, 50)", "<=M>.zero_()", "<=M>[-1].fill_(<f>)", "<=M>[:, 1:].add_(<=M>[:, 1:])",
    "<=M>.view(-1)[0] = <f>", "<=M>.masked_fill_(<B>, <n>)", "<=M>[1:] = <=M>[:-1].clone()",
    "<=M>.copy_(<M>)", "<=M>.requires_grad_(<g>)", "<=M> -= <V>", "<=M>[<n> % 2] -= <S>",
    "<=L>.append(<M>)", "<=L>[0] = <M>", "<=L>.pop()", "<=L>.insert(1, <M>)", "<=L>.extend(<L>[:1])",
    "<=L>.reverse()", "<=L>[-1] = <L>[-1] + <n>", "del <=L>[1:]", "<=L>[0].add_(<n>)", "<=L> += [<M>]",
    "<=D>[<t>] = <M>", "<=D>.pop(<t>, None)", "<=D>.update(b=<M>)", "<=D>.setdefault(<t>, <M>)",
    "<=D>['a'] = <D>['a'] * 2", "del <=D>[<t>]", "<=D>['a'].mul_(<f>)", "<=D>[f'layer{<=n> % 2}'] = <M>",
    "<=D> |= {'c': <M>}", "<=P>.left = <M>", "<=P>.weight += <n>", "<=P>.right = <P>.left",
    "<=P>.note = <t>", "<=P>.left += <n>", "<=N>.append(<n>)", "<=N>[0] = <f>", "<=N>.pop()", "<=N>.sort()",
    "meter.update(<S>)", "meter.update(<M>.mean(), n=<n>)", "meter.update(<f>)", "meter.last = <M>",
    "meter.reset()", "LOG.append(<n>)", "LOG.append(f'{<=t>}={<=f>}')", "LOG.append(<t>)",
    "LOG.append(<M>)", "LOG.append(<f>)", "COUNTS['calls'] += 1", "COUNTS[<t>] = <n>", "count_one(<n>)",
    "LOG.append(<g>)", "LOG.append(type(<S>))", "layer.scale = <f>", "layer.train(<g>)",
    "layer.mean.copy_(<V>.detach())", "layer.steps += <n>", "layer.mean = <V>.detach()",
    "with torch.no_grad(): layer.weight.mul_(<f>)", "items.append(<M>)", "extra = <M>", "table[<t>] = <M>",
    "s = <f>", "k = <n>", "flag = <g>", "name = <t>", "assert <n> < 50, f'{<=n>} is large'",
    "first, *others = <L>", "(_, last) = (<M>, <M>)", "<M>.sum().backward",
    "torch.autograd.grad(<S>, <M>, allow_unused=True)", "x = <M>", "y = <M>",
)  # fmt: skip

PRELUDE = """
import dataclasses, math
import torch
import torch.nn.functional as F

LOG = []
COUNTS = {"calls": 0}
TOTAL = 0


def count_one(by=1):
    global TOTAL
    TOTAL += by
    return TOTAL


@dataclasses.dataclass
class Pair:
    left: torch.Tensor
    right: torch.Tensor | None = None
    weight: float = 1.0

    @property
    def both(self):
        return self.left if self.right is None else self.left + self.right * self.weight

    def swapped(self):
        return Pair(self.left if self.right is None else self.right, self.left, self.weight)


class Meter:
    limit = 5

    def __init__(self):
        self.reset()
        self.last = None

    def reset(self):
        self.total, self.count = 0.0, 0

    def update(self, value, n=1):
        self.total = self.total + value * n
        self.count += n
        if self.count > self.limit:
            self.count -= self.limit

    @property
    def average(self):
        return float(self.total) / self.count if self.count else 0.0

    def scaled(self, m):
        return m * (self.count % 3 + 1)


class Layer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.arange(9.0).view(3, 3) % 4 - 1)
        self.register_buffer("mean", torch.zeros(3))
        self.register_buffer("steps", torch.tensor(0))
        self.scale = 0.5

    def forward(self, m):
        m = m.to(self.weight.dtype)
        if self.training:
            with torch.no_grad():
                self.mean.lerp_(m.detach().sum(0), 0.5)
            self.steps += 1
        return F.linear(m, self.weight) * self.scale - self.mean
"""


class OrdinaryProgram:
    """One random program: ``source`` defines ``program``, which :class:`World` calls."""

    def __init__(self, seed: int, length: int = 7) -> None:
        self._random = random.Random(seed)
        self._known: dict[str, list[str]] = {}
        self._count = 0
        self._inside_loop = False
        self.source = "\n".join([PRELUDE, *self._functions(), *self._program(length)]) + "\n"

    # Functions.

    def _functions(self) -> Iterable[str]:
        self._known = {"M": ["m", "m"], "n": ["3"], "f": ["scale"], "g": ["twice"]}
        base = [
            "def helper(m, other=None, *, scale=2.0, twice=False, **more):",
            "    if other is not None:",
            f"        m = {self._pick(('m + other', 'm - other * scale', 'torch.maximum(m, other)'))}",
            "    if twice:",
            f"        {self._pick(('return m * scale', 'm = m * 2', 'm = helper(m, scale=scale)'))}",
            f"    return {self._pick(('m', 'm * scale', 'm + 1', 'm.clamp(-9, 9)'))}",
        ]
        choose = [
            "def choose(m, number):",
            f"    if number {self._pick(('> 2', '% 2', '== 1', '< 0'))}:",
            f"        return {self._pick(('m * number', 'm', 'm.abs()'))}",
            f"    elif {self._pick(('m.sum() > 0', 'm[0, 0] < number', 'len(m) > 4', 'm.requires_grad'))}:",
            f"        return {self._pick(('m - 1', 'm', 'm.detach()', '-m'))}",
            "    try:",
            f"        {self._pick(('return m[number] + m', 'return m / number', 'm = m * {1: 2}[number]'))}",
            f"    except {self._pick(('(IndexError, KeyError)', 'KeyError', 'Exception as error'))}:",
            f"        {self._pick(('LOG.append(number)', 'm = m - 1', 'raise ValueError(number)'))}",
            "    finally:",
            f"        {self._pick(('COUNTS[str(number)] = 1', 'count_one()', 'pass', 'm = m * 2'))}",
            "    return m",
        ]
        steps = [
            "def steps(m, number):",
            f"    for i in range({self._pick(('number', 'number % 3 + 1', '2', 'len(m)'))}):",
            f"        {self._pick(('m = m + i', 'yield m * i', 'm = m * 2', 'LOG.append(i)'))}",
            f"        {self._pick(('if m.sum() > 20: return', 'if i == 3: break', 'pass'))}",
            f"        yield {self._pick(('m', 'm.clone()', 'm - i'))}",
            f"    {self._pick(('yield m', 'count_one()', 'yield from (m, m + 1)'))}",
        ]
        return ["", *base, "", *choose, "", *steps, ""]

    def _program(self, length: int) -> list[str]:
        self._known = {kind: [] for kind in EXPRESSIONS} | {
            "M": ["x", "y"], "n": ["k"], "f": ["s"], "g": ["flag"], "t": ["label"], "L": ["items"],
            "D": ["table"],
        }  # fmt: skip
        lines = [
            "def program(x, y, k, s, flag, name, items, table, meter, layer, extra=None):",
            "    label = name or 'a'",
        ]
        for _ in range(length):
            lines += self._statement(1)
        return [*lines, "    " + self._return()]

    # Expressions.

    def _pick(self, choices: Iterable[str]) -> str:
        return self._random.choice(tuple(choices))

    def expression(self, kind: str, depth: int = 2) -> str:
        """An expression of a kind: a name, or a template whose holes are filled by others."""
        known = self._known.get(kind, [])
        if known and (depth == 0 or self._random.random() < 0.5):
            return self._pick(known)
        if depth <= 0:
            return self._plain(kind)
        return self.fill(self._pick(EXPRESSIONS[kind]), depth - 1)

    def _plain(self, kind: str) -> str:
        plain = {
            "M": "x", "V": "x[0]", "W": "x[:, 0]", "S": "x.sum()", "K": "x.long()", "B": "(x > 0)",
            "C": "(x.sum() > 0)",
            "n": str(self._random.choice((0, 1, 2, 3))), "f": self._pick(("0.5", "2.0", "-1.0")),
            "t": self._pick(("'a'", "'b'")),
            "g": self._pick(("True", "False")), "L": "[x, y]", "D": "{'a': x, 'b': y}", "N": "[1, 2.5]",
            "P": "Pair(x, y)",
        }  # fmt: skip
        return plain[kind]

    def fill(self, template: str, depth: int = 2) -> str:
        """``template`` with an expression for each ``<M>``, and the name of a variable for each ``<=M>``."""

        def hole(match: re.Match[str]) -> str:
            kind = match[2]
            if match[1]:
                own = [name for name in self._known[kind] if name.isidentifier()]
                return self._pick(own) if own else self._plain(kind)
            text = self.expression(kind, depth)
            return text if re.fullmatch(r"[\w.']+", text) else f"({text})"

        return re.sub(r"<(=?)([A-Z]|[nfgt])>", hole, template)

    # Statements.

    def _new(self, kind: str) -> str:
        known = self._known[kind]
        own = [name for name in known if name[0] == kind and name[1:].isdigit()]
        if own and self._random.random() < 0.4:
            return self._pick(own)
        self._count += 1
        return f"{kind}{self._count}"

    def _bind(self, kind: str, depth: int = 2) -> str:
        value = self.expression(kind, depth)
        name = self._new(kind)
        if name not in self._known[kind]:
            self._known[kind].append(name)
        return f"{name} = {value}"

    def _block(self, depth: int, longest: int = 3) -> list[str]:
        """An indented block; what it binds is mostly not used after it."""
        before = {kind: list(names) for kind, names in self._known.items()}
        lines: list[str] = []
        for _ in range(self._random.randint(1, longest)):
            lines += self._statement(depth)
        if self._random.random() < 0.95:
            self._known = before
        return lines

    def _statement(self, depth: int) -> list[str]:
        indent = "    " * depth
        chance = self._random.random()
        if chance < 0.3:
            kind = self._pick("MMMMMVWSKBCnnfgtLLDNPP")
            return [indent + self._bind(kind)]
        if chance < 0.62 or depth > 3:
            return [indent + self.fill(self._pick(SIMPLE), 1)]
        compound: tuple[Callable[[int], list[str]], ...] = (
            self._branch, self._branch, self._for, self._for, self._while, self._try, self._with,
            self._closure,
            self._leave, self._match, self._comprehended,
        )  # fmt: skip
        return self._random.choice(compound)(depth)

    def _branch(self, depth: int) -> list[str]:
        indent = "    " * depth
        lines = [f"{indent}if {self.expression(self._pick('gggCCn'))}:", *self._block(depth + 1)]
        if self._random.random() < 0.25:
            lines += [f"{indent}elif {self.expression(self._pick('gC'))}:", *self._block(depth + 1)]
        if self._random.random() < 0.5:
            lines += [f"{indent}else:", *self._block(depth + 1)]
        return lines

    def _for(self, depth: int) -> list[str]:
        indent, number = "    " * depth, self._count
        heads = (
            ("i{0} in range(<n> % 5)", "n"), ("i{0} in range(3)", "n"),
            ("i{0}, o{0} in enumerate(<L>)", "nM"),
            ("o{0} in <L>", "M"), ("p{0}, o{0} in zip(<L>, <L>)", "MM"),
            ("q{0}, o{0} in <D>.items()", "tM"),
            ("r{0} in <M>", "V"), ("o{0} in steps(<M>, <n>)", "M"), ("v{0} in <N>", "f"),
            ("q{0} in list(<D>)", "t"),
            ("i{0}, r{0} in enumerate(<M>)", "nV"), ("o{0} in <D>.values()", "M"),
            ("i{0} in range(len(<L>))", "n"),
            ("o{0} in reversed(<L>)", "M"), ("i{0} in range(<n> % 3, 6, 2)", "n"),
        )  # fmt: skip
        self._count += 1
        head, kinds = self._random.choice(heads)
        head = self.fill(head.replace("{0}", str(number)), 1)
        names = head.split(" in ")[0].split(", ")
        before = {kind: list(known) for kind, known in self._known.items()}
        for name, kind in zip(names, kinds, strict=True):
            self._known[kind].append(name)
        around, self._inside_loop = self._inside_loop, True
        lines = [f"{indent}for {head}:", *self._block(depth + 1)]
        if self._random.random() < 0.25:
            test = self.expression(self._pick("gC"), 1)
            lines += [
                f"{indent}    if {test}: {self._pick(('break', 'continue'))}",
                *self._block(depth + 1, 1),
            ]
        self._inside_loop = around
        self._known = before
        if self._random.random() < 0.1:
            lines += [f"{indent}else:", *self._block(depth + 1, 1)]
        return lines

    def _while(self, depth: int) -> list[str]:
        indent, counter = "    " * depth, f"c{self._count}"
        self._count += 1
        test = self._pick(("<g>", "<C>", "<n> > 1"))
        before = {kind: list(known) for kind, known in self._known.items()}
        lines = [
            f"{indent}{counter} = 0",
            f"{indent}while {counter} < 4 and ({self.fill(test, 1)}):",
        ]
        self._known["n"].append(counter)
        lines += [f"{indent}    {counter} += 1", *self._block(depth + 1)]
        self._known = before
        return lines

    def _try(self, depth: int) -> list[str]:
        indent = "    " * depth
        lines = [f"{indent}try:", *self._block(depth + 1)]
        risky = (
            "<L>[<n>]",
            "<D>[<t>]",
            "1 / <n>",
            "raise KeyError(<n>)",
            "int(<t>)",
            "<M> + <M>[:2]",
            "<M>.missing",
            "pass",
        )
        lines.append(f"{indent}    {self.fill(self._pick(risky), 1)}")
        handled = self._random.random() < 0.7
        if handled:
            kinds = (
                "Exception",
                "(KeyError, IndexError)",
                "RuntimeError",
                "Exception as error",
                "ZeroDivisionError",
            )
            lines += [f"{indent}except {self._pick(kinds)}:", *self._block(depth + 1, 2)]
        if not handled or self._random.random() < 0.4:
            lines += [f"{indent}finally:", *self._block(depth + 1, 1)]
        return lines

    def _with(self, depth: int) -> list[str]:
        indent = "    " * depth
        managers = (
            "torch.no_grad()", "torch.no_grad()", "torch.enable_grad()", "torch.set_grad_enabled(<g>)",
            "torch.inference_mode(<g>)", "torch.autocast('cpu', enabled=<g>)",
        )  # fmt: skip
        return [
            f"{indent}with {self.fill(self._pick(managers[:4] * 3 + managers), 1)}:",
            *self._block(depth + 1),
        ]

    def _closure(self, depth: int) -> list[str]:
        indent, name = "    " * depth, f"inner{self._count}"
        self._count += 1
        bodies = (
            "return <M> * a",
            "return a + <n>",
            "return [a, <M>][<n> % 2]",
            "return a if <g> else <M>",
        )
        target = self._bind("M", 0).split(" = ", maxsplit=1)[0]
        inner = [f"{indent}def {name}(a, by={self.expression('n', 1)}):"]
        own = [known for known in self._known["M"] if known not in ("x", "y")]
        if own and self._random.random() < 0.4:
            shared = self._pick(own)
            value = self._pick((f"{shared} + a", f"{shared} * by", "a"))
            inner += (
                [f"{indent}    nonlocal {shared}", f"{indent}    {shared} = {value}"]
                if shared != target
                else []
            )
        inner.append(f"{indent}    {self.fill(self._pick(bodies), 1)}")
        call = f"{name}({self.expression('M', 1)}{self._pick(('', ', 2', ', by=k'))})"
        return [f"{indent}{target} = x", *inner, f"{indent}{target} = {call}"]

    def _leave(self, depth: int) -> list[str]:
        indent = "    " * depth
        test = self.expression(self._pick("gCC"))
        forms = [self._return(), self._return(), self.fill("raise ValueError(f'no {<=n>}')", 1)]
        if self._inside_loop:
            forms += ["break", "continue"]
        return [f"{indent}if {test}:", f"{indent}    {self._pick(forms)}"]

    def _match(self, depth: int) -> list[str]:
        indent = "    " * depth
        subject, cases = self._random.choice(
            (
                (self.expression("n"), ("0 | 1", "2", "int(other) if other > 3")),
                (self.expression("t"), ("'a'", "'b' | 'A'", "str()")),
                (
                    f"({self.expression('L')}, {self.expression('g', 1)})",
                    ("([one], _)", "([one, *_], True)", "_"),
                ),
                (self.expression("P"), ("Pair(right=None)", "Pair(weight=1.0)", "_")),
            )
        )
        lines = [f"{indent}match {subject}:"]
        for case in cases:
            lines += [f"{indent}    case {case}:", *self._block(depth + 2, 2)]
        return lines

    def _comprehended(self, depth: int) -> list[str]:
        """A list or dict filled by a loop, as a newcomer writes it."""
        indent = "    " * depth
        name, kind = self._random.choice((("found", "L"), ("named", "D")))
        self._count += 1
        name = f"{name}{self._count}"
        head = self.fill(
            self._pick(
                ("i in range(<n> % 4)", "i, m in enumerate(<L>)", "m in <L>", "i in range(5)")
            ),
            1,
        )
        value = self.expression("M", 1) + (
            " + i" if "i" in head.split(" in ")[0].split(", ") else ""
        )
        add = f"{name}.append({value})" if kind == "L" else f"{name}[f'{{len({name})}}'] = {value}"
        if self._random.random() < 0.4:
            add = f"if {self.expression(self._pick('gC'), 1)}: {add}"
        first = (
            f"[{self.expression('M', 1)}]" if kind == "L" else f"{{'a': {self.expression('M', 1)}}}"
        )
        lines = [f"{indent}{name} = {first}", f"{indent}for {head}:", f"{indent}    {add}"]
        self._known[kind].append(name)
        return lines

    def _return(self) -> str:
        every = [
            name for kind, names in self._known.items() for name in names if name.isidentifier()
        ]
        some = self._random.sample(every, min(len(every), self._random.randint(2, 8)))
        forms = (
            f"return {', '.join(some)}", f"return [{', '.join(some)}]",
            f"return ({', '.join(some)}, {self.expression('M')})",
            f"return dict({', '.join(f'r{i}={name}' for i, name in enumerate(some))})",
            f"return {self.expression('M')}",
            f"return {self.expression('P')}",
        )  # fmt: skip
        return self._pick((*forms[:4] * 2, *forms))
