"""Stances, and the warning at the limit of recompilations."""

import pytest
import torch
import weft


class Counting:
    """A backend that runs the graph as it is and counts compilations and runs."""

    def __init__(self) -> None:
        self.compiled = 0
        self.ran = 0

    def __call__(self, graph_module, example_inputs):
        self.compiled += 1

        def run(*arguments):
            self.ran += 1
            return graph_module(*arguments)

        return run


def scaled(x: torch.Tensor, factor: float = 2.0) -> torch.Tensor:
    return x * factor


@pytest.fixture
def counting():
    backend = Counting()
    return backend, weft.compile(scaled, backend=backend)


def check(compiled, *arguments) -> None:
    torch.testing.assert_close(compiled(*arguments), scaled(*arguments))


def test_force_eager_runs_no_compiled_code(counting) -> None:
    backend, compiled = counting
    x = torch.randn(3)
    check(compiled, x)
    with weft.set_stance("force_eager"):
        check(compiled, x)
        check(compiled, torch.randn(4))
    assert (backend.compiled, backend.ran) == (1, 1)
    check(compiled, x)
    assert (backend.compiled, backend.ran) == (1, 2)


def test_eager_on_recompile_runs_what_is_compiled(counting) -> None:
    backend, compiled = counting
    x = torch.randn(3)
    check(compiled, x)
    with weft.set_stance("eager_on_recompile"):
        check(compiled, x)
        check(compiled, torch.randn(4))
    assert (backend.compiled, backend.ran) == (1, 2)
    check(compiled, torch.randn(4))
    assert (backend.compiled, backend.ran) == (2, 3)


def test_fail_on_recompile_names_the_guard_and_the_line(counting) -> None:
    backend, compiled = counting
    x = torch.randn(3)
    with weft.set_stance("fail_on_recompile"), pytest.raises(weft.RecompileError) as first:
        compiled(x)
    assert "not compiled yet" in str(first.value)
    check(compiled, x)
    with weft.set_stance("fail_on_recompile"):
        check(compiled, x)
        with pytest.raises(weft.RecompileError) as error:
            compiled(torch.randn(4))
    text = str(error.value)
    assert "size (4,) instead of (3,)" in text
    assert "test_stance.py" in text and "to avoid it: mark" in text
    assert backend.compiled == 1


def test_a_call_sets_the_stance_until_the_next(counting) -> None:
    backend, compiled = counting
    weft.set_stance("force_eager")
    try:
        check(compiled, torch.randn(3))
        assert backend.compiled == 0
        with weft.set_stance("default"):
            check(compiled, torch.randn(3))
        assert backend.compiled == 1
        check(compiled, torch.randn(5))
        assert backend.compiled == 1
    finally:
        weft.set_stance("default")


TORCH = torch.compiler.set_stance
WHOSE = pytest.mark.parametrize("set_stance", [weft.set_stance, TORCH], ids=["weft's", "torch's"])


@WHOSE
def test_whose_stance_it_is_does_not_matter(set_stance, counting) -> None:
    backend, compiled = counting
    x = torch.randn(3)
    with set_stance("force_eager"):
        check(compiled, x)
    with set_stance("eager_on_recompile"):
        check(compiled, x)
    assert (backend.compiled, backend.ran) == (0, 0)
    check(compiled, x)
    with set_stance("fail_on_recompile"):
        check(compiled, x)
        with pytest.raises(weft.RecompileError, match=r"size \(4,\) instead of \(3,\)"):
            compiled(torch.randn(4))
    with set_stance("eager_on_recompile"):
        check(compiled, x)
        check(compiled, torch.randn(4))
    assert (backend.compiled, backend.ran) == (1, 3)

    @set_stance("force_eager")
    def eager(x):
        return compiled(x)

    check(eager, x)
    set_stance("force_eager")
    try:
        check(compiled, x)
    finally:
        set_stance("default")
    assert (backend.compiled, backend.ran) == (1, 3)
    check(compiled, x)
    assert (backend.compiled, backend.ran) == (1, 4)


@pytest.mark.parametrize("stance", ["eager_then_compile", "aot_eager_then_compile"])
@WHOSE
def test_first_calls_may_be_eager_and_show_what_varies(set_stance, stance) -> None:
    if set_stance is weft.set_stance and stance.startswith("aot"):
        pytest.skip("the other's name")
    backend = Counting()
    layer = torch.nn.Linear(3, 2)
    functions = (weft.compile(scaled, backend=backend), weft.compile(layer, backend=backend))
    for function, plain in zip(functions, (scaled, layer), strict=True):
        before = backend.compiled
        with set_stance(stance):
            for number, rows in enumerate((4, 6, 9, 5)):
                x = torch.randn(rows, 3)
                torch.testing.assert_close(function(x), plain(x))
                assert backend.compiled == before + (number > 0)


def test_a_stance_of_weft_wins_over_torchs(counting) -> None:
    backend, compiled = counting
    with torch.compiler.set_stance("fail_on_recompile"), weft.set_stance("eager_on_recompile"):
        check(compiled, torch.randn(3))
    assert backend.compiled == 0


def test_the_stance_comes_back_after_an_error() -> None:
    with pytest.raises(KeyError), weft.set_stance("force_eager"):
        raise KeyError
    backend = Counting()
    weft.compile(scaled, backend=backend)(torch.randn(2))
    assert backend.compiled == 1


def test_unknown_stance() -> None:
    with pytest.raises(ValueError, match="stance must be one of"):
        weft.set_stance("fast")


def test_warning_at_the_limit_shows_the_history() -> None:
    options = {"recompile_limit": 2}
    compiled = weft.compile(scaled, backend=Counting(), options=options, dynamic=False)
    compiled(torch.randn(3), 11.25)
    compiled(torch.randn(3), 12.25)
    with pytest.warns(UserWarning, match="compiled 2 times") as caught:
        check(compiled, torch.randn(3), 3.0)
    text = str(caught[0].message)
    assert text.count("needed by") == 2
    assert text.index("12.25") < text.index("11.25")
