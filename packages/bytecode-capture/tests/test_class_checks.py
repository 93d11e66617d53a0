"""``isinstance`` and ``issubclass`` of protocols, metaclasses that answer, torch's legacy classes."""

import abc
import collections.abc
import typing

import pytest
import torch
from differential import check, run_graph
from weft_bytecode_capture import CaptureOptions, compile_frames

X = torch.arange(4.0)


@typing.runtime_checkable
class HasScale(typing.Protocol):
    scale: float


@typing.runtime_checkable
class Runs(typing.Protocol):
    def run(self, x): ...


@typing.runtime_checkable
class RunsScaled(Runs, typing.Protocol):
    scale: float


class NotAsked(typing.Protocol):
    def run(self, x): ...


class Runner:
    def run(self, x):
        return x


class Blocked:
    run = None


class Late:
    def __init__(self):
        self.scale = 2.0
        self.run = abs


class Derived(HasScale):
    pass


class ByProperty:
    @property
    def scale(self):
        return 2.0


class Member(abc.ABC):  # noqa: B024
    pass


Member.register(Late)


class Shaped(type):
    def __instancecheck__(cls, instance):
        return hasattr(instance, "shape")

    def __subclasscheck__(cls, kind):
        return kind.__name__.startswith("B")


class Array(metaclass=Shaped):
    pass


OBJECTS = [Runner(), Blocked(), Late(), Derived(), ByProperty()]


def of_protocols(x, value):
    kinds = (HasScale, Runs, RunsScaled, typing.SupportsFloat, typing.SupportsIndex, Member)
    return x + 1, [isinstance(value, kind) for kind in kinds], isinstance(value, (int, Runs | str))


def of_a_metaclass(x, value):
    kind = type(value)
    answers = isinstance(value, Array), issubclass(kind, Array), issubclass(kind, (int, Array))
    return x + 1, answers, isinstance(x, (str, Array)), isinstance(value, Array | int)


def of_tensors(x, y):
    kinds = (torch.FloatTensor, torch.DoubleTensor, torch.LongTensor, torch.cuda.FloatTensor)
    rows = [[isinstance(value, kind) for kind in kinds] for value in (x, y, 3)]
    return x + 1, rows, isinstance(y, (torch.nn.Parameter, torch.LongTensor))


def of_abstract_classes(x, value):
    kinds = (collections.abc.Sized, collections.abc.Callable, collections.abc.Iterable, Member)
    return x + 1, [isinstance(value, kind) for kind in kinds], issubclass(type(value), kinds)


def member_given_later(x, value):
    value.scale = 3
    return x + 1, isinstance(value, HasScale), isinstance(value, RunsScaled)


VALUES = [*OBJECTS, 3, "text", X, len]


def of_typing(x):
    kinds = (typing.Mapping, typing.Callable)
    found = [isinstance({}, typing.Mapping), isinstance([], kinds), isinstance(x.sum, kinds)]
    found += [
        issubclass(list, typing.Sequence),
        isinstance((), tuple),
        isinstance("a", typing.Hashable),
    ]
    return x + sum(found), found


def of_no_class(x):
    found = []
    for kind in (3, list[int], list[int], typing.Any):
        try:
            isinstance(x, kind)
        except TypeError as error:
            found.append(str(error))
    return x, found


def test_what_is_no_class():
    check(of_no_class, [(X,)], fullgraph=False)


@pytest.mark.parametrize("function", [of_protocols, of_a_metaclass, of_abstract_classes, of_typing])
def test_as_eager(function) -> None:
    for value in VALUES:
        check(function, [(X, value)])


def test_tensors_of_legacy_classes() -> None:
    values = [X, X.double(), X.long(), torch.nn.Parameter(X.clone())]
    check(of_tensors, [(X, value) for value in values])


def test_attributes_given_by_the_program() -> None:
    check(member_given_later, [(X, Runner()), (X, Late())])


def test_a_protocol_that_may_not_be_asked() -> None:
    def function(x, value):
        try:
            return x + isinstance(value, NotAsked)
        except TypeError:
            return x - 1

    check(function, [(X, Runner())], fullgraph=False)


def test_an_object_that_changes() -> None:
    def function(x, value):
        return x + isinstance(value, HasScale)

    compiled = compile_frames(function, run_graph, CaptureOptions(fullgraph=True))
    value = Runner()
    for scale in (None, 1.0, None, 2.0):
        value.__dict__.pop("scale", None)
        if scale is not None:
            value.scale = scale
        assert torch.equal(compiled(X, value), function(X, value))


def kinds_of_abstract_classes(x):
    class Hashed(collections.abc.Hashable):
        def __hash__(self):
            return 1

    class Doubled(collections.abc.Sequence):
        def __len__(self):
            return 2

        def __getitem__(self, index):
            if index > 1:
                raise IndexError
            return index * 2

    class Listed(collections.abc.Iterable):
        def __iter__(self):
            return iter([1])

    class Sized:
        def __len__(self):
            return 0

    hashed = isinstance(Hashed(), collections.abc.Hashable), issubclass(list, Hashed)
    sized = isinstance(Sized(), collections.abc.Sized), isinstance(Sized(), Hashed)
    listed = isinstance(Listed(), Listed), isinstance([], Listed)
    made = Doubled()
    facts = isinstance(made, collections.abc.Collection), isinstance(made, collections.abc.Mapping)
    return hashed, sized, listed, facts, list(reversed(made)), 2 in made, made.index(2), x + 1


def test_classes_made_inside_that_derive_from_abstract_ones():
    check(kinds_of_abstract_classes, [(torch.ones(2),)], fullgraph=True)
