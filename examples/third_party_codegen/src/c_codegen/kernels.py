"""Prints kernels: a loop nest becomes a C function, its bodies by a handler of ``ops``."""

import itertools
import math
from collections.abc import Callable, Mapping
from typing import NamedTuple

import sympy
import torch
import weft_loop_ir
from weft_loop_ir import OPERATIONS, Buffer, Kernel, LoopVariable, SizeFloat, Stage, Unsupported

from c_codegen.operations import ATOMIC, REDUCTIONS, TYPES, spelling

INDEX = weft_loop_ir.IndexSpelling(
    *(f"{name}({{}}, {{}})" for name in ("QUOTIENT", "REMAINDER", "MINIMUM", "MAXIMUM")),
    quotient="({} / {})",
    integer="INT64_C({})".format,
)
NARROWING = {torch.bfloat16: "narrowed({})", torch.bool: "{} != 0"}
HEAD = "void {}(void **pointers, const int64_t *sizes, const double *numbers, bool *outside) {{"


class Value(NamedTuple):
    """A C variable and the dtype that it stands for; ``is_late``: known after the inner loops only."""

    name: str
    dtype: torch.dtype
    is_late: bool = False


def type_of(dtype: torch.dtype) -> str:
    if dtype not in TYPES:
        raise Unsupported("no C type for a dtype", str(dtype))
    return TYPES[dtype]


class KernelPrinter:
    """Prints a kernel, being the handler of ``ops`` that bodies are replayed to.

    A stage's statements are ``before`` its inner loops, ``inside`` them, and ``after``: stores of reductions.
    """

    def __init__(self, kernel: Kernel, buffers: Mapping[str, Buffer]) -> None:
        self.arguments = tuple(dict.fromkeys((*kernel.reads, *kernel.writes)))
        self.dtypes = {name: buffers[name].layout.dtype for name in self.arguments}
        self.dtypes |= {local.name: local.dtype for local in kernel.local_buffers}
        self.sizes: dict[sympy.Symbol, None] = {}
        self.numbers: dict[SizeFloat, str] = {}
        self.bound: set[sympy.Symbol] = set()  # by loops and indirect indices
        self.names = (f"t{k}" for k in itertools.count())
        nest = [self.loop(variable) for variable in kernel.outer]
        for b in kernel.local_buffers:
            nest.append(f"{type_of(b.dtype)} {b.name}[{self.index(b.size)} + 1];")
        nest += itertools.chain.from_iterable(map(self.stage, kernel.stages))
        types = enumerate(f"{type_of(self.dtypes[name])} *{name}" for name in self.arguments)
        given = [f"{variable} = pointers[{k}];" for k, variable in types]
        given += [f"const int64_t {s.name} = sizes[{k}];" for k, s in enumerate(self.sizes)]
        ends = "}" * (len(kernel.outer) + 1)
        self.source = "\n".join([HEAD.format(kernel.name), *given, *nest, ends, ""])

    def stage(self, stage: Stage) -> list[str]:
        self.before, self.inside, self.after = list[str](), list[str](), list[str]()
        around = set(self.bound)
        loops = [self.loop(variable) for variable in stage.inner]
        if stage.goes_on is not None:
            loops = loops or ["for (;;) {"]
            self.inside.append(f"if (!{stage.goes_on}[0]) break;")
        stage.body.replay(self)
        self.bound = around
        lines = ["{ int64_t position = 0;", *self.before, *loops, *self.inside, "++position;"]
        return [*lines, "}" * len(loops), *self.after, "}"]

    def index(self, expression: sympy.Expr) -> str:
        """An index expression in C; symbols that no loop binds are sizes that the kernel is given."""
        self.sizes.update(dict.fromkeys(expression.free_symbols - self.bound))
        return weft_loop_ir.print_index(expression, INDEX)

    def loop(self, variable: LoopVariable) -> str:
        end, name = self.index(variable.size), variable.symbol.name
        self.bound.add(variable.symbol)
        return f"for (int64_t {name} = 0; {name} < {end}; ++{name}) {{"

    def new(self, dtype: torch.dtype, text: str) -> Value:
        value = Value(next(self.names), dtype)
        self.inside.append(f"const {type_of(dtype)} {value.name} = {text};")
        return value

    def __getattr__(self, operation: str) -> Callable[..., Value]:
        def elementwise(*values: Value) -> Value:
            form = spelling(operation, values[0].dtype)
            if form is None:
                raise Unsupported("no C for an operation", f"{operation} of {values[0].dtype}")
            text = form.format(*(value.name for value in values))
            gives_bool = OPERATIONS[operation].gives_bool
            return self.new(torch.bool if gives_bool else values[0].dtype, text)

        if operation in OPERATIONS and OPERATIONS[operation].is_elementwise:
            return elementwise
        raise Unsupported("no C for an operation", operation)

    def load(self, buffer: str, index: sympy.Expr) -> Value:
        return self.new(self.dtypes[buffer], f"{buffer}[{self.index(index)}]")

    def store(self, buffer: str, index: sympy.Expr, value: Value, mode: str | None = None) -> None:
        form = "{0} = {1};" if mode is None else ATOMIC[mode]
        statement = form.format(f"{buffer}[{self.index(index)}]", value.name)
        (self.after if value.is_late else self.inside).append(statement)

    def constant(self, value: float, dtype: torch.dtype) -> Value:
        if math.isfinite(value):
            text = float(value).hex() if dtype.is_floating_point else f"INT64_C({int(value)})"
            return self.new(dtype, text.replace(str(-(2**63)), "-1) << INT64_C(63"))
        return self.new(dtype, "NAN" if value != value else f"{value}INITY".upper())

    def scalar(self, number: SizeFloat, dtype: torch.dtype) -> Value:
        return self.new(dtype, self.numbers.setdefault(number, f"numbers[{len(self.numbers)}]"))

    def index_expr(self, expression: sympy.Expr, dtype: torch.dtype) -> Value:
        return self.new(dtype, self.index(expression))

    def to_dtype(self, value: Value, dtype: torch.dtype) -> Value:
        text = f"widened({value.name})" if value.dtype == torch.bfloat16 else value.name
        form = NARROWING.get(dtype, "{}" if dtype.is_floating_point else "(int64_t){}")
        return self.new(dtype, form.format(text))

    def where(self, condition: Value, value: Value, other: Value) -> Value:
        return self.new(value.dtype, f"{condition.name} ? {value.name} : {other.name}")

    def reduction(self, kind: str, dtype: torch.dtype, value: Value) -> Value:
        result, other, start = next(self.names), next(self.names), int(kind in ("prod", "all"))
        found = torch.int64 if kind in ("argmax", "argmin") else dtype
        self.before += [f"{type_of(found)} {result} = {start};", f"{type_of(dtype)} {other} = 0;"]
        names = {"a": result, "b": other, "v": value.name, "t": type_of(dtype)}
        self.inside.append(REDUCTIONS[kind].format(**names))
        return Value(result, found, is_late=True)

    def indirect(self, value: Value, symbol: sympy.Symbol, size: sympy.Expr, check: bool) -> None:
        end, name = self.index(size), symbol.name
        self.bound.add(symbol)
        self.inside.append(f"int64_t {name} = {value.name}; if ({name} < 0) {name} += {end};")
        test = f"if ({name} < 0 || {name} >= {end}) {{ *outside = true; return; }}"
        self.inside += [test] * check

    def masked(self, mask: Value, body: Callable[[], Value], other: float) -> Value:
        around, self.inside = self.inside, []
        value, result = body(), next(self.names)
        lines = [f"if ({mask.name}) {{", *self.inside, f"{result} = {value.name}; }} else {{"]
        self.inside = [*around, f"{type_of(value.dtype)} {result};", *lines]
        self.inside.append(f"{result} = {self.constant(other, value.dtype).name}; }}")
        return Value(result, value.dtype)
