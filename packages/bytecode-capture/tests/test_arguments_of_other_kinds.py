"""One compiled function is given objects of one kind after another: what it asks of them is guarded."""

import collections
import contextlib
import enum
import functools
import io
import itertools
import operator
import random
import re
import types
import weakref

import numpy
import pytest
import torch
from weft_bytecode_capture import compile_frames


class _Kind(enum.Enum):
    A = 1


class _Plain:
    v = 3

    def method(self, x):
        return x + self.v

    @classmethod
    def of_class(cls, x):
        return x * cls.v


class _Strange:
    def __init__(self):
        self.log = []

    def __getattribute__(self, name):
        object.__getattribute__(self, "log").append(name)
        return object.__getattribute__(self, name)

    def __len__(self):
        return 2

    def __bool__(self):
        return True

    def __enter__(self):
        return 5

    def __exit__(self, *found):
        return False


def _adds(n):
    return lambda x: x + n


_X = torch.arange(3.0)
_KEPT = [_Plain(), _Strange(), [1, 2]]


def _values():
    tensor = torch.Tensor
    return [
        1, True, 2.5, "a", None, (), (1, 2), [], [1], {}, {"a": 1}, {1}, range(2), slice(1), ...,
        torch.Size([1, 2]), _X.clone(), torch.tensor(2), torch.float32, torch.device("cpu"),
        numpy.float32(2), numpy.ones(3, numpy.float32), numpy.random.RandomState(0),
        _KEPT[0], _Plain, _Kind.A, _KEPT[1], types.SimpleNamespace(v=1), types.MappingProxyType({"a": 1}),
        collections.OrderedDict(a=1), collections.defaultdict(int, a=1), collections.deque([1]),
        tensor.shape.__get__, tensor.T.__get__, tensor.dtype.__get__, _X.sin, _X.add, [3].__len__,
        "ab".upper, _KEPT[2].count, _KEPT[0].method, _Plain.of_class,
        (5).__add__, len, abs, int, list, torch.sin, tensor.sin,
        operator.itemgetter(0), operator.itemgetter(1), operator.attrgetter("shape"), _adds(1), _adds(2),
        functools.partial(torch.mul, 2), functools.partial(torch.mul, 3), torch.nn.ReLU(), torch.nn.Tanh(),
        weakref.ref(_KEPT[0]), weakref.proxy(_KEPT[0]), iter([1, 2]), zip("a", "b", strict=True),
        itertools.repeat(1, 2), {"a": 1}.keys(), ValueError("v"), KeyError, re.compile("a"),
        io.StringIO("t"), random.Random(0), contextlib.nullcontext(3), torch.no_grad(), torch.enable_grad(),
        object(), property(len),
    ]  # fmt: skip


def _entered(x, v):
    with v as found:
        return x * 2, found if isinstance(found, int) else 0, torch.is_grad_enabled()


def _matched(x, v):
    match v:
        case None | True:
            return x, "constant"
        case [first, *rest]:
            return x, first, len(rest)
        case {"a": found}:
            return x, found
        case _Plain(v=found):
            return x, found
    return x, "other"


USES = {
    "call": lambda x, v: v(x),
    "is": lambda x, v: (x, v is None, v is _KEPT[0], v is len),
    "truth": lambda x, v: x + 1 if v else x,
    "isinstance": lambda x, v: (
        x, isinstance(v, int), isinstance(v, _Plain), isinstance(v, collections.abc.Mapping)),
    "type": lambda x, v: (x, type(v).__name__, v.__class__.__name__),
    "len": lambda x, v: x * len(v),
    "attribute": lambda x, v: x * v.v,
    "default": lambda x, v: (x, getattr(v, "v", "none"), hasattr(v, "__len__")),
    "equality": lambda x, v: (x, v == 1, v == _KEPT[0], v != "a"),
    "iteration": lambda x, v: (x, [*v]),
    "subscript": lambda x, v: x[v],
    "with": _entered,
    "match": _matched,
    "key": lambda x, v: (x, {1: "one", None: "none", _Kind.A: "kind"}.get(v)),
    "callable": lambda x, v: (x, callable(v)),
    "keywords": lambda x, v: (x, dict(**v)),
    "star": lambda x, v: torch.maximum(x, *v),
}  # fmt: skip


def _told(value):
    """A result as what can be compared; addresses left out."""
    if isinstance(value, (tuple, list)):
        return type(value).__name__, [_told(part) for part in value]
    if isinstance(value, torch.Tensor):
        return "tensor", value.dtype, value.tolist()
    return type(value).__name__, re.sub("0x[0-9a-f]+", "", repr(value))


def _answer(function, value):
    with torch.enable_grad():
        try:
            return _told(function(_X.clone(), value))
        except Exception as error:
            return type(error).__name__, re.sub("0x[0-9a-f]+", "", str(error))


@pytest.mark.parametrize("use", USES)
def test_each_kind_of_object_is_told_from_those_before_it(use):
    order = list(range(len(_values())))
    random.Random(use).shuffle(order)
    for start in range(0, len(order), 6):
        plain = USES[use]
        function = types.FunctionType(plain.__code__, plain.__globals__, "f", plain.__defaults__)
        compiled = compile_frames(function, lambda graph_module, inputs: graph_module.forward)
        expected, found = _values(), _values()
        for index in order[start : start + 6]:
            _KEPT[1].log.clear()
            wanted = _answer(plain, expected[index]), list(_KEPT[1].log)
            _KEPT[1].log.clear()
            given = _answer(compiled, found[index]), list(_KEPT[1].log)
            assert given == wanted, expected[index]


def test_properties_that_overrides_are_given_are_told_apart():
    class Plain(torch.Tensor):
        pass

    def override(function, x):
        return function(x)

    compiled = compile_frames(override, lambda graph_module, inputs: graph_module.forward)
    x = torch.ones(2, 3).as_subclass(Plain)
    for name in ("shape", "T", "dtype", "shape", "T"):
        read = getattr(torch.Tensor, name).__get__
        assert _told(compiled(read, x)) == _told(override(read, x))
