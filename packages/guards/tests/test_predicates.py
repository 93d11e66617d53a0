"""Each predicate holding and not holding, natively, in Python and without the extension."""

import builtins
import enum
import gc
import math
import types
import weakref
from collections import OrderedDict, namedtuple
from types import SimpleNamespace

import pytest
import torch
import weft_guards
from weft_guards import (
    ArgumentSource,
    AttributeSource,
    CellContentsSource,
    ClosureSource,
    ConstantSource,
    DictContains,
    DictKeysAre,
    DictKeySource,
    EqualsConstant,
    GlobalSource,
    Guard,
    GuardSet,
    HasAttribute,
    InstanceDictSource,
    IsNotObject,
    IsObject,
    IsOneOf,
    ItemSource,
    LengthHintIs,
    LengthIs,
    NotAliased,
    Predicate,
    Reason,
    SameObject,
    Scope,
    SetIs,
    SetOrderIs,
    Source,
    TensorMatches,
    TensorMetadata,
    TypeIs,
    TypeSource,
    native_available,
)
from weft_guards.guard_set import PythonGuardCheck

WEIGHT = torch.zeros(2)
REASON = Reason("model.py", 7, "x + 1")
X = ArgumentSource("x")
Pair = namedtuple("Pair", "first second")
MISSING = object()


class Color(enum.Enum):
    RED = 1
    GREEN = 2


class IntColor(enum.IntEnum):
    RED = 1


class RaisingLength:
    def __len__(self):
        raise RuntimeError("no length")


class RaisingProperty:
    @property
    def attribute(self):
        raise ValueError("no attribute")


class RaisingEquality:
    def __eq__(self, other):
        raise RuntimeError("not comparable")

    def __hash__(self):
        return hash("key")


def decide(guards, x=MISSING, global_variables=None, cells=None):
    """What all three evaluations answer; they must agree."""
    guard_set = GuardSet(guards)
    names = tuple(cells or ())
    closure = tuple(types.CellType(value) for value in cells.values()) if cells else None
    variables = global_variables if global_variables is not None else {}
    arguments = {} if x is MISSING else {"x": x}
    cells_by_name = dict(zip(names, closure or (), strict=True))
    expected = guard_set.evaluate(Scope(arguments, variables, vars(builtins), cells_by_name))
    failure = guard_set.explain(Scope(arguments, variables, vars(builtins), cells_by_name))
    assert (failure is None) is expected
    if failure is not None:
        assert str(failure)
    call = (tuple(arguments.values()), variables, vars(builtins), closure)
    for check in (
        guard_set.compile(tuple(arguments), names),
        PythonGuardCheck(guard_set, tuple(arguments), names),
    ):
        assert check.check(*call) is expected
    return expected


def holds(predicate, value, source=X):
    return decide([Guard(source, predicate, REASON)], value)


def test_the_extension_is_built():
    assert native_available()


SHARED = object()
CONSTANTS = [
    None,
    True,
    False,
    0,
    1,
    2**70,
    0.0,
    -0.0,
    1.0,
    math.inf,
    math.nan,
    complex(0.0, -0.0),
    complex(0.0, 0.0),
    complex(math.nan, 1),
    "a",
    "",
    b"a",
    ...,
    (),
    (1, "a"),
    (1.0, "a"),
    (True, "a"),
    (0.0,),
    (-0.0,),
    (math.nan,),
    ((1, (2.0,)),),
    frozenset({1}),
    frozenset({True}),
    frozenset({1.0}),
    frozenset({math.nan}),
    slice(1, None),
    slice(1.0, None),
    range(3),
    range(0, 3, 2),
    Color.RED,
    Color.GREEN,
    IntColor.RED,
    torch.float32,
    torch.float64,
    torch.strided,
    torch.channels_last,
    torch.device("cpu"),
    torch.device("cuda:0"),
    torch.device("cuda"),
    torch.Size([1, 2]),
    (1, 2),
    Pair(1, 2),
    int,
    math.sin,
    decide,
    math,
]


@pytest.mark.parametrize("expected", range(len(CONSTANTS)))
def test_constants_differ_from_all_others(expected):
    for index, value in enumerate(CONSTANTS):
        assert holds(EqualsConstant(CONSTANTS[expected]), value) is (index == expected), value


@pytest.mark.parametrize(
    ("expected", "value"),
    [
        (2**70, 2**35 * 2**35),
        ("abc", "".join(["a", "bc"])),
        (math.nan, float("nan")),
        (math.nan, -math.nan),
        ((1, math.nan), (1, float("nan"))),
        (frozenset({math.nan, "x"}), frozenset({float("nan"), "x"})),
        (torch.device("cuda", 1), torch.device("cuda:1")),
        (torch.Size([2]), torch.empty(2).shape),
        (Pair(1, 2.0), Pair(1, 2.0)),
        (slice(1, None, 2), slice(1, None, 2)),
        (range(1, 4), range(1, 4)),
    ],
)
def test_equal_constants_of_other_identity(expected, value):
    assert holds(EqualsConstant(expected), value)


def test_two_nans_are_not_one():
    two = frozenset({float("nan"), float("nan")})
    assert not holds(EqualsConstant(frozenset({math.nan})), two)
    assert not holds(EqualsConstant((1,)), ([],))


@pytest.mark.parametrize("value", [[], {}, set(), object(), ([],), bytearray(b"a")])
def test_mutable_values_are_no_constants(value):
    with pytest.raises(TypeError, match="not a constant"):
        EqualsConstant(value)


@pytest.mark.parametrize(
    ("predicate", "passing", "failing"),
    [
        (TypeIs(int), [1, 2**80], [True, 1.0, "1", None]),
        (TypeIs(dict), [{}, {1: 2}], [OrderedDict(), []]),
        (IsObject(SHARED), [SHARED], [object(), None]),
        (IsObject(None), [None], [0, SHARED]),
        (IsNotObject(None), [0, SHARED], [None]),
        (IsOneOf((None, SHARED)), [None, SHARED], [0, object()]),
        (
            LengthIs(2),
            [[1, 2], (1, 2), {1: 1, 2: 2}, {1, 2}, "ab", OrderedDict(a=1, b=2), range(2)],
            [[1], (1,), {}, {1}, "a", 2, None, RaisingLength()],
        ),
        (LengthHintIs(2), [iter((1, 2)), iter([1, 2]), reversed([1, 2])], [iter(()), 1]),
        (
            DictKeysAre(("a", "b")),
            [{"a": 1, "b": 2}, OrderedDict(a=1, b=2)],
            [{"b": 2, "a": 1}, {"a": 1}, {"a": 1, "b": 2, "c": 3}, ["a", "b"], {"a": 1, 2: 1}],
        ),
        (
            DictKeysAre((1, SHARED)),
            [{1: 0, SHARED: 0}],
            [{True: 0, SHARED: 0}, {1.0: 0, SHARED: 0}],
        ),
        (
            DictKeysAre((WEIGHT,)),  # tensors compare elementwise: they are keys by identity
            [{WEIGHT: 0}, OrderedDict({WEIGHT: 0})],
            [{torch.zeros(2): 0}, {"a": 0}, {}],
        ),
        (DictKeysAre(((1, "a"),)), [{(1, "a"): 0}], [{(True, "a"): 0}, {WEIGHT: 0}]),
        (DictKeysAre(()), [{}], [{1: 1}, []]),
        (DictKeysAre(("key",)), [{"key": 1}], [{RaisingEquality(): 1}]),
        # 0 and 8 share a place in a small set's table: the first one in gets it.
        (
            SetOrderIs((0, 8)),
            [{0, 8}, frozenset([0, 8])],
            [{8, 0}, {0}, {False, 8}, [0, 8], {0: 8}, set()],
        ),
        (SetOrderIs((len,)), [{len}], [{max}, len]),
        (SetIs(frozenset({1, "a"})), [{1, "a"}, frozenset({1, "a"})], [{True, "a"}, {1}, [1, "a"]]),
        (DictContains("a", True), [{"a": 1}, {"a"}], [{}, set(), 3]),
        (DictContains("a", False), [{}, {"b": 1}], [{"a": 1}, 3]),
        (DictContains("key", True), [{"key": 1}], [{RaisingEquality(): 1}]),
        (HasAttribute("real", True), [1, 1.0], ["", None]),
        (HasAttribute("real", False), ["", None], [1]),
        (HasAttribute("attribute", True), [SimpleNamespace(attribute=1)], [RaisingProperty()]),
        (HasAttribute("attribute", False), [1], [RaisingProperty()]),
    ],
    ids=lambda value: type(value).__name__,
)
def test_predicate(predicate, passing, failing):
    for value in passing:
        assert holds(predicate, value), value
    for value in failing:
        assert not holds(predicate, value), value


def test_keys_of_a_class():
    class Simple:
        attribute = 1

    namespace = AttributeSource(X, "__dict__")
    assert holds(DictKeysAre(tuple(vars(Simple))), Simple, namespace)
    assert not holds(DictKeysAre(("attribute",)), Simple, namespace)


def test_items_by_tensor_are_one_source_by_identity():
    same, other = ItemSource(X, WEIGHT), ItemSource(X, torch.zeros(2))
    assert same == ItemSource(X, WEIGHT)
    assert same != other
    assert len({same, other, ItemSource(X, WEIGHT)}) == 2


class Holder:
    """An object that weak references can be made to, equal to every other one."""

    def __eq__(self, other):
        return True

    __hash__ = None


class Telltale:
    """An object that notes whatever is asked of it."""

    asked: list[str] = []

    def __getattribute__(self, name):
        self.asked.append(name) if name != "asked" else None
        return object.__getattribute__(self, name)

    def __repr__(self):
        self.asked.append("repr")
        return "telltale"


class TelltaleTensor(torch.Tensor):
    @classmethod
    def __torch_function__(cls, function, kinds, arguments=(), keywords=None):
        Telltale.asked.append(function)
        return super().__torch_function__(function, kinds, arguments, keywords or {})


@pytest.mark.parametrize(
    "predicate",
    [
        EqualsConstant(3), EqualsConstant("a"), EqualsConstant((1, 2)), IsObject([]), TypeIs(int),
        DictKeysAre(("a",)), IsNotObject(None),
        TensorMatches(TensorMetadata.of(torch.ones(2))),
    ],
)  # fmt: skip
def test_explaining_runs_no_code_of_the_program(predicate):
    for value in (Telltale(), torch.ones(3).as_subclass(TelltaleTensor)):
        Telltale.asked.clear()
        failure = GuardSet([Guard(X, predicate, REASON)]).explain(Scope({"x": value}, {}, {}, {}))
        assert failure is None or str(failure)
        assert not Telltale.asked


def test_weak_identity():
    held = Holder()
    guard_set = GuardSet([Guard(X, IsObject(held, weak=True), REASON)])
    check = guard_set.compile(("x",), ())
    call = {}, vars(builtins), None
    assert check.check((held,), *call)
    assert not check.check((Holder(),), *call)
    reference = weakref.ref(held)
    del held
    gc.collect()
    assert reference() is None
    for value in (None, Holder(), reference):
        assert not check.check((value,), *call)
        assert not guard_set.evaluate(Scope({"x": value}, {}, {}, {}))
        assert "has died" in str(guard_set.explain(Scope({"x": value}, {}, {}, {})))


def test_weak_identity_of_what_has_no_weak_references_is_held():
    value = (1, 2, object())
    assert IsObject(value, weak=True).weak is False
    assert holds(IsObject(value, weak=True), value)


def test_objects_stay_alive():
    held = Holder()
    reference = weakref.ref(held)
    check = GuardSet([Guard(X, IsObject(held), REASON)]).compile(("x",), ())
    del held
    gc.collect()
    assert reference() is not None
    del check
    gc.collect()
    assert reference() is None


def test_a_cycle_through_the_check_is_collected():
    held = Holder()
    reference = weakref.ref(held)
    held.check = GuardSet([Guard(X, IsObject(held), REASON)]).compile(("x",), ())
    check = weakref.ref(held.check)
    del held
    gc.collect()
    assert reference() is None
    assert check() is None


def test_relations_between_arguments():
    first, second = [], []
    a, b = ItemSource(X, 0), ItemSource(X, 1)
    distinct = [Guard(a, NotAliased(b), REASON)]
    same = [Guard(a, SameObject(b), REASON)]
    assert decide(distinct, (first, second))
    assert not decide(distinct, (first, first))
    assert decide(same, (first, first))
    assert not decide(same, (first, second))
    assert not decide(distinct, (first,))


class Slotted:
    __slots__ = ("attribute",)


class Plain:
    def __init__(self, **attributes):
        for name, value in attributes.items():
            object.__setattr__(self, name, value)


class Lying(Plain):
    __dict__ = property(lambda self: {"attribute": "a lie"})


class Overriding(Plain):
    def __getattribute__(self, name):
        return {"attribute": "a lie"} if name == "__dict__" else object.__getattribute__(self, name)


class Metaclass(type):
    pass


class OfMetaclass(metaclass=Metaclass):
    attribute = 1


def function():
    pass


function.attribute = 1


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (Plain(attribute=1), True),
        (Plain(attribute=2), False),
        (Plain(other=1), False),
        (SimpleNamespace(attribute=1), True),
        (OfMetaclass, True),
        (function, True),
        (Slotted(), False),
        (1, False),
        (Overriding(attribute=1), True),
        (Lying(), False),
    ],
    ids=lambda value: type(value).__name__,
)
def test_instance_dict(value, expected):
    source = InstanceDictSource(X, "attribute")
    assert holds(EqualsConstant(1), value, source) is expected
    # Several times through one check: later ones find the descriptor remembered.
    check = GuardSet([Guard(source, EqualsConstant(1), REASON)]).compile(("x",), ())
    answers = {check.check((value,), {}, vars(builtins), None) for _ in range(3)}
    assert answers == {expected}


def test_instance_dict_after_the_class_changes():
    class Changing:
        pass

    value = Changing()
    value.attribute = 1
    source = InstanceDictSource(X, "attribute")
    guard_set = GuardSet([Guard(source, EqualsConstant(1), REASON)])
    check = guard_set.compile(("x",), ())
    call = (value,), {}, vars(builtins), None
    assert check.check(*call)
    Changing.__dict__  # noqa: B018
    Changing.other = 3
    assert check.check(*call)
    value.__class__ = Plain
    assert check.check(*call)
    value.attribute = 2
    assert not check.check(*call)
    value.__dict__ = {"attribute": 1}
    assert check.check(*call)
    del value.attribute
    assert not check.check(*call)


def test_sources():
    x = {"a": [1, (2, 3)], 5: "five"}
    places = [
        (ItemSource(ItemSource(X, "a"), 0), 1),
        (ItemSource(ItemSource(ItemSource(X, "a"), 1), -1), 3),
        (DictKeySource(X, 1), 5),
        (TypeSource(X), dict),
        (AttributeSource(TypeSource(X), "__name__"), "dict"),
    ]
    assert decide([Guard(source, EqualsConstant(value), REASON) for source, value in places], x)
    for source, _ in places:
        assert not decide([Guard(source, EqualsConstant("other"), REASON)], x)
    for source in (
        ItemSource(X, "missing"),
        ItemSource(ItemSource(X, "a"), 2),
        ItemSource(ItemSource(ItemSource(X, "a"), 1), -3),
        DictKeySource(X, 2),
        AttributeSource(X, "missing"),
        CellContentsSource(X),
        AttributeSource(TypeSource(X), "no"),
    ):
        assert not decide([Guard(source, IsNotObject(MISSING), REASON)], x)


def test_globals_and_builtins():
    guards = [Guard(GlobalSource("len"), IsObject(len), REASON)]
    assert decide(guards)
    assert not decide(guards, global_variables={"len": 1})
    assert decide([Guard(GlobalSource("y"), EqualsConstant(1), REASON)], global_variables={"y": 1})
    assert not decide([Guard(GlobalSource("no_such"), IsNotObject(None), REASON)])


def test_closures_and_cells():
    def outer():
        variable = 3
        return lambda: variable

    cell = ItemSource(AttributeSource(ConstantSource("f", outer()), "__closure__"), 0)
    assert decide([Guard(CellContentsSource(cell), EqualsConstant(3), REASON)])
    guards = [Guard(ClosureSource("b"), EqualsConstant(2), REASON)]
    assert decide(guards, cells={"a": 1, "b": 2})
    assert not decide(guards, cells={"a": 2, "b": 1})
    check = GuardSet(guards).compile((), ("a", "b"))
    for closure in (None, (), (types.CellType(1),), (types.CellType(1), types.CellType())):
        assert not check.check((), {}, vars(builtins), closure)


def test_bound_methods_and_code():
    x = [1]
    guards = [Guard(AttributeSource(X, "__self__"), IsObject(x), REASON)]
    assert decide(guards, x.append)
    assert not decide(guards, [1].append)
    code = [Guard(AttributeSource(X, "__code__"), IsObject(decide.__code__), REASON)]
    assert decide(code, decide)
    assert not decide(code, holds)


class Raising(Predicate):
    def holds(self, value, scope):
        raise KeyboardInterrupt if value == "interrupt" else RuntimeError(value)


class IsEven(Predicate):
    def holds(self, value, scope):
        return value % 2 == 0


class ArgumentCount(Source):
    def name(self):
        return "the number of arguments"

    def evaluate(self, scope):
        return len(scope.arguments)


def test_further_sources_and_predicates():
    assert holds(IsEven(), 2)
    assert not holds(IsEven(), 3)
    assert not holds(IsEven(), None)
    assert not holds(Raising(), 1)
    assert holds(EqualsConstant(1), "x", ArgumentCount())
    assert not holds(EqualsConstant(2), "x", ArgumentCount())


def test_nothing_is_raised_from_a_check():
    check = GuardSet([Guard(X, Raising(), REASON)]).compile(("x",), ())
    assert check.check(("interrupt",), {}, vars(builtins), None) is False


def test_costs() -> None:
    """What the native check may decide is cheaper than what calls Python: it is asked first."""
    kinds = [
        k for k in vars(weft_guards).values() if isinstance(k, type) and issubclass(k, Predicate)
    ]
    assert len(kinds) > 15
    for kind in kinds:
        is_native = kind.native_step is not Predicate.native_step
        assert (kind.cost < Predicate.cost) is is_native, kind
