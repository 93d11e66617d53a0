"""Bad arguments of ``weft.compile`` give torch.compile's errors."""

import importlib.metadata
import os
from pathlib import Path
from typing import Any

import pytest
import torch
import weft
from weft.options import MODES, resolve_options
from weft.registry import codegens, find_codegen, stage_folders
from weft_codegen_cpp import CppCodegen
from weft_codegen_triton import TritonCodegen, TritonOptions


def add_one(x: torch.Tensor) -> torch.Tensor:
    return x + 1


def test_unknown_mode() -> None:
    with pytest.raises(RuntimeError, match="Unrecognized mode=fast"):
        weft.compile(add_one, mode="fast")


def test_mode_and_options() -> None:
    with pytest.raises(RuntimeError, match="both can't be specified at the same time"):
        weft.compile(add_one, mode="default", options={"recompile_limit": 2})


def test_unknown_option() -> None:
    with pytest.raises(RuntimeError, match="Unexpected optimization option bogus, known options"):
        weft.compile(add_one, options={"bogus": 1})


def test_option_of_the_wrong_type() -> None:
    with pytest.raises(RuntimeError, match="Unexpected type of attr recompile_limit, got str"):
        weft.compile(add_one, options={"recompile_limit": "8"})
    with pytest.raises(TypeError, match="options must be a mapping of names, got list"):
        weft.compile(add_one, options=["freezing"])


def test_numerics_are_checked() -> None:
    with pytest.raises(
        RuntimeError, match="Unrecognized numerics=exact, should be one of: fast, eager"
    ):
        weft.compile(add_one, numerics="exact")  # type: ignore[call-overload]
    with pytest.raises(RuntimeError, match="freezing changes bits"):
        weft.compile(add_one, numerics="eager", options={"freezing": True})
    options = resolve_options("max-autotune", None, numerics="eager")
    assert (options.mode, options.numerics) == ("max-autotune", "eager")


def test_numerics_never_share_a_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither in a process, nor by the cache on disk, whichever is compiled first."""
    monkeypatch.setenv("WEFT_CACHE_DIR", str(tmp_path))
    x = torch.randn(64, 67)

    def spread(x: torch.Tensor) -> torch.Tensor:
        return (x - x.mean(-1, keepdim=True)).exp().sum(-1)

    expected = spread(x)
    with torch.no_grad():
        for _ in range(2):
            fast = weft.compile(spread, options={"verify": False})(x)
            eager = weft.compile(spread, numerics="eager", options={"verify": False})(x)
            assert torch.equal(eager, expected)
            assert not torch.equal(fast, expected)
            weft.reset()
    assert len(list(tmp_path.glob("programs/*.program"))) == 2


class _OwnNumbers(CppCodegen):
    def with_eager_numerics(self) -> "_OwnNumbers":
        return super(CppCodegen, self).with_eager_numerics()


def test_a_code_generator_without_eager_numerics(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its graphs run eagerly, which is what was asked for, or raise."""
    monkeypatch.setitem(codegens, "cpu", _OwnNumbers)
    x = torch.randn(8)
    with pytest.warns(weft.WeftWarning, match="eager numerics"):
        result = weft.compile(
            lambda x: x.exp() + 1, numerics="eager", options={"strict": False, "verify": False}
        )(x)
    assert torch.equal(result, x.exp() + 1)


def test_the_limit_of_caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is kept in every cache, is no part of what programs depend on, and wins over the variable."""
    monkeypatch.setenv("WEFT_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("WEFT_CACHE_LIMIT", "0")
    x = torch.randn(3)

    def call(number: int, limit: int | None) -> None:
        options = {"cache_limit": limit, "verify": False}
        weft.compile(lambda x: x + number, options=options)(x)
        for path in tmp_path.glob("*/*"):
            os.utime(path, (1000 + number, 1000 + number))

    def kept() -> list[int]:
        return [len(list(tmp_path.glob(name))) for name in ("cpp/*.so", "programs/*.program")]

    for number in range(3):
        call(number, None)
    assert kept() == [3, 3]
    for number in range(3):
        call(number, 1 << 30)
    assert kept() == [3, 3]
    call(3, 1)
    assert kept() == [1, 1]


@pytest.mark.parametrize("limit", [-1, "2G", 1.5, True])
def test_bad_limits(limit: object) -> None:
    with pytest.raises(RuntimeError, match="of attr cache_limit"):
        weft.compile(add_one, options={"cache_limit": limit})


def test_unknown_backend() -> None:
    with pytest.raises(RuntimeError, match="Invalid backend: 'bogus', known backends are"):
        weft.compile(add_one, backend="bogus")


def test_not_callable() -> None:
    with pytest.raises(TypeError, match="takes a callable"):
        weft.compile(3)


def test_disable_gives_the_function_itself() -> None:
    assert weft.compile(add_one, disable=True) is add_one


@pytest.mark.parametrize("mode", MODES)
def test_modes(mode: str) -> None:
    x = torch.randn(3)
    assert torch.equal(weft.compile(add_one, mode=mode)(x), x + 1)


def test_decorator_forms() -> None:
    @weft.compile
    def plain(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    @weft.compile(fullgraph=True)
    def called(x: torch.Tensor) -> torch.Tensor:
        """Doc."""
        return x * 2

    x = torch.randn(3)
    assert torch.equal(plain(x), x * 2)
    assert torch.equal(called(x), x * 2)
    assert called.__name__ == "called"
    assert called.__doc__ == "Doc."


def test_registered_backend() -> None:
    seen = []

    @weft.register_backend("recording")
    def recording(graph_module, example_inputs):
        seen.append([node.op for node in graph_module.graph.nodes])
        return graph_module.forward

    assert "recording" in weft.list_backends()
    x = torch.randn(3)
    assert torch.equal(weft.compile(add_one, backend="recording")(x), x + 1)
    assert seen == [["placeholder", "call_function", "output"]]


def test_callable_backend() -> None:
    def backend(graph_module, example_inputs):
        assert all(isinstance(value, torch.Tensor) for value in example_inputs)
        return lambda *inputs: tuple(result * 2 for result in graph_module(*inputs))

    x = torch.randn(3)
    assert torch.equal(weft.compile(add_one, backend=backend)(x), (x + 1) * 2)


@pytest.mark.parametrize(
    ("mode", "autotune", "cuda_graphs"),
    [
        ("default", False, True),
        ("reduce-overhead", False, True),
        ("max-autotune", True, True),
        ("max-autotune-no-cudagraphs", True, False),
    ],
)
def test_the_mode_reaches_the_code_generator(mode: str, autotune: bool, cuda_graphs: bool) -> None:
    codegen = find_codegen("cuda", mode)
    assert isinstance(codegen, TritonCodegen)
    assert (codegen.options.autotune, codegen.options.cuda_graphs) == (autotune, cuda_graphs)


def test_every_mode_has_a_meaning() -> None:
    for mode in MODES:
        find_codegen("cuda", mode)
    with pytest.raises(ValueError, match="unknown mode 'fast', known are default,"):
        find_codegen("cuda", "fast")


def test_the_mode_is_no_option() -> None:
    with pytest.raises(RuntimeError, match="Unexpected optimization option mode"):
        weft.compile(add_one, options={"mode": "max-autotune"})


def test_the_folders_that_capture_leaves_alone():
    names = {folder.rpartition("/")[2] for folder in stage_folders()}
    assert {"weft_aot_autograd", "weft_functionalize", "weft_loop_ir", "weft_codegen_cpp"} <= names
    assert "weft_guards" not in names


@pytest.mark.parametrize("backend", ["eager", lambda graph, inputs: graph.forward])
def test_a_backend_that_runs_the_graph_gets_no_region_of_floats(backend: Any) -> None:
    def scaled_until(x: torch.Tensor, scale: float) -> torch.Tensor:
        while x.sum() < 100:
            x = x * scale
        return x - scale if x[0] > 50 else x

    compiled = weft.compile(scaled_until, backend=backend)
    for scale in (2.0, 3.0, 4.0):
        x = torch.ones(3)
        assert torch.equal(compiled(x, scale), scaled_until(x, scale))


def test_a_backend_that_runs_the_graph_gets_no_region_that_writes_in_training() -> None:
    def cleared(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        if y.sum() > 0:
            x.mul_(2)
        return x + y

    compiled = weft.compile(cleared, backend="eager")
    for sign in (1, -1):
        leaf, y = torch.ones(3, requires_grad=True), torch.ones(3) * sign
        (gradient,) = torch.autograd.grad(compiled(leaf * 1, y).sum(), leaf)
        assert torch.equal(gradient, torch.ones(3) * (2 if sign > 0 else 1))


def test_a_registered_code_generator_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also a subclass that has state, for every mode, and one that needs no more than ``compile``."""
    seen: list[str] = []

    class Noting(CppCodegen):
        def compile(self, *arguments: Any) -> Any:
            seen.append("compile")
            return super().compile(*arguments)

    monkeypatch.setattr(weft.registry, "codegens", {})
    weft.register_codegen("cpu", Noting)
    x = torch.randn(3)
    for mode in MODES:
        assert torch.equal(weft.compile(lambda x: x + 1, mode=mode)(x), x + 1)
    assert len(seen) == len(MODES)
    weft.register_codegen("cuda", lambda: TritonCodegen(TritonOptions(interpret=True)))
    assert find_codegen("cuda", "reduce-overhead", 1 << 20).options.interpret


def test_a_code_generator_is_a_codegen(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = importlib.metadata.EntryPoint("cpu", "decimal:Decimal", "weft.codegen")
    monkeypatch.setattr(weft.registry, "installed", lambda group: (entry,))
    with pytest.raises(weft.WeftError, match=r"decimal:Decimal is no subclass of .*Codegen"):
        find_codegen("cpu")


class Beside(CppCodegen):
    """A code generator in the folder of the programs that it is tried with."""


def test_a_registered_code_generator_hides_no_program(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weft.registry, "codegens", {})
    weft.register_codegen("cpu", Beside)
    log = weft.CompileLog()
    with weft.observe(log):
        weft.compile(add_one)(torch.ones(2))
    stage_folders.cache_clear()
    (report,) = log.graphs
    assert str(report.codegen).endswith(".Beside")
