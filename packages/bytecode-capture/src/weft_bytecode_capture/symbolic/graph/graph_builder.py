"""Building the captured graph: nodes, and what they give on fake tensors."""

from __future__ import annotations

import functools
import itertools
import operator
import types
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.fx
from weft_guards import (
    IsObject,
    Source,
    TensorMatches,
    TensorMetadata,
)

from ..._torch import CapturedModule, pytree
from ..._torch.fakes import (
    UnsupportedFakeTensorException,
    errors_unlogged,
)
from ..._torch.new_nodes import append_node
from ..._torch.symbols import (
    expression_of,
    unbacked_symbols,
)
from ..._torch.transforms import LEVEL_WRAPPERS
from ...captured_graph import CapturedGraph, DropDataDependence, SpecialiseSizes
from ...unsupported import OPERATOR_REJECTS, Unsupported
from ..faults import raise_fault
from ..models.libraries.warnings_given import give_warning
from ..models.numbers.number_arguments import call_with_numbers, has_number
from ..models.numbers.symbolic_float import SymbolicFloatVariable
from ..models.numbers.symbolic_integer import LoopCounter
from ..models.numbers.symbolic_number import SymbolicNumberVariable
from ..models.torch.tensor import TensorVariable, wrap_graph_result
from ..protocol import Evaluator
from ..shapes import DataSymbolSource, ShapeSymbols
from ..shapes.symbols import require_history
from ..variables.base import Keywords, Variable
from ..variables.constant import ConstantVariable
from ..variables.graph_arguments import given_tensors, graph_argument, with_dtype
from .answers import Given, guard_absolute_place, guard_leaf, require_held
from .changed_layouts import changed_in_place
from .changed_leaves import ChangedLeaves
from .data_dependence import (
    CallChecks,
    decide_count,
    refuse_unchecked_window,
    require_selected_inside,
    require_small,
)
from .fake_corrections import as_kernel_lies, with_undefined
from .fake_mode import OperandCheck, RememberingFakeMode
from .histories import GradientRules, as_given, raise_for_view
from .hoisting import placed
from .known_results import KnownResults
from .library_settings import LibrarySettings
from .marked_inputs import MarkedInputs
from .marked_leaves import KIND, MarkedLeaves
from .modes import ModeSwitches
from .new_leaves import NewLeaves
from .node_calls import run_call
from .operator_warnings import note_warnings, warnings_of_python
from .optional_gradients import OptionalGradients
from .out_tensors import OutTensors
from .placeholder_names import free_name, readable_name
from .present_values import PresentValues
from .purity import is_data_of, is_idle
from .refused_calls import break_kind, refuse_by_arguments, require_dense
from .region_histories import RegionHistories
from .repeated_calls import RepeatedCalls
from .size_nodes import needed_inputs, size_node
from .sizes_in_tensors import with_sizes_read
from .storages import Layout, guard_overlap, leaves, node_values, storages, version_of
from .tensor_hooks import TensorHooks
from .tensors_met import meets_tensors
from .transforms import TransformLevels
from .unread_results import read_what_may_raise
from .views_of_leaves import ViewsOfLeaves
from .writes_so_far import WritesSoFar


@dataclass(frozen=True, eq=False)
class _Input:
    """A tensor that the graph takes; ``version`` and ``layout`` are the fake's when the graph began."""

    source: Source
    tensor: torch.Tensor
    fake: torch.Tensor
    version: int
    layout: Layout


class GraphBuilder:
    """One frame's graph.  Placeholders are user tensors, attributes are tensors known by identity."""

    def __init__(
        self,
        shapes: ShapeSymbols,
        check_operands: OperandCheck | None = None,
        known: KnownResults | None = None,
    ) -> None:
        """``known``: results of operators that other evaluations got, and this one adds to."""
        self.shapes = shapes
        self.fake_mode = RememberingFakeMode(
            check_operands,
            known,
            shape_env=shapes.environment_on_demand,
            static_shapes=True,
            allow_non_fake_inputs=False,
        )
        self._repeated = RepeatedCalls(self.fake_mode)
        self.graph = torch.fx.Graph()  # a region's while one is evaluated
        self.outermost = self.graph
        self._names: dict[Any, str] = {}  # of nodes, by what they call
        self.root = torch.nn.Module()
        self._sources: list[Source] = []
        self._examples: list[Any] = []
        self._inputs: list[_Input] = []
        self.given: list[Given] = []
        self._numbers: dict[Any, torch.fx.Node] = {}  # by expression
        self._last_placeholder: torch.fx.Node | None = None
        self._last_attribute: torch.fx.Node | None = None
        self.modes = ModeSwitches(self.graph)
        self.library_settings = LibrarySettings()
        self.rules = GradientRules(self)
        self.transforms = TransformLevels()
        self.taken_as_data: set[int] = set()  # storages whose writes may not be counted
        self.first_versions: dict[
            torch.fx.Node, int
        ] = {}  # of inputs' and attributes' fake tensors
        self.data_place: DataSymbolSource | None = None  # of the number that is being read
        self.made_at: dict[Any, int] = {}
        # By the root frame's instruction, and by identity: a hash of code reads all of it.
        self.inlined_at: dict[int, dict[int, types.CodeType]] = {}
        """The root frame's instruction that each node comes from."""
        self.marked_leaves = MarkedLeaves(self.graph)
        self.new_leaves = NewLeaves()
        self.changed_leaves = ChangedLeaves()
        self.hooks = TensorHooks()
        self.marked_inputs = MarkedInputs()
        self.views_of_leaves = ViewsOfLeaves()
        self.present_values = PresentValues(self)
        self.writes_so_far = WritesSoFar(self)
        self.counters: dict[Any, LoopCounter] = {}  # of loops that are kept, by symbol
        self.optional_gradients = OptionalGradients(self.given)
        self.region_histories = RegionHistories(self.optional_gradients)
        self.is_repeated = False  # the graph at hand is inside a loop that is kept
        self.symbols_outside = 0  # how many symbols there were before the region at hand
        self.in_handled_code = False  # some node was made where the program catches exceptions

    def add_input(
        self, evaluator: Evaluator, tensor: torch.Tensor, source: Source
    ) -> TensorVariable:
        """A placeholder for a tensor of the caller, guarded by its metadata."""
        try:
            fake, metadata = self.shapes.tensor(self.fake_mode, tensor, source)
        except (TypeError, NotImplementedError, UnsupportedFakeTensorException) as error:
            raise Unsupported("tensor of unusual kind", source.name(), str(error)) from error
        evaluator.guard(source, TensorMatches(metadata))
        self._inputs.append(_Input(source, tensor, fake, version_of(fake), Layout(fake)))
        self.given.append((source, tensor, fake))
        return self._variable(self._placeholder(source, fake), fake, source)

    def add_placeholder(self, source: Source, fake: torch.Tensor) -> torch.fx.Node:
        """A placeholder for what the frame's code makes before it calls the graph."""
        node = self._placeholder(source, fake)
        node.meta["example_value"] = fake
        return node

    def add_number(self, number: Any, source: Source) -> Variable:
        """A placeholder for a symbolic number of the caller."""
        return self.number(number, lambda graph: self._placeholder(source, number), source)

    def layouts(self, before: Mapping[int, Layout] | None = None) -> dict[int, Layout]:
        """The layouts of all inputs; those of ``before``, and of inputs made since, as they were then."""
        if before is None:
            return {index: Layout(given.fake) for index, given in enumerate(self._inputs)}
        return {k: before.get(k, given.layout) for k, given in enumerate(self._inputs)}

    def number(
        self,
        value: Any,
        make_node: Callable[[torch.fx.Graph], torch.fx.Node | None],
        source: Source | None,
    ) -> Variable:
        """The variable of a number; a symbolic one's node is the first that gives the same expression.

        Nodes of numbers are in the outermost graph.  ``make_node`` gives None where the number is asked of a
        tensor that is in a region: then it is computed from the sizes of the graph's inputs.
        """
        if not isinstance(value, (torch.SymInt, torch.SymFloat)):
            return ConstantVariable(value)
        expression = expression_of(value)
        if expression.is_number:
            return ConstantVariable(self.shapes.specialise(value))
        node = self._numbers.get(expression)
        if node is None:
            node = make_node(self.outermost) or size_node(self, expression)
            self._numbers[expression] = node
            node.meta["example_value"] = value
        varying = self.shapes.varying_float(expression)
        if varying is not None:
            return SymbolicFloatVariable(self.shapes, value, node, *varying)
        return SymbolicNumberVariable(self.shapes, value, node, source)

    def number_node(self, expression: Any) -> torch.fx.Node | None:
        """The node that gives a number, if there is one."""
        return self._numbers.get(expression)

    def input_node(self, source: Source) -> torch.fx.Node:
        """The placeholder of what the graph takes from ``source``."""
        nodes = list(self.outermost.find_nodes(op="placeholder"))
        found: torch.fx.Node = nodes[self._sources.index(source)]
        return found

    @contextmanager
    def reading(self, place: DataSymbolSource) -> Iterator[None]:
        """A context for the call that reads a number from a tensor, which is at ``place`` too."""
        self.data_place = place
        try:
            yield
        finally:
            self.data_place = None

    def computed(
        self, evaluator: Evaluator, function: Callable[..., Any], numbers: Sequence[Any]
    ) -> Any:
        """What ``function`` gives for symbolic numbers; its exceptions are the program's.

        :raises Unsupported: it depends on data, and may leave 64 bits.
        """
        value = evaluator.pure(function, *numbers)
        self.shapes.note_relations()
        if self.shapes.data:
            require_small(self, value)
        return value

    def has_tensors(self) -> bool:
        """Whether anything but numbers, drawn ones among them, has come into the graph."""
        return meets_tensors(self.outermost.nodes)

    def add_attribute(
        self, evaluator: Evaluator, tensor: torch.Tensor, source: Source
    ) -> TensorVariable:
        """A tensor known by identity (a parameter, a buffer): an attribute of the graph module."""
        fake = self._fake(evaluator, tensor, source)
        evaluator.guard(source, IsObject(tensor, weak=True))
        self.given.append((source, tensor, fake))
        target = free_name(source, self.root)
        if isinstance(tensor, torch.nn.Parameter):
            self.root.register_parameter(target, tensor)
        else:
            self.root.register_buffer(target, tensor)
        with self._after(self._last_attribute or self._last_placeholder):
            node = self.outermost.get_attr(target)
        self._last_attribute = node
        return self._variable(node, fake, source)

    def pass_attribute(self, tensor: TensorVariable, value: torch.Tensor) -> None:
        """Take an attribute as an input instead: each call may find it with another layout."""
        node, source = next(
            (node, source)
            for source, known, fake in self.given
            for node in self.outermost.nodes
            if known is value and node.meta.get("example_value") is fake
        )
        if node.op != "get_attr":
            return
        fake = node.meta["example_value"]
        placeholder = self._placeholder(source, fake)
        placeholder.meta["example_value"] = fake
        self.first_versions[placeholder] = self.first_versions.pop(node)
        self._inputs.append(
            _Input(source, value, fake, self.first_versions[placeholder], Layout(fake))
        )
        node.replace_all_uses_with(placeholder)
        if self._last_attribute is node:
            self._last_attribute = None
        self.outermost.erase_node(node)

    def call_function(
        self,
        evaluator: Evaluator,
        target: Callable[..., Any],
        arguments: Sequence[Variable],
        keywords: Keywords,
    ) -> Variable:
        """A node that calls ``target``; its results as fake tensors, wrapped."""
        return self._call(evaluator, "call_function", target, arguments, keywords)

    def call_method(
        self,
        evaluator: Evaluator,
        name: str,
        tensor: Variable,
        arguments: Sequence[Variable],
        keywords: Keywords,
    ) -> Variable:
        """A node that calls a tensor's method."""
        return self._call(evaluator, "call_method", name, (tensor, *arguments), keywords)

    def finish(self, outputs: Sequence[TensorVariable]) -> CapturedGraph | None:
        """The graph that gives ``outputs``; its guards are the caller's to add.

        Nodes and inputs that neither the outputs nor an effect needs are left out; None if nothing is left.
        """
        self.graph.output(tuple(output.node for output in outputs))
        self._remove_dead_nodes()
        if not outputs and all(is_idle(node) for node in self.graph.nodes):
            return None
        inputs = list(self.graph.find_nodes(op="placeholder"))
        used = needed_inputs(inputs)
        for node in itertools.compress(inputs, map(operator.not_, used)):
            self.graph.erase_node(node)
        module = CapturedModule(self.root, self.graph, "CapturedGraph")
        given = self.marked_inputs.without(self.given)
        examples = as_given(given, itertools.compress(self._examples, used))
        sources = tuple(itertools.compress(self._sources, used))
        return CapturedGraph(module, examples, sources, (), self.modes.graph_inference())

    def release(self) -> None:
        """Let go of the tensors; the graph that :meth:`finish` gave has those that it needs."""
        self.root = torch.nn.Module()
        self._inputs.clear()
        self.given.clear()
        self.present_values.release()

    def guard_written(self, evaluator: Evaluator) -> None:
        """Guard which inputs share storage with one that the graph writes to, and which are leaves."""
        written = [version_of(given.fake) != given.version for given in self._inputs]
        for given, is_written in zip(self._inputs, written, strict=True):
            if is_written:  # by itself or by a view: eager refuses to write to a leaf
                guard_leaf(evaluator, given.source, given.tensor)
        rows = zip(self._inputs, written, strict=True)
        known = self.views_of_leaves
        guard_overlap(evaluator, [(g.source, g.tensor, w or g.tensor in known) for g, w in rows])

    @property
    def is_in_region(self) -> bool:
        """Whether nodes go to the graph of a branch or loop now."""
        return self.graph is not self.outermost

    def inputs(self) -> tuple[_Input, ...]:
        """The tensors that the graph takes so far."""
        return tuple(self._inputs)

    def inputs_by_node(self) -> dict[torch.fx.Node, _Input]:
        by_fake = {id(given.fake): given for given in self._inputs}
        nodes = self.outermost.find_nodes(op="placeholder")
        fakes = ((node, id(node.meta.get("example_value"))) for node in nodes)
        return {node: by_fake[fake] for node, fake in fakes if fake in by_fake}

    def _remove_dead_nodes(self) -> None:
        alive = read_what_may_raise(self.graph)
        for node in reversed(self.graph.nodes):
            if node not in alive:
                self.graph.erase_node(node)

    # Parts.

    def _placeholder(self, source: Source, example: Any) -> torch.fx.Node:
        with self._after(self._last_placeholder):
            node = self.outermost.placeholder(readable_name(source))
        # x and X, or d["a-b"] and d["a_b"], read alike, and one called inf would hide the number.
        node.target = node.name
        self._last_placeholder = node
        self._sources.append(source)
        self._examples.append(example)
        return node

    def _after(self, node: torch.fx.Node | None) -> Any:
        """Insert after ``node``, or before everything."""
        if node is not None:
            return self.outermost.inserting_after(node)
        first = next(iter(self.outermost.nodes), None)
        return self.outermost.inserting_before(first)

    def _fake(self, evaluator: Evaluator, tensor: torch.Tensor, source: Source) -> torch.Tensor:
        try:
            require_history(tensor)
            metadata = TensorMetadata.of(tensor)
            fake = self.fake_mode.from_leaf(tensor)
        except (TypeError, NotImplementedError, UnsupportedFakeTensorException) as error:
            raise Unsupported("tensor of unusual kind", source.name(), str(error)) from error
        evaluator.guard(source, TensorMatches(metadata))
        return fake

    def _variable(
        self, node: torch.fx.Node, fake: torch.Tensor, source: Source | None
    ) -> TensorVariable:
        node.meta["example_value"] = fake
        self.first_versions[node] = version_of(fake)
        return TensorVariable(node, fake, source)

    def _call(
        self,
        evaluator: Evaluator,
        kind: str,
        target: Any,
        arguments: Sequence[Variable],
        keywords: Keywords,
    ) -> Variable:
        """What a call gives, which may be no node's: an override's result, or one of numbers."""
        if kind == "call_function" and target not in LEVEL_WRAPPERS:  # which torch asks no mode for
            found = evaluator.state.overrides.overridden(evaluator, target, arguments, keywords)
            if found is not None:
                return found
        found = evaluator.state.overrides.dispatched(evaluator, target, arguments, keywords)
        if found is not None:
            return found
        changed = changed_in_place(evaluator, target, arguments, keywords)
        if changed is not None:
            return changed
        if has_number((*arguments, *keywords.values())):
            return call_with_numbers(evaluator, target, arguments, keywords)
        refuse_by_arguments(target, arguments, keywords)
        arguments, keywords = with_sizes_read(evaluator, target, arguments, keywords)
        self._refuse_data_in_regions(arguments)
        if self.shapes.data and not self.is_in_region:  # a region checks its counter's rows
            require_selected_inside(evaluator, target, arguments, keywords)
        while True:
            try:
                return self._call_of_tensors(evaluator, kind, target, arguments, keywords)
            except Unsupported as error:
                if not decide_count(evaluator, error, [*arguments, *keywords.values()]):
                    raise

    def _call_of_tensors(
        self,
        evaluator: Evaluator,
        kind: str,
        target: Any,
        arguments: Sequence[Variable],
        keywords: Keywords,
    ) -> Variable:
        """A node, whose value is what the call gives of fakes."""
        pairs = [graph_argument(evaluator, with_dtype(target, value)) for value in arguments]
        named = {
            name: graph_argument(evaluator, with_dtype(target, value))
            for name, value in keywords.items()
        }
        nodes = tuple(pair[0] for pair in pairs)
        fakes = tuple(pair[1] for pair in pairs)
        fake_keywords = {name: pair[1] for name, pair in named.items()}
        is_marked = bool(fake_keywords.get("requires_grad"))
        if is_marked:
            del fake_keywords["requires_grad"], named["requires_grad"]
        if self.shapes.data:
            refuse_unchecked_window(target, (fakes, fake_keywords))
        self.modes.before_operator()
        self.library_settings.before_operator(target, (fakes, fake_keywords))
        checks = CallChecks(self)
        outs = OutTensors(fake_keywords)
        guard_absolute_place(evaluator, target, fakes, fake_keywords)
        operands = _tensors((fakes, fake_keywords)) if self.is_in_region else ()
        histories = self.optional_gradients.before_write(operands)
        value = self._fake_result(evaluator, kind, target, fakes, fake_keywords)
        self.optional_gradients.after_write(histories, self.graph)
        require_held(target, value)
        self.shapes.require_shallow(leaves(value))
        if not self.transforms.active:
            outs.require_written(target)
        require_dense(target, (value, *fakes, *fake_keywords.values()))
        evaluator.note_handlers()
        self.shapes.note_relations()
        given = given_tensors(evaluator, [*arguments, *keywords.values()])
        node_keywords = {name: pair[0] for name, pair in named.items()}
        with placed(evaluator, target, (nodes, node_keywords), value) as (nodes, node_keywords):
            node = self.node(evaluator, kind, target, nodes, node_keywords)
            checks.note(node)
            if isinstance(value, tuple):
                node.meta["example_value"] = tuple(value)
            result = wrap_graph_result(evaluator, node, value, given)
        if is_marked:
            assert isinstance(result, TensorVariable)
            if not result.becomes_leaf(evaluator):
                raise Unsupported(KIND, f"a new tensor of {target}")
        return result

    def _fake_result(
        self,
        evaluator: Evaluator,
        kind: str,
        target: Any,
        fakes: tuple[Any, ...],
        keywords: dict[str, Any],
    ) -> Any:
        """What the call gives for fakes."""
        evaluate = functools.partial(self._evaluated, evaluator, kind, target, fakes, keywords)
        if self.transforms.active:
            return evaluate()
        if not evaluator.state.options.operator_warnings:
            return self._repeated.result(kind, target, fakes, keywords, evaluate)
        found: list[warnings.WarningMessage] = []
        noting = functools.partial(note_warnings, evaluate, found)
        result = self._repeated.result(kind, target, fakes, keywords, noting, found)
        if found:
            try:
                given = warnings_of_python(evaluator, found)
            except Warning as error:
                raise Unsupported(OPERATOR_REJECTS, str(error)) from error
            for warning in given:
                give_warning(evaluator, *warning)
        return result

    def _evaluated(
        self,
        evaluator: Evaluator,
        kind: str,
        target: Any,
        fakes: tuple[Any, ...],
        keywords: dict[str, Any],
    ) -> Any:
        """The same by torch; where it raises, other sizes are tried, or eager decides."""
        try:
            with self.fake_mode, self.shapes.rules(), errors_unlogged():
                result = as_kernel_lies(target, run_call(kind, target, fakes, keywords))
                return with_undefined(target, fakes, keywords, result)
        except Exception as error:
            raise_fault(error)  # else a user's mistake, or an operator that fakes do not know
            raise_for_view(evaluator, error, (fakes, keywords))
            if break_kind(error) == OPERATOR_REJECTS and self.shapes.data:
                raise DropDataDependence(str(error)) from error
            if break_kind(error) == OPERATOR_REJECTS and self.shapes.any_symbolic:
                raise SpecialiseSizes from error  # it may be the symbols that the operator rejects
            raise Unsupported(
                break_kind(error), f"{getattr(target, '__name__', target)}: {error}"
            ) from error

    def add_call(
        self, evaluator: Evaluator, target: Callable[..., Any], arguments: tuple[Any, ...]
    ) -> torch.fx.Node:
        """A node that calls ``target`` on nodes whose values are known, and its own value."""
        self.modes.before_operator()
        fakes: Any = torch.fx.map_arg(arguments, lambda node: node.meta["example_value"])
        with self.fake_mode, self.shapes.rules():
            value = target(*fakes)
        node = self.node(evaluator, "call_function", target, arguments, {})
        node.meta["example_value"] = value
        return node

    def items(self, node: torch.fx.Node) -> list[torch.fx.Node]:
        """A node for each of the values that a node gives."""
        items = []
        for index, value in enumerate(node.meta["example_value"]):
            item = node.graph.call_function(operator.getitem, (node, index))
            item.meta.update(node.meta)
            item.meta["example_value"] = value
            items.append(item)
        return items

    def node(
        self,
        evaluator: Evaluator,
        kind: str,
        target: Any,
        arguments: tuple[Any, ...],
        keywords: dict[str, Any],
    ) -> torch.fx.Node:
        """A node where the graph stands, with the line that it comes from."""
        node = append_node(self.graph, self._names, kind, target, arguments, keywords)
        evaluator.state.aliases.note_node(node, self.is_in_region)
        if is_data_of(node):
            self.taken_as_data |= storages(node_values(node.all_input_nodes))
        if evaluator.state.root is not None:
            self.made_at[node] = evaluator.state.root.index
            codes = self.inlined_at.setdefault(evaluator.state.root.index, {})
            codes.update((id(code), code) for code in evaluator.frame.inlined_codes())
        node.meta["stack_trace"] = evaluator.stack_trace()
        return node

    def _refuse_data_in_regions(self, arguments: Sequence[Variable]) -> None:
        """Break at an integer that depends on data in a region; tensors of such sizes come with their own."""
        if not self.shapes.data or not self.is_in_region:
            return
        for argument in arguments:
            value = getattr(argument, "value", None)
            if isinstance(value, torch.SymFloat):  # of which nothing has to be checked
                continue
            if any(symbol in self.shapes.data for symbol in unbacked_symbols(value)):
                raise Unsupported("symbolic number in a region", repr(argument))


def _tensors(arguments: Any) -> list[torch.Tensor]:
    return [a for a in pytree.tree_leaves(arguments) if isinstance(a, torch.Tensor)]
