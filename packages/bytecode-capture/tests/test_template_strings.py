"""Template strings of CPython 3.14, in texts: older ones can't read them."""

import sys
import time
from typing import Any

import pytest
import torch
from differential import check

pytestmark = pytest.mark.skipif(sys.version_info < (3, 14), reason="CPython 3.14 has them")

PROGRAMS = {
    "values": """
        t = t"{x} and {x + 1}"
        first, second = t.values
        return first + second, t.strings""",
    "parts": """
        t = t"size {x.shape[0]!r:>4} of {x.dim():>{width}}{x=}"
        return x * 2, [(i.value, i.expression, i.conversion, i.format_spec) for i in t.interpolations]""",
    "iterated": """
        found = []
        for part in t"{1}a{x.dim()}{'b'!a}":
            match part:
                case str() as text:
                    found.append(text)
                case Interpolation(value, expression, conversion, specification):
                    found.append((value, expression, conversion, specification))
        return x + len(found), found""",
    "put_together": """
        def shown(template):
            return "".join(p if isinstance(p, str) else format(p.value, p.format_spec) for p in template)
        return x + 1, shown(t"[{x.dim():03d}|{'a'}]"), shown(t""), shown(t"{2}")""",
    "added": """
        made = t"a{x.dim()}" + t"b{x}c" + t""
        return made.values[1] * 2, made.strings, len(made.interpolations)""",
    "asked_before_a_write": """
        y = x * 2
        made = t"{y}"
        y += 1
        z = y * 3
        return made.values[0] is y, made.values[0] + z""",
    "identities": """
        made = t"{x}"
        same = made.interpolations is made.interpolations and made == made and made != t"{x}"
        return x + same, isinstance(made, Template), type(made) is Template""",
    "made_by_classes": """
        made = Template("a", "b", Interpolation(x, "y", "r", ">3"), Interpolation(2))
        return made.values[0] + 1, made.strings, [i.expression for i in made.interpolations]""",
    "wrong_sums": """
        found = []
        for ask in (lambda: t"a" + "b", lambda: "a" + t"b", lambda: t"a" + 1, lambda: 1 + t"a"):
            try:
                ask()
            except TypeError as error:
                found.append(str(error))
        return x + 1, found""",
    "wrong_parts": """
        found = []
        asked = (lambda: Template(1), lambda: Interpolation(1, "a", "q"), lambda: Interpolation(1, 2),
                 lambda: t"a".foo, lambda: t"{1}".interpolations[0].foo)
        for ask in asked:
            try:
                ask()
            except (AttributeError, TypeError, ValueError) as error:
                found.append(str(error))
        return x + 1, found""",
}
WITH_BREAKS = {
    "returned": """
        made = t"a{x.dim()}b{x + 1!s:>3}"
        return [(p if isinstance(p, str) else p.value) for p in made], made.interpolations[1].value""",
    "behind_a_break": """
        made = t"a{x.dim()}b{x + 1!s:>3}"
        time.sleep(0)
        return made.strings, made.values, made.interpolations[1].conversion""",
    "by_a_stranger": """
        return x + 1, repr(t"{x.dim()}a")""",
}


def program(text: str) -> Any:
    namespace: dict[str, Any] = {"time": time, "width": 7}
    exec(
        f"from string.templatelib import Interpolation, Template\ndef function(x):{text}", namespace
    )
    return namespace["function"]


@pytest.mark.parametrize("name", PROGRAMS)
def test_in_one_graph(name):
    check(program(PROGRAMS[name]), [(torch.ones(2),), (torch.ones(3),)])


@pytest.mark.parametrize("name", WITH_BREAKS)
def test_over_breaks(name):
    check(program(WITH_BREAKS[name]), [(torch.ones(2),), (torch.ones(3),)], fullgraph=False)
