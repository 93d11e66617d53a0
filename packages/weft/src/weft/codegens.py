"""The code generators of a graph's devices."""

from __future__ import annotations

from collections.abc import Iterable

import torch
import torch.fx
from weft_loop_ir import Codegen

from ._torch import FakeTensor
from .options import CompileOptions
from .registry import find_codegen


class Codegens:
    """The installed code generators, as ``options`` ask for them."""

    def __init__(self, options: CompileOptions) -> None:
        self._mode = options.mode
        self._cache_limit = options.cache_limit
        self._eager_numerics = options.numerics == "eager"

    def of_device(self, device_type: str) -> Codegen:
        """:raises WeftError: none is installed."""
        return find_codegen(
            device_type, self._mode, self._cache_limit, eager_numerics=self._eager_numerics
        )

    def of_capture(self, graph_module: torch.fx.GraphModule) -> list[Codegen]:
        """Those of a captured graph, whose values are fake tensors."""
        return [self.of_device(kind) for kind in sorted(device_types_of_capture(graph_module))]

    def of_graph(self, graph_module: torch.fx.GraphModule) -> list[Codegen]:
        """Those of a functional graph, whose values are in ``val``."""
        values = (node.meta.get("val") for node in graph_module.graph.nodes)
        found = _beside_the_cpu(v.device.type for v in values if isinstance(v, torch.Tensor))
        return [self.of_device(kind) for kind in sorted(found)]


def device_types_of_capture(graph_module: torch.fx.GraphModule) -> set[str]:
    """The device types of the tensors in a captured graph, the CPU left out where there is another."""
    values = (node.meta.get("example_value") for node in graph_module.graph.nodes)
    return _beside_the_cpu(v.device.type for v in values if isinstance(v, FakeTensor)) or {"cpu"}


def _beside_the_cpu(device_types: Iterable[str]) -> set[str]:
    found = set(device_types)
    return found - {"cpu"} or found
