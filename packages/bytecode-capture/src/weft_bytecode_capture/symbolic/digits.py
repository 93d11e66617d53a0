"""How many digits texts of integers may have, for what is evaluated."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator


@contextlib.contextmanager
def most_digits(count: int) -> Iterator[None]:
    """A block in which texts of integers have as many digits as the captured program lets them have."""
    before = sys.get_int_max_str_digits()
    sys.set_int_max_str_digits(count)
    try:
        yield
    finally:
        sys.set_int_max_str_digits(before)
