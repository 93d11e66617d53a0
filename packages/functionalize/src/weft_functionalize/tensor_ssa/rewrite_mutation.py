"""RewriteMutation of algorithm 1: pass-up Assign, pass-down Access, Update.

Every operator that writes is replaced by its functional counterpart, whose result is the new version of
the written value.  Passing up, each base on the way to the origin gets a new version by Assign; passing
down, each view of these that is still used gets one by Access.  ``update(new, old)`` marks each version
for the steps that follow.

Unlike the paper's, pass-down leaves out views that nothing uses any more: the result after dead code
elimination is the same, and a chain of n writes through n views takes n steps rather than n squared.

Beyond the paper, a write also reaches values that may be one with the written one: their new version is
``where(flag, new, old)``, with the flag that says whether they are (:mod:`.region_aliases`).  And a write
that autograd does not see leaves each version with the history of the one before (:mod:`.kept_history`).
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import torch
import torch.fx

from .._torch import OpOverload, known_equal, schema_arguments
from ..unsupported import Unsupported
from .alias_graph import AliasGraph, ViewEdge, argument_value
from .block_propagation import region_writes
from .custom_operators import functional_form, is_custom, is_from_library
from .dtypes_of_outs import convert_operand
from .emitter import Emitter
from .expanded_writes import emit_written_copy, shows_copies
from .functional_counterparts import (
    FACTORY_OPTIONS,
    HIDDEN_WRITES,
    functional_counterpart,
    written_arguments,
)
from .kept_history import keep_history, runs_unseen, writes_unseen
from .layout import dense_order, memory_order
from .random_slopes import RRELU, leave_unwritten, scale_at_random
from .region_aliases import SharedValues, any_of
from .view_operators import emit_access, emit_assign
from .writes import block_writes, written_variables

aten = torch.ops.aten


def update(new: torch.Tensor, old: torch.Tensor) -> None:
    """Marks that uses of ``old`` from here on mean ``new``; carries no computation (definition 3.5)."""
    raise RuntimeError("an Update is an annotation: renaming removes it")


class _Uses:
    """Positions of nodes, and of the last use of each value by itself or through its views."""

    def __init__(self, graph: torch.fx.Graph, aliases: AliasGraph) -> None:
        self.position = {node: index for index, node in enumerate(graph.nodes)}
        self._last: dict[torch.fx.Node, int] = {}
        for node, index in self.position.items():
            for used in node.all_input_nodes:
                for value in (used, *(edge.base for edge in aliases.path_to_origin(used))):
                    self._last[value] = index
        self._end = len(self.position)

    def keep_to_end(self, node: torch.fx.Node) -> None:
        self._last[node] = self._end

    def used_after(self, node: torch.fx.Node, position: int) -> bool:
        return self._last.get(node, -1) > position


def rewrite_mutation(
    graph: torch.fx.Graph,
    shared: SharedValues,
    kept: tuple[torch.fx.Node, ...],
    *,
    with_gradients: bool = False,
) -> None:
    """Replace every write in ``graph``; ``kept`` are values whose last version is needed at the end.

    ``with_gradients``: values may have gradients, so that it matters what autograd sees.
    """
    uses = _Uses(graph, shared.aliases)
    for node in kept:
        uses.keep_to_end(node)
    emit = Emitter(graph)
    for node in list(graph.nodes):
        if node.op == "call_function" and isinstance(node.target, OpOverload):
            written = written_arguments(node.target)
            if written:
                _Rewrite(emit.before(node), shared, uses, node, node, with_gradients).run(written)
        elif region_writes(node):
            after = node.next
            rewrite = _Rewrite(emit.before(after), shared, uses, node, after, with_gradients)
            with emit.in_mode_of(node):
                rewrite.take_region_results()


class _Rewrite:
    """The rewrite of one operator that writes; what it inserts comes before ``anchor``."""

    def __init__(
        self,
        emit: Emitter,
        shared: SharedValues,
        uses: _Uses,
        node: torch.fx.Node,
        anchor: torch.fx.Node,
        with_gradients: bool,
    ) -> None:
        self._with_gradients = with_gradients
        self._emit = emit
        self._shared = shared
        self._aliases = shared.aliases
        self._uses = uses
        self._node = node
        self._anchor = anchor

    def take_region_results(self) -> None:
        """A region operator's results are the new versions of the operands that it writes."""
        writes = region_writes(self._node)
        known = {self._aliases.origin(variable) for variable, _ in writes}
        for variable, position in writes:
            self._new_version(variable, self._emit.item(self._node, position), known)

    def run(self, written: tuple[str, ...]) -> None:
        variables = written_variables(self._node, written)
        assert isinstance(self._node.target, OpOverload)
        if variables or (self._node.users and is_from_library(self._node.target)):
            special = _SPECIAL.get(self._node.target)
            if self._node.target in RRELU:
                values = scale_at_random(self._emit, self._node)
            elif special is not None:
                if self._node.target is aten.fill_.Tensor:
                    self._require_floats(variables)
                values = [special(self._emit, self._node)]
                if self._node.target in _DRAWS and variables[0].meta["val"].requires_grad:
                    values = [_without_gradient(self._emit, variables[0], values[0])]
            else:
                self._require_floats(variables)
                values = self._call_counterpart(len(variables))
            for variable, value in zip(variables, values, strict=True):
                self._new_version(variable, value)
            if self._node.target is aten.mul.Tensor:
                return  # it has become what it gives, which may be viewed and returned
        elif self._node.target in HIDDEN_WRITES:
            leave_unwritten(self._node)  # what it would write is absent
            return
        elif self._node.users:
            raise Unsupported("write without a target", str(self._node.target))
        self._remove()

    def _remove(self) -> None:
        if self._node.users:
            raise Unsupported("result of a write", str(self._node.target))
        self._node.graph.erase_node(self._node)

    def _call_counterpart(self, count: int) -> list[torch.fx.Node]:
        """Insert the functional counterpart; returns the new values of the written arguments."""
        target = self._node.target
        assert isinstance(target, OpOverload)
        counterpart = functional_counterpart(target)
        if counterpart is None and is_from_library(target):
            counterpart = self._form_of_library(target)
        if counterpart is None:
            raise Unsupported("in-place operator without a functional form", str(target))
        outs = {str(a.name) for a in schema_arguments(target) if a.is_out}
        kwargs = {k: v for k, v in self._node.kwargs.items() if k not in outs}
        defaults = _missing_defaults(self._node, counterpart) | _options(self._node, counterpart)
        arguments = convert_operand(self._emit, self._node)
        call = self._emit.call(counterpart, *arguments, **kwargs, **defaults)
        results = call.meta["val"]
        if isinstance(results, torch.Tensor):
            if count:
                return [call]
            self._node.replace_all_uses_with(call)
            return []
        plain = len(results) - count
        if isinstance(self._node.meta["val"], torch.Tensor) and self._node.users:
            if not self._is_only_read():
                # Its views are known by the node that would have to go.
                raise Unsupported("result of an operator that writes besides", str(target))
            self._node.replace_all_uses_with(self._emit.item(call, 0))
        for user in list(self._node.users):
            index = user.args[1]
            assert isinstance(index, int)
            if index >= plain:
                raise Unsupported("result of a write", str(target))
            user.replace_input_with(self._node, call)
        return [self._emit.item(call, plain + index) for index in range(count)]

    def _form_of_library(self, operator: OpOverload) -> OpOverload:
        """The form that gives what a library's operator writes.

        :raises Unsupported: autograd may see the write, of which only the library knows the derivative.
        """
        returns = [result.alias_info is None for result in operator._schema.returns]
        if any(returns) and not all(returns):
            raise Unsupported("result of an operator that writes besides", str(operator))
        if not is_custom(operator) and self._may_be_differentiated():
            raise Unsupported(
                "operator of a library that writes, of what has gradients",
                str(operator),
                "define it by torch.library.custom_op, or call it under torch.no_grad()",
            )
        values = [argument_value(self._node, name) for name in written_arguments(operator)]
        listed = [len(value) if isinstance(value, (list, tuple)) else 0 for value in values]
        written = [
            None if isinstance(value, torch.fx.Node) else number
            for value, number in zip(values, listed, strict=True)
        ]
        made = self._node.meta["val"]
        return functional_form(
            operator, tuple(written), len(made) if isinstance(made, list) else None
        )

    def _require_floats(self, variables: list[torch.fx.Node]) -> None:
        """Refuse what eager gives a history that its backward has no gradients for.

        :raises Unsupported: a number with gradients is written to integers (``masked_fill_``).
        """
        dtypes = [variable.meta["val"].dtype for variable in variables]
        integers = [dtype for dtype in dtypes if not (dtype.is_floating_point or dtype.is_complex)]
        target = self._node.target
        assert isinstance(target, OpOverload)
        if integers and not is_from_library(target) and self._may_be_differentiated():
            raise Unsupported(
                "number with gradients that is written to integers",
                f"{target} of {integers[0]}",
                "detach() it, or write item()",
            )

    def _may_be_differentiated(self) -> bool:
        operands = [node.meta["val"] for node in self._node.all_input_nodes]
        seen = self._with_gradients and not runs_unseen(self._node)
        return seen and any(isinstance(x, torch.Tensor) and x.requires_grad for x in operands)

    def _is_only_read(self) -> bool:
        """Whether nothing views, writes or returns the node's result."""
        if self._node in self._aliases.views_of:
            return False
        users = self._node.users
        return not any(user.op == "output" or self._node in block_writes(user) for user in users)

    def _new_version(
        self,
        variable: torch.fx.Node,
        value: torch.fx.Node,
        known: Collection[torch.fx.Node] = (),
    ) -> None:
        """``value`` is what ``variable`` now is; the origins ``known`` get their versions otherwise."""
        emit = self._emit
        unseen = self._with_gradients and writes_unseen(self._node)
        value = self._keep_history(_as_stored(emit, value, variable), variable, unseen)
        versions = {variable: value}
        below: list[ViewEdge] = []
        for edge in self._aliases.path_to_origin(variable):  # pass up
            unseen = unseen or (self._with_gradients and edge.is_unseen)
            if shows_copies(edge):
                assigned = emit_written_copy(emit, value, edge, below)
                versions.clear()  # the other copies show the write too
            else:
                assigned = emit_assign(emit, edge.base, value, edge)
            below.append(edge)
            value = versions[edge.base] = self._keep_history(assigned, edge.base, unseen)
        origin = self._aliases.origin(variable)
        self._pass_down(origin, value, versions)
        now = self._uses.position[self._node]
        for other in self._shared.others(origin, now):
            if other not in known and self._uses.used_after(other, now):
                chosen = self._where_one(origin, other, value)
                hidden = unseen or self._is_hidden(origin, other, variable, value)
                self._pass_down(other, self._keep_history(chosen, other, hidden), {})

    def _is_hidden(
        self,
        origin: torch.fx.Node,
        other: torch.fx.Node,
        variable: torch.fx.Node,
        value: torch.fx.Node,
    ) -> bool:
        """Whether ``other`` keeps its history where it is one with ``origin``, of which ``variable`` is.

        :raises Unsupported: data says whether a region has detached the one from the other.
        """
        seen = self._shared.seen(origin, other) if self._with_gradients else True
        if seen:
            return False
        old, new, theirs = (n.meta["val"].requires_grad for n in (variable, value, other))
        if (seen is False and not new) or (theirs and not old):
            return True  # a region that has not detached it would have passed on its history
        if not theirs and not new:
            return False
        raise Unsupported(
            "write to what a region may have detached",
            f"{origin.name}, {other.name}",
            "clone() the tensor before writing to it",
        )

    def _keep_history(
        self, value: torch.fx.Node, variable: torch.fx.Node, unseen: bool
    ) -> torch.fx.Node:
        """``value``, with the history that ``variable`` has before if autograd does not see the write."""
        if not unseen:
            return value
        with self._emit.in_mode_of(None):
            return self._emit.call(keep_history, value, variable)

    def _where_one(
        self, origin: torch.fx.Node, other: torch.fx.Node, value: torch.fx.Node
    ) -> torch.fx.Node:
        """What ``other`` is after ``origin``, which may be one with it, became ``value``."""
        emit = self._emit
        ways = self._shared.ways(origin, other)
        assert ways is not None  # or else the write was refused
        flag = any_of(
            ways,
            lambda node: node,
            lambda a, b: emit.call(aten.logical_and.default, a, b),
            lambda a, b: emit.call(aten.logical_or.default, a, b),
        )
        if isinstance(flag, bool):
            assert flag
            return value
        shapes = [node.meta["val"].shape for node in (value, other)]
        if not all(map(known_equal, *shapes)):
            raise Unsupported(
                "write to one of several tensors whose sizes may differ",
                f"{shapes[0]} and {shapes[1]}",
                "clone() the tensor before writing to it",
            )
        return emit.call(aten.where.self, flag, value, other)

    def _pass_down(
        self,
        variable: torch.fx.Node,
        value: torch.fx.Node,
        versions: dict[torch.fx.Node, torch.fx.Node],
    ) -> None:
        """Traversal of algorithm 1, iterative: views can nest deeper than Python's stack."""
        now = self._uses.position[self._node]
        pending = [(variable, value)]
        while pending:
            variable, value = pending.pop()
            marker = self._emit.graph
            with marker.inserting_before(self._anchor):
                marker.call_function(update, (value, variable))
            for edge in self._aliases.views_of.get(variable, ()):
                view = edge.view
                if self._uses.position[view] < now and self._uses.used_after(view, now):
                    new = versions.get(view)
                    if new is None:
                        with self._emit.in_mode_of(edge.access):
                            new = emit_access(self._emit, value, edge)
                    pending.append((view, new))


def _missing_defaults(node: torch.fx.Node, counterpart: OpOverload) -> dict[str, object]:
    """Defaults of the operator for arguments that its counterpart has to be given."""
    given = {str(a.name) for a in schema_arguments(counterpart)[: len(node.args)]} | set(
        node.kwargs
    )
    return {
        str(a.name): argument_value(node, a.name)
        for a in schema_arguments(counterpart)
        if a.name not in given and not a.has_default_value()
    }


def _options(node: torch.fx.Node, counterpart: OpOverload) -> dict[str, object]:
    """What ``out=`` of an operator that makes a tensor says of what its counterpart makes."""
    options = {str(a.name) for a in schema_arguments(counterpart)} & FACTORY_OPTIONS
    out = node.kwargs.get("out")
    if not options or not isinstance(out, torch.fx.Node) or options & node.kwargs.keys():
        return {}
    assert isinstance(node.target, OpOverload)
    if options & {a.name for a in schema_arguments(node.target)}:
        return {}
    made = out.meta["val"]
    return {name: getattr(made, name) for name in options & {"dtype", "device"}}


def _as_stored(emit: Emitter, value: torch.fx.Node, variable: torch.fx.Node) -> torch.fx.Node:
    """The value as a write stores it: in the dtype of the written tensor, whose shape stays."""
    new, old = value.meta["val"], variable.meta["val"]
    if new.shape != old.shape:
        raise Unsupported("write that changes a tensor's shape", f"{old.shape} to {new.shape}")
    if new.dtype != old.dtype:
        value = emit.call(aten._to_copy.default, value, dtype=old.dtype)
    if new.device != old.device:
        value = emit.call(aten._to_copy.default, value, device=old.device)
    return value


def _copied(emit: Emitter, node: torch.fx.Node) -> torch.fx.Node:
    return _broadcast(emit, node, "src")


def _filled_from_tensor(emit: Emitter, node: torch.fx.Node) -> torch.fx.Node:
    return _broadcast(emit, node, "value")


def _broadcast(emit: Emitter, node: torch.fx.Node, source_name: str) -> torch.fx.Node:
    """The source in the written tensor's shape; its dtype follows in :func:`_as_stored`."""
    source, variable = argument_value(node, source_name), argument_value(node, "self")
    assert isinstance(source, torch.fx.Node)
    assert isinstance(variable, torch.fx.Node)
    old = variable.meta["val"]
    source = _as_copy_converts(emit, source, old)
    if source.meta["val"].shape != old.shape:
        source = _drop_leading(emit, source, old.dim())
        source = emit.call(aten.expand.default, source, list(old.shape))
    return source


def _as_copy_converts(emit: Emitter, source: torch.fx.Node, old: torch.Tensor) -> torch.fx.Node:
    value = source.meta["val"]
    if value.dtype == old.dtype and value.device == old.device:
        return source
    return emit.call(aten._to_copy.default, source, dtype=old.dtype, device=old.device)


def _drop_leading(emit: Emitter, source: torch.fx.Node, rank: int) -> torch.fx.Node:
    """Without leading dimensions of size one that the target lacks: ``copy_`` ignores these."""
    shape = list(source.meta["val"].shape)
    while len(shape) > rank and shape[0] == 1:
        source = emit.call(aten.squeeze.dim, source, 0)
        shape = shape[1:]
    return source


def _filled(emit: Emitter, node: torch.fx.Node) -> torch.fx.Node:
    return _full(emit, node, argument_value(node, "value"))


def _zeroed(emit: Emitter, node: torch.fx.Node) -> torch.fx.Node:
    return _full(emit, node, 0)


def _full(emit: Emitter, node: torch.fx.Node, value: object) -> torch.fx.Node:
    variable = argument_value(node, "self")
    assert isinstance(variable, torch.fx.Node)
    old = variable.meta["val"]
    return emit.call(
        aten.full.default,
        list(old.shape),
        value,
        dtype=old.dtype,
        layout=torch.strided,
        device=old.device,
        pin_memory=False,
    )


def _polygamma(emit: Emitter, node: torch.fx.Node) -> torch.fx.Node:
    """The counterpart takes the arguments in the other order."""
    return emit.call(aten.polygamma.default, *reversed(node.args))


def _drawn(emit: Emitter, node: torch.fx.Node) -> torch.fx.Node:
    """Numbers drawn as the CPU does in place, in the order of memory; the counterpart draws by index."""
    variable, *arguments = node.args
    assert isinstance(variable, torch.fx.Node)
    order = memory_order(variable.meta["val"])
    if order == sorted(order):
        return emit.call(aten.bernoulli.p, *_with_p(variable, arguments), **node.kwargs)
    permuted = emit.call(aten.permute.default, variable, order)
    drawn = emit.call(aten.bernoulli.p, *_with_p(permuted, arguments), **node.kwargs)
    return emit.call(aten.permute.default, drawn, [order.index(d) for d in range(len(order))])


def _drawn_normal(emit: Emitter, node: torch.fx.Node) -> torch.fx.Node:
    """The counterpart draws into a copy without gaps: there the CPU draws whole vectors at once."""
    variable = node.args[0]
    assert isinstance(variable, torch.fx.Node)
    if dense_order(variable.meta["val"]) is None:
        raise Unsupported("random numbers written with gaps", str(node.target))
    return emit.call(aten.normal_functional.default, *node.args, **node.kwargs)


def _without_gradient(
    emit: Emitter, variable: torch.fx.Node, drawn: torch.fx.Node
) -> torch.fx.Node:
    """Numbers that replace ``variable``: they belong to its history, and nothing flows back through them.

    The counterparts, unlike what draws in place, have no derivative.
    """
    never = emit.call(
        aten.full.default, [], False, dtype=torch.bool, device=drawn.meta["val"].device
    )
    return emit.call(aten.where.self, never, variable, emit.call(aten.detach.default, drawn))


def _with_p(tensor: torch.fx.Node, arguments: list[Any]) -> list[Any]:
    """The arguments of ``bernoulli_``, whose probability may be left out."""
    return [tensor, *(arguments or [0.5])]


# Writes that need no value of the written tensor, or have simpler forms than their counterparts.
_SPECIAL = {
    aten.bernoulli_.float: _drawn,
    aten.copy_.default: _copied,
    aten.fill_.Scalar: _filled,
    aten.fill_.Tensor: _filled_from_tensor,
    aten.normal_.default: _drawn_normal,
    aten.polygamma_.default: _polygamma,
    aten.zero_.default: _zeroed,
}

_DRAWS = frozenset({aten.bernoulli_.float, aten.normal_.default})
