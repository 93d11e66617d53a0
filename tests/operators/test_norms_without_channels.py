"""Batch norm of what has no second dimension: eager refuses it, and torch may crash on symbolic sizes."""

import pytest
import torch
import weft
from torch.nn import functional as F

Tensor = torch.Tensor


def of_a_row(x: Tensor) -> Tensor:
    for row in x:
        x = x + F.batch_norm(row, None, None, training=True)
    return x


def by_keywords(x: Tensor) -> Tensor:
    return F.batch_norm(input=x[:, 0], running_mean=None, running_var=None, training=True)


def by_its_operator(x: Tensor) -> Tensor:
    return torch.batch_norm(x[0], None, None, None, None, True, 0.1, 1e-5, False)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("program", [of_a_row, by_keywords, by_its_operator])
def test_the_error_is_eager_s(program: object, dynamic: bool) -> None:
    errors = []
    for function in (program, weft.compile(program, dynamic=dynamic)):
        with pytest.raises(IndexError) as caught:
            function(torch.ones(4, 3))  # type: ignore[operator]
        errors.append(str(caught.value))
    assert errors[0] == errors[1]


def test_a_handler_of_the_error_runs() -> None:
    def program(x: Tensor) -> Tensor:
        try:
            for row in x:
                x = x + F.batch_norm(row, None, None, training=True)
        except (RuntimeError, IndexError):
            x = x * 2
        return x

    for size in (4, 5):
        x = torch.ones(size, 3)
        assert torch.equal(weft.compile(program, dynamic=True)(x), program(x))
