"""``del`` of names, attributes and items, call after call: what is left, and the errors, are eager's.

A case is a program that defines ``f(x)`` and ``state()``, what it has left behind.
"""

import types

import pytest
import torch
from weft_bytecode_capture import compile_frames

CASES = {
    "global": """
g = 1
def f(x):
    global g
    y = x + 1
    del g
    return y
def state(): return "g" in globals()
""",
    "global, handled": """
g = 1
def f(x):
    global g
    try:
        del g
    except NameError as error:
        return x * 5, str(error), error.name
    return x * 2
def state(): return "g" in globals()
""",
    "global made and deleted": """
g = 1
def f(x):
    global g
    y = x + 1
    g = 3
    del g
    try:
        del g
    except NameError as error:
        return y, str(error)
def state(): return "g" in globals()
""",
    "global that hides a builtin": """
def len(x): return 7
def f(x):
    global len
    y = x + len([1])
    del len
    return y * len([1, 2])
def state(): return "len" in globals()
""",
    "global by a callee": """
g = 1
def remove():
    global g
    del g
def f(x):
    y = x + 1
    remove()
    return y
def state(): return "g" in globals()
""",
    "global that comes and goes": """
def f(x):
    try:
        return x + g
    except NameError as error:
        return x * 5, str(error), error.name
def state():
    if "g" in globals():
        del globals()["g"]
    else:
        globals()["g"] = 3
""",
    "global of a module, as its attribute": """
import sys
def f(x):
    y = x + 1
    library.remove()
    try:
        return y + library.g
    except AttributeError as error:
        return y * 3, str(error)
def state(): return hasattr(library, "g")
""",
    "attribute of a module": """
def f(x):
    y = x + library.h
    del library.h
    return y
def state(): return hasattr(library, "h")
""",
    "attribute": """
class C: pass
c = C()
c.a = 1
def f(x):
    try:
        del c.a
    except AttributeError as error:
        return x * 7, str(error)
    return x
def state(): return vars(c)
""",
    "attribute in a slot": """
class C: __slots__ = ("a",)
c = C()
c.a = 1
def f(x):
    y = x + 1
    del c.a
    return y
def state(): return hasattr(c, "a")
""",
    "attribute of a class": """
class C: a = 1
def f(x):
    y = x + 1
    try:
        del C.a
    except AttributeError as error:
        return y * 3, str(error)
    return y
def state(): return hasattr(C, "a")
""",
    "attribute of a class that hides a base's": """
class B: a = 1
class C(B): a = 2
def f(x):
    y = x + C.a
    del C.a
    return y * C.a * 10
def state(): return "a" in vars(C)
""",
    "attribute by a property": """
class C:
    gone = False
    @property
    def a(self): return 1
    @a.deleter
    def a(self):
        if self.gone:
            raise AttributeError("gone")
        self.gone = True
c = C()
def f(x):
    y = x + 1
    del c.a
    return y
def state(): return vars(c)
""",
    "parameter and buffer": """
m = torch.nn.BatchNorm1d(3)
def f(x):
    y = x + m.weight + m.running_mean
    del m.weight, m.running_mean
    return y
def state(): return list(m.state_dict())
""",
    "attribute of a function": """
def h(): pass
h.a = 1
def f(x):
    y = x + h.a
    del h.a
    return y
def state(): return vars(h)
""",
    "attribute of a tensor": """
t = torch.ones(3)
t.a = 1
def f(x):
    try:
        del t.a
    except AttributeError as error:
        return x, str(error)
    return x + t
def state(): return vars(t)
""",
    "free variable": """
def outer():
    c = 1
    def f(x):
        nonlocal c
        y = x + 1
        try:
            del c
        except NameError as error:
            return y * 4, type(error), str(error)
        return y
    def state():
        try:
            return c
        except NameError as error:
            return str(error)
    return f, state
f, state = outer()
""",
    "free variable that comes and goes": """
def outer():
    c = 1
    def f(x):
        try:
            return x + c
        except NameError as error:
            return x * 4, type(error), str(error)
    def state():
        nonlocal c
        try:
            del c
        except NameError:
            c = 4
    return f, state
f, state = outer()
""",
    "cell by a closure": """
def f(x):
    c = 1
    def inner():
        nonlocal c
        del c
    inner()
    try:
        inner()
    except NameError as error:
        return x + 1, type(error), str(error)
def state(): pass
""",
    "local": """
def f(x):
    y = x + 1
    del y
    try:
        return y
    except NameError as error:
        return x * 3, type(error), str(error)
def state(): pass
""",
    "local twice": """
def f(x):
    y = x + 1
    z = y * 2
    del y
    try:
        del y
    except NameError as error:
        return z, str(error), error.name
def state(): pass
""",
    "key": """
d = {"a": 1, "b": 2}
def f(x):
    y = x + len(d)
    try:
        del d["a"]
    except KeyError as error:
        return y * 3, str(error)
    return y
def state(): return d
""",
    "item": """
d = [1, 2]
def f(x):
    y = x + 1
    del d[0]
    return y
def state(): return d
""",
    "slice": """
d = [1, 2, 3, 4, 5]
def f(x):
    y = x + 1
    del d[1:3]
    return y
def state(): return d
""",
    "by globals()": """
g = 1
def f(x):
    y = x + 1
    del globals()["g"]
    return y
def state(): return "g" in globals()
""",
}  # fmt: skip


WRITES = {
    "by globals()": """
g = 1
def f(x):
    before = g
    globals()["g"] = before + 1
    return x + g, before
def state(): return g
""",
    "of a name that is not there yet": """
h = 0
def f(x):
    global h
    h += 1
    globals()["g"] = h * 2
    return x + g
def state(): return g, h
""",
    "by update()": """
g = 1
def f(x):
    globals().update(g=g + 1)
    return x * g, globals()["g"]
def state(): return g
""",
    "by name, read by globals()": """
g = 1
def f(x):
    global g
    before = globals()["g"]
    g = before + 1
    return x + g, globals()["g"], globals().get("g"), "g" in globals()
def state(): return g
""",
    "of a module, by vars()": """
def f(x):
    vars(library)["g"] = library.g + 1
    library.__dict__["h"] = library.g
    return x * library.g + library.h
def state(): return library.g, library.h
""",
    "of a function's module": """
def f(x):
    library.remove.__globals__["h"] = library.h * 2
    return x + library.h
def state(): return library.h
""",
}


@pytest.mark.parametrize("program", [*CASES.values(), *WRITES.values()], ids=[*CASES, *WRITES])
def test_deletions_and_writes(program):
    assert _trace(program, compiled=True) == _trace(program, compiled=False)


def _trace(program, compiled):
    library = types.ModuleType("weft_tests_library_of_deletions")
    exec("g = h = 1\ndef remove():\n    global g\n    del g", library.__dict__)
    namespace = {"torch": torch, "library": library, "__name__": "weft_tests_of_deletions"}
    exec(program, namespace)
    function = namespace["f"]
    graphs = []

    def backend(graph_module, inputs):
        graphs.append(graph_module)
        return graph_module.forward

    if compiled:
        function = compile_frames(function, backend)
    trace = []
    for _ in range(5):
        try:
            result = function(torch.arange(3.0))
        except Exception as error:
            result = type(error), str(error), getattr(error, "name", None)
        trace.append(repr((result, namespace["state"]())))
    assert graphs or not compiled
    return trace
