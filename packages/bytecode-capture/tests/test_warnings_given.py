"""``warnings.warn`` in captured code: the same warnings, for the same lines, as often as in eager."""

# ruff: noqa: B028

import contextlib
import time
import warnings

import pytest
import torch
from weft_bytecode_capture import capture


def plain(x):
    y = x + 1
    warnings.warn("plain")
    return y * 2


def of_kind(x):
    warnings.warn("kind", DeprecationWarning)
    warnings.warn(f"of {x.shape[0]} rows", category=RuntimeWarning)
    return x * 2


def helper(x, level):
    warnings.warn("from a helper", stacklevel=level)
    return x + 1


def called(x):
    return helper(x, 1) + helper(x, 2)


def in_loop(x):
    for n in range(3):
        warnings.warn(f"number {n}")
        warnings.warn("always the same")
    return x + 1


def of_the_caller(x):
    warnings.warn("outside", stacklevel=2)
    return x + 1


def of_data(x):
    warnings.warn(f"sum is {x.sum()}")
    return x + 1


def with_filters(x):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.warn("nobody sees this")
    return x + 1


def with_filters_by_kind(x):
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", category=DeprecationWarning)
        warnings.warn("ignored", DeprecationWarning)
        y = x.sin()
        warnings.warn("seen", RuntimeWarning)
    warnings.warn("seen", DeprecationWarning)
    return y


def filters_left_by_an_error(x):
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            x = x + 1
            raise KeyError(1)
    except KeyError:
        x = x * 2
    warnings.warn("behind")
    return x


def made_an_error(x):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.warn("raised")
    return x + 1


def recorded(x):
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        warnings.warn("kept")
        y = x.sin()
    return y + len(seen)


def filters_that_stay(x):
    warnings.simplefilter("ignore", RuntimeWarning)
    warnings.warn("ignored", RuntimeWarning)
    return x + 1


def around_a_break(x):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.warn("ignored")
        time.sleep(0)
        x = x + 1
        warnings.warn("ignored too")
    warnings.warn("seen")
    return x


def fails_inside(x):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        x = x + 1
        if x.shape[0] == 3:
            raise RuntimeWarning("of three")
    return x


def caught(x):
    try:
        warnings.warn("maybe an error")
    except UserWarning:
        return x
    return x + 1


def instance(x):
    warnings.warn(UserWarning("made before"))
    return x


FUNCTIONS = [
    plain,
    of_kind,
    called,
    in_loop,
    of_data,
    with_filters,
    with_filters_by_kind,
    filters_left_by_an_error,
    made_an_error,
    recorded,
    filters_that_stay,
    around_a_break,
    fails_inside,
    caught,
    instance,
]


def given(function, action):
    with warnings.catch_warnings(record=True) as seen:
        warnings.resetwarnings()
        warnings.simplefilter(action)
        globals().pop("__warningregistry__", None)
        results = []
        for rows in (2, 2, 3):
            try:
                results.append(function(torch.ones(rows)))
            except Warning as warning:
                results.append((type(warning), str(warning)))
    return results, [(w.category, str(w.message), w.filename, w.lineno) for w in seen]


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("action", ["default", "always", "once", "ignore", "error"])
def test_as_eager(function, action) -> None:
    captured = capture(function)

    def run(x):
        return captured(x).result

    found, wanted = given(run, action), given(function, action)
    for mine, plain_result in zip(found[0], wanted[0], strict=True):
        if isinstance(plain_result, tuple):
            assert mine == plain_result
        else:
            assert torch.equal(mine, plain_result)
    assert found[1] == wanted[1]


@pytest.mark.parametrize(
    "function",
    [plain, of_kind, called, in_loop, of_data, of_the_caller, with_filters, with_filters_by_kind],
)
def test_no_break(function) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert not capture(function)(torch.ones(2)).breaks


def test_filters_are_restored():
    before, shown = warnings.filters, warnings.showwarning
    for function in (with_filters, with_filters_by_kind, filters_left_by_an_error, around_a_break):
        entries = list(before)
        with warnings.catch_warnings():
            now = warnings.filters
            warnings.simplefilter("ignore")
            capture(function)(torch.ones(2))
            assert warnings.filters is now
        assert warnings.filters is before and before == entries
        assert warnings.showwarning is shown


def behind_a_break(x):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        time.sleep(0)
        y = x + 1
        warnings.warn("seen", RuntimeWarning)
    return y


def of_an_exit_stack(x):
    with contextlib.ExitStack() as stack:
        stack.enter_context(warnings.catch_warnings())
        warnings.warn("seen", RuntimeWarning)
    return x + 1


@pytest.mark.parametrize("function", [with_filters_by_kind, behind_a_break, of_an_exit_stack])
def test_an_error_leaves_the_blocks(function):
    captured = capture(function)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        captured(torch.ones(2))
        before = warnings.filters
        warnings.simplefilter("error", RuntimeWarning)
        with pytest.raises(RuntimeWarning):
            captured(torch.ones(2))
        assert warnings.filters is before


def test_what_is_for_the_caller_names_its_line():
    def caller(x):
        return of_the_caller(x)  # this one

    def around(x):
        return captured(x).result

    captured = capture(caller)
    inner = capture(of_the_caller)
    for run, line in ((around, caller.__code__.co_firstlineno + 1), (inner, None)):
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            run(torch.ones(2))
        assert [str(w.message) for w in seen] == ["outside"]
        assert line is None or (seen[0].filename, seen[0].lineno) == (__file__, line)
