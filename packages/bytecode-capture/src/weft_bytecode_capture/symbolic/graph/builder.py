"""Building the captured graph: nodes, and what they give on fake tensors."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
import torch.fx
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from weft_guards import IsObject, Source, TensorMatches, TensorMetadata

from ..._torch import FAKE_TENSOR_ERRORS, FakeTensorMode
from ...captured_graph import CapturedGraph
from ...unsupported import OPERATOR_REJECTS, Unsupported
from ..variables.base import Variable
from .modes import ModeSwitches

if TYPE_CHECKING:
    from ..evaluator import Evaluator
    from ..variables.tensor import TensorVariable


class GraphBuilder:
    """One frame's graph.  Placeholders are user tensors, attributes are tensors known by identity."""

    def __init__(self) -> None:
        self.fake_mode = FakeTensorMode(
            shape_env=ShapeEnv(), static_shapes=True, allow_non_fake_inputs=False
        )
        self.graph = torch.fx.Graph()
        self.root = torch.nn.Module()
        self._sources: list[Source] = []
        self._examples: list[Any] = []
        self._attributes: dict[int, TensorVariable] = {}
        self._last_placeholder: torch.fx.Node | None = None
        self._last_attribute: torch.fx.Node | None = None
        self.modes = ModeSwitches(self.graph)

    def add_input(
        self, evaluator: Evaluator, tensor: torch.Tensor, source: Source
    ) -> TensorVariable:
        """A placeholder for a tensor of the caller, guarded by its metadata."""
        fake = self._fake(evaluator, tensor, source)
        name = _readable_name(source)
        with self._after(self._last_placeholder):
            node = self.graph.placeholder(name)
        self._last_placeholder = node
        self._sources.append(source)
        self._examples.append(fake)
        return self._variable(evaluator, node, fake, source)

    def add_attribute(
        self, evaluator: Evaluator, tensor: torch.Tensor, source: Source
    ) -> TensorVariable:
        """A tensor known by identity (a parameter, a buffer): an attribute of the graph module."""
        known = self._attributes.get(id(tensor))
        if known is not None:
            return known
        fake = self._fake(evaluator, tensor, source)
        evaluator.guard(source, IsObject(tensor, weak=True))
        target = _readable_name(source)
        while hasattr(self.root, target):
            target += "_"
        if isinstance(tensor, torch.nn.Parameter):
            self.root.register_parameter(target, tensor)
        else:
            self.root.register_buffer(target, tensor)
        with self._after(self._last_attribute or self._last_placeholder):
            node = self.graph.get_attr(target)
        self._last_attribute = node
        variable = self._variable(evaluator, node, fake, source)
        self._attributes[id(tensor)] = variable
        return variable

    def call_function(
        self,
        evaluator: Evaluator,
        target: Callable[..., Any],
        arguments: Sequence[Variable],
        keywords: dict[str, Variable],
    ) -> Variable:
        """A node that calls ``target``; its results as fake tensors, wrapped."""
        return self._call(evaluator, "call_function", target, arguments, keywords)

    def call_method(
        self,
        evaluator: Evaluator,
        name: str,
        tensor: Variable,
        arguments: Sequence[Variable],
        keywords: dict[str, Variable],
    ) -> Variable:
        """A node that calls a tensor's method."""
        return self._call(evaluator, "call_method", name, (tensor, *arguments), keywords)

    def finish(self, outputs: Sequence[Variable]) -> CapturedGraph:
        """The graph that gives ``outputs``; its guards are the caller's to add."""
        self.graph.output(tuple(output.node for output in outputs))
        module = torch.fx.GraphModule(self.root, self.graph, "CapturedGraph")
        return CapturedGraph(module, tuple(self._examples), tuple(self._sources), ())

    # Parts.

    def _after(self, node: torch.fx.Node | None) -> Any:
        """Insert after ``node``, or before everything."""
        if node is not None:
            return self.graph.inserting_after(node)
        first = next(iter(self.graph.nodes), None)
        return self.graph.inserting_before(first)

    def _fake(self, evaluator: Evaluator, tensor: torch.Tensor, source: Source) -> torch.Tensor:
        try:
            metadata = TensorMetadata.of(tensor)
        except TypeError as error:
            raise Unsupported("tensor of unusual kind", source.name(), str(error)) from error
        evaluator.guard(source, TensorMatches(metadata))
        fake: torch.Tensor = self.fake_mode.from_tensor(tensor, static_shapes=True)
        return fake

    def _variable(
        self, evaluator: Evaluator, node: torch.fx.Node, fake: torch.Tensor, source: Source | None
    ) -> TensorVariable:
        from ..variables.tensor import TensorVariable

        node.meta["example_value"] = fake
        return TensorVariable(node, fake, source)

    def _call(
        self,
        evaluator: Evaluator,
        kind: str,
        target: Any,
        arguments: Sequence[Variable],
        keywords: dict[str, Variable],
    ) -> Variable:
        from ..variables.tensor import graph_argument, wrap_graph_result

        pairs = [graph_argument(evaluator, argument) for argument in arguments]
        named = {name: graph_argument(evaluator, value) for name, value in keywords.items()}
        nodes = tuple(pair[0] for pair in pairs)
        fakes = tuple(pair[1] for pair in pairs)
        fake_keywords = {name: pair[1] for name, pair in named.items()}
        try:
            with self.fake_mode:
                if kind == "call_method":
                    value = getattr(fakes[0], target)(*fakes[1:], **fake_keywords)
                else:
                    value = target(*fakes, **fake_keywords)
        except Exception as error:
            # Whatever it is, a user's mistake or an operator that fakes do not know: eager decides.
            unknown = isinstance(error, FAKE_TENSOR_ERRORS)
            raise Unsupported(
                "operator that cannot be evaluated on fake tensors"
                if unknown
                else OPERATOR_REJECTS,
                f"{getattr(target, '__name__', target)}: {error}",
            ) from error
        node = self.graph.create_node(
            kind, target, nodes, {name: pair[0] for name, pair in named.items()}
        )
        reason = evaluator.current_reason()
        node.meta["stack_trace"] = (
            f'  File "{reason.file}", line {reason.line}, in captured code\n    {reason.text}'
        )
        return wrap_graph_result(evaluator, node, value)


# What says nothing in the name of a parameter: L['self'].__dict__['_modules']['fc'] is self.fc.
_NOISE = re.compile(r"__dict__|\['_(?:modules|parameters|buffers)'\]|^[LGC](?=\[)|[^A-Za-z0-9_]+")


def _readable_name(source: Source) -> str:
    """An identifier that says where a tensor was found, much as the program writes it."""
    words = _NOISE.sub(" ", source.name()).split()
    name = "_".join(words).lower()
    return name if name.isidentifier() else f"tensor_{name}"
