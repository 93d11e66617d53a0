"""``except*`` and exception groups made in captured code, against plain Python."""

import time

import pytest
import torch
from differential import check

LOG = []


class Halted(Exception):
    pass


class Numbered(ExceptionGroup):
    def derive(self, exceptions):
        made = Numbered(f"{self.message}!", exceptions)
        made.number = getattr(self, "number", 0) + 1
        return made


def described(error):
    """An exception as nested tuples, its causes and contexts among them."""
    if error is None:
        return None
    parts = [described(part) for part in getattr(error, "exceptions", ())]
    links = described(error.__cause__), type(error.__context__).__name__
    notes = list(getattr(error, "__notes__", []))
    return type(error).__name__, str(error), parts, links, error.__suppress_context__, notes


def make(kinds):
    found = {
        "value": lambda: ValueError("v"),
        "type": lambda: TypeError("t"),
        "key": lambda: KeyError("k"),
        "halted": lambda: Halted("h"),
        "group": lambda: ExceptionGroup("inner", [ValueError("iv"), TypeError("it")]),
    }
    return [found[kind]() for kind in kinds]


def clauses(x, kinds):
    log = []
    try:
        raise ExceptionGroup("outer", make(kinds))
    except* ValueError as group:
        log.append(("value", described(group)))
        x = x + len(group.exceptions)
    except* (TypeError, KeyError) as group:
        log.append(("type or key", described(group)))
        x = x * 2
    return x, log


def with_else_and_finally(x, kinds):
    log = []
    try:
        if kinds:
            raise ExceptionGroup("outer", make(kinds))
        x = x + 1
    except* ValueError:
        log.append("value")
        x = x * 2
    except* TypeError:
        log.append("type")
        x = x * 3
    else:
        log.append("else")
    finally:
        log.append("finally")
        x = x - 1
    return x, log


def caught_outside(x, kinds):
    log = []
    try:
        try:
            raise ExceptionGroup("outer", make(kinds))
        except* ValueError as group:
            log.append(described(group))
            x = x + 1
    except ExceptionGroup as rest:
        log.append(("rest", described(rest)))
        x = x * 2
    return x, log


def raised_in_clauses(x, kinds):
    log = []
    try:
        try:
            raise ExceptionGroup("outer", make(kinds))
        except* ValueError as group:
            raise Halted("again") from group
        except* TypeError:
            raise
        except* KeyError as group:
            raise group
    except BaseExceptionGroup as rest:
        log.append(described(rest))
        x = x * 2
    except Halted as rest:
        log.append(described(rest))
        x = x * 3
    return x, log


def reraised_by_a_callee(x, kinds):
    def reraise():
        raise

    log = []
    try:
        try:
            raise ExceptionGroup("outer", make(kinds))
        except* ValueError:
            reraise()
        except* TypeError as group:
            log.append(described(group))
    except ExceptionGroup as rest:
        log.append(described(rest))
    return x + len(log), log


KINDS = [
    ("value",),
    ("type", "value"),
    ("value", "type", "key"),
    ("value", "group", "halted"),
    ("group",),
    ("halted", "halted"),
    ("key", "group"),
]
X = torch.arange(3.0)


@pytest.mark.parametrize(
    "program",
    [clauses, with_else_and_finally, caught_outside, raised_in_clauses, reraised_by_a_callee],
)
def test_clauses(program):
    check(program, [(X, kinds) for kinds in KINDS], fullgraph=False)


def test_one_graph_where_everything_is_caught():
    for program in (clauses, with_else_and_finally, caught_outside, raised_in_clauses):
        check(program, [(X, kinds) for kinds in (("value",), ("type", "value"))])
    check(with_else_and_finally, [(X, ())])


def naked(x, kind):
    log = []
    try:
        if kind == "value":
            raise ValueError("v")
        if kind == "type":
            raise TypeError("t")
        x = x + 1
    except* ValueError as group:
        log.append(described(group))
        x = x * len(group.exceptions)
    except* TypeError:
        x = x - 1
    return x, log


def test_a_naked_exception_is_wrapped():
    check(naked, [(X, "value"), (X, "type"), (X, "none")])


def naked_that_no_clause_takes(x):
    try:
        try:
            raise KeyError("k")
        except* ValueError:
            x = x + 1
    except KeyError as error:
        return x * 2, described(error)


def naked_raised_in_a_clause(x):
    try:
        try:
            raise KeyError("k")
        except* KeyError as group:
            raise ValueError("v") from group
    except ExceptionGroup as error:
        return x * 3, described(error)
    except ValueError as error:
        return x * 2, described(error)


def test_naked_exceptions_that_go_on():
    check(naked_that_no_clause_takes, [(X,)])
    check(naked_raised_in_a_clause, [(X,)])


def notes_and_subclasses(x, kinds):
    group = Numbered("numbered", make(kinds))
    group.add_note("noted")
    log = []
    try:
        try:
            raise group
        except* ValueError as part:
            log.append((described(part), part.number))
            x = x + part.number
    except Numbered as rest:
        log.append((described(rest), rest.number))
    return x, log


def test_subclasses_with_derive():
    check(notes_and_subclasses, [(X, kinds) for kinds in (("value", "type"), ("group", "value"))])


def splitting(x, kinds):
    group = ExceptionGroup("outer", make(kinds))
    by_class = group.split(ValueError)
    by_classes = group.split((TypeError, KeyError))
    by_function = group.split(lambda error: isinstance(error, Halted))
    under = group.subgroup(ValueError)
    pairs = [described(part) for pair in (by_class, by_classes, by_function) for part in pair]
    return x + len(group.exceptions), pairs, described(under), group.message, str(group)


def test_split_and_subgroup():
    check(splitting, [(X, kinds) for kinds in KINDS])


def kinds_of_groups(x):
    made = [
        BaseExceptionGroup("exceptions", [ValueError(1)]),
        BaseExceptionGroup("base", [KeyboardInterrupt(), ValueError(1)]),
        Numbered("numbered", (ValueError(1),)),
    ]
    return x + 1, [type(group).__name__ for group in made], [group.args[0] for group in made]


def test_the_class_that_a_group_gets():
    check(kinds_of_groups, [(X,)])


def wrong_arguments(x, which):
    try:
        if which == 0:
            ExceptionGroup("message", [])
        elif which == 1:
            ExceptionGroup("message", [ValueError(), 3])
        elif which == 2:
            ExceptionGroup(5, [ValueError()])
        elif which == 3:
            ExceptionGroup("message", [KeyboardInterrupt()])
        elif which == 4:
            ExceptionGroup("message", [ValueError()]).split(3)
    except (TypeError, ValueError) as error:
        return x + which, type(error).__name__, str(error)


def test_errors_of_construction():
    check(wrong_arguments, [(X, which) for which in range(5)])


def group_as_a_clause(x):
    try:
        try:
            raise ValueError("v")
        except* ExceptionGroup:
            x = x + 1
    except TypeError as error:
        return x * 2, str(error)


def test_a_group_is_no_class_for_a_clause():
    check(group_as_a_clause, [(X,)], fullgraph=False)


def returned_group(x):
    group = ExceptionGroup("made", [ValueError("v"), ExceptionGroup("in", [TypeError("t")])])
    group.add_note("noted")
    return x + 1, group


def test_a_group_that_outlives_the_graph():
    from weft_bytecode_capture import CaptureOptions, compile_frames

    def run_graph(graph_module, example_inputs):
        return graph_module.forward

    compiled = compile_frames(returned_group, run_graph, CaptureOptions(fullgraph=True))
    for _ in range(2):
        assert described(compiled(X)[1]) == described(returned_group(X)[1])


def break_in_a_clause(x, kinds):
    log = []
    try:
        y = x + 1
        raise ExceptionGroup("outer", make(kinds))
    except* ValueError as group:
        time.sleep(0)
        log.append(described(group))
        y = y * 2
    except* TypeError as group:
        log.append(described(group))
        y = y * 3
    return y, log


def test_breaks_in_clauses():
    check(
        break_in_a_clause,
        [(X, ("value", "type")), (X, ("type",)), (X, ("value",))],
        fullgraph=False,
    )
