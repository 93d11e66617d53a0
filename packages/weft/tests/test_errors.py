"""What goes wrong: eager's own exceptions for the user's errors, named stages for weft's."""

import time
import warnings
from pathlib import Path

import pytest
import torch
import weft


def bad_shapes(x: torch.Tensor) -> torch.Tensor:
    return x @ torch.ones(5, 5)


def eager_error(function, *arguments) -> Exception:
    try:
        function(*arguments)
    except Exception as error:
        return error
    raise AssertionError("no exception was raised")


@pytest.mark.parametrize("fullgraph", [False, True])
def test_bad_input_gives_eagers_exception(fullgraph: bool) -> None:
    compiled = weft.compile(bad_shapes, fullgraph=fullgraph)
    expected = eager_error(bad_shapes, torch.randn(3, 3))
    for _ in range(2):
        found = eager_error(compiled, torch.randn(3, 3))
        assert type(found) is type(expected)
        assert str(found) == str(expected)
    x = torch.randn(2, 5)
    torch.testing.assert_close(compiled(x), bad_shapes(x))  # nothing is left half-installed


def index_out_of_range(x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.embedding(index, x) * 2


def test_index_out_of_range_at_run_time() -> None:
    x, index = torch.randn(3, 2), torch.tensor([0, 7])
    compiled = weft.compile(index_out_of_range)
    found = eager_error(compiled, x, index)
    assert type(found) is type(eager_error(index_out_of_range, x, index))
    good = torch.tensor([0, 2])
    torch.testing.assert_close(compiled(x, good), index_out_of_range(x, good))


def broken_backend(graph_module, example_inputs):
    raise ValueError("no luck")


def test_an_error_of_a_backend_warns_once_and_runs_eagerly(monkeypatch) -> None:
    monkeypatch.setenv("WEFT_STRICT", "0")
    compiled = weft.compile(lambda x: x * 3, backend=broken_backend)
    x = torch.randn(2)
    with pytest.warns(weft.WeftWarning, match="no luck") as caught:
        assert torch.equal(compiled(x), x * 3)
    assert len(caught) == 1
    with warnings.catch_warnings(record=True) as again:
        warnings.simplefilter("always")
        assert torch.equal(compiled(x), x * 3)
    assert not again


def test_an_error_of_a_backend_is_raised_under_strict(monkeypatch) -> None:
    monkeypatch.setenv("WEFT_STRICT", "1")
    compiled = weft.compile(lambda x: x * 3, backend=broken_backend)
    with pytest.raises(weft.StageError, match="no luck"):
        compiled(torch.randn(2))


def test_an_error_of_a_backend_names_it(monkeypatch) -> None:
    def gives_none(graph, inputs):
        return None

    monkeypatch.setenv("WEFT_STRICT", "0")
    x = torch.randn(2)
    for backend, text in ((broken_backend, "no luck"), (gives_none, "no callable but NoneType")):
        name = rf"backend \S*{backend.__name__} failed .*test_errors.py:\d+.*{text}"
        with pytest.warns(weft.WeftWarning, match=name):
            assert torch.equal(weft.compile(lambda x: x * 3, backend=backend)(x), x * 3)


def test_a_failing_stage_is_named_with_the_users_line(monkeypatch) -> None:
    import weft_functionalize

    def fail(*arguments, **keywords):
        raise RuntimeError("planted")

    monkeypatch.setattr(weft_functionalize, "functionalize", fail)
    with pytest.raises(
        weft.StageError, match=r"functionalize failed .*test_errors.py:\d+.*planted"
    ):
        weft.compile(lambda x: x * 3, fullgraph=True)(torch.randn(2))
    monkeypatch.setenv("WEFT_STRICT", "0")
    x = torch.randn(2)
    with pytest.warns(weft.WeftWarning, match="functionalize failed"):
        assert torch.equal(weft.compile(lambda x: x * 3)(x), x * 3)


def test_gradients_of_a_closed_over_weight() -> None:
    weight = torch.randn(3, requires_grad=True)
    compiled = weft.compile(lambda x: (x * weight).sum())
    x = torch.randn(3)
    compiled(x).backward()
    assert torch.equal(weight.grad, x)
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), (x * weight).sum())


def test_a_graph_break_is_an_error_under_fullgraph() -> None:
    def breaks(x):
        y = x + 1
        time.sleep(0)
        return y * 2

    with pytest.raises(Exception, match=r"(?s)sleep.*test_errors.py.*time\.sleep\(0\)"):
        weft.compile(breaks, fullgraph=True)(torch.randn(2))


def test_dump(tmp_path: Path) -> None:
    compiled = weft.compile(
        lambda x: torch.softmax(x * 2, -1), options={"dump_directory": tmp_path}
    )
    compiled(torch.randn(4, 8))
    (folder,) = tmp_path.glob("0*")
    names = sorted(path.name for path in folder.iterdir())
    assert names == [
        "1_captured.py",
        "2_functional.py",
        "2_functionalize_steps.txt",
        "3_forward.py",
        "4_loop_ir.txt",
        "5_schedule.txt",
        "6_generated.cpp",
        "report.json",
    ]
    import runpy

    for name in (n for n in names if n[0] in "123" and n.endswith(".py")):
        runpy.run_path(str(folder / name), run_name="__main__")
    assert "softmax" in (folder / "1_captured.py").read_text()
