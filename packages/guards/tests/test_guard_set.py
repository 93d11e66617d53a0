"""Order, duplicates, explanations and misuse of guard sets."""

import builtins
import ctypes
import gc
import sys

import pytest
import torch
from weft_guards import (
    ArgumentSource,
    AttributeSource,
    ClosureSource,
    DictKeySource,
    EqualsConstant,
    Guard,
    GuardSet,
    InstanceDictSource,
    IsObject,
    ItemSource,
    LengthIs,
    NotAliased,
    Reason,
    Scope,
    TensorMatches,
    TensorMetadata,
    TypeIs,
)

REASON = Reason("model.py", 7, "y = x + 1")
X, Y = ArgumentSource("x"), ArgumentSource("y")


def guard(source, predicate):
    return Guard(source, predicate, REASON)


def test_duplicates_and_implied_types_are_dropped():
    tensor = TensorMatches(TensorMetadata.of(torch.ones(2)))
    given = [
        guard(X, TypeIs(torch.Tensor)),
        guard(X, tensor),
        guard(X, TensorMatches(TensorMetadata.of(torch.zeros(2)))),
        guard(Y, EqualsConstant(0.0)),
        guard(Y, EqualsConstant(-0.0)),
        guard(Y, TypeIs(float)),
        guard(Y, TypeIs(int)),
    ]
    predicates = [g.predicate for g in GuardSet(given)]
    assert len(predicates) == 4
    assert TypeIs(torch.Tensor) not in predicates
    assert TypeIs(float) not in predicates
    assert TypeIs(int) in predicates  # contradicts, and so must fail


def test_items_1_and_true_stay_apart():
    class Container:
        def __getitem__(self, key):
            return type(key)

    guards = [
        guard(ItemSource(X, 1), EqualsConstant(int)),
        guard(ItemSource(X, True), EqualsConstant(bool)),
    ]
    assert GuardSet(guards).evaluate(Scope({"x": Container()}, {}, {}, {}))
    assert GuardSet(guards).compile(("x",), ()).check((Container(),), {}, vars(builtins), None)


def test_order():
    costly = [guard(ItemSource(Y, i), EqualsConstant(i)) for i in range(20)]
    given = [*costly, guard(X, NotAliased(Y)), guard(Y, LengthIs(20)), guard(X, EqualsConstant(1))]
    ordered = GuardSet(given).guards
    assert ordered[0].source == X
    assert ordered[1].predicate == LengthIs(20)
    assert isinstance(ordered[-1].predicate, NotAliased)
    assert set(ordered) == set(given)


def test_a_type_is_checked_before_attributes_are_read():
    class Recording:
        read = 0

        @property
        def attribute(self):
            Recording.read += 1
            return 1

    guards = [guard(AttributeSource(X, "attribute"), EqualsConstant(1)), guard(X, TypeIs(int))]
    assert not GuardSet(guards).compile(("x",), ()).check((Recording(),), {}, {}, None)
    assert Recording.read == 0


def test_a_shared_prefix_is_read_once():
    class Counting:
        read = 0

        @property
        def attribute(self):
            Counting.read += 1
            return [1, 2]

    items = AttributeSource(X, "attribute")
    guards = [guard(ItemSource(items, i), EqualsConstant(i + 1)) for i in range(2)]
    guards.append(guard(items, LengthIs(2)))
    assert GuardSet(guards).compile(("x",), ()).check((Counting(),), {}, {}, None)
    assert Counting.read == 1


def test_explanation():
    weight = ItemSource(InstanceDictSource(ArgumentSource("self"), "_parameters"), "weight")
    module = torch.nn.Linear(2, 3)
    guard_set = GuardSet([guard(weight, TensorMatches(TensorMetadata.of(module.weight)))])
    scope = Scope({"self": module}, {}, {}, {})
    assert guard_set.explain(scope) is None
    module.weight = torch.nn.Parameter(torch.ones(3, 4))
    failure = guard_set.explain(scope)
    assert failure is not None
    assert failure.source == weight
    assert failure.guard.reason is REASON
    assert failure.expected.startswith("Parameter torch.float32 (3, 2)")
    assert failure.found == "size (3, 4) instead of (3, 2); stride (4, 1) instead of (2, 1)"
    assert "model.py:7: y = x + 1" in str(failure)
    del module.weight
    assert "nothing there (KeyError" in str(guard_set.explain(scope))


def test_description():
    guards = [guard(InstanceDictSource(X, "size"), EqualsConstant(3)), guard(X, NotAliased(Y))]
    text = str(GuardSet(guards))
    assert "L['x'].__dict__['size']\n" in text
    assert "EqualsConstant: 3  # model.py:7: y = x + 1" in text
    assert "L['x'] - NotAliased" in text
    assert str(GuardSet([])) == ""


def test_misuse():
    with pytest.raises(ValueError, match="no argument 'x'"):
        GuardSet([guard(X, LengthIs(1))]).compile(("y",), ())
    with pytest.raises(ValueError, match="no free variable 'v'"):
        GuardSet([guard(ClosureSource("v"), LengthIs(1))]).compile((), ("w",))
    with pytest.raises(ValueError, match="position from 0"):
        DictKeySource(X, -1)
    check = GuardSet([]).compile(("x",), ())
    assert check.check((1,), {}, {}, None)
    with pytest.raises(ValueError, match="expects 1 argument"):
        check.check((), {}, {}, None)


class _API(ctypes.Structure):
    _fields_ = [("version", ctypes.c_int), ("check", ctypes.c_void_p)]


def test_c_interface():
    from weft_guards import _native

    get_pointer = ctypes.pythonapi.PyCapsule_GetPointer
    get_pointer.restype = ctypes.c_void_p
    get_pointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
    api = _API.from_address(get_pointer(_native._C_API, b"weft_guards._native._C_API"))
    assert api.version == 2
    prototype = ctypes.PYFUNCTYPE(
        ctypes.c_int,
        ctypes.py_object,
        ctypes.POINTER(ctypes.c_void_p),
        ctypes.py_object,
        ctypes.py_object,
        ctypes.c_void_p,
    )
    call = prototype(api.check)
    value = [1, 2]
    check = GuardSet([guard(X, IsObject(value)), guard(Y, LengthIs(2))]).compile(("y", "x"), ())
    slots = (ctypes.c_void_p * 2)(id(value), id(value))
    assert call(check, slots, {}, vars(builtins), None) == 1
    assert call(check, (ctypes.c_void_p * 2)(id(check), id(value)), {}, {}, None) == 0
    assert call(check, (ctypes.c_void_p * 2)(id(value), None), {}, {}, None) == 0
    assert call("no check", slots, {}, {}, None) == 0


def test_no_reference_is_lost_or_kept():
    class Holder:
        pass

    module = torch.nn.Linear(2, 2)
    holder = Holder()
    holder.items = [module, (1, 2.5), {"a": None, "b": "text"}]
    items = InstanceDictSource(X, "items")
    parameters = InstanceDictSource(ItemSource(items, 0), "_parameters")
    guards = [
        guard(ItemSource(items, 1), EqualsConstant((1, 2.5))),
        guard(DictKeySource(ItemSource(items, 2), 1), EqualsConstant("b")),
        guard(ItemSource(parameters, "weight"), TensorMatches(TensorMetadata.of(module.weight))),
        guard(AttributeSource(X, "items"), LengthIs(3)),
    ]
    passing = GuardSet(guards).compile(("x",), ())
    failing = GuardSet([*guards, guard(AttributeSource(X, "missing"), LengthIs(3))])
    failing = failing.compile(("x",), ())
    watched = [holder, holder.items, *holder.items, module.weight, vars(holder), None, passing]
    arguments, variables = (holder,), {}
    gc.collect()
    before = [sys.getrefcount(value) for value in watched]
    allocated = sys.getallocatedblocks()
    for _ in range(100_000):
        passing.check(arguments, variables, variables, None)
        failing.check(arguments, variables, variables, None)
    assert passing.check(arguments, variables, variables, None)
    after = [sys.getrefcount(value) for value in watched]
    assert all(abs(a - b) < 50 for a, b in zip(after, before, strict=True))
    assert abs(sys.getallocatedblocks() - allocated) < 1000


def test_many_registers():
    guards = [guard(ItemSource(X, i), EqualsConstant(i)) for i in range(500)]
    check = GuardSet(guards).compile(("x",), ())
    values = list(range(500))
    assert check.check((values,), {}, {}, None)
    values[499] = 0
    assert not check.check((values,), {}, {}, None)
    assert not check.check((values[:300],), {}, {}, None)


def test_a_check_that_calls_itself():
    class Recursive:
        depth = 0

        @property
        def attribute(self):
            if Recursive.depth < 3:
                Recursive.depth += 1
                assert check.check((self,), {}, {}, None)
            return 1

    check = GuardSet([guard(AttributeSource(X, "attribute"), EqualsConstant(1))])
    check = check.compile(("x",), ())
    assert check.check((Recursive(),), {}, {}, None)
    assert Recursive.depth == 3


@pytest.mark.parametrize(
    "change",
    [
        lambda d: d.update(a=2),
        lambda d: d.__setitem__("a", 2),
        lambda d: d.pop("a"),
        lambda d: d.clear(),
        lambda d: d.__ior__({"a": 2}),
        lambda d: d.popitem(),
    ],
)
def test_an_item_that_changed_since_the_last_check_is_read_again(change):
    guards = GuardSet([Guard(ItemSource(ArgumentSource("d"), "a"), EqualsConstant(1), REASON)])
    check = guards.compile(("d",), ())
    dictionary = {"a": 1}
    for _ in range(3):
        assert check.check((dictionary,), {}, vars(builtins), None)
        change(dictionary)
        assert not check.check((dictionary,), {}, vars(builtins), None)
        dictionary["a"] = 1
    for value in (1, 2, 1, 1, 2):  # dicts that may take one another's address
        assert check.check(({"a": value},), {}, vars(builtins), None) is (value == 1)


def test_attributes_that_change_through_any_door_are_read_again():
    class Thing:
        pass

    thing = Thing()
    thing.a = 1
    source = InstanceDictSource(ArgumentSource("d"), "a")
    check = GuardSet([Guard(source, EqualsConstant(1), REASON)]).compile(("d",), ())

    def holds():
        return check.check((thing,), {}, vars(builtins), None)

    def assign(value):  # warm: the interpreter specialises the store
        for _ in range(100):
            thing.a = value

    assert holds()
    assign(2)
    assert not holds()
    assign(1)
    assert holds()
    object.__setattr__(thing, "a", 2)
    assert not holds()
    thing.__dict__ = {"a": 1}
    assert holds()
    vars(thing)["a"] = 2
    assert not holds()
    del thing.a
    assert not holds()
    thing.a = 1
    assert holds()
