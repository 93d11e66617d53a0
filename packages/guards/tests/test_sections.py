"""Guards that a dict's version decides: each change is seen, and what did not change is not read again."""

import builtins
import collections
import sys
import types

import pytest
import torch
from weft_guards import (
    ArgumentSource,
    DictContains,
    EqualsConstant,
    Guard,
    GuardSet,
    InstanceDictSource,
    IsObject,
    ItemSource,
    LengthIs,
    Reason,
    Scope,
    TensorMatches,
    TensorMetadata,
    TypeIs,
    native_available,
    select,
)

REASON = Reason("model.py", 7, "self.layer(x)")
MODULE = ArgumentSource("module")


class Holder:
    pass


def layer():
    module = torch.nn.Linear(3, 2)
    module.mode, module.holder, module.steps = "mean", Holder(), [1, 2]
    return module


def guards_of(module):
    """What a compiled call of the module would need, and a little more."""

    def own(name):
        return InstanceDictSource(MODULE, name)

    weight = ItemSource(own("_parameters"), "weight")
    return [
        Guard(InstanceDictSource(MODULE), DictContains("forward", False), REASON),
        Guard(own("training"), EqualsConstant(True), REASON),
        Guard(own("mode"), EqualsConstant("mean"), REASON),
        Guard(own("in_features"), TypeIs(int), REASON),
        Guard(own("holder"), TypeIs(Holder), REASON),
        Guard(own("_forward_hooks"), LengthIs(0), REASON),
        Guard(own("_forward_pre_hooks"), LengthIs(0), REASON),
        Guard(own("steps"), LengthIs(2), REASON),
        Guard(weight, IsObject(module.weight, weak=True), REASON),
        Guard(weight, TensorMatches(TensorMetadata.of(module.weight)), REASON),
    ]


class OtherHolder(Holder):
    pass


def half_of_data(module):
    module.weight.data = module.weight.data.half()


CHANGES = {
    "a flag": lambda m: m.train(False),
    "a constant": lambda m: setattr(m, "mode", "sum"),
    "a constant of another type": lambda m: setattr(m, "in_features", 3.0),
    "a name that must not be there": lambda m: setattr(m, "forward", None),
    "an item deleted": lambda m: delattr(m, "mode"),
    "the dict updated": lambda m: vars(m).update(mode="sum"),
    "the class of an item": lambda m: setattr(m.holder, "__class__", OtherHolder),
    "a hook": lambda m: m.register_forward_hook(print),
    "a hook in the dict itself": lambda m: m._forward_pre_hooks.update({1: print}),
    "a list of hooks instead": lambda m: setattr(m, "_forward_hooks", collections.OrderedDict(a=1)),
    "a list's length": lambda m: m.steps.append(3),
    "a parameter": lambda m: setattr(m, "weight", torch.nn.Parameter(torch.ones(2, 3))),
    "a parameter's data": half_of_data,
    "another dict": lambda m: setattr(m, "__dict__", {**vars(m), "mode": "sum"}),
}


@pytest.mark.parametrize("runs", [0, 1, 3])
@pytest.mark.parametrize("change", CHANGES)
def test_a_change_is_seen(change, runs):
    """Also by a lookup among several sets, before and after sections have passed."""
    module = layer()
    guards = GuardSet(guards_of(module))
    extra = Guard(InstanceDictSource(MODULE, "mode"), IsObject(module.mode), REASON)
    check = guards.compile(("module",), ())
    others = [GuardSet([*guards, extra]), GuardSet(guards_of(layer()))]
    selection = select([other.compile(("module",), ()) for other in (*others, guards)])
    arguments = (module,), {}, vars(builtins), None
    for _ in range(runs):
        assert check.check(*arguments)
        assert selection.find(*arguments) == 0
    CHANGES[change](module)
    for _ in range(2):
        assert not guards.evaluate(Scope({"module": module}, {}, vars(builtins), {}))
        assert not check.check(*arguments)
        assert selection.find(*arguments) is None


def test_a_dict_that_changed_and_changed_back_holds():
    module = layer()
    check = GuardSet(guards_of(module)).compile(("module",), ())
    for _ in range(3):
        assert check.check((module,), {}, vars(builtins), None)
        module.eval()
        assert not check.check((module,), {}, vars(builtins), None)
        module.train()
    assert check.check((module,), {}, vars(builtins), None)


def test_other_objects_with_equal_dicts():
    """A section that passed for one object's dict says nothing of another's."""
    place = [
        Guard(InstanceDictSource(MODULE, f"a{n}"), EqualsConstant(n), REASON) for n in range(4)
    ]
    check = GuardSet(place).compile(("module",), ())
    good, bad = Holder(), Holder()
    for n in range(4):
        setattr(good, f"a{n}", n)
        setattr(bad, f"a{n}", n)
    bad.a2 = 3
    for _ in range(3):
        assert check.check((good,), {}, vars(builtins), None)
        assert not check.check((bad,), {}, vars(builtins), None)
    subclass = types.SimpleNamespace(**vars(good))
    assert check.check((subclass,), {}, vars(builtins), None)


@pytest.mark.skipif(
    not native_available() or sys.version_info >= (3, 13), reason="dicts have no version to read"
)
def test_what_did_not_change_is_not_compared_again():
    compared = []

    class Name(str):
        def __eq__(self, other):
            compared.append(other)
            return str.__eq__(self, other)

        __hash__ = str.__hash__

    values = {Name(f"a{n}"): n for n in range(4)}
    guards = [
        Guard(ItemSource(ArgumentSource("d"), f"a{n}"), EqualsConstant(n), REASON) for n in range(4)
    ]
    check = GuardSet(guards).compile(("d",), ())
    assert check.check((values,), {}, vars(builtins), None)
    seen = len(compared)
    for _ in range(3):
        assert check.check((values,), {}, vars(builtins), None)
    assert len(compared) == seen
