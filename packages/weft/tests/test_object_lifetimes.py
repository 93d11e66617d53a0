"""What compiled code has read dies where it dies in eager, at the same statement and without a collection.

Tensors are reached in one way each, and let go of in one way each.  A parameter or buffer that a module which
lives on replaces is the exception: the entry that holds it goes when the function is next compiled.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import gc
import io
import time
import types
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import weft
from weft_bytecode_capture.frame import forks

Call = Callable[[Any, torch.Tensor, torch.Tensor], Any]
Way = tuple[Callable[..., Any], Call, Callable[[], None] | None]
"""The program, a call of it (compiled or not) with a tensor, and what lets go of that after the call."""


class Plain:
    w: Any = None

    def run(self, x):
        return x * self.w


class Slots:
    __slots__ = ("w",)


@dataclasses.dataclass
class Data:
    w: Any


class Scale(torch.nn.Module):
    def __init__(self, w):
        super().__init__()
        self.w = w

    def forward(self, x):
        return x * self.w


def holder(w, kind=Plain):
    held = kind()
    held.w = w
    return held


def is_changed(change: Callable[[Any], None]) -> Way:
    """An object that lives on, and that ``change`` takes the tensor from."""
    held = Plain()

    def call(f, w, x):
        held.w = w
        return f(held, x)

    return lambda o, x: x * o.w, call, lambda: change(held)


def is_global(let_go: Callable[[dict[str, Any]], None]) -> Way:
    def call(f, w, x):
        globals()["GLOBAL"] = w
        return f(x)

    return lambda x: x * GLOBAL, call, lambda: let_go(globals())  # noqa: F821


def of_a_global_object(let_go: Callable[[dict[str, Any]], None]) -> Way:
    def call(f, w, x):
        globals()["HELD"] = holder(w)
        return f(x)

    return lambda x: x * HELD.w, call, lambda: let_go(globals())  # noqa: F821


def closure(delete: bool) -> Way:
    held = None

    def function(x):
        return x * held

    def call(f, w, x):
        nonlocal held
        held = w
        return f(x)

    def drop():
        nonlocal held
        del held

    def replace():
        nonlocal held
        held = 2.0

    return function, call, drop if delete else replace


def own_default() -> Way:
    def function(x, w=None):
        return x * w

    def call(f, w, x):
        function.__defaults__ = (w,)
        return f(x)

    return function, call, lambda: setattr(function, "__defaults__", (None,))


def made_function(by_default: bool) -> Way:
    def make(w):
        if by_default:
            return lambda x, w=w: x * w
        return lambda x: x * w

    return lambda g, x: g(x), lambda f, w, x: f(make(w), x), None


def in_kept(container: Any, key: Any) -> Way:
    def call(f, w, x):
        container[key] = w
        return f(container, x)

    return lambda c, x: x * c[key], call, lambda: container.__delitem__(key)


def of_a_class() -> Way:
    kind = type("Kind", (), {})

    def call(f, w, x):
        kind.w = w
        return f(x)

    return lambda x: x * kind.w, call, lambda: delattr(kind, "w")


def across_a_break() -> Way:
    def function(o, x):
        y = x * o.w
        time.sleep(0)
        return y * o.w

    return function, lambda f, w, x: f(holder(w), x), None


def raises() -> Way:
    def function(o, x):
        raise ValueError((x * o.w).shape)

    def call(f, w, x):
        with contextlib.suppress(ValueError):
            f(holder(w), x)
        return

    return function, call, None


def keeps_its_exception() -> Way:
    kept = []

    def function(x, n):
        return x.reshape(n, n)

    def call(f, w, x):
        try:
            f(w * x, 77)
        except RuntimeError as error:
            kept.append(error.with_traceback(None))
        return

    return function, call, None


def of_a_hook() -> Way:
    def function(o, x):
        y = x * o.w
        if y.requires_grad:
            y.register_hook(lambda g: g * 2)
        return y * o.w

    return function, lambda f, w, x: f(holder(w), x), None


def asks_for_histories() -> Way:
    def function(o, x):
        y = x * o.w
        z = y * o.w
        return z if y.grad_fn is None else z + 1

    return function, lambda f, w, x: f(holder(w), x), None


def of_a_generator() -> Way:
    def rows(w):
        while True:
            yield w

    return lambda g, x: x * next(g), lambda f, w, x: f(rows(w), x), None


def explained() -> Way:
    kept = []

    def call(f, w, x):
        with contextlib.redirect_stdout(io.StringIO()):
            found = weft.explain(f)(Scale(w), x)
        kept.append((found.frames, found.compiled_graphs))
        return

    return lambda m, x: m(x), call, None


def clear(held: Any) -> None:
    held.w = None


NEW = types.SimpleNamespace(w=1.0)
WAYS: dict[str, Callable[[], Way]] = {
    "argument": lambda: (lambda w, x: x * w, lambda f, w, x: f(w, x), None),
    "keyword": lambda: (lambda x, **k: x * k["w"], lambda f, w, x: f(x, w=w), None),
    "rest": lambda: (lambda x, *k: x * k[0], lambda f, w, x: f(x, w), None),
    "closure, deleted": lambda: closure(True),
    "closure, replaced": lambda: closure(False),
    "global, deleted": lambda: is_global(lambda g: g.__delitem__("GLOBAL")),
    "global, replaced": lambda: is_global(lambda g: g.__setitem__("GLOBAL", 3.0)),
    "global object, deleted": lambda: of_a_global_object(lambda g: g.__delitem__("HELD")),
    "global object, replaced": lambda: of_a_global_object(lambda g: g.__setitem__("HELD", NEW)),
    "attribute, deleted": lambda: is_changed(lambda o: delattr(o, "w")),
    "attribute, replaced": lambda: is_changed(clear),
    "object": lambda: (lambda o, x: x * o.w, lambda f, w, x: f(holder(w), x), None),
    "slots": lambda: (lambda o, x: x * o.w, lambda f, w, x: f(holder(w, Slots), x), None),
    "dataclass": lambda: (lambda o, x: x * o.w, lambda f, w, x: f(Data(w), x), None),
    "dict": lambda: (lambda d, x: x * d["w"], lambda f, w, x: f({"w": w}, x), None),
    "dict, deleted": lambda: in_kept({}, "w"),
    "list": lambda: (lambda c, x: x * c[0], lambda f, w, x: f([w], x), None),
    "list of an object": lambda: (lambda o, x: x * o.w[0], lambda f, w, x: f(Data([w]), x), None),
    "own default": own_default,
    "default": lambda: made_function(True),
    "closure of an argument": lambda: made_function(False),
    "partial": lambda: (
        lambda p, x: p(x), lambda f, w, x: f(functools.partial(torch.mul, w), x), None
    ),
    "bound method": lambda: (lambda p, x: p(x), lambda f, w, x: f(holder(w).run, x), None),
    "class attribute": of_a_class,
    "iterator": lambda: (lambda i, x: x * next(i), lambda f, w, x: f(iter([w]), x), None),
    "generator": of_a_generator,
    "module": lambda: (lambda m, x: m(x), lambda f, w, x: f(Scale(w), x), None),
    "break": across_a_break,
    "exception": raises,
    "kept exception": keeps_its_exception,
    "hook": of_a_hook,
    "history": asks_for_histories,
    "kept explanation": explained,
}  # fmt: skip


@contextlib.contextmanager
def no_collections() -> Iterator[None]:
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def alive_after(program: Any, way: Way, training: bool, sizes: tuple[int, ...]) -> list[list[bool]]:
    """For each call of sizes: which tensors given so far live before, and after they are let go of."""
    _, call, let_go = way
    references: list[weakref.ref[Any]] = []
    found = []

    def once(size: int) -> None:
        w = torch.rand(size)
        w = torch.nn.Parameter(w) if training else w
        references.append(weakref.ref(w))
        y = call(program, w, torch.rand(2, size))
        if training and y is not None:
            y.sum().backward()

    for size in sizes:
        once(size)
        found.append([reference() is not None for reference in references])
        if let_go is not None:
            let_go()
        found.append([reference() is not None for reference in references])
    return found


@pytest.mark.parametrize(
    ("backend", "training", "dynamic"),
    [("eager", False, None), ("eager", True, True), ("weft", True, None)],
)
@pytest.mark.parametrize("name", WAYS)
def test_tensors_die_where_they_die_in_eager(name, backend, training, dynamic):
    sizes = (4, 4, 6)
    with no_collections():
        way = WAYS[name]()
        expected = alive_after(way[0], way, training, sizes)
        way = WAYS[name]()
        compiled = weft.compile(way[0], backend=backend, dynamic=dynamic)
        assert alive_after(compiled, way, training, sizes) == expected
    assert not any(expected[-1])


@pytest.mark.parametrize("backend", ["eager", "weft"])
@pytest.mark.parametrize("kind", ["parameter", "buffer"])
def test_what_a_module_replaces_dies_when_it_is_compiled_next(kind, backend):
    module = torch.nn.BatchNorm1d(4, affine=kind == "parameter").eval()
    name = "weight" if kind == "parameter" else "running_var"
    compiled = weft.compile(lambda m, x: m(x), backend=backend)
    references = []
    x = torch.rand(3, 4)

    def replace() -> None:
        new = torch.rand(4) + 1
        setattr(module, name, torch.nn.Parameter(new) if kind == "parameter" else new)
        references.append(weakref.ref(getattr(module, name)))

    with no_collections(), torch.no_grad():
        for number in range(4):
            replace()
            torch.testing.assert_close(compiled(x=x, m=module), module(x))
            assert [r() is not None for r in references] == [False] * number + [True]
        assert len(compiled.context.entries(compiled.callable.__code__)) == 1


@pytest.fixture
def none_frozen(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No object is out of the collector's sight, as those that pytest has imported may be."""
    monkeypatch.setattr(forks, "_has_frozen", False)
    frozen = gc.get_freeze_count()
    gc.unfreeze()
    yield
    if frozen:
        gc.freeze()


@pytest.mark.usefixtures("none_frozen")
def test_what_a_compilation_leaves_is_not_looked_through_as_new() -> None:
    compiled = weft.compile(lambda x: [x.sin() * n for n in range(50)])
    gc.collect()
    before, frozen = (
        len(gc.get_objects()),
        gc.get_freeze_count(),
    )  # what CPython 3.12 has for immortal
    compiled(torch.randn(4))
    young = sum(len(gc.get_objects(generation=k)) for k in (0, 1))
    assert young < (len(gc.get_objects()) - before) / 2
    assert gc.isenabled() and gc.get_freeze_count() == frozen


@pytest.mark.usefixtures("none_frozen")
def test_what_the_program_has_frozen_is_counted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """There may be millions, and to count them visits each."""
    counts: list[int] = []
    count = gc.get_freeze_count
    monkeypatch.setattr(gc, "get_freeze_count", lambda: counts.append(count()) or counts[-1])
    gc.freeze()
    for number in range(3):
        weft.compile(lambda x, n=number: x.sin() + n, backend="eager")(torch.ones(2))
    gc.unfreeze()
    assert len(counts) == 1


@pytest.mark.usefixtures("none_frozen")
def test_objects_that_the_program_has_frozen_stay_so() -> None:
    compiled = weft.compile(lambda x: x.sin() + 1, backend="eager")
    gc.freeze()
    frozen = gc.get_freeze_count()
    compiled(torch.ones(2))
    assert 0 <= frozen - gc.get_freeze_count() < 1000  # but those that have died
    gc.unfreeze()
