"""What a tensor is known to hold is not what it held before it was written to, by whatever way."""

import pytest
import torch
from weft_bytecode_capture import CaptureOptions, capture

LIBRARY = torch.library.Library("weft_known_contents", "DEF")
for schema, write in {
    "bump(Tensor(a!) x) -> ()": lambda x: x.add_(2),
    "bumps(Tensor(a!)[] x) -> ()": lambda x: [y.add_(2) for y in x],
}.items():
    name = LIBRARY.define(schema)
    LIBRARY.impl(name, lambda x, write=write: (write(x), None)[1], "CPU")
    LIBRARY.impl(name, lambda x: None, "Meta")

ORDINARY = {
    "out": lambda c: torch.add(c, 2, out=c),
    "library": torch.ops.weft_known_contents.bump,
    "overload": torch.ops.weft_known_contents.bump.default,
    "list of a library": lambda c: torch.ops.weft_known_contents.bumps([c]),
    "data": lambda c: c.data.add_(2),
    "detached": lambda c: c.detach().add_(2),
    "item": lambda c: c.__setitem__(0, 5),
    "row": lambda c: c[1].add_(3),
    "numpy": lambda c: c.numpy().__iadd__(2),
}
LISTS = [
    (name, overload)
    for name in dir(torch)
    if name.startswith("_foreach_") and name.endswith("_")
    for overload in getattr(torch.ops.aten, name).overloads()
]


def in_list(name, overload):
    """A call of an operator on lists, which writes to the first one's only tensor."""
    schema = getattr(getattr(torch.ops.aten, name), overload)._schema
    others = [a for a in schema.arguments[1:] if not a.has_default_value()]

    def run(c):
        values = {
            "List[Tensor]": [torch.full_like(c, 3)],
            "Tensor": torch.tensor([2.0] if "scalars" in [a.name for a in others] else 2.0),
            "List[number]": [2],
            "number": 2,
        }
        getattr(torch, name)([c], *(values[str(a.type)] for a in others))

    return run


def counted(t, x, write):
    """As often as what was written says."""
    c = t.clone()
    write(c)
    return x * len([0] * int(c.abs().nansum().item() * 3)), c


def decided(t, x, write):
    """In a branch, where what is made of constants is known."""
    if x.sum() > 0:
        c = torch.tensor([1.0, 2.0])
        write(c)
        if c.sum() == 3:
            return x * 2
        return x * 4
    return x * 5


def given(t, x, write):
    """To the tensor that was given."""
    write(t)
    return x * len([0] * int(t.abs().nansum().item() * 3))


def behind_view(t, x, write):
    c = torch.cat([t, t])
    view = c[2:]
    write(view)
    return x * len([0] * int(c.abs().nansum().item() * 3))


def same_twice(program, write, times):
    captured = capture(program, options=CaptureOptions(read_contents=True))
    for contents in (times, times, times + 1):
        results = []
        for function in (program, lambda *a: captured(*a).result):
            t = contents.clone()
            results.append((function(t, torch.ones(2), write), t))
        torch.testing.assert_close(results[1], results[0], equal_nan=True)


@pytest.mark.parametrize("program", [counted, decided, given, behind_view])
@pytest.mark.parametrize("name", ORDINARY)
def test_written_by_operators_of_its_own(program, name):
    same_twice(program, ORDINARY[name], torch.tensor([1, 2]))


@pytest.mark.parametrize(("name", "overload"), LISTS)
def test_written_in_lists(name, overload):
    """Where floats in order are known, and where what a branch makes is."""
    for program in (counted, decided, given, behind_view) if name == "_foreach_mul_" else [counted]:
        same_twice(program, in_list(name, overload), torch.tensor([0.25, 0.75]))


def test_written_in_a_list_of_results():
    def program(t, x):
        c = t.clone()
        torch.split_with_sizes_copy(t * 3, [2, 1], out=[c[:2], c[2:]])
        return x * len([0] * c.sum().item())

    captured = capture(program)
    for t in (torch.tensor([1, 2, 3]), torch.tensor([1, 1, 1])):
        torch.testing.assert_close(captured(t, torch.ones(2)).result, program(t, torch.ones(2)))


@pytest.mark.parametrize("known", [True, None])
def test_versions_of_what_is_in_lists(known):
    """They are eager's, twice for what is in a list twice."""

    def program(t):
        c, d = t.clone(), t[:1]
        torch._foreach_mul_([c, d, c], 2)
        torch._foreach_copy_([c], [t])
        return t * (c._version * 100 + d._version * 10 + t._version)

    captured = capture(program, options=CaptureOptions(read_contents=known))
    found = [f(torch.tensor([1, 2])) for f in (lambda t: captured(t).result, program)]
    torch.testing.assert_close(*found)


def nested(t, x):
    c, d = torch.tensor([1.0, 2.0]), torch.tensor([1, 2])
    if x.sum() > 0:
        e = torch.tensor([1.0, 2.0])
        if x.max() > 1:
            e.add_(1)
            c.mul_(2)
        if e.sum() == 3:
            return x * 2
        if x.min() > 0.5:
            torch.ops.weft_known_contents.bump(d)
            if x.min() > 0.75:
                if d.sum() == 3:
                    return x * 3
                return x * 4
            x = x + 1
        if c.sum() == 3:
            return x * 5
        return x * 6
    return x * 7


def test_written_in_branches_in_branches():
    captured = capture(nested)
    for x in ([2.0, 0.25], [0.25, 0.25], [2.0, 0.8], [2.0, 0.6], [-1.0, 0.0]):
        found = captured(torch.ones(2), torch.tensor(x)).result
        torch.testing.assert_close(found, nested(torch.ones(2), torch.tensor(x)))
