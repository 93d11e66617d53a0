"""Remembered fake results beside those of torch's fake mode: metadata, sharing, versions, gradients."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest
import sympy
import torch
from torch import Tensor
from torch.fx.experimental import symbolic_shapes
from torch.fx.experimental.symbolic_shapes import DimDynamic, StatelessSymbolicContext
from torch.utils import _pytree as pytree
from weft_bytecode_capture import capture
from weft_bytecode_capture._torch.fake_mode_on_demand import (
    EnvironmentOnDemand,
    FakeModeOnDemand,
    made_environment,
)
from weft_bytecode_capture._torch.fakes import FakeLayout, FakeTensorMode, errors_unlogged
from weft_bytecode_capture._torch.symbols import (
    ShapeEnv,
    SourcelessShapeEnv,
    known_bounds,
    new_float,
    new_integer,
)
from weft_bytecode_capture.symbolic.graph.fake_mode import RememberingFakeMode
from weft_bytecode_capture.symbolic.graph.known_results import KnownResult
from weft_bytecode_capture.symbolic.graph.repeated_calls import RepeatedCalls

Step = Callable[[list[Tensor]], Any]

STEPS: dict[str, Step] = {
    "add": lambda v: v[0] + v[1],
    "add a number": lambda v: v[0] + 1,
    "add a float": lambda v: v[0] + 1.5,
    "add a bool": lambda v: v[0] + True,
    "divide": lambda v: v[0] / 2,
    "compare": lambda v: v[0] < v[1],
    "complex": lambda v: v[0] * 1j,
    "to double": lambda v: v[0].double(),
    "to bfloat16": lambda v: v[0].to(torch.bfloat16),
    "conjugate": lambda v: (v[0] * 1j).conj() + 1,
    "in place": lambda v: v[0].mul_(2),
    "in place, other": lambda v: v[0].add_(v[1]),
    "write to a view": lambda v: v[0].reshape(-1)[:1].zero_(),
    "transpose": lambda v: v[0].transpose(0, -1),
    "flatten": lambda v: v[0].flatten(),
    "expand": lambda v: v[0].unsqueeze(0).expand(3, *v[0].shape),
    "select": lambda v: v[0].select(0, 0),
    "slice": lambda v: v[0][1:],
    "strided": lambda v: v[0].as_strided((min(1, v[0].numel()),), (1,)),
    "narrow": lambda v: v[0].narrow(0, 0, 1),
    "diagonal": lambda v: v[0].unsqueeze(0).diagonal(0, 0, 1),
    "detach": lambda v: v[0].detach(),
    "split": lambda v: v[0].split(1),
    "concatenate": lambda v: torch.cat([v[0].flatten(), v[1].flatten()]),
    "index": lambda v: v[0][torch.zeros(2, dtype=torch.int64)],
    "sum": lambda v: v[0].sum(-1),
    "mean": lambda v: v[0].double().mean(),
    "maximum": lambda v: v[0].max(0),
    "sort": lambda v: torch.sort(v[0].flatten(), descending=True),
    "softmax": lambda v: torch.softmax(v[0].float(), 0),
    "norm": lambda v: torch.nn.functional.layer_norm(v[0].float(), v[0].shape[-1:]),
    "dropout": lambda v: torch.nn.functional.dropout(v[0].float()),
    "matmul": lambda v: v[0].float().flatten() @ v[0].float().flatten(),
    "matmul of batches": lambda v: v[0].float().reshape(1, -1, 1) @ torch.ones(1, 3),
    "unmarked view": lambda v: _unmarked_view(v[0]),
    "unmarked view, written": lambda v: _unmarked_view(v[0]).add_(1),
    "zeros": lambda v: torch.zeros(2, 3),
    "zeros like": lambda v: torch.zeros_like(v[0]),
    "full": lambda v: torch.full((2,), 3),
    "number": lambda v: torch.tensor(2.0) * v[0],
    "known number": lambda v: torch.tensor(2.0).add_(1).pow(2),
    "view of a known number": lambda v: _view_of_known(2),
    "write to a view of a known number": lambda v: _view_of_known(1),
    "known number, written": lambda v: (torch.tensor(3.0) * 2).add_(v[0].sum()),
    "known number, converted": lambda v: torch.tensor(2.7).double() * 2,
    "known number, copied and written": lambda v: torch.tensor(2.0).to(torch.int64).add_(1),
    "appended to an empty literal": lambda v: torch.cat(
        [torch.tensor([], dtype=v[0].dtype), v[0].flatten()]
    ),
    "joined with a known number": lambda v: torch.cat([v[0].flatten(), torch.tensor([2.0])]),
    "chosen by a known number": lambda v: v[0].index_select(0, torch.tensor([0])),
    "known number of another memory": lambda v: torch.zeros(
        torch.tensor(2.7).to(torch.int8).item()
    ),
    "resize": lambda v: v[0].clone().resize_(1, 2).flatten() + 1,
    "transposed in place": lambda v: v[0].clone().unsqueeze_(0) + 1,
    "contiguous": lambda v: v[0].transpose(0, -1).contiguous(),
    "clone": lambda v: v[0].clone(memory_format=torch.preserve_format),
    "rejected": lambda v: v[0].add_(torch.ones(5, 6, 7)),
}


def _unmarked_view(x: Tensor) -> Tensor:
    row = x.clone(memory_format=torch.contiguous_format)
    return torch.ops.aten._unsafe_view(row, [row.numel()])


def _view_of_known(factor: int) -> list[Tensor]:
    """Known numbers that share memory, and as many elements as the number says."""
    number = torch.tensor(2.0) * factor + 1
    view = number.view(1)
    view.add_(1)
    return [number, view, torch.zeros(int(number.item()))]


INPUTS: dict[str, Callable[[], Tensor]] = {
    "plain": lambda: torch.ones(2, 3),
    "row": lambda: torch.ones(3),
    "leaf": lambda: torch.ones(2, 3, requires_grad=True),
    "integers": lambda: torch.ones(2, 3, dtype=torch.int64),
    "half": lambda: torch.ones(3, dtype=torch.float16),
    "transposed": lambda: torch.ones(3, 2).t(),
    "offset": lambda: torch.ones(4, 3)[2:],
    "expanded": lambda: torch.ones(1, 3).expand(2, 3),
    "empty": lambda: torch.ones(0, 3),
    "number": lambda: torch.ones(()).reshape(1),
}


def described(values: list[Tensor], known: list[Tensor]) -> list[Any]:
    """All that tells fake tensors apart, and which of them share storage."""
    storages = [value.untyped_storage()._cdata for value in known]
    return [
        (
            type(value).__name__,
            value.dtype,
            value.shape,
            value.stride(),
            value.storage_offset(),
            value.untyped_storage().nbytes(),
            value.device,
            value.requires_grad,
            value.is_leaf,
            type(value.grad_fn).__name__,
            value.is_inference(),
            None if value.is_inference() else value._version,
            value._is_view(),
            value.is_conj(),
            value.is_neg(),
            getattr(value, "constant", None) is not None,
            # Torch's own cache gives views of nothing a storage of their own.
            value.numel() and storages.index(value.untyped_storage()._cdata),
            torch._C._dispatch_key_set(value),
        )
        for value in values
    ]


def evaluated(mode: FakeTensorMode, seed: int, context: AbstractContextManager[Any]) -> list[Any]:
    """What each of a program's steps gives, and its inputs after it, twice over on fresh inputs."""
    with context, mode, errors_unlogged():
        return [list(_steps(mode, random.Random(seed))) for _ in range(2)]


def _steps(mode: FakeTensorMode, numbers: random.Random) -> Iterator[Any]:
    with torch.inference_mode(torch.is_inference_mode_enabled()):
        values = [INPUTS[numbers.choice(list(INPUTS))]() for _ in range(3)]
    for name in numbers.sample(list(STEPS), 10):
        given = numbers.sample(values, 2)
        try:
            result = STEPS[name](given)
            made = list(result) if isinstance(result, (tuple, list)) else [result]
            now = described([*values, *made], [*values, *made])
        except (RuntimeError, IndexError, NotImplementedError) as error:
            yield name, type(error), str(error).splitlines()[:1]
            continue
        yield name, now
        values += [value for value in made if value.dim() and value.layout is torch.strided][:1]


CONTEXTS: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "gradients": nullcontext,
    "no gradients": torch.no_grad,
    "inference": torch.inference_mode,
}


@pytest.mark.parametrize("context", CONTEXTS)
@pytest.mark.parametrize("seed", range(8))
def test_remembered_results_are_those_of_torch(seed: int, context: str) -> None:
    want = evaluated(FakeTensorMode(shape_env=ShapeEnv()), seed, CONTEXTS[context]())
    got = evaluated(RememberingFakeMode(shape_env=ShapeEnv()), seed, CONTEXTS[context]())
    assert got == want


@pytest.mark.parametrize("context", CONTEXTS)
@pytest.mark.parametrize("seed", range(8))
def test_what_another_mode_remembers_is_what_torch_gives(seed: int, context: str) -> None:
    known: dict[str, KnownResult] = {}
    want = evaluated(FakeTensorMode(shape_env=ShapeEnv()), seed, CONTEXTS[context]())
    for _ in range(2):
        mode = RememberingFakeMode(known=known, shape_env=ShapeEnv())
        assert evaluated(mode, seed, CONTEXTS[context]()) == want
    assert known


def test_what_another_mode_remembers_is_not_computed(monkeypatch: Any) -> None:
    asked = []
    plain = FakeTensorMode.dispatch

    def dispatch(self: Any, func: Any, *rest: Any) -> Any:
        asked.append(func)
        return plain(self, func, *rest)

    known: dict[str, KnownResult] = {}
    monkeypatch.setattr(FakeTensorMode, "dispatch", dispatch)
    for _ in range(2):
        asked.clear()
        with RememberingFakeMode(known=known, shape_env=ShapeEnv()):
            x = torch.ones(2, 3)
            (x * x).t().add_(1).sort(0)
    assert not {torch.ops.aten.mul.Tensor, torch.ops.aten.sort.default} & set(asked)


def test_what_only_backward_asked_is_checked_in_another_mode() -> None:
    """Formulas of gradients may call what the program may not; its call is refused as ever."""

    def refuse(func: Any, args: Any, kwargs: Any) -> None:
        if func is torch.ops.aten.neg.default:
            raise NotImplementedError(func)

    known: dict[str, KnownResult] = {}
    with RememberingFakeMode(refuse, known, shape_env=ShapeEnv()):
        x = torch.ones(3, requires_grad=True)
        torch.autograd.grad(x.cos().sum(), x)
    with (
        RememberingFakeMode(refuse, known, shape_env=ShapeEnv()),
        pytest.raises(NotImplementedError),
    ):
        torch.ones(3).neg()


def test_an_operator_runs_once_for_operands_that_look_alike(monkeypatch: Any) -> None:
    asked = []
    plain = FakeTensorMode.dispatch

    def dispatch(self: Any, func: Any, *rest: Any) -> Any:
        asked.append(func)
        return plain(self, func, *rest)

    monkeypatch.setattr(FakeTensorMode, "dispatch", dispatch)
    with RememberingFakeMode(shape_env=ShapeEnv()):
        x, y = torch.ones(2, 3), torch.ones(2, 3)
        asked.clear()
        for _ in range(3):
            (x * y).t().add_(1)
            torch.ops.aten._unsafe_view(x * y, [6])
    asked = [operator for operator in asked if operator.namespace == "aten"]
    assert torch.ops.aten.mul.Tensor in asked
    assert len(asked) == len(set(asked))


def test_appending_to_an_empty_literal_runs_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[Any, int] = {}
    plain = FakeTensorMode.dispatch

    def dispatch(self: Any, func: Any, *rest: Any) -> Any:
        asked[func] = asked.get(func, 0) + 1
        return plain(self, func, *rest)

    monkeypatch.setattr(FakeTensorMode, "dispatch", dispatch)
    with RememberingFakeMode(shape_env=ShapeEnv()):
        x = torch.ones(2, 3)
        for _ in range(3):
            torch.cat([torch.tensor([]), x])
        for number in (2.0, 3.0, 2.0):
            torch.cat([torch.tensor([number]), x.flatten()])
    assert asked[torch.ops.aten.cat.default] == 3
    assert torch.ops.aten.lift_fresh.default not in asked


def test_conversions_of_known_numbers_run_once_and_have_values_of_their_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An optimizer converts the step count of each parameter, and reads it."""
    asked = []
    plain = FakeTensorMode.dispatch

    def dispatch(self: Any, func: Any, *rest: Any) -> Any:
        asked.append(func)
        return plain(self, func, *rest)

    monkeypatch.setattr(FakeTensorMode, "dispatch", dispatch)
    with RememberingFakeMode(shape_env=ShapeEnv()):
        numbers = [torch.tensor(value) for value in (1.5, -2.75, 300.0)]
        converted = [number.double() for number in numbers]
        whole = [number.to(torch.int32) for number in numbers]
        converted[0].add_(1)
        assert [number.item() for number in numbers] == [1.5, -2.75, 300.0]
        assert [number.item() for number in converted] == [2.5, -2.75, 300.0]
        assert [number.item() for number in whole] == [1, -2, 300]
    assert asked.count(torch.ops.aten._to_copy.default) == 2


def test_a_default_dtype_makes_another_result() -> None:
    with RememberingFakeMode(shape_env=ShapeEnv()):
        first = torch.ones(2, dtype=torch.int64) / 2
        torch.set_default_dtype(torch.float64)
        try:
            second = torch.ones(2, dtype=torch.int64) / 2
        finally:
            torch.set_default_dtype(torch.float32)
    assert (first.dtype, second.dtype) == (torch.float32, torch.float64)


def test_symbols_are_told_apart() -> None:
    mode = RememberingFakeMode(shape_env=ShapeEnv())
    x, y = (mode.from_tensor(torch.ones(n, 3), static_shapes=False) for n in (4, 5))
    with mode:
        sums = [x + 1, y + 1]
    assert [str(s.shape[0]) for s in sums] == [str(v.shape[0]) for v in (x, y)]


def test_a_part_of_fixed_size_of_what_has_a_symbolic_one_is_viewed() -> None:
    mode = RememberingFakeMode(shape_env=ShapeEnv())
    context = StatelessSymbolicContext([DimDynamic.DYNAMIC, DimDynamic.STATIC])
    x = mode.from_tensor(torch.ones(5, 3), symbolic_context=context)
    with mode:
        row = x.as_strided((4,), (1,))
        views = [row.view(2, 2), row.view(2, 2), row.view(4, 1)]
    assert [tuple(view.shape) for view in views] == [(2, 2), (2, 2), (4, 1)]


WRITES_AND_PARTS: dict[str, Callable[[Tensor, Any], Tensor]] = {
    "copy": lambda x, n: x.copy_(torch.ones(x.shape[1:])),
    "copy of its own size": lambda x, n: x.copy_(x + 1),
    "a row": lambda x, n: torch.select_scatter(x, x[0], 0, 1),
    "rows": lambda x, n: torch.slice_scatter(x, x[1:], 0, 1),
    "from": lambda x, n: x[2:],
    "up to": lambda x, n: x[: n // 2],
    "up to a half, written": lambda x, n: x[: n // 2].copy_(torch.ones(x.shape[1:])),
    "from a half": lambda x, n: x[n // 2 :],
    "behind the end": lambda x, n: x[n + 1 :],
    "between": lambda x, n: x[n - 2 : n - 1],
    "but the last": lambda x, n: x[:-1],
    "the last two": lambda x, n: x[-2:],
    "every third": lambda x, n: x[1::3],
    "of another dim": lambda x, n: x[:, 1:],
}


@pytest.mark.parametrize("shape", [(1,), (4,), (1, 1), (2, 3)], ids=str)
@pytest.mark.parametrize("name", WRITES_AND_PARTS)
def test_sizes_that_depend_on_data(name: str, shape: tuple[int, ...]) -> None:
    """No guard on the number of rows; for each number sizes and strides are eager's."""
    function = WRITES_AND_PARTS[name]
    environment = ShapeEnv()
    with RememberingFakeMode(shape_env=environment):
        count = environment.create_unbacked_symint()
        torch._check(count >= 2)
        result = function(torch.empty(count, *shape), count)

    def at(extents: Any, number: int) -> tuple[int, ...]:
        symbol = count.node.expr
        expressions = (e.node.expr if isinstance(e, torch.SymInt) else e for e in extents)
        return tuple(int(sympy.sympify(e).subs(symbol, number)) for e in expressions)

    for number in range(2, 9):
        expected = function(torch.empty(number, *shape), number)
        assert at(result.shape, number) == expected.shape
        if expected.numel() > 0:
            assert at(result.stride(), number) == expected.stride()
            assert at([result.storage_offset()], number) == (expected.storage_offset(),)


def test_numbers_without_a_value_leave_torchs_logs_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """To tell where one was made torch imports its exporter, each time a process makes its first."""

    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("logged")

    monkeypatch.setattr(symbolic_shapes, "trace_structured", refuse)
    mode = FakeTensorMode(shape_env=SourcelessShapeEnv())
    assert known_bounds(new_integer(mode, 1, 8)) == (1, 8)
    assert isinstance(new_float(mode), torch.SymFloat)


def test_operators_written_in_python_give_no_gradients_where_none_are_recorded() -> None:
    environment = ShapeEnv()
    mode = RememberingFakeMode(shape_env=environment)
    context = StatelessSymbolicContext(dynamic_sizes=[DimDynamic.DYNAMIC] * 2)
    x = mode.from_tensor(torch.randn(3, 4, requires_grad=True), symbolic_context=context)
    with mode, torch.no_grad():
        padded = torch.nn.functional.pad(x, (1, 2))
    assert not padded.requires_grad
    with mode:
        assert torch.nn.functional.pad(x, (1, 2)).requires_grad
        assert x.requires_grad


@pytest.mark.parametrize("is_set", [False, True])
def test_a_mode_made_without_torchs_compiler_is_as_torchs_own(is_set) -> None:
    """Its constructor is torch's without what loads the compiler's settings."""
    cache = torch._dynamo.config.patch(fake_tensor_cache_enabled=not is_set)
    meta = torch._functorch.config.patch(fake_tensor_allow_meta=not is_set)
    with cache, meta:  # pytest's own patching would leave these settings unknown
        made = FakeModeOnDemand.__new__(FakeModeOnDemand)
        made._begin(static_shapes=True, allow_non_fake_inputs=False)
        expected = vars(FakeTensorMode(static_shapes=True))
    found = vars(made)
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        if isinstance(value, bool | int | str | None):
            assert found[name] == value, name
        assert type(found[name]) is type(value), name


def test_a_shape_environment_is_made_when_it_is_asked_for() -> None:
    on_demand = EnvironmentOnDemand(ShapeEnv)
    mode = RememberingFakeMode(shape_env=on_demand, static_shapes=True)
    with mode:
        (mode.from_tensor(torch.ones(2, 3), static_shapes=True) * torch.ones(3)).sum()
    assert not hasattr(mode, "no_such_attribute")
    environment = mode.shape_env
    assert made_environment(mode) is environment is on_demand.get() is mode.shape_env
    assert made_environment(FakeTensorMode(shape_env=environment)) is environment
    assert made_environment(RememberingFakeMode(shape_env=None)) is None


def leaves() -> Iterator[Tensor]:
    for dtype in (torch.float32, torch.int64, torch.bool, torch.complex64, torch.bfloat16):
        for shape in ((), (0,), (3, 0), (2, 3), (1, 4), (2, 3, 4, 5)):
            yield torch.zeros(shape, dtype=dtype)
    with torch.inference_mode():
        yield torch.zeros(2, 3)
        yield torch.zeros(2, 3).t()
    yield torch.zeros(2, 3).t()
    yield torch.zeros(2, 3)[:, 1:]
    yield torch.zeros(1, 4).as_strided((1, 4), (7, 1))
    yield torch.empty_strided((1, 4), (7, 1))
    yield torch.zeros(2, 3, requires_grad=True)
    yield torch.nn.Parameter(torch.zeros(2, 3))
    yield torch.nn.Parameter(torch.zeros(2, 3), requires_grad=False)
    yield torch.zeros(2, 3, requires_grad=True) * 2
    yield torch.zeros(2, dtype=torch.complex64).conj()
    yield torch.zeros(2, dtype=torch.complex64).conj().imag
    yield torch._efficientzerotensor((2, 3))
    yield torch.zeros(2, 3).to_sparse()
    yield torch.zeros(2, 3, device="meta")
    with_gradient = torch.nn.Parameter(torch.zeros(2, 3))
    with_gradient.grad = torch.zeros(2, 3)
    yield with_gradient


def look(fake: Tensor) -> tuple[Any, ...]:
    is_strided = fake.layout is torch.strided
    return (
        *(type(fake), fake.dtype, fake.device, fake.shape, fake.layout),
        (fake.stride(), fake.storage_offset()) if is_strided else (),
        *(fake.requires_grad, fake.is_leaf, fake.is_inference(), fake._is_view()),
        fake.is_inference() or fake._version,
        *(getattr(fake, "_is_param", False), fake.is_conj(), fake.is_neg()),
        torch._C._dispatch_key_set(fake),
        fake.grad is None,
    )


@pytest.mark.parametrize(
    "around", [nullcontext, torch.no_grad, torch.inference_mode], ids=lambda f: f.__name__
)
def test_fakes_of_inputs_and_leaves_are_torchs(around: Callable[[], Any]) -> None:
    remembering, plain = RememberingFakeMode(shape_env=ShapeEnv()), FakeTensorMode()
    kept = list(leaves())
    for tensor in (*kept, *kept):  # the second time a form, or the fake itself, is known
        with around():
            found = remembering.from_tensor(tensor, static_shapes=True)
            expected = plain.from_tensor(tensor, static_shapes=True)
            assert remembering.from_tensor(tensor, static_shapes=True) is found
        assert look(found) == look(expected), (tensor.dtype, tensor.shape, tensor.stride())


@pytest.mark.parametrize("around", [nullcontext, torch.inference_mode], ids=lambda f: f.__name__)
@pytest.mark.parametrize("offset", [0, 5])
@pytest.mark.parametrize(
    ("shape", "strides"),
    [((), ()), ((0, 3), (3, 1)), ((2, 3), (3, 1)), ((2, 3), (1, 4)), ((4, 4), (0, 1))],
)
def test_new_fakes_of_a_layout_are_torchs(
    shape: tuple[int, ...], strides: tuple[int, ...], offset: int, around: Callable[[], Any]
) -> None:
    layout = FakeLayout(shape, strides, offset, torch.float32, torch.device("cpu"))
    remembering, plain = RememberingFakeMode(shape_env=ShapeEnv()), FakeTensorMode()
    spans = ((n - 1) * s for n, s in zip(shape, strides, strict=True))
    count = offset + (0 if 0 in shape else 1 + sum(spans))
    with around():
        with plain:
            expected = torch.empty(count).as_strided(shape, strides, offset)
            if offset == 0:
                expected = torch.empty_strided(shape, strides)
        for _ in range(2):
            found = remembering.new_fake(layout)
            # a view of nothing that the program has is as good as a tensor, whatever its version
            assert look(found)[:9] + look(found)[11:] == look(expected)[:9] + look(expected)[11:]
            assert found.untyped_storage().nbytes() == expected.untyped_storage().nbytes()
    assert remembering.from_tensor(torch.ones(2)).fake_mode is found.fake_mode


def _calls_again(x: Tensor, y: Tensor) -> list[Tensor]:
    """The same calls several times, of what gives new memory, its operand, a view, or writes."""
    results = []
    norm, sums = torch.nn.functional.batch_norm, [torch.zeros(3), torch.ones(3)]
    for k in range(3):
        z = torch.nn.functional.linear(x, y)
        same, other = z.to(z.dtype), z.to(torch.float64)
        row, copied = z.reshape(-1), z.t().reshape(-1)
        results += [z, same, other, row, copied, z.contiguous(), z.t().contiguous(), z.t()]
        norm(y, *sums, training=True)
        results += [*sums, torch.zeros(2), torch.nn.functional.silu(z), torch.cat([z, z])]
        results += [z.add_(1), torch.add(z, 1, out=torch.empty(4, 4)), torch.tensor(2.0) * 1]
        results += [torch.nn.functional.dropout(z, training=False), z.new_ones(2), z * k, z * 1.0]
        results += [z.clone().t_(), z.unsqueeze(0).squeeze_(0), *torch.topk(z, 2)]
    return results


@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode, nullcontext])
def test_repeated_calls_give_what_they_gave(
    context: Callable[[], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a captured graph, beside one whose calls are evaluated each time: layouts, sharing, versions."""
    given = torch.randn(4, 3), torch.randn(4, 3)
    evaluated = []
    plain = RepeatedCalls.result

    def counted(self: Any, kind: str, target: Any, *rest: Any) -> Any:
        *arguments, evaluate = rest
        return plain(self, kind, target, *arguments, lambda: (evaluated.append(1), evaluate())[1])

    def always(self: Any, kind: str, target: Any, *rest: Any) -> Any:
        evaluated.append(1)
        return rest[-1]()

    found, counts = [], []
    for result in (counted, always):
        evaluated.clear()
        monkeypatch.setattr(RepeatedCalls, "result", result)
        with context():
            (graph,) = capture(_calls_again)(*given).graphs
        values = [node.meta.get("example_value") for node in graph.graph_module.graph.nodes]
        fakes = [
            leaf
            for value in values
            for leaf in pytree.tree_leaves(value)
            if isinstance(leaf, Tensor)
        ]
        found.append(described(fakes, fakes))
        counts.append(len(evaluated))
    assert found[0] == found[1]
    assert (counts[0] < counts[1]) == (context is not nullcontext)
