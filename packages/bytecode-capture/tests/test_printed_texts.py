"""``print`` in captured code: the same texts in the same order as in eager, with logs and warnings."""

import io
import logging
import sys
import warnings

import pytest
import torch
from differential import same
from weft_bytecode_capture import CaptureOptions, capture

logger = logging.getLogger("weft_tests_printed_texts")


class Named:
    def __init__(self, name):
        self.name = name

    def __str__(self):
        return f"<{self.name}>"


def shapes(x):
    print("shape", x.shape, f"{x.dtype}", Named("a"), [1, "b"], {"k": None})
    return x + 1


SHRUNK = {str(i) for i in range(200)}
for i in range(5, 200):
    SHRUNK.remove(
        str(i)
    )  # few elements in a table of many places: in another order than in a new set
HELD = [frozenset(SHRUNK), {"in": SHRUNK}]


def sets(x):
    print(SHRUNK, HELD, f"{SHRUNK!r:>80}", str([SHRUNK]), (SHRUNK, 1))
    return x + 1


def separators(x):
    print("a", 2, sep="-", end="!")
    print()
    print("b", 3, sep=None, end=None, flush=True)
    return x + 1


def tensors(x):
    y = x.sum()
    print("sum", y, f"{y.item():.3f}", [x[0], y], y > 0, y.item() > 0)
    return y * 2


def as_they_are_printed(x):
    y, numbers = x + 1, [1]
    print(y, numbers)
    y.add_(1)
    numbers.append(2)
    print(y, numbers)
    return y


def in_turn(x):
    print("first")
    logger.warning("second")
    print("third", file=sys.stderr)
    warnings.warn("fourth", stacklevel=1)
    print("fifth")
    return x + 1


def in_a_loop(x):
    for i in range(3):
        x = x * 2
        print("turn", i)
    return x


def by_a_helper(x):
    def show(*values, **options):
        print("[shown]", *values, **options)

    show(x.shape[0], end=".\n")
    return x + 1


def refused(x):
    try:
        print("a", sep=3)
    except TypeError as error:
        return x + 1, str(error)
    return x


def where_it_is_checked(x):
    if x.isnan().any():
        print("not a number")
    return x + 1


ONE_GRAPH = [
    shapes,
    sets,
    separators,
    tensors,
    as_they_are_printed,
    in_turn,
    in_a_loop,
    by_a_helper,
]
ONE_GRAPH += [refused, where_it_is_checked]


def seen(function, x, capsys):
    with warnings.catch_warnings(record=True) as given:
        warnings.simplefilter("always")
        result = function(x.clone())
    return result, capsys.readouterr(), [(str(one.message), one.lineno) for one in given]


def check(function, capsys, inputs, **options):
    captured = capture(function, options=CaptureOptions(assume_decisions=None, **options))
    for x in inputs:
        assert same(seen(lambda x: captured(x).result, x, capsys), seen(function, x, capsys))


@pytest.mark.parametrize("function", ONE_GRAPH)
def test_in_one_graph(function, capsys):
    check(function, capsys, [torch.randn(3), torch.randn(3)], fullgraph=True)


def given_a_history(x):
    y = (x * torch.ones(3, requires_grad=True)).sum()
    print(y)
    return y.detach()


def to_a_file_that_is_read(x):
    out = io.StringIO()
    print("a", file=FILE)
    out.write(FILE.getvalue())
    return x + 1, out.getvalue()[-2:]


FILE = io.StringIO()


def on_one_side(x):
    if x.sum() > 0:
        print("positive")
    return x * 2


@pytest.mark.parametrize(
    "function", [given_a_history, to_a_file_that_is_read, on_one_side, where_it_is_checked]
)
def test_as_eager(function, capsys):
    x = torch.ones(3)
    check(function, capsys, [x, x, -x, x / 0 * 0, x])


def test_what_is_printed_before_an_error_is_printed_once(capsys):
    def looked_up(x, index):
        print("before")
        y = x[index]
        print("after")
        return y

    captured = capture(looked_up)
    x, inside, outside = torch.ones(3), torch.tensor([1]), torch.tensor([5])
    assert captured(x, inside).result == 1
    assert capsys.readouterr().out == "before\nafter\n"
    with pytest.raises(IndexError):
        captured(x, outside)
    assert capsys.readouterr().out == "before\n"


def test_standard_output_is_looked_up_when_it_is_printed(capsys, monkeypatch):
    captured = capture(by_a_helper)
    captured(torch.ones(3))
    other = io.StringIO()
    monkeypatch.setattr(sys, "stdout", other)
    assert not captured(torch.ones(3)).reports
    assert other.getvalue() == "[shown] 3.\n"


def test_what_is_written_to_a_file(tmp_path):
    def written(x, file):
        count = file.write(f"shape {x.shape[0]}\n")
        print("then", file=file)
        file.flush()
        return x + count

    for function in (written, capture(written, options=CaptureOptions(fullgraph=True))):
        for _ in range(2):
            with (tmp_path / "text").open("w") as file:
                function(torch.ones(3), file)
                assert (tmp_path / "text").read_text() == "shape 3\nthen\n"
