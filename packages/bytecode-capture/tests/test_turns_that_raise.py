"""A loop's turn breaks the graph and raises, and a handler goes on: the stack is then as at the break."""

import textwrap
import time

import pytest
import torch
from differential import check

# What a turn computes; `part(i)` breaks the graph, and raises in some turns.
FORMS = {
    "method": "out.append(part(i))",
    "method of a global": "SEEN.append(part(i))",
    "nested methods": "out.append(names.get(part(i) * 0, str(part(i)).upper()))",
    "method of a tensor": "out.append(x.add(part(i)))",
    "method of an instance": "out.append(thing.scaled(part(i)))",
    "super's method": "out.append(thing.by_super(part(i)))",
    "keywords": "out.append(thing.scaled(1, by=part(i)))",
    "star arguments": "out.append(thing.scaled(*[part(i)], **{'by': 2}))",
    "global function": "out.append(max(i, part(i)))",
    "class": "out.append(Thing(part(i)).size)",
    "display": "out.append([i, (part(i), {'k': part(i)}), {part(i)}])",
    "comprehension": "out.append([part(j) for j in range(i, i + 1)])",
    "subscript": "out.append(x[part(i) * 0])",
    "store": "names[part(i)] = i",
    "augmented": "out[len(out):] += [part(i)]",
    "text": "out.append(f'{i} {part(i)} {i}')",
    "format": "out.append('{} {}'.format(part(i), part(i)))",
    "comparison": "out.append(0 < i + part(i) < 3)",
    "with": "\n".join(("with Manager(i) as m:", "    out.append(m + part(i))")),
    "lambda": "out.append((lambda v: v + part(i))(i))",
    "finally": "\n".join(("try:", "    out.append(part(i))", "finally:", "    out.append(-i)")),
    "deeper loop": "\n".join(("for j in (1, 2):", "    out.append(j * part(i))")),
    "method load": "out.append(list(getattr(names, missing(i))()))",
}

LOOPS = {
    "for": "for i in range(4):",
    "for with objects": "for i in (0, 1, 2, 3):",
    "while": "while (i := i + 1) < 4:",
}

TEMPLATE = """
def function(x, bad):
    out, names, thing, i = [], {{}}, Thing(3), -1
    SEEN.clear()

    def part(i):
        B()
        if i in bad:
            raise KeyError(i)
        return i

    def missing(i):
        B()
        return "items" if i not in bad else "absent"

    {loop}
        try:
{body}
        except (KeyError, AttributeError) as error:
            out.append(str(error))
        x = x + 1
    return x, out, names, list(SEEN), thing.size
"""


class Base:
    def scaled(self, value, by=1):
        return self.size * value * by


class Thing(Base):
    def __init__(self, size):
        self.size = size

    def by_super(self, value):
        return super().scaled(value) + 1


class Manager:
    def __init__(self, number):
        self.number = number

    def __enter__(self):
        return self.number

    def __exit__(self, *error):
        return None


def _breaking() -> None:
    time.sleep(0)  # breaks the graph


SAMPLED = ("method", "super's method", "with")  # with every loop


@pytest.mark.parametrize(
    ("form", "loop"), [(f, k) for f in FORMS for k in LOOPS if k == "for" or f in SAMPLED]
)
def test_a_handler_goes_on_with_the_next_turn(form, loop):
    namespace = {"SEEN": [], "B": _breaking, "Thing": Thing, "Manager": Manager}
    body = textwrap.indent(FORMS[form], " " * 12)
    exec(TEMPLATE.format(loop=LOOPS[loop], body=body), namespace)
    x = torch.ones(3)
    calls = [(x, bad) for bad in ((0,), (1, 2), ())]
    check(namespace["function"], calls, fullgraph=False)
