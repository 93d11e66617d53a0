"""The native check answers as the Python evaluation does, on generated values and guards."""

import builtins

import pytest
from generated_guards import REASON, VALUES, guards_on, places
from hypothesis import given, settings
from hypothesis import strategies as st
from weft_guards import ArgumentSource, Guard, GuardSet, NotAliased, SameObject, Scope


def answers(guard_set, check, x, y):
    scope = Scope({"x": x, "y": y}, {}, vars(builtins), {})
    expected = guard_set.evaluate(scope)
    assert (guard_set.explain(scope) is None) is expected
    assert check.check((x, y), {}, vars(builtins), None) is expected
    return expected


@pytest.mark.kept
@settings(max_examples=300, deadline=None)
@given(st.data())
def test_native_check_agrees_with_the_oracle(data):
    x, y = data.draw(VALUES), data.draw(VALUES)
    roots = [*places(ArgumentSource("x"), x), *places(ArgumentSource("y"), y)]
    candidates = [guard for source, value, _ in roots for guard in guards_on(source, value)]
    sources = [source for source, _, _ in roots]
    guards = data.draw(st.lists(st.sampled_from(candidates), max_size=10))
    scope = Scope({"x": x, "y": y}, {}, {}, {})
    if data.draw(st.booleans()):  # mostly such sets pass before the mutation
        guards = [guard for guard in guards if GuardSet([guard]).evaluate(scope)]
    for relation in data.draw(st.lists(st.sampled_from([SameObject, NotAliased]), max_size=2)):
        first, second = (data.draw(st.sampled_from(sources)) for _ in range(2))
        if first != second:  # read once natively: a tensor's item is another object each time
            guards.append(Guard(first, relation(second), REASON))
    guard_set = GuardSet(guards)
    check = guard_set.compile(("x", "y"), ())
    answers(guard_set, check, x, y)
    answers(guard_set, check, y, x)
    answers(guard_set, check, data.draw(VALUES), y)
    for _ in range(3):
        mutable = [where for _, _, where in roots if where is not None]
        if not mutable:
            break
        container, key = data.draw(st.sampled_from(mutable))
        if type(container) is dict and data.draw(st.booleans()):
            container.pop(key, None)
        elif type(container) is dict or key < len(container):
            container[key] = data.draw(VALUES)
        answers(guard_set, check, x, y)
