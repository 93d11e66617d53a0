"""Cases that reach what others reach are left out of the default run, and no others."""

from __future__ import annotations

import itertools
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.coverage import choice
from tests.coverage.choice import Left, Reached
from tests.coverage.sampling import covering, is_numbered, mark_like_others

FILE = "tests/test_file.py"


def reached(**tests: tuple[float, str]) -> dict[str, Reached]:
    """``f_a=(1.0, "x y")``: what the case ``a`` of ``f`` reaches in a second; ``g``: no case."""
    found = {}
    for name, (seconds, features) in tests.items():
        function, _, case = name.partition("_")
        test = f"{FILE}::{function}[{case}]" if case else f"{FILE}::{function}"
        found[test] = Reached(seconds, frozenset(features.split()))
    return found


def stay(found: dict[str, Reached]) -> str:
    return " ".join(sorted(test.partition("::")[2] for test in choice.kept(found)))


def test_what_others_reach_is_left_out() -> None:
    others = {"a": (0.1, "x y"), "b": (0.1, "x y z")}
    assert stay(reached(**others, f_a=(2, "x y"), f_b=(2, "z w"))) == "a b f[b]"
    assert stay(reached(**others, f=(2, "x y"))) == "a b"


def test_what_is_cheap_is_reached_by_two_functions() -> None:
    functions = {f"{name}_a": (0.1, name) for name in "fgh"}
    cheap = {f"{name}_b": (0.15, "x") for name in "fgh"}
    assert stay(reached(**functions, **cheap)) == "f[a] f[b] g[a] g[b] h[a]"
    dear = {f"{name}_b": (choice.CHEAP, "x") for name in "fgh"}
    assert stay(reached(**functions, **dear)) == "f[a] f[b] g[a] h[a]"


def test_cases_of_one_function_count_once() -> None:
    assert stay(reached(f_a=(0.1, "x"), f_b=(0.15, "x"), g=(0.1, "x"))) == "f[a] g"
    assert stay(reached(f_a=(0.1, "x"), f_b=(0.15, "x"), f_c=(0.3, "y"))) == "f[a] f[c]"


def test_the_quicker_of_two_alike_stays() -> None:
    assert stay(reached(f_a=(2, "x"), f_b=(1, "x"), f_c=(2, "x y"), f_d=(1, "x y"))) == "f[d]"


def test_a_case_that_later_ones_make_unneeded_goes() -> None:
    found = reached(f_a=(1, "1 2 3 4"), f_b=(1, "5 6 7"), f_c=(9, "1 2 3 4 5 6 7 8"))
    assert stay(found) == "f[c]"


def test_a_functions_quickest_case_stays_unless_it_is_dear() -> None:
    assert stay(reached(a=(0.1, "x"), f_a=(0.3, "x"), f_b=(0.2, "x"))) == "a f[b]"
    assert stay(reached(a=(0.1, "x"), f_a=(choice.DEAR, "x"))) == "a"


def test_what_takes_no_time_stays() -> None:
    assert stay(reached(f_a=(1, "x"), f_b=(1, "x"), f_c=(0.01, "x"))) == "f[c]"


def test_what_is_not_seen_stays() -> None:
    unseen = choice.UNSEEN
    assert stay(reached(f_a=(1, "x"), f_b=(1, "x"), f_c=(1, f"x {unseen}"))) == "f[c]"


def test_what_very_many_reach_is_no_reason(tmp_path: Path) -> None:
    tests = "".join(f"t{number}\t1\t0\n" for number in range(choice.COMMON + 1))
    (tmp_path / "1.tsv").write_text(f"\tx\n{tests}\ty\nt\t1\t0\t1\n")
    found = choice.read_reached([tmp_path])
    assert found["t"].features == {"y"} and not found["t0"].features


def test_values_of_products_and_dtypes_stay() -> None:
    cases = ("a-x", "a-y", "b-x", "torch.int8", "p", "q")
    found = {f"{FILE}::f[{case}]": Reached(1, frozenset({"reached"})) for case in cases}
    left = choice.with_values(found)
    features = [
        sorted(f.partition(" ")[2] for f in one.features if " " in f) for one in left.values()
    ]
    assert features == [["a", "x"], ["a"], ["x"], ["torch.int8"], [], []]


def test_what_was_left_out_before_stays_so_and_has_values() -> None:
    listed = {
        f"{FILE}::f": Left(4, frozenset({"[a-x]", "[b-y]"})),
        f"{FILE}::g": Left(3, frozenset({"[a]"})),  # all of which were run
        f"{FILE}::h": Left(2, frozenset({"[c]"})),  # which has another case by now
        f"{FILE}::i": Left(1, frozenset({choice.ALL})),
    }
    names = ("f[a-z]", "f[c-w]", "g[a]", "g[b]", "g[c]", "g[d]", "h[a]", "h[b]", "k")
    found = {f"{FILE}::{name}": Reached(1, frozenset({"reached"})) for name in names}
    before = choice.left_before(found, listed)
    assert before == {
        f"{FILE}::f": listed[f"{FILE}::f"],
        f"{FILE}::h": Left(3, frozenset({"[c]"})),
    }
    values = choice.with_values(found, [f"{FILE}::f[a-x]", f"{FILE}::f[b-y]"])
    assert values[f"{FILE}::f[a-z]"].features == {"reached", f"{FILE}::f a"}
    assert values[f"{FILE}::f[c-w]"].features == {"reached"}
    out = ("f[c-w]", "g[a]", "h[b]", "k")
    stay = found.keys() - {f"{FILE}::{name}" for name in out}
    assert choice.chosen(found, stay, before) == {
        f"{FILE}::f": Left(4, frozenset({"[a-x]", "[b-y]", "[c-w]"})),
        f"{FILE}::g": Left(4, frozenset({"[a]"})),
        f"{FILE}::h": Left(3, frozenset({"[b]", "[c]"})),
        f"{FILE}::k": Left(1, frozenset({""})),
    }


def test_processes_of_a_test_add_what_they_write(tmp_path: Path) -> None:
    (tmp_path / "1.tsv").write_text("\tstarts 1\n\tx\na\t1.5\t0\t1\nb\t1\t0\n\ty\nc\t2\t2\n")
    (tmp_path / "2.tsv").write_text("\tchild\n\tz\na\t0\t0\t1\n")
    expected = {"a": (1.5, {"x", "z"}), "b": (1, {choice.UNSEEN}), "c": (2, {"y"})}
    assert choice.read_reached([tmp_path]) == {
        test: Reached(seconds, frozenset(features))
        for test, (seconds, features) in expected.items()
    }


def test_the_list_is_read_as_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choice, "LIST", tmp_path / "list.txt")
    assert choice.read_list() == {}
    found = {
        f"{FILE}::f": Left(7, frozenset({"[a b-0]", "[1, 2]"})),
        f"{FILE}::g": Left(2, frozenset()),
        f"{FILE}::h": Left(1, frozenset({""})),
    }
    choice.write_list(found)
    read = choice.read_list()
    assert read.pop(f"{FILE}::h").has("")
    assert read == {f"{FILE}::f": found[f"{FILE}::f"]}


class Item:
    """A case of a function with a parameter ``x``, as far as marks are concerned."""

    def __init__(self, name: str) -> None:
        self.nodeid, self.marks = f"{FILE}::{name}", list[str]()
        if case := name.partition("[")[2]:
            self.callspec = SimpleNamespace(params={"x": object()}, id=case[:-1])

    def get_closest_marker(self, name: str) -> None:
        return None

    def add_marker(self, mark: pytest.MarkDecorator) -> None:
        self.marks.append(mark.name)


def test_of_functions_with_more_cases_than_were_measured_those_with_names_are_left_out() -> None:
    """Names such as ``x0`` may be another case's by then."""
    listed = {"f": Left(2, frozenset({"[x0]"})), "g": Left(3, frozenset({"[a]", "[x0]"}))}
    listed |= {name: Left(1, frozenset({choice.ALL})) for name in "hi"}
    names = ("f[x0]", "f[x1]", "g[a]", "g[b]", "g[x0]", "g[x1]", "h", "i[a]", "i[b]")
    items = [Item(name) for name in names]
    mark_like_others(items, {f"{FILE}::{name}": left for name, left in listed.items()})
    assert [item.nodeid.partition("::")[2] for item in items if item.marks] == [
        "f[x0]",
        "g[a]",
        "h",
    ]


@pytest.mark.parametrize(
    ("value", "expected"),
    [("a", False), (3, False), (stay, False), (Reached, False), ([], True), (lambda: 1, True)],
)
def test_names_that_pytest_makes_of_places(
    value: object, expected: bool, request: pytest.FixtureRequest
) -> None:
    assert is_numbered(request.node) == expected


def test_cases_that_cover_all_pairs_are_those_that_have_most_new_ones() -> None:
    """Each is the first of the best, as counted anew for every case."""
    sizes = (3, 5, 2, 4)
    cases = [tuple(enumerate(values)) for values in itertools.product(*map(range, sizes))]
    parts = [set(itertools.combinations(case, 2)) for case in cases]
    used = dict.fromkeys(itertools.chain(*cases), 0)
    missing = set().union(*parts)
    for found in covering([tuple((str(p), v) for p, v in case) for case in cases], 2):
        best = max(
            range(len(cases)),
            key=lambda n: (len(parts[n] & missing), -sum(used[v] for v in cases[n])),
        )
        assert found == best
        missing -= parts[best]
        for value in cases[best]:
            used[value] += 1
    assert not missing


@pytest.mark.parametrize(
    ("chosen", "made"), [("not gpu and not slow", 1), ("slow and not gpu", 4), ("", 5)]
)
def test_slow_functions_make_cases_only_where_they_are_chosen(
    chosen: str, made: int, tmp_path: Path
) -> None:
    conftest = Path(__file__).parents[2] / "conftest.py"
    (tmp_path / "test_some.py").write_text(
        "import pytest\n"
        "@pytest.mark.slow\n"
        "@pytest.mark.parametrize('n', range(4))\n"
        "def test_slow(n): assert False\n"
        "def test_quick(): pass\n"
    )
    command = [sys.executable, "-m", "pytest", "-q", "--collect-only", "-p", "no:xdist"]
    command += ["-p", "conftest", "-m", chosen, "--rootdir", str(tmp_path), str(tmp_path)]
    run = subprocess.run(command, capture_output=True, text=True, cwd=conftest.parent)
    assert run.returncode == 0, run.stdout + run.stderr
    assert run.stdout.count("test_some.py::") == made
    not_made = 4 if chosen.endswith("not slow") else 0
    assert ("deselected" in run.stdout) == (made + not_made < 5)
