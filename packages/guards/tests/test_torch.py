"""Guards on tensors and on torch's interpreter-wide state."""

import builtins
import dataclasses
import warnings

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from weft_guards import (
    ArgumentSource,
    GlobalState,
    GlobalStateIs,
    GlobalStateSource,
    Guard,
    GuardSet,
    InstanceDictSource,
    ItemSource,
    Reason,
    Scope,
    TensorMatches,
    TensorMetadata,
    native_problem,
)

REASON = Reason("model.py", 7, "x + 1")
X = ArgumentSource("x")


def holds(expected, value, source=X):
    guard_set = GuardSet([Guard(source, TensorMatches(expected), REASON)])
    answer = guard_set.evaluate(Scope({"x": value}, {}, {}, {}))
    check = guard_set.compile(("x",), ())
    assert check.check((value,), {}, vars(builtins), None) is answer
    return answer


class Subclass(torch.Tensor):
    pass


class Overriding(torch.Tensor):
    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        raise AssertionError("a guard ran user code")


def tensors():
    complex_tensor = torch.ones(2, 3, dtype=torch.complex64)
    with torch.inference_mode():
        inference = torch.ones(2, 3)
    return {
        "plain": torch.ones(2, 3),
        "transposed": torch.ones(3, 2).t(),
        "one dimension": torch.ones(6),
        "scalar": torch.tensor(1.0),
        "empty": torch.ones(0, 3),
        "expanded": torch.ones(3).expand(2, 3),
        "double": torch.ones(2, 3, dtype=torch.float64),
        "half": torch.ones(2, 3, dtype=torch.float16),
        "bool": torch.ones(2, 3, dtype=torch.bool),
        "complex half": torch.empty(2, 3, dtype=torch.complex32, device="meta"),
        "meta": torch.ones(2, 3, device="meta"),
        "leaf": torch.ones(2, 3, requires_grad=True),
        "parameter": torch.nn.Parameter(torch.ones(2, 3)),
        "frozen parameter": torch.nn.Parameter(torch.ones(2, 3), requires_grad=False),
        "subclass": torch.ones(2, 3).as_subclass(Subclass),
        "overriding": torch.ones(2, 3).as_subclass(Overriding),
        "complex": complex_tensor,
        "conjugate": complex_tensor.conj(),
        "negative": torch.ones(2, 3, dtype=torch.complex128).conj().imag,
        "inference": inference,
        "sparse": torch.ones(2, 3).to_sparse(),
        "sparse rows": torch.ones(2, 3).to_sparse_csr(),
        "mkldnn": torch.ones(2, 3).to_mkldnn(),
    }


def test_metadata_is_read_natively():
    assert native_problem is None


def test_each_tensor_matches_only_its_own_metadata():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # experimental layouts and dtypes
        values = tensors()
    for name, tensor in values.items():
        expected = TensorMetadata.of(tensor)
        for other_name, other in values.items():
            assert holds(expected, other) is (name == other_name), (name, other_name)


def test_every_field_is_checked():
    value = torch.ones(2, 3)
    expected = TensorMetadata.of(value)
    changes = {
        "python_type": torch.nn.Parameter,
        "dtype": torch.int32,
        "device": torch.device("cuda", 0),
        "requires_grad": True,
        "size": (2, 4),
        "stride": (3, 2),
        "layout": torch.sparse_coo,
        "is_conjugate": True,
        "is_negative": True,
        "is_inference": True,
    }
    assert set(changes) == {field.name for field in dataclasses.fields(TensorMetadata)}
    assert holds(expected, value)
    for name, other in changes.items():
        assert not holds(dataclasses.replace(expected, **{name: other}), value), name
    assert holds(dataclasses.replace(expected, stride=None), value.contiguous())
    assert holds(dataclasses.replace(expected, size=(None, 3)), torch.ones(7, 3))
    assert not holds(dataclasses.replace(expected, size=(None, 3)), torch.ones(7, 4))
    free = dataclasses.replace(expected, size=(None, None), stride=(None, 1))
    assert holds(free, torch.ones(7, 4))
    assert not holds(free, torch.ones(7, 4).t())


@pytest.mark.parametrize("value", [None, 1, [1.0], torch.Tensor, torch.Size([2, 3]), "x"])
def test_other_values_do_not_match(value):
    assert not holds(TensorMetadata.of(torch.ones(2, 3)), value)


def test_tensors_inside_transforms_never_match():
    expected = TensorMetadata.of(torch.ones(3))
    answers = []

    def inside(x):
        answers.append(holds(dataclasses.replace(expected, requires_grad=x.requires_grad), x))
        with pytest.raises(TypeError, match="inside a transform"):
            TensorMetadata.of(x)
        return x.sum()

    torch.func.vmap(inside)(torch.ones(2, 3))
    torch.func.grad(inside)(torch.ones(3))
    assert answers == [False, False]
    functional = torch._to_functional_tensor(torch.ones(3))
    assert not holds(expected, functional)
    assert not holds(expected, torch._efficientzerotensor((3,)))


def test_nested_and_fake_tensors():
    from torch._subclasses.fake_tensor import FakeTensorMode

    expected = TensorMetadata.of(torch.ones(2, 3))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        nested = torch.nested.nested_tensor([torch.ones(3), torch.ones(3)])
    assert not holds(expected, nested)
    with FakeTensorMode():
        assert not holds(expected, torch.ones(2, 3))


def test_metadata_follows_changes_in_place():
    value = torch.ones(2, 3)
    expected = TensorMetadata.of(value)
    assert holds(expected, value)
    value.requires_grad_(True)
    assert not holds(expected, value)
    value.requires_grad_(False)
    value.resize_(3, 2)
    assert not holds(expected, value)
    value.data = torch.ones(2, 3)
    assert holds(expected, value)
    value.data = torch.ones(2, 3, dtype=torch.float64)
    assert not holds(expected, value)


def test_a_swapped_parameter():
    module = torch.nn.Linear(3, 2)
    source = ItemSource(InstanceDictSource(X, "_parameters"), "weight")
    expected = TensorMetadata.of(module.weight)
    assert holds(expected, module, source)
    module.weight = torch.nn.Parameter(torch.zeros(2, 3))
    assert holds(expected, module, source)
    module.weight.requires_grad_(False)
    assert not holds(expected, module, source)
    module.double()
    assert not holds(expected, module, source)
    module.weight = None
    assert not holds(expected, module, source)
    del module.weight
    assert not holds(expected, module, source)


def test_no_mode_sees_a_guard():
    class Mode(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            seen.append(func)
            return func(*args, **(kwargs or {}))

    seen = []
    value = torch.ones(2, 3)
    expected = TensorMetadata.of(value)
    with Mode():
        assert holds(expected, value)
        assert holds(dataclasses.replace(expected, layout=torch.sparse_coo), value) is False
    assert seen == []


@pytest.mark.parametrize(
    "arguments",
    [{"stride": (1,)}, {"size": (-1, 3)}, {"size": (2.0, 3)}],
)
def test_bad_metadata(arguments):
    with pytest.raises(ValueError, match="stride"):
        dataclasses.replace(TensorMetadata.of(torch.ones(2, 3)), **arguments)


class SomeFunctionMode(torch.overrides.TorchFunctionMode):
    pass


class SomeDispatchMode(torch.utils._python_dispatch.TorchDispatchMode):
    pass


class DefaultDtype:
    def __enter__(self):
        torch.set_default_dtype(torch.float64)

    def __exit__(self, *error):
        torch.set_default_dtype(torch.float32)


class Deterministic:
    def __enter__(self):
        torch.use_deterministic_algorithms(True)

    def __exit__(self, *error):
        torch.use_deterministic_algorithms(False)


STATES = {
    "plain": torch.enable_grad,
    "no grad": torch.no_grad,
    "inference": torch.inference_mode,
    "autocast": lambda: torch.autocast("cpu"),
    "plain attention": lambda: sdpa_kernel(SDPBackend.MATH),
    "flash attention": lambda: sdpa_kernel(SDPBackend.FLASH_ATTENTION),
    "efficient attention": lambda: sdpa_kernel(SDPBackend.EFFICIENT_ATTENTION),
    "attention of cuDNN": lambda: sdpa_kernel(SDPBackend.CUDNN_ATTENTION),
    "without cuDNN": lambda: torch.backends.cudnn.flags(enabled=False),
    "without oneDNN": lambda: torch.backends.mkldnn.flags(enabled=False),
    "autocast to half": lambda: torch.autocast("cpu", dtype=torch.float16),
    "autocast without cache": lambda: torch.autocast("cpu", cache_enabled=False),
    "default dtype": DefaultDtype,
    "deterministic": Deterministic,
    "default device": lambda: torch.device("meta"),
    "another default device": lambda: torch.device("cpu"),
    "function mode": SomeFunctionMode,
    "dispatch mode": SomeDispatchMode,
    "hooks for saved tensors": lambda: torch.autograd.graph.saved_tensors_hooks(abs, abs),
}


def test_each_global_state_matches_only_itself():
    sets = {}
    for name, make in STATES.items():
        with make():
            state = GlobalStateIs(GlobalState.current())
        sets[name] = GuardSet([Guard(GlobalStateSource(), state, REASON)])
    checks = {name: guard_set.compile((), ()) for name, guard_set in sets.items()}
    for name, make in STATES.items():
        for other, guard_set in sets.items():
            with make():
                answer = guard_set.evaluate(Scope({}, {}, {}, {}))
                native = checks[other].check((), {}, vars(builtins), None)
            assert answer is native, (name, other)
            assert answer is (name == other), (name, other)


def test_global_state_inside_transforms():
    guard_set = GuardSet([Guard(GlobalStateSource(), GlobalStateIs(GlobalState.current()), REASON)])
    check = guard_set.compile((), ())

    def inside(x):
        assert not guard_set.evaluate(Scope({}, {}, {}, {}))
        assert not check.check((), {}, vars(builtins), None)
        return x

    torch.func.vmap(inside)(torch.ones(2))
    assert check.check((), {}, vars(builtins), None)


def test_hooks_that_give_values_back_are_no_state():
    plain = GlobalState.current()
    with torch.autograd.graph.save_on_cpu():
        assert GlobalState.current() == plain


def test_explaining_a_global_state():
    state = GlobalStateIs(GlobalState.current())
    guard_set = GuardSet([Guard(GlobalStateSource(), state, REASON)])
    with torch.no_grad():
        text = str(guard_set.explain(Scope({}, {}, {}, {})))
    assert "expected grad_enabled True, found grad_enabled False" in text
