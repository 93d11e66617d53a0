"""Of files about what comes before C++ some cases are compiled, the others' schedules are evaluated."""

from __future__ import annotations

from pathlib import Path

import pytest
import weft.registry
from weft_codegen_cpp import CppCodegen

from tests.coverage.evaluation import EVALUATED, mark_evaluated
from tests.fuzz.evaluated import EvaluatedCpp


class Item:
    def __init__(self, path: str, *marks: str) -> None:
        self.path, self.marks, self.stash = Path(path), marks, pytest.Stash()

    def get_closest_marker(self, name: str) -> str | None:
        return name if name in self.marks else None


def evaluated(every: str | None, monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Of four cases of a file, two of them ``native``, of three of another, and of one elsewhere."""
    if every is None:
        monkeypatch.delenv("WEFT_COMPILED_EVERY", raising=False)
    else:
        monkeypatch.setenv("WEFT_COMPILED_EVERY", every)
    marks = [(), ("native",), (), ("native",)]
    items = [Item("tests/autograd/test_a.py", *some) for some in marks]
    items += [Item("tests/regions/test_b.py") for _ in range(3)]
    items += [Item("tests/models/test_c.py"), Item("tests/models/test_c.py")]
    mark_evaluated(items)  # type: ignore[arg-type]
    return [item.stash.get(EVALUATED, False) for item in items]


def test_one_in_so_many_of_a_file_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    rest = [False, False]
    assert evaluated("2", monkeypatch) == [False, False, True, False, False, True, False, *rest]
    assert evaluated("9", monkeypatch) == [False, False, True, False, False, True, True, *rest]


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
