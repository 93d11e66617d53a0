"""Of files about what comes before C++ some cases are compiled, the others' schedules are evaluated."""

from __future__ import annotations

from pathlib import Path

import pytest
import weft.registry
from weft_codegen_cpp import CppCodegen

from tests.coverage.evaluation import EVALUATED, mark_evaluated
from tests.fuzz.evaluated import EvaluatedCpp


class Item:
    def __init__(self, nodeid: str, *marks: str) -> None:
        self.nodeid, self.path = nodeid, Path(nodeid.partition("::")[0])
        self.marks, self.stash = marks, pytest.Stash()

    def get_closest_marker(self, name: str) -> str | None:
        return name if name in self.marks else None


def evaluated(
    every: str | None, monkeypatch: pytest.MonkeyPatch, folder: str = "autograd", *marks: str
) -> list[bool]:
    """Of a file's forty cases."""
    if every is None:
        monkeypatch.delenv("WEFT_COMPILED_EVERY", raising=False)
    else:
        monkeypatch.setenv("WEFT_COMPILED_EVERY", every)
    items = [Item(f"tests/{folder}/test_a.py::test[{number}]", *marks) for number in range(40)]
    mark_evaluated(items)  # type: ignore[arg-type]
    return [item.stash.get(EVALUATED, False) for item in items]


def test_one_in_so_many_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    assert 10 < sum(evaluated("2", monkeypatch)) < 30
    assert 30 < sum(evaluated("9", monkeypatch)) < 40
    assert not any(evaluated("9", monkeypatch, "models"))
    assert not any(evaluated("9", monkeypatch, "regions", "native"))


def test_all_are_compiled_unless_asked_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not any(evaluated(None, monkeypatch))


@pytest.mark.parametrize("is_evaluated", [False, True])
def test_the_code_generator_of_a_case(
    is_evaluated: bool, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tests.conftest import use_evaluator

    request.node.stash[EVALUATED] = is_evaluated
    use_evaluator(request.node, monkeypatch)
    codegen = weft.registry.find_codegen("cpu")
    assert isinstance(codegen, EvaluatedCpp) is is_evaluated and isinstance(codegen, CppCodegen)
