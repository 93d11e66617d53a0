"""The host program: extern calls, constants, results, the arena, threads, errors, the disk cache."""

from __future__ import annotations

import gc
import platform
import threading
import weakref
from pathlib import Path
from typing import Any

import pytest
import sympy
import torch
from building import Builder, exprs, i, r
from weft_codegen_cpp import (
    CodegenError,
    CompileError,
    CompilerNotFound,
    CppCodegen,
    CppOptions,
    Unsupported,
)
from weft_codegen_cpp.cache import cached_library, library_key
from weft_codegen_cpp.toolchain import find_toolchain
from weft_loop_ir import BufferKind, BufferView, SymbolInput

F32 = torch.float32
aten = torch.ops.aten
ZERO = sympy.S.Zero


def pointwise(b: Builder, source: str, target: str, operation: str) -> None:
    rank = len(b.buffers[source].layout.size)
    at = [i(k) for k in range(rank)]
    b.kernel(
        b.buffers[source].layout.size,
        [
            (
                [],
                lambda o: o.store(
                    target, b.at(target, at), o.record(operation, o.load(source, b.at(source, at)))
                ),
            )
        ],
    )


def exp_builder(count: int = 10) -> Builder:
    b = Builder()
    b.buffer("x", BufferKind.INPUT, [count], F32)
    b.buffer("y", BufferKind.OUTPUT, [count], F32)
    pointwise(b, "x", "y", "exp")
    return b


def linear_builder(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> Builder:
    """relu(linear(x)) with the product in the arena."""
    rows, columns = x.shape[0], weight.shape[0]
    b = Builder()
    b.like("x", x)
    b.like("w", weight, BufferKind.CONSTANT)
    b.like("b", bias, BufferKind.CONSTANT)
    b.intermediate("t", [rows, columns], F32)
    b.buffer("y", BufferKind.OUTPUT, [rows, columns], F32)
    transposed = BufferView("w", exprs(weight.t().shape), exprs(weight.t().stride()), ZERO, F32)
    arguments = [b.view("b"), b.view("x"), transposed]
    b.extern(aten.addmm.default, arguments, ["t"], out_variant=aten.addmm.out)
    pointwise(b, "t", "y", "relu")
    return b


def test_linear_reads_constants_at_each_call(codegen: CppCodegen) -> None:
    x, weight, bias = torch.randn(6, 12), torch.randn(9, 12), torch.randn(9)
    program = codegen.compile(linear_builder(x, weight, bias).schedule(), {"w": weight, "b": bias})
    assert (program.kernel_count, program.extern_count) == (1, 1)
    for _ in range(3):
        torch.testing.assert_close(program(x)[0], torch.relu(x @ weight.t() + bias))
        weight.mul_(-0.5)
    weight.data = torch.randn(9, 12)
    torch.testing.assert_close(program(x)[0], torch.relu(x @ weight.t() + bias))


def test_parameters_that_need_gradients(codegen: CppCodegen) -> None:
    layer = torch.nn.Linear(12, 9)
    x = torch.randn(6, 12, requires_grad=True)
    constants = {"w": layer.weight, "b": layer.bias}
    program = codegen.compile(linear_builder(x, layer.weight, layer.bias).schedule(), constants)
    (got,) = program(x)
    assert not got.requires_grad
    assert torch.is_grad_enabled()
    torch.testing.assert_close(got, layer(x).relu().detach())
    with torch.inference_mode():
        assert torch.equal(program(x)[0], got)
    assert torch.equal(program(x)[0], got)


CONTRACTIONS: dict[str, tuple[Any, Any, tuple[Any, ...], dict[str, Any]]] = {
    "mm": (aten.mm.default, aten.mm.out, (torch.randn(3, 4), torch.randn(4, 5)), {}),
    "bmm": (aten.bmm.default, aten.bmm.out, (torch.randn(2, 3, 4), torch.randn(2, 4, 5)), {}),
    "addmm": (
        aten.addmm.default,
        aten.addmm.out,
        (torch.randn(5), torch.randn(3, 4), torch.randn(4, 5)),
        {"beta": 0.5, "alpha": 2},
    ),
    "baddbmm": (
        aten.baddbmm.default,
        aten.baddbmm.out,
        (torch.randn(2, 3, 5), torch.randn(2, 3, 4), torch.randn(2, 4, 5)),
        {},
    ),
    "convolution": (
        aten.convolution.default,
        None,
        (
            *(torch.randn(2, 3, 8, 8), torch.randn(4, 3, 3, 3), torch.randn(4)),
            *([1, 1],) * 3,
            False,
            [0, 0],
            1,
        ),
        {},
    ),
    "convolution without bias": (
        aten.convolution.default,
        None,
        (torch.randn(2, 4, 9), torch.randn(4, 2, 3), None, [2], [1], [1], False, [0], 2),
        {},
    ),
    "attention": (
        aten._scaled_dot_product_flash_attention_for_cpu.default,
        None,
        (*(torch.randn(2, 3, 8, 16) for _ in range(3)), 0.0, True),
        {"scale": 0.3},
    ),
    "cumsum": (aten.cumsum.default, None, (torch.randn(3, 7), 1), {}),
    "cumsum into memory": (aten.cumsum.default, aten.cumsum.out, (torch.randn(3, 7), 1), {}),
    "sort": (aten.sort.default, None, (torch.randn(3, 7), -1), {}),
    "cat": (aten.cat.default, None, ([torch.randn(3, 7), torch.randn(2, 7)],), {}),
    "alias": (aten.alias.default, None, (torch.randn(3, 7),), {}),
    "complex": (aten.view_as_complex.default, None, (torch.randn(3, 2),), {}),
    "argsort": (aten.argsort.default, None, (torch.randn(3, 7),), {"descending": True}),
}


@pytest.mark.parametrize("name", CONTRACTIONS)
@pytest.mark.parametrize("kept", [BufferKind.OUTPUT, BufferKind.INTERMEDIATE])
def test_extern_calls(codegen: CppCodegen, name: str, kept: BufferKind) -> None:
    operator, out_variant, arguments, keywords = CONTRACTIONS[name]
    b = Builder()
    inputs: list[torch.Tensor] = []

    def taken(argument: Any) -> Any:
        if isinstance(argument, torch.Tensor):
            buffer = b.like(f"x{len(inputs)}", argument)
            inputs.append(argument)
            return b.view(buffer)
        if isinstance(argument, list):
            return [taken(a) for a in argument]
        return argument

    passed = [taken(a) for a in arguments]
    want = operator(*arguments, **keywords)
    want = want if isinstance(want, tuple) else (want,)
    if kept is BufferKind.INTERMEDIATE and want[0].dtype != F32:
        pytest.skip("the second kernel is written for float32")
    names = []
    for k, tensor in enumerate(want):
        names.append(f"t{k}")
        b.buffer(f"t{k}", kept, tensor.shape, tensor.dtype, tensor.stride())
        if kept is BufferKind.INTERMEDIATE and out_variant is not None:
            b.offsets[f"t{k}"] = sympy.Integer(b.arena)
            b.arena += 4096
    b.extern(operator, passed, names, keywords, out_variant)
    if kept is BufferKind.INTERMEDIATE:
        b.buffer("y", BufferKind.OUTPUT, want[0].shape, F32)
        pointwise(b, "t0", "y", "neg")
        want = (-want[0],)
    program = codegen.compile(b.schedule(), {})
    for _ in range(2):
        got = program(*inputs)
        assert len(got) == len(want)
        for g, w in zip(got, want, strict=True):
            torch.testing.assert_close(g, w)
            assert g.stride() == w.stride()
            assert all(g.data_ptr() != x.data_ptr() for x in inputs)


def test_an_operators_own_error(codegen: CppCodegen) -> None:
    """An error of an operator called through Python is eager's; of a native one it names the operator."""
    b = Builder()
    b.buffer("x", BufferKind.INPUT, [3], torch.int64)
    b.buffer("t", BufferKind.OUTPUT, [3, 4], torch.int64)
    b.extern(aten.one_hot.default, [b.view("x"), 4], ["t"])
    program = codegen.compile(b.schedule(), {})
    assert torch.equal(program(torch.tensor([0, 3, 1]))[0][1], torch.tensor([0, 0, 0, 1]))
    with pytest.raises(RuntimeError, match="Class values must be"):
        program(torch.tensor([0, 9, 1]))

    b = Builder()
    for name, size in (("x", [3, 4]), ("w", [5, 6])):
        b.buffer(name, BufferKind.INPUT, size, F32)
    b.buffer("t", BufferKind.OUTPUT, [3, 6], F32)
    b.extern(aten.mm.default, [b.view("x"), b.view("w")], ["t"], out_variant=aten.mm.out)
    with pytest.raises(RuntimeError, match=r"aten\.mm\.default"):
        codegen.compile(b.schedule(), {})(torch.randn(3, 4), torch.randn(5, 6))


def test_results(codegen: CppCodegen) -> None:
    """Inputs, views of inputs, repeated results, integers and constants."""
    n = sympy.Symbol("n", integer=True, nonnegative=True)
    s = sympy.Symbol("s", integer=True, nonnegative=True)
    b = Builder()
    b.buffer("x", BufferKind.INPUT, [n, 4], F32)
    b.inputs.append(SymbolInput(s, None, 0, 1))
    b.symbols += [SymbolInput(n, "x", 0, 0), b.inputs[-1]]
    b.buffer("y", BufferKind.OUTPUT, [n, 4], F32)
    pointwise(b, "x", "y", "exp")
    b.outputs += [b.view("y"), b.view("x"), n * 2 + s, 7, None, True, 0.5]
    b.outputs.append(BufferView("x", exprs([4, n]), exprs([1, 4]), ZERO, F32))
    b.outputs.append(BufferView("y", (n, sympy.Integer(2)), exprs([4, 1]), sympy.Integer(2), F32))
    program = codegen.compile(b.schedule(), {})
    for size in (5, 0, 33):
        whole = torch.randn(size + 1, 4)
        x = whole[1:]  # its elements begin inside its storage
        got = program(x, 3)
        torch.testing.assert_close(got[0], x.exp())
        assert got[1] is got[0]
        assert got[2] is x
        assert got[3:8] == (size * 2 + 3, 7, None, True, 0.5)
        assert torch.equal(got[8], x.t())
        assert got[8].untyped_storage().data_ptr() == x.untyped_storage().data_ptr()
        assert torch.equal(got[9], got[0][:, 2:])


def test_symbolic_arena_and_extern(codegen: CppCodegen) -> None:
    n = sympy.Symbol("n", integer=True, nonnegative=True)
    b = Builder()
    b.buffer("x", BufferKind.INPUT, [n, 6], F32)
    b.buffer("w", BufferKind.INPUT, [6, 6], F32)
    b.buffer("t", BufferKind.INTERMEDIATE, [n, 6], F32)
    b.buffer("u", BufferKind.INTERMEDIATE, [n, 6], F32)
    b.buffer("y", BufferKind.OUTPUT, [n * 6], F32)
    b.symbols.append(SymbolInput(n, "x", 0, 0))
    b.offsets = {"t": ZERO, "u": 24 * n + 64}
    b.arena = 48 * n + 128
    b.extern(aten.mm.default, [b.view("x"), b.view("w")], ["t"], out_variant=aten.mm.out)
    pointwise(b, "t", "u", "exp")
    flat = BufferView("u", (n * 6,), exprs([1]), ZERO, F32)
    b.extern(aten.cumsum.default, [flat, 0], ["y"])
    schedule = b.schedule()
    program = codegen.compile(schedule, {})
    weight = torch.randn(6, 6) / 6
    for size in (4, 50, 1, 0, 51):
        x = torch.randn(size, 6)
        torch.testing.assert_close(program(x, weight)[0], (x @ weight).exp().flatten().cumsum(0))


def test_threads_at_once(cache: Path) -> None:
    """Calls that overlap work on frames of their own."""
    weight, bias = torch.randn(64, 64), torch.randn(64)
    example = torch.randn(32, 64)
    codegen = CppCodegen(CppOptions(cache_directory=cache))
    schedule = linear_builder(example, weight, bias).schedule()
    program = codegen.compile(schedule, {"w": weight, "b": bias})
    failures: list[str] = []

    def work(seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        for _ in range(100):
            x = torch.randn(32, 64, generator=generator)
            if not torch.allclose(program(x)[0], torch.relu(x @ weight.t() + bias), atol=1e-4):
                failures.append(f"thread {seed}")

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_parallel_kernels_agree_with_serial(cache: Path) -> None:
    x = torch.randn(300, 1001)
    before = torch.get_num_threads()
    results = []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            b = Builder()
            b.like("x", x)
            b.buffer("y", BufferKind.OUTPUT, x.shape, F32)
            b.buffer("z", BufferKind.OUTPUT, [1001], F32)
            pointwise(b, "x", "y", "tanh")
            b.kernel(
                [1001],
                [([300], lambda o, b=b: o.store(
                    "z", i(0), o.reduction("sum", F32, o.load("x", b.at("x", [r(0), i(0)])))
                ))],
            )  # fmt: skip
            results.append(
                CppCodegen(CppOptions(cache_directory=cache)).compile(b.schedule(), {})(x)
            )
    finally:
        torch.set_num_threads(before)
    for y, z in results:
        assert torch.equal(y, results[0][0])
        assert torch.equal(z, results[0][1])


def test_wrong_inputs(codegen: CppCodegen) -> None:
    program = codegen.compile(exp_builder().schedule(), {})
    with pytest.raises(TypeError, match="takes 1 inputs"):
        program()
    with pytest.raises(TypeError, match="input 0 must be a tensor"):
        program(3)


def test_a_program_lets_go_of_its_constants(codegen: CppCodegen) -> None:
    x, weight, bias = torch.randn(6, 12), torch.randn(9, 12), torch.randn(9)
    program = codegen.compile(linear_builder(x, weight, bias).schedule(), {"w": weight, "b": bias})
    (result,) = program(x)
    gone = weakref.ref(weight)
    del program, weight
    gc.collect()
    assert gone() is None
    assert result.isfinite().all()


def test_source_names_the_origins(codegen: CppCodegen) -> None:
    b = exp_builder()
    source = codegen.compile(b.schedule(), {}).source
    assert "// kernel0: test0" in source
    assert "exp(" in source


def test_cache(tmp_path: Path) -> None:
    """A second program of equal source is not compiled; a damaged library is."""
    options = CppOptions(cache_directory=tmp_path, keep_sources=True)
    schedule = exp_builder(123).schedule()
    x = torch.randn(123)
    torch.testing.assert_close(CppCodegen(options).compile(schedule, {})(x)[0], x.exp())
    (library,) = tmp_path.glob("*.so")
    (source,) = tmp_path.glob("*.cpp")
    assert "kernel0" in source.read_text()
    made = library.stat().st_mtime_ns
    CppCodegen(options).compile(schedule, {})
    assert library.stat().st_mtime_ns == made


def test_a_damaged_cache_entry_is_rebuilt(tmp_path: Path) -> None:
    toolchain = find_toolchain(CppOptions())
    source = 'extern "C" int answer() { return 42; }\n'
    key = library_key(source, toolchain)
    library = cached_library(tmp_path, key, source, toolchain.compile, False)
    good = library.read_bytes()
    for damage in (b"", good[:100], b"x" * len(good)):
        library.write_bytes(damage)
        assert cached_library(tmp_path, key, source, toolchain.compile, False).read_bytes() == good
    library.unlink()
    assert cached_library(tmp_path, key, source, toolchain.compile, False).exists()
    assert not list(tmp_path.glob("*.cpp"))


def test_no_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    with pytest.raises(CompilerNotFound, match=r"No C\+\+ compiler was found .* install g\+\+"):
        CppCodegen(CppOptions(cache_directory=tmp_path)).compile(exp_builder().schedule(), {})


def test_a_compiler_error_reports_everything(tmp_path: Path) -> None:
    options = CppOptions(cache_directory=tmp_path, architecture="no-such-machine")
    with pytest.raises(CompileError) as caught:
        CppCodegen(options).compile(exp_builder().schedule(), {})
    message = str(caught.value)
    assert "-march=no-such-machine" in message
    assert "no-such-machine" in caught.value.stderr
    assert Path(caught.value.source_path).exists()


def test_what_has_no_form_is_refused(codegen: CppCodegen) -> None:
    b = exp_builder()
    b.buffer("c", BufferKind.CONSTANT, [3], F32)
    with pytest.raises(CodegenError, match="constant c is not bound"):
        codegen.compile(b.schedule(), {})
    b = exp_builder()
    b.steps.append("a loop region")
    with pytest.raises(Unsupported, match="a step: of type str"):
        codegen.compile(b.schedule(), {})


@pytest.mark.parametrize(("architecture", "lanes"), [("x86-64-v3", 8), ("x86-64", 4)])
def test_other_instruction_sets(tmp_path: Path, architecture: str, lanes: int) -> None:
    if platform.machine() != "x86_64":
        pytest.skip("names of x86 instruction sets")
    options = CppOptions(cache_directory=tmp_path, architecture=architecture, lanes=lanes)
    b = Builder()
    b.buffer("x", BufferKind.INPUT, [3, 37], F32)
    b.buffer("h", BufferKind.INPUT, [3, 37], torch.float16)
    for operation in ("exp", "log", "tanh", "erf", "sin", "floor", "sqrt"):
        b.buffer(f"y_{operation}", BufferKind.OUTPUT, [3, 37], F32)
        pointwise(b, "x", f"y_{operation}", operation)
    b.buffer("z", BufferKind.OUTPUT, [3, 37], torch.bfloat16)
    at = [i(0), i(1)]
    b.kernel(
        [3, 37],
        [([], lambda o: o.store("z", b.at("z", at), o.to_dtype(
            o.to_dtype(o.load("h", b.at("h", at)), F32), torch.bfloat16)))],
    )  # fmt: skip
    x, h = torch.rand(3, 37) * 3, torch.randn(3, 37).half()
    *got, z = CppCodegen(options).compile(b.schedule(), {})(x, h)
    for operation, value in zip(
        ("exp", "log", "tanh", "erf", "sin", "floor", "sqrt"), got, strict=True
    ):
        torch.testing.assert_close(value, getattr(torch, operation)(x), rtol=5e-7, atol=1e-7)
    assert torch.equal(z, h.to(torch.bfloat16))


def test_several_compilers_make_one_library(tmp_path: Path) -> None:
    b = Builder()
    x = torch.randn(77)
    b.like("x", x)
    functions = ("exp", "sin", "tanh", "erf")
    for name in functions:
        b.buffer(name, BufferKind.OUTPUT, x.shape, F32)
        pointwise(b, "x", name, name)
    options = CppOptions(cache_directory=tmp_path, processes=3)
    results = CppCodegen(options).compile(b.schedule(), {})(x)
    for name, result in zip(functions, results, strict=True):
        torch.testing.assert_close(result, getattr(torch, name)(x))
    assert len(list(tmp_path.glob("*.so"))) == 1
    assert not list(tmp_path.glob("*.cpp")) and not list(tmp_path.glob("*.o"))


def test_an_error_of_one_of_several_compilers_names_its_source(tmp_path: Path) -> None:
    toolchain = find_toolchain(CppOptions())
    units = ("int good() { return 1; }\n", "int bad( { return 2; }\n")
    with pytest.raises(CompileError, match=r"bad\("):
        toolchain.compile(tmp_path / "unit.cpp", tmp_path / "unit.so", units=units)
    assert "bad" in (tmp_path / "unit.1.cpp").read_text()
    assert not list(tmp_path.glob("*.o"))
