"""``warnings.warn`` in captured code: the same warnings, for the same lines, as often as in eager."""

# ruff: noqa: B028

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


@pytest.mark.parametrize("function", [plain, of_kind, called, in_loop, of_data])
def test_no_break(function) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert not capture(function)(torch.ones(2)).breaks


def test_what_is_for_the_caller_breaks() -> None:
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        result = capture(of_the_caller)(torch.ones(2))
    assert len(result.breaks) == 1 and [str(w.message) for w in seen] == ["outside"]
