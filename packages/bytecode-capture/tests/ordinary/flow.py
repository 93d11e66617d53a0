"""Programs about control flow: exceptions, clean-up, generators, closures, recursion."""

from __future__ import annotations

import contextlib
import functools
import itertools
import warnings

import torch

from . import Programs, X, Y

PROGRAMS = Programs()
LOG: list = []
LOGGED = {"state": lambda: list(LOG), "reset": LOG.clear}


class Transaction:
    """Applies its steps at the end, or takes them back."""

    def __init__(self, store):
        self.store = store
        self.before = None

    def __enter__(self):
        self.before = dict(self.store)
        LOG.append("begin")
        return self

    def __exit__(self, kind, error, traceback):
        if kind is not None:
            self.store.clear()
            self.store.update(self.before)
            LOG.append(f"rolled back: {error}")
        else:
            LOG.append("committed")
        return kind is ValueError


@PROGRAMS((X, 1), (X, -1), (Y, 0), **LOGGED)
def transaction(x, amount):
    store = {"total": 10}
    with Transaction(store) as running:
        store["total"] += amount
        if amount < 0:
            raise ValueError("negative")
        x = x * store["total"]
    return x, store, running.before


@PROGRAMS((X, 0), (X, 1), (X, 2), **LOGGED)
def finally_with_return(x, way):
    def inner():
        try:
            if way == 0:
                raise KeyError("lost")
            return x + 1
        finally:
            LOG.append("finally")
            if way < 2:
                return x * 2  # noqa: B012

    return inner(), way


@PROGRAMS((X, 3), (X, 0), (Y, 5))
def loops_with_finally(x, stop):
    seen = []
    for i in range(4):
        try:
            if i == stop:
                break
            if i == 1:
                continue
            x = x + i
        finally:
            seen.append(i)
    else:
        x = -x
    return x, seen


class ConfigError(Exception):
    def __init__(self, key, reason="missing"):
        super().__init__(f"{key}: {reason}")
        self.key = key

    @property
    def short(self):
        return self.key[:2]


class TypeMismatch(ConfigError):
    def __str__(self):
        return f"<{super().__str__()}>"


@PROGRAMS((X, {"rate": 2}), (X, {}), (X, {"rate": "fast"}), (Y, {"rate": 3, "skip": True}))
def chained_errors(x, settings):
    def rate():
        try:
            value = settings["rate"]
        except KeyError as error:
            raise ConfigError("rate") from error
        if not isinstance(value, int):
            raise TypeMismatch("rate", reason=type(value).__name__)
        return value

    try:
        return x * rate(), None
    except ConfigError as error:
        cause = error.__cause__
        return x, str(error), error.key, error.short, error.args, type(cause).__name__


@PROGRAMS((X, [1, 0, 2]), (X, [4]), (Y, []))
def errors_collected(x, divisors):
    errors = []
    for divisor in divisors:
        try:
            x = x + 1 / divisor
        except ZeroDivisionError as error:
            errors.append((type(error).__name__, str(error)))
        else:
            errors.append(None)
    return x, errors


@PROGRAMS((X, "outer"), (X, "inner"), (X, "none"), **LOGGED)
def nested_handlers(x, where):
    try:
        try:
            if where == "inner":
                raise IndexError("i")
            if where == "outer":
                raise RuntimeError("r")
            x = x + 1
        except IndexError as error:
            LOG.append(repr(error))
            x = x * 2
            raise LookupError("l") from None
        finally:
            LOG.append("inner finally")
    except LookupError as error:
        LOG.append((str(error), error.__suppress_context__, repr(error.__context__)))
        x = x * 3
    except Exception as error:
        LOG.append(type(error).__name__)
        x = x - 1
    return x


@contextlib.contextmanager
def logged(name):
    LOG.append(f"+{name}")
    try:
        yield name.upper()
    except ArithmeticError:
        LOG.append(f"!{name}")
    finally:
        LOG.append(f"-{name}")


@PROGRAMS((X, 1), (X, 0), (Y, 2), **LOGGED)
def stacked_managers(x, divisor):
    with logged("a") as a, logged("b") as b:
        x = x + len(a + b)
        x = x / (2 // divisor)
    with contextlib.ExitStack() as stack:
        names = [stack.enter_context(logged(str(i))) for i in range(divisor)]
        stack.callback(LOG.append, "called back")
        x = x * (len(names) + 1)
    with contextlib.suppress(KeyError):
        x = x + {}["none"]
    return x


def integers(limit):
    sent = 0
    while sent < limit:
        received = yield sent
        sent += 1 if received is None else received


@PROGRAMS((X, 4), (X, 0), (Y, 9))
def generator_pipeline(x, limit):
    squares = (i * i for i in integers(limit))
    odd = filter(lambda n: n % 2, squares)
    pairs = list(zip(odd, itertools.count(10)))
    generator = integers(limit + 3)
    first = next(generator)
    jumped = generator.send(2)
    generator.close()
    return x + sum(a * b for a, b in pairs), pairs, first, jumped, list(generator)


def flatten(items):
    for item in items:
        if isinstance(item, list):
            count = yield from flatten(item)
            LOG.append(count)
        else:
            yield item
    return len(items)


@PROGRAMS((X, [1, [2, [3]], 4]), (X, []), (Y, [[[]]]), **LOGGED)
def delegated_generators(x, items):
    flat = list(flatten(items))
    return [x * item for item in flat], flat


class Countdown:
    def __init__(self, start):
        self.start = start

    def __iter__(self):
        current = self.start
        while current > 0:
            yield current
            current -= 1

    def __reversed__(self):
        return iter(range(1, self.start + 1))

    def __contains__(self, number):
        return 0 < number <= self.start

    def __len__(self):
        return self.start


@PROGRAMS((X, 3), (X, 1), (Y, 0))
def iterable_class(x, start):
    count = Countdown(start)
    up, down = list(reversed(count)), list(count)
    return x * len(count), up, down, 2 in count, bool(count), max(count, default=None), [*count]


class Pager:
    def __init__(self, pages):
        self.pages, self.index = pages, 0

    def __iter__(self):
        return self

    def __next__(self):
        if self.index >= len(self.pages):
            raise StopIteration
        self.index += 1
        return self.pages[self.index - 1]


@PROGRAMS((X, ["a", "b", "c"]), (X, ["z"]), (Y, []))
def iterator_class(x, pages):
    pager = Pager(pages)
    first = next(pager, "none")
    rest = "".join(pager)
    return x + pager.index, first, rest, next(pager, None)


@PROGRAMS((X, 3), (X, 1), (Y, 2))
def counters_and_closures(x, times):
    total = 0

    def make(step):
        count = 0

        def increase(by=step):
            nonlocal count, total
            count += by
            total += 1
            return count

        return increase

    one, two = make(1), make(2)
    for _ in range(times):
        one()
        two(by=5)
    functions = [lambda i=i: i * total for i in range(3)]
    return x + total, one(), two(), [f() for f in functions]


@PROGRAMS((X, 5), (X, 1), (Y, 0))
def recursion(x, depth):
    def fibonacci(n):
        return n if n < 2 else fibonacci(n - 1) + fibonacci(n - 2)

    def nested(y, n):
        return y if n == 0 else nested(y * 0.5 + 1, n - 1)

    return nested(x, depth), fibonacci(depth)


@PROGRAMS((X, [3, 1, 2]), (X, [1]), (Y, []))
def memoised_recursion(x, items):
    memo = {}

    def best(index):
        if index >= len(items):
            return 0
        if index not in memo:
            memo[index] = max(best(index + 1), items[index] + best(index + 2))
        return memo[index]

    return x * best(0), memo


def compose(*functions):
    return functools.reduce(lambda f, g: lambda x: g(f(x)), functions, lambda x: x)


@PROGRAMS((X, 2), (X, 0), (Y, 1))
def composed_functions(x, times):
    step = compose(torch.sin, lambda y: y + 1, *[torch.relu] * times)
    return step(x), step(x * 2)


def counted(function):
    @functools.wraps(function)
    def wrapper(*arguments, **keywords):
        wrapper.calls += 1
        return function(*arguments, **keywords)

    wrapper.calls = 0
    return wrapper


@counted
def triple(x, *, bias=0):
    return x * 3 + bias


@PROGRAMS((X,), (Y,), state=lambda: triple.calls, reset=lambda: setattr(triple, "calls", 0))
def decorated_calls(x):
    return triple(triple(x), bias=triple.calls), triple.__name__, triple.calls


@PROGRAMS((X, (1, 2), {"c": 3}), (X, (1,), {"b": 5, "d": 6}), (Y, (), {}))
def argument_forms(x, positional, named):
    def inner(a=10, /, b=20, *rest, c=30, **others):
        return a, b, rest, c, others

    got = inner(*positional, **named)
    return x + got[0] * got[3], got, inner(*positional, *positional, 7, 8)


@PROGRAMS(
    (X, {"kind": "circle", "r": 2}), (X, {"kind": "box", "size": [1, 2]}), (Y, {"kind": "dot"})
)
def dispatch_by_pattern(x, shape):
    match shape:
        case {"kind": "circle", "r": radius} if radius > 0:
            return x * radius, "circle"
        case {"kind": "box", "size": [width, height, *more]}:
            return x + width * height, len(more)
        case {"kind": str(other), **rest}:
            return -x, other, rest


@PROGRAMS((X, 2), (X, -1), (Y, 0), one_graph=False)
def warned(x, level):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        if level < 0:
            warnings.warn("negative level", UserWarning, stacklevel=2)
        x = x * abs(level)
    return x, [str(w.message) for w in caught]


@PROGRAMS((X, [2, 3]), (X, []), (Y, [0]))
def walrus_and_while(x, stack):
    seen = []
    while stack and (top := stack.pop()) is not None:
        seen.append(top)
        if top > 2:
            stack.extend([top - 1, None])
        x = x + (half := top / 2)
    return x, seen, stack, half if seen else None
