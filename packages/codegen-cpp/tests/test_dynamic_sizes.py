"""One program for all sizes: compiled once from symbolic sizes, called with many, beside eager."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch
import weft_loop_ir
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext
from torch.nn import functional as F
from weft_codegen_cpp import CppCodegen

Function = Callable[..., object]
R = torch.randn
SIZES = (
    (3, 5, 7),
    (2, 16, 33),
    (4, 3, 1),
    (1, 9, 2),
    (5, 64, 130),
    (1, 1, 1),
    (0, 4, 3),
    (2, 1, 17),
)

# A graph of torch 2.11 holds the sizes that it was traced with: its matmul asks for them as numbers.
TORCH_SPECIALISES_MATMUL = torch.__version__ < "2.12"


def schedule_of(function: Function, inputs: Sequence[torch.Tensor]) -> weft_loop_ir.Schedule:
    """The schedule of ``function`` with a symbol for every size, which may be 0 or 1 too."""
    environment = ShapeEnv(specialize_zero_one=False, duck_shape=False)
    mode = FakeTensorMode(shape_env=environment, allow_non_fake_inputs=True)
    fakes = [
        mode.from_tensor(
            x,
            symbolic_context=StatelessSymbolicContext(dynamic_sizes=[DimDynamic.DYNAMIC] * x.dim()),
        )
        for x in inputs
    ]
    with mode, torch.no_grad():
        graph = make_fx(function)(*fakes)
    if TORCH_SPECIALISES_MATMUL and environment.replacements:
        pytest.skip("this torch takes sizes of a matrix product as constants")
    schedule = weft_loop_ir.schedule(weft_loop_ir.lower(graph))
    weft_loop_ir.verify(schedule)
    return schedule


def check(
    program: Callable[..., tuple[object, ...]], function: Function, *inputs: torch.Tensor
) -> None:
    wanted = function(*inputs)
    results = program(*inputs)
    expected = wanted if isinstance(wanted, tuple) else (wanted,)
    for got, want in zip(results, expected, strict=True):
        if not isinstance(want, torch.Tensor):
            assert got == want
            continue
        torch.testing.assert_close(got, want, rtol=2e-5, atol=2e-5, equal_nan=True)
        if want.numel() > 1:
            pairs = zip(got.stride(), want.stride(), want.shape, strict=True)
            assert all(n == 1 or a == b for a, b, n in pairs)


CUBES: dict[str, Function] = {
    "pointwise": lambda x: F.gelu(x * 2 + 1) * x,
    "softmax and layer norm": lambda x: F.layer_norm(x.softmax(-1), x.shape[-1:]),
    "transposed": lambda x: x.transpose(1, 2).flatten(1) + 1,
    "slices": lambda x: x[:, 1:] * x[:, :-1],
    "concatenation": lambda x: torch.cat([x, x * 2], 1).sum(1),
    "positions": lambda x: torch.arange(x.shape[2]) + x.flip(0),
    "matmul": lambda x: (x @ x.transpose(1, 2)).mean((0, 2)),
    "variance": lambda x: x.var(-1),
    "sums": lambda x: (x.sum(0), x.sum(), x.mean(-1), (x > 0).any(1)),
    "numbers of sizes": lambda x: (x * x.shape[2] ** -0.5, x / x.shape[1], x + x.numel()),
    "sizes returned": lambda x: (x + 1, x.shape[1] * 2 + x.shape[0]),
    "stored and read again": lambda x: (
        (x.exp() @ x.transpose(1, 2)).relu().sum(1, keepdim=True) + 1
    ),
    "rolled": lambda x: x.roll(x.shape[1] // 2, 1) + 1,
    "masked": lambda x: x.masked_fill(torch.ones_like(x, dtype=torch.bool).tril(), 0.0),
}


@pytest.mark.parametrize("name", CUBES)
def test_one_program_serves_every_size(codegen: CppCodegen, name: str) -> None:
    function = CUBES[name]
    program = codegen.compile(schedule_of(function, [R(3, 5, 7)]), {})
    for size in SIZES:
        check(program, function, R(size))


def test_sizes_of_several_inputs(codegen: CppCodegen) -> None:
    def function(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return F.layer_norm(F.relu(F.linear(x, w, b)), b.shape)

    def inputs(rows: int, taken: int, given: int) -> tuple[torch.Tensor, ...]:
        return R(rows, taken), R(given, taken), R(given)

    program = codegen.compile(schedule_of(function, inputs(3, 5, 7)), {})
    for sizes in ((3, 5, 7), (1, 8, 64), (40, 2, 3), (16, 33, 100)):
        check(program, function, *inputs(*sizes))


def test_a_library_call_with_a_number_of_a_size(codegen: CppCodegen) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.ops.aten.renorm.default(x, 2.0, 0, x.shape[1] ** 0.5) + 1

    program = codegen.compile(schedule_of(function, [R(3, 5)]), {})
    for size in ((3, 5), (8, 17), (2, 2)):
        check(program, function, R(size) * 5)


def test_images_of_any_size(codegen: CppCodegen) -> None:
    def function(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return F.max_pool2d(F.relu(F.group_norm(F.conv2d(x, w, padding=1), 2)), 2)

    weight = R(4, 3, 3, 3)
    program = codegen.compile(schedule_of(function, [R(2, 3, 8, 10), weight]), {})
    for size in ((2, 3, 8, 10), (1, 3, 16, 16), (3, 3, 33, 12)):
        check(program, function, R(size), weight)


def test_half_precision(codegen: CppCodegen) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return (x.softmax(-1) * x).sum(0)

    program = codegen.compile(schedule_of(function, [R(3, 5).bfloat16()]), {})
    for size in ((3, 5), (7, 70), (1, 33)):
        x = R(size).bfloat16()
        torch.testing.assert_close(program(x)[0], function(x), rtol=2e-2, atol=2e-2)


def test_strides_of_inputs_may_be_symbolic(codegen: CppCodegen) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return (x.exp() @ x.t()).sum(0) + 1

    program = codegen.compile(schedule_of(function, [R(4, 9)[:, :5]]), {})
    for rows, columns, taken in ((4, 9, 5), (3, 40, 2), (70, 80, 33)):
        check(program, function, R(rows, columns)[:, :taken] / 9)
