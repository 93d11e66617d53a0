"""Places are told by the user's own line, and by the library's that it went through."""

from __future__ import annotations

import io
import time

import pytest
import torch
import weft
from weft.locations import describe_frames, describe_place
from weft_bytecode_capture import UserLocation

HERE = __file__.rpartition("/")[2]
TORCH = torch.nn.__file__.replace("__init__.py", "modules/linear.py")
USER = UserLocation("/home/me/my_model.py", 12, "Model.forward")
LINEAR = UserLocation(TORCH, 134, "Linear.forward")
PACKAGE = UserLocation("/usr/lib/python3/site-packages/models/bert.py", 5, "Bert.forward")
WEFT = UserLocation(weft.__file__, 1, "compile")

MINE = "/home/me/my_model.py:12 in forward"
CASES = [
    ([USER], [], MINE),
    ([USER, LINEAR], [], f"{MINE}, through torch/nn/modules/linear.py:134"),
    ([USER, PACKAGE, LINEAR], [], f"{MINE}, through torch/nn/modules/linear.py:134"),
    (
        [PACKAGE, LINEAR],
        [USER],
        "models/bert.py:5 in forward, through torch/nn/modules/linear.py:134",
    ),
    ([LINEAR], [USER, WEFT], f"{MINE}, through torch/nn/modules/linear.py:134"),
    ([LINEAR, USER], [], MINE),  # a callback
    ([USER, WEFT], [], MINE),  # a polyfill
    ([], [USER, LINEAR, WEFT], MINE),
    ([LINEAR], [], "torch/nn/modules/linear.py:134 in forward"),
    ([], [WEFT], "<unknown>"),
]


@pytest.mark.parametrize(("frames", "callers", "expected"), CASES)
def test_the_frame_that_is_named(frames, callers, expected) -> None:
    assert describe_frames(frames, callers) == expected


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(3, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x)


@pytest.mark.parametrize("make", [Model, lambda: torch.nn.Linear(3, 3)], ids=["own", "torch's"])
def test_reports_and_tables_name_the_users_line(make, monkeypatch) -> None:
    """Also where the whole compiled code is torch's: then the line of the call."""
    with torch.no_grad():
        explanation = weft.explain(make())(torch.ones(2, 3))
    (graph,) = explanation.compiled_graphs
    place, _, through = graph.location.partition(", through ")
    assert f"{HERE}:" in place
    assert through.startswith("torch/nn/modules/linear.py:")
    monkeypatch.setenv("COLUMNS", "400")
    explanation.show(file=(shown := io.StringIO()))
    text = shown.getvalue()
    assert graph.location in text
    if make is not Model:
        assert f"called at {place}" in text


class Counting(torch.nn.Module):
    """Breaks the graph in torch's code: a hook that prints is called there."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = torch.nn.Sequential(torch.nn.Linear(3, 3))
        self.inner[0].register_forward_hook(lambda *_: time.sleep(0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x) + 1


def test_breaks_name_the_users_line() -> None:
    with torch.no_grad():
        explanation = weft.explain(Counting(), backend="eager")(torch.ones(2, 3))
    assert explanation.breaks
    for frame in explanation.frames:
        if frame.graph_break is not None:
            stack = (*frame.graph_break.stack, frame.graph_break.location)
            told = describe_frames(stack, frame.callers)
            assert told.partition(":")[0].endswith(HERE)
            assert told in " ".join(str(explanation).split())


def test_an_error_of_a_backend_names_the_users_line() -> None:
    def failing(graph_module, example_inputs):
        raise RuntimeError("no")

    with pytest.raises(weft.StageError, match=rf"{HERE}:\d+ in forward, through torch/nn/modules"):
        weft.compile(Model(), backend=failing, fullgraph=True)(torch.ones(2, 3))


def test_places_are_short() -> None:
    assert describe_place(USER) == MINE


def test_a_working_directory_that_is_gone(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    tmp_path.rmdir()
    assert describe_place(USER) == MINE
