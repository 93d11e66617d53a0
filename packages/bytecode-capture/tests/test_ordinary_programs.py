"""Ordinary programs, over several calls with changing arguments: results and side effects as in CPython."""

import pytest
from differential import check
from ordinary import data, errors, flow, libraries, objects

ALL = [row for topic in (data, flow, objects, libraries, errors) for row in topic.PROGRAMS.rows]


@pytest.mark.parametrize("program", ALL, ids=[row.function.__name__ for row in ALL])
def test_program(program):
    check(
        program.function,
        program.calls,
        fullgraph=program.one_graph,
        state=program.state,
        reset=program.reset,
    )


def test_there_are_many():
    assert len({row.function.__name__ for row in ALL}) == len(ALL) >= 60
