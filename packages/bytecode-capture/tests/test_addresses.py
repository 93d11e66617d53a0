"""``id`` of objects from outside is a constant for these very objects; of others it ends the graph."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from weft_bytecode_capture import CaptureOptions as Options
from weft_bytecode_capture import GraphBreakError, capture, compile_frames


class Settings:
    def __init__(self, factor: float) -> None:
        self.factor = factor


def _run_graph(graph_module: torch.fx.GraphModule, inputs: list[Any]) -> Any:
    return graph_module.forward


def test_tables_by_address_hold_what_eager_puts_there() -> None:
    tables: list[dict[int, float]] = [{}, {}]
    objects = [Settings(2.0), Settings(3.0), lambda: None]

    def scaled(x: torch.Tensor, settings: Any, table: dict[int, float]) -> torch.Tensor:
        table[id(settings)] = table.get(id(settings), 0.0) + 1.0
        return x * table[id(settings)]

    compiled = compile_frames(scaled, _run_graph, Options(fullgraph=True))
    for settings in (*objects, *objects, objects[0]):
        x = torch.randn(3)
        assert torch.equal(compiled(x, settings, tables[0]), scaled(x, settings, tables[1]))
    assert tables[0] == tables[1]


def test_an_object_in_the_place_of_a_dead_one_is_another() -> None:
    def told(x: torch.Tensor, settings: Settings, seen: list[int]) -> torch.Tensor:
        seen.append(id(settings))
        return x + 1

    compiled = compile_frames(told, _run_graph)
    for factor in range(4):
        settings, seen = Settings(factor), list[int]()
        compiled(torch.ones(2), settings, seen)
        assert seen == [id(settings)]
        del settings


def test_parameters_are_told_apart_by_address() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))
    chosen = {id(p) for p in model[0].parameters()}

    def total(x: torch.Tensor) -> torch.Tensor:
        parts = [p.sum() for p in model.parameters() if id(p) in chosen]
        return x + torch.stack(parts).sum()

    found = capture(total, options=Options(fullgraph=True))(torch.ones(2))
    assert torch.equal(found.result, total(torch.ones(2)))
    assert len(found.graphs) == 1


@pytest.mark.parametrize("made", [lambda x: x, lambda x: x + 1, lambda x: [x], lambda x: 3])
def test_other_addresses_end_the_graph(made: Any) -> None:
    def address(x: torch.Tensor) -> Any:
        return x * 2, id(made(x)) > 0

    with pytest.raises(GraphBreakError, match=r"id\(\)"):
        capture(address, options=Options(fullgraph=True))(torch.ones(2))
    assert capture(address)(torch.ones(2)).result[1] is True
