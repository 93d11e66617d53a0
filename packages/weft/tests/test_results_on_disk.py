"""What operators gave on fake tensors, kept for other captures: the same answers, and never another's."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
import weft_bytecode_capture
from weft.results_on_disk import ResultsOnDisk
from weft_bytecode_capture import CaptureOptions, FakeLayout, KnownResult


def program(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
    z = torch.addmm(y, x, x.t()).relu_()
    values, indices = z.sort(1)
    parts = values.split(1)
    mean = torch.nn.functional.layer_norm(z, (3,)).to(torch.float64).mean()
    return values, indices, parts[0].transpose(0, 1), mean, torch.arange(5).float()


def refused(x: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.relu(x) + torch.ones(7)


@pytest.fixture
def computed(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The operators that torch's fake mode is asked for."""
    asked: list[Any] = []
    plain = torch._subclasses.FakeTensorMode.dispatch

    def dispatch(self: Any, func: Any, *rest: Any) -> Any:
        asked.append(func)
        return plain(self, func, *rest)

    monkeypatch.setattr(torch._subclasses.FakeTensorMode, "dispatch", dispatch)
    return asked


def graph_text(function: Callable[..., Any], folder: Path, *args: Any) -> str:
    """The graph of a capture that keeps results in ``folder``, with what is known of each value."""
    texts: list[str] = []

    def backend(graph_module: torch.fx.GraphModule, example_inputs: list[Any]) -> Any:
        for node in graph_module.graph.nodes:
            value = node.meta.get("example_value")
            values = value if isinstance(value, tuple | list) else [value]
            looks = [
                (v.dtype, v.shape, v.stride(), v.storage_offset(), v.device)
                for v in values
                if isinstance(v, torch.Tensor)
            ]
            texts.append(f"{node.format_node()} {looks}")
        return graph_module.forward

    options = CaptureOptions(known_results=ResultsOnDisk(folder))
    context = weft_bytecode_capture.make_context(backend, options)
    weft_bytecode_capture.compile_in(context, function)(*args)
    return "\n".join(texts)


def test_another_capture_computes_nothing_and_gives_the_same_graph(
    tmp_path: Path, computed: list[Any]
) -> None:
    x, y = torch.randn(3, 3), torch.randn(3)
    first = graph_text(program, tmp_path, x, y)
    assert torch.ops.aten.addmm.default in computed
    computed.clear()
    assert graph_text(program, tmp_path, x, y) == first
    assert not [f for f in computed if getattr(f, "namespace", None) == "aten"]


def test_other_operands_are_computed(tmp_path: Path, computed: list[Any]) -> None:
    graph_text(program, tmp_path, torch.randn(3, 3), torch.randn(3))
    computed.clear()
    text = graph_text(program, tmp_path, torch.randn(3, 3).double(), torch.randn(3).double())
    assert torch.ops.aten.addmm.default in computed and "float64" in text


def test_an_error_is_raised_by_each_capture(tmp_path: Path) -> None:
    for _ in range(2):
        with pytest.raises(RuntimeError, match="must match the size"):
            graph_text(refused, tmp_path, torch.randn(3))


@contextmanager
def deterministic() -> Iterator[None]:
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


def test_other_settings_have_entries_of_their_own(tmp_path: Path) -> None:
    arguments = torch.randn(3, 3), torch.randn(3)
    graph_text(program, tmp_path, *arguments)
    assert len(list(tmp_path.glob("*.results"))) == 1
    with deterministic():
        graph_text(program, tmp_path, *arguments)
    assert len(list(tmp_path.glob("*.results"))) == 2


LAYOUT = FakeLayout((2, 3), (3, 1), 4, torch.bfloat16, torch.device("cpu"))
RESULT = KnownResult("fresh", "tuple", (LAYOUT, LAYOUT), False)


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-3])


def _changed(path: Path) -> None:
    path.write_bytes(path.read_bytes().replace(b"bfloat16", b"float16"))


def _writable_by_others(path: Path) -> None:
    path.chmod(0o666)


@pytest.mark.parametrize("harm", [_cut, _changed, _writable_by_others, os.unlink])
@pytest.mark.filterwarnings("ignore:weft. an entry of the cache")
def test_a_damaged_entry_is_not_believed(tmp_path: Path, harm: Callable[[Path], None]) -> None:
    kept = ResultsOnDisk(tmp_path)
    for expected in ({}, {"key": RESULT}):
        with kept(program.__code__) as known:
            assert known == expected
            known["key"] = RESULT
    (path,) = tmp_path.glob("*.results")
    harm(path)
    with kept(program.__code__) as known:
        assert known == {}


def test_a_cache_that_cannot_be_written_to_does_no_harm(tmp_path: Path, monkeypatch: Any) -> None:
    def fail(*args: Any) -> None:
        raise OSError("full")

    monkeypatch.setattr("weft.results_on_disk.write_entry", fail)
    for _ in range(2):
        with ResultsOnDisk(tmp_path)(program.__code__) as known:
            assert known == {}
            known["key"] = RESULT
