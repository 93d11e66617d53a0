"""The pipeline of functionalization, as a table of contents."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.fx

from ._torch import (
    DATA_DEPENDENT_ERRORS,
    LazyGraphModule,
    errors_unlogged,
    known_equal,
    storage_identity,
    version_of,
)
from .aliased_outputs import OutputPlan, plan_outputs, shared_storage
from .aten_normalization import NormalizedGraph, normalize
from .aten_recorder import AtenRecorder
from .functional_graph import (
    FunctionalGraph,
    HeldValues,
    InputDescriptor,
    InputKind,
    OutputDescriptor,
    SameAsInput,
    SharedBase,
    ViewOfInput,
    has_views_as_eager,
    is_read_as_eager,
)
from .gradient_rules import convert_gradient_rules
from .history_refusals import refusing_unknown_histories
from .literal_copies import hold_literal_copies
from .options import FunctionalizeOptions
from .recorded_inputs import RecordedInput
from .region_effort import RegionEffort
from .shared_inputs import SharedInputs
from .symbolic_numbers import SYMBOLIC_TYPES
from .tensor_ssa.alias_graph import AliasGraph, build_alias_graph
from .tensor_ssa.dead_code import eliminate_dead_code
from .tensor_ssa.emitter import Emitter
from .tensor_ssa.inner_gradients import point_at_leaves
from .tensor_ssa.kept_history import keep_history
from .tensor_ssa.layout import with_strides_of
from .tensor_ssa.region_aliases import NeedsMoreEffort, SharedValues, check_region_aliases
from .tensor_ssa.renaming import rename
from .tensor_ssa.rewrite_mutation import rewrite_mutation
from .tensor_ssa.verifier import verify_functional
from .tensor_ssa.written_origins import check_written_layouts, written_origins
from .unsupported import Unsupported

aten = torch.ops.aten


def functionalize(
    graph_module: torch.fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    options: FunctionalizeOptions | None = None,
) -> FunctionalGraph:
    """Convert ``graph_module`` into a graph of pure ATen operators.

    ``graph_module`` is at torch level: calls of torch functions and tensor methods, attributes of the
    module, and an output that is a flat tuple of tensors, numbers or None.  ``example_inputs``
    correspond to its placeholders: tensors, real or of one ``FakeTensorMode``, whose metadata is taken to
    hold in every call, and numbers.  Nothing of either is changed.

    Raises :class:`Unsupported` for what has no functional form here, and whatever eager PyTorch raises
    on bad arguments.  The form is TensorSSA: Ma et al., DAC '24, algorithm 1.
    """
    options = options or FunctionalizeOptions()
    effort = RegionEffort.LEAST
    shared: tuple[tuple[int, ...], ...] = ()
    while True:
        try:
            with refusing_unknown_histories():
                normalized = normalize(
                    graph_module,
                    example_inputs,
                    effort=effort,
                    shared=shared,
                    observe=options.observe,
                )
                result = _convert(graph_module, normalized, options)
        except SharedInputs as found:
            shared = found.groups
        except NeedsMoreEffort:
            if effort is max(RegionEffort):
                raise
            effort = RegionEffort(effort + 1)
        except DATA_DEPENDENT_ERRORS as error:
            raise Unsupported("decision by a size that depends on data", str(error)) from error
        else:
            if options.verify:
                verify_functional(result.graph_module.graph)
            return result


def _convert(
    graph_module: torch.fx.GraphModule, normalized: NormalizedGraph, options: FunctionalizeOptions
) -> FunctionalGraph:
    recorder, graph = normalized.recorder, normalized.recorder.graph
    with torch.no_grad():
        alone = replace(options, aliased_inputs=())
        convert_gradient_rules(
            recorder, lambda module, inputs: functionalize(module, inputs, options=alone)
        )
    with torch.no_grad(), normalized.fake_mode, errors_unlogged():
        aliases = build_alias_graph(graph)
        shared = SharedValues(graph, aliases, recorder.region_aliases)
        written = written_origins(graph, shared)
        check_written_layouts(written)
        mutated = [i for i, recorded in enumerate(recorder.inputs) if recorded.node in written]
        _check_shared_inputs(recorder, mutated, options)
        if written and _has_gradients(recorder):
            inputs = {i: recorder.inputs[i].value for i in mutated}
            is_recorded = any(recorder.history.changes(i, value) for i, value in inputs.items())
            if is_recorded or len(written) > len(inputs):
                recorder.history.check_derivatives([*normalized.outputs, *inputs.values()])
        plan = plan_outputs(
            normalized.outputs,
            recorder,
            aliases,
            mutated,
            written,
            read_as_eager=is_read_as_eager(graph_module.graph),
            views_as_eager=has_views_as_eager(graph_module.graph),
        )
        kept = tuple(node for node, _ in plan.values)
        check_region_aliases(graph, shared, kept)
        graph.output(kept)
        recorder.note_step("recorded")
        rewrite_mutation(graph, shared, kept, with_gradients=_has_gradients(recorder))
        recorder.note_step("rewritten")
        versions = rename(graph)
        point_at_leaves(graph)
        _set_outputs(graph, plan, versions)
        recorder.note_step("renamed")
        hold_literal_copies(recorder)
        eliminate_dead_code(graph)
        recorder.note_step("converted")
    return _result(graph_module, normalized, plan, mutated, bool(written))


def _has_gradients(recorder: AtenRecorder) -> bool:
    return recorder.with_gradients and any(recorded.requires_grad for recorded in recorder.inputs)


def _is_exposed(recorder: AtenRecorder, recorded: RecordedInput) -> bool:
    """Whether others have the tensor, and eager's autograd does not hold it."""
    is_own = recorded.kind in (InputKind.CONSTANT, InputKind.LITERAL) and not recorded.target
    if not isinstance(recorded.value, torch.Tensor) or is_own:
        return False
    holds, lifted = recorder.history.holds, recorded.tensor
    return not (holds(recorded.value) or (lifted is not None and holds(lifted)))


def _is_held_by_views(recorder: AtenRecorder, index: int, recorded: RecordedInput) -> bool:
    value = recorded.value
    return isinstance(value, torch.Tensor) and recorder.history.holds_by_views(index, value)


def _spared(plan: OutputPlan, recorded: RecordedInput) -> frozenset[int]:
    """The outputs whose gradients eager's autograd does not hold an input for, where it does for others'."""
    known = [t for t in (recorded.value, recorded.tensor) if isinstance(t, torch.Tensor)]
    spared = [plan.spared[s] for s in map(storage_identity, known) if s in plan.spared]
    return frozenset.intersection(*spared) if spared else frozenset()


def _check_shared_inputs(
    recorder: AtenRecorder, mutated: Sequence[int], options: FunctionalizeOptions
) -> None:
    """Refuse writes to one of several inputs in one storage; :class:`SharedInputs` where it can be had."""
    groups = shared_storage([recorded.value for recorded in recorder.inputs])
    unknown = [
        {i for i, r in enumerate(recorder.inputs) if r.position in positions}
        for positions in options.aliased_inputs
    ]
    found = [g for g in (*groups, *unknown) if len(g) > 1 and g & set(mutated)]
    if not found:
        return
    names = ", ".join(recorder.inputs[i].node.name for group in found for i in sorted(group))
    positions = [[recorder.inputs[i].position for i in sorted(group)] for group in found]
    users = tuple(tuple(p for p in group if p is not None) for group in positions)
    if recorder.shared or found[-1] in unknown or list(map(len, users)) != list(map(len, found)):
        raise Unsupported("write to an input that shares storage with another", names)
    raise SharedInputs(users, names)


def _set_outputs(
    graph: torch.fx.Graph,
    plan: OutputPlan,
    versions: dict[torch.fx.Node, torch.fx.Node],
) -> None:
    """Return the last versions, in the layouts that eager gives and in storage of their own."""
    (output,) = graph.find_nodes(op="output")
    emit = Emitter(graph).before(output)
    taken: set[torch.fx.Node] = set()
    results: dict[int, torch.fx.Node] = {}
    aliases = build_alias_graph(graph)
    # Those with a layout to keep come first: a copy of one that leaves gaps would not have it.
    order = sorted(range(len(plan.values)), key=lambda index: plan.values[index][1] is None)
    for index in order:
        variable, layout = plan.values[index]
        if isinstance(variable.meta["val"], SYMBOLIC_TYPES):
            results[index] = variable
            continue
        node = versions.get(variable, variable)
        is_callers = variable.op == "placeholder"  # whose memory gets the value
        if node is not variable and not is_callers and _is_part(node, aliases):
            node = emit.call(aten.clone.default, node)
        if layout is not None:
            node = with_strides_of(emit, node, layout)
        origin = _storage_origin(node, aliases)
        if origin.op == "placeholder" or origin in taken:
            node = origin = emit.call(aten.clone.default, node)
            if layout is not None:
                node = with_strides_of(emit, node, layout)
                origin = _storage_origin(node, aliases)
        taken.add(origin)
        results[index] = node
    returned = tuple(results[index] for index in range(len(plan.values)))
    output.args = (returned,)
    output.meta["val"] = tuple(node.meta["val"] for node in returned)


_ADDED_VIEWS = (aten.permute.default, aten.squeeze.dim, aten.slice.Tensor)


def _storage_origin(node: torch.fx.Node, aliases: AliasGraph) -> torch.fx.Node:
    origin = aliases.origin(node)
    # A view was added for the layout; data of another tensor, with a history, lie where they are.
    while origin.target in _ADDED_VIEWS or origin.target is keep_history:
        base = origin.args[0]
        assert isinstance(base, torch.fx.Node)
        origin = aliases.origin(base)
    return origin


def _is_part(node: torch.fx.Node, aliases: AliasGraph) -> bool:
    """Whether a result would keep a larger tensor's memory: a row that was copied into new memory."""
    whole = _storage_origin(node, aliases).meta["val"]
    return not known_equal(node.meta["val"].numel(), whole.numel())


def _result(
    source: torch.fx.GraphModule,
    normalized: NormalizedGraph,
    plan: OutputPlan,
    mutated: Sequence[int],
    has_writes: bool,
) -> FunctionalGraph:
    """Number the inputs as the graph orders them: lifted tensors first."""
    recorder = normalized.recorder
    order = {node: i for i, node in enumerate(recorder.graph.find_nodes(op="placeholder"))}
    new_index = [order[recorded.node] for recorded in recorder.inputs]
    inputs: list[InputDescriptor | None] = [None] * len(order)
    lifted: dict[int, torch.Tensor] = {}
    for old, recorded in enumerate(recorder.inputs):
        number = recorded.value if isinstance(recorded.value, (bool, int, float)) else None
        is_tensor = isinstance(recorded.value, torch.Tensor)
        inputs[new_index[old]] = InputDescriptor(
            recorded.kind,
            recorded.node.name,
            recorded.target,
            recorded.position,
            old in mutated,
            recorded.requires_grad,
            number if recorded.kind is InputKind.USER_INPUT else None,
            _is_exposed(recorder, recorded),
            _spared(plan, recorded),
            _is_held_by_views(recorder, old, recorded),
            0 if old in mutated or not is_tensor else version_of(recorded.value),
        )
        if recorded.tensor is not None:
            lifted[new_index[old]] = recorded.tensor
    outputs = _renumbered(plan.descriptors, new_index)
    # Printed and compiled for whoever calls it, which the next stages do not.
    module = LazyGraphModule(dict(recorder.regions), recorder.graph, "FunctionalGraph")
    module.graph.lint()
    described = tuple(descriptor for descriptor in inputs if descriptor is not None)
    shared = tuple(
        SharedBase(order[node], members, plan.led_through, recorder.with_gradients)
        for node, members in recorder.shared.items()
    )
    return FunctionalGraph(module, described, outputs, lifted, source, has_writes, shared)


def _renumbered(
    descriptors: Sequence[OutputDescriptor], new_index: Sequence[int]
) -> tuple[OutputDescriptor, ...]:
    @functools.cache  # sets that many outputs have stay one
    def numbers(indices: frozenset[int]) -> frozenset[int]:
        return frozenset(new_index[index] for index in indices)

    @functools.cache
    def held_values(held: HeldValues) -> HeldValues:
        return replace(held, reached=numbers(held.reached), inputs=numbers(held.inputs))

    def renumbered(descriptor: OutputDescriptor) -> OutputDescriptor:
        changed: dict[str, Any] = {"held": tuple(map(held_values, descriptor.held))}
        if descriptor.input_index is not None:
            changed["input_index"] = new_index[descriptor.input_index]
        alias = descriptor.alias
        if isinstance(alias, (SameAsInput, ViewOfInput)):
            changed["alias"] = replace(alias, input_index=new_index[alias.input_index])
        if descriptor.reached is not None:
            changed["reached"] = numbers(descriptor.reached)
            changed["reached_in_some"] = numbers(descriptor.reached_in_some)
        return replace(descriptor, **changed)

    return tuple(map(renumbered, descriptors))
