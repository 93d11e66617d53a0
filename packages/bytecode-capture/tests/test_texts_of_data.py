"""Texts that hold numbers of data are made after the graph, and need none where nobody reads them."""

import pytest
import torch
from differential import check
from weft_bytecode_capture import capture


def joined(x, n):
    return x * n, f"{n} of {x.shape[0]}" + f" in {n!r}, {n:>4}"


def formatted(x, n):
    shape = x.shape
    return x * n, "{} of {}".format(n, shape), "%d, %s" % (n, shape[0]), "%s!" % n  # noqa: UP031, UP032


def called(x, n):
    return x * n, str(n), repr(n), format(n, "03d"), str(n.item() + 1)


def nested(x, n):
    text = f"{n}"
    both = "a" + text, text + "a"
    return (
        x * n,
        both,
        f"{text!r:>9}",
        f"{text}",
        str(text),
        repr(text),
        "%s %r" % (text, n),  # noqa: UP031
        f"{[text, n]}",
        f"{n!s:>5}",
    )


def written_later(x, n):
    text = f"{n}"
    n = n.clone()
    sizes = [x.shape[0], n]
    listed = f"{sizes} and {n}"
    n += 1
    sizes.append(n)
    return x * n, text, listed, f"{n}"


def read_later(x, n):
    text = f"{n} tokens"
    return x + len(text), text


def checked(x, n):
    message = f"{n} tokens, {x.shape[0]} features"
    if n != x.shape[0]:
        raise ValueError(message)
    torch._check(n.item() == x.shape[0], lambda: message)
    return x * n


class Meter:
    def __init__(self, value, count):
        self.value, self.count = value, count

    def __str__(self):
        return "{value:.2f} ({count})".format(**self.__dict__)

    def __repr__(self):
        return f"Meter({self.value})"


def instances(x, n):
    meter = Meter(x.sum().item(), x.shape[0])
    texts = f"{meter}", f"{meter!r}", str(meter), repr(meter), f"{meter!s:>20}"
    texts += (
        " ".join(f"{k}={v:.2f}" for k, v in vars(meter).items()),
        "-".join(["a", f"{n}", "b"]),
        ",".join("ab"),
    )
    return x * n, texts, "%.3f" % meter.value, "{a} {b:.1f}".format(a=n, b=meter.value)  # noqa: UP031, UP032


CALLS = [(torch.arange(3.0) + k, torch.tensor(n)) for k, n in enumerate((3, 12, 3))]
CALLS.append((torch.arange(5.0), torch.tensor(5)))


@pytest.mark.parametrize(
    "function", [joined, formatted, called, nested, instances, written_later, read_later]
)
def test_texts_are_those_of_eager(function) -> None:
    captured = capture(function)
    for x, n in CALLS:
        result = captured(x, n.clone())
        expected = function(x, n.clone())
        assert torch.equal(result.result[0], expected[0])
        assert result.result[1:] == expected[1:]
        assert function is read_later or not result.breaks


def test_messages_that_nobody_reads_break_nothing() -> None:
    captured = capture(checked)
    for x, n in CALLS:
        if n == x.shape[0]:
            result = captured(x, n)
            assert torch.equal(result.result, x * n) and not result.breaks
        else:
            with pytest.raises(ValueError, match=r"^12 tokens, 3 features$"):
                captured(x, n)


def test_sizes_in_messages_compile_nothing_again() -> None:
    captured = capture(checked)
    graphs = [len(captured(torch.ones(n), torch.tensor(n)).graphs) for n in (3, 4, 5, 6)]
    assert graphs[2:] == [0, 0]


def test_a_tensor_with_gradients_prints_itself_as_in_eager() -> None:
    def function(x):
        y = x * 2
        return y, f"{y.sum()} {y[0]!r}"

    x = torch.ones(2, requires_grad=True)
    assert capture(function)(x).result[1] == function(x)[1]


def wrongly_formatted(x, n, scale):
    found = []
    for place in range(6):
        try:
            if place == 0:
                found.append(f"{n:s}")
            elif place == 1:
                found.append("%s %s" % n)  # noqa: UP031
            elif place == 2:
                found.append("{} {}".format(scale))  # noqa: F524
            elif place == 3:
                found.append("%(n)s" % scale)  # noqa: UP031
            elif place == 4:
                found.append(f"{x.sum():q}")
            else:
                found.append(f"{x:.2f}")
        except (TypeError, ValueError, IndexError) as error:
            found.append((type(error), str(error)))
    return x + 1, found


def test_formatting_raises_where_it_is_done():
    """Not where somebody reads the text: the handler is over then."""
    check(
        wrongly_formatted, [(torch.arange(float(n)), n, n / 2) for n in (3, 4, 5)], fullgraph=False
    )


class Kept:
    last = ""


def texts_of_sizes(x):
    n, width = x.shape
    Kept.last = f"{n} rows"
    texts = str(n), repr(x.shape), "%d" % n, "%s of %s" % (n, width), "{:>4}".format(n)  # noqa: UP031, UP032
    sums = "rows: " + str(n) + "!", f"{n / 3:.2f}" + "s", str(x.shape) + f"{n}", f"{n!r:>5}{n + 1}"
    return x + 1, texts, sums, {"text": f"{n}"}, bool(f"{n} rows")


def texts_of_sizes_that_are_read(x):
    n = x.shape[0]
    name = f"rows{n}"
    shown = (
        name.upper(),
        len(name),
        name[0],
        name == "rows4",
        name in {"rows6": 1},
        sorted([name, "a"]),
    )
    return (
        x + len(name),
        shown,
        {name: 1},
        "".join(map(str, x.shape)),
        "ab" * n,
        name > "rows5",
        name * 2,
    )


@pytest.mark.parametrize(
    ("function", "graphs"), [(texts_of_sizes, 2), (texts_of_sizes_that_are_read, 4)]
)
def test_texts_of_sizes_are_made_in_each_call(function, graphs) -> None:
    captured = capture(function)
    found = 0
    for rows in (4, 6, 9, 12):
        x = torch.ones(rows, 3)
        result = captured(x)
        kept = Kept.last
        assert str(result.result) == str(function(x))
        assert kept == Kept.last == f"{rows} rows" or function is not texts_of_sizes
        assert not result.breaks
        found += len(result.graphs)
    assert found == graphs
