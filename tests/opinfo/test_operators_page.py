"""The page of operators says what is true: a fixed sample of its lines is made again."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("expecttest", reason="torch's operator database imports it")

from tests.opinfo.checking import operator_names
from tests.opinfo.operators_page import PAGE, line


@pytest.mark.skipif(not torch.__version__.startswith("2.13"), reason="written with torch 2.13")
def test_the_page_is_up_to_date() -> None:
    lines = PAGE.read_text().splitlines()
    written = {text.split(" | ")[0].removeprefix("| "): text for text in lines if "|" in text}
    operators = operator_names()
    assert set(operators) <= set(written)
    for name in sorted(operators)[::97]:
        assert written[name] == line(name, operators[name])
