"""What functionalization gives: a pure graph, and what each of its inputs and outputs stands for."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
import torch.fx

from ._torch import WriteRefusal, set_grad_enabled


class InputKind(enum.Enum):
    """Where an input of the functional graph comes from.

    ``LITERAL``: a tensor that an operator of the captured graph makes of numbers among its arguments
    (``torch.tensor([1, 2])``, ``x[[0, 2]]``), the same in each capture.
    """

    PARAMETER = "parameter"
    BUFFER = "buffer"
    CONSTANT = "constant"
    LITERAL = "literal"
    USER_INPUT = "user input"


class OutputKind(enum.Enum):
    """What an output of the functional graph is for."""

    MUTATED_INPUT = "mutated input"
    USER_OUTPUT = "user output"
    ALIAS_BASE = "alias base"
    NUMBER = "number"  # that depends on data, and that views among the user outputs need


@dataclass(frozen=True)
class InputDescriptor:
    """One placeholder of the functional graph.

    ``target`` is the attribute path in the captured module (empty for a user input and for a tensor that
    tracing created), ``position`` the index among the captured graph's placeholders (None for a lifted
    tensor).  ``specialized_value`` is the number that a numeric user input was traced with, None
    for tensors and symbolic numbers: the graph is valid for this value only.  ``exposed``: somebody else may
    write to the tensor before backward runs, since eager's autograd does not hold it and so allows that.
    ``spared`` are the graph's outputs that it does not hold it for, where it does for others.
    ``held_by_views``: it holds nothing but views, which keep their memory if the tensor gets another.
    ``layout_changes``: how often autograd counts a change of what is not written to: of the layouts of its
    views (``x[0].unsqueeze_(0)``).
    """

    kind: InputKind
    name: str
    target: str = ""
    position: int | None = None
    mutated: bool = False
    requires_grad: bool = False
    specialized_value: int | float | bool | None = None
    exposed: bool = False
    spared: frozenset[int] = frozenset()
    held_by_views: bool = False
    layout_changes: int = 0


@dataclass(frozen=True)
class Reading:
    """How a view reads its base's memory: as which dtype, lazily conjugated or negated."""

    dtype: torch.dtype
    is_conjugate: bool = False
    is_negative: bool = False


@dataclass(frozen=True)
class ViewOfInput:
    """A view of the functional graph's input ``input_index``, after write-back.

    ``size`` and ``stride`` are in elements, ``offset`` is in elements from the input's own storage offset.
    Each may be symbolic.  ``refusal``: why autograd lets nobody write to it, if so.  ``is_view``: whether
    autograd knows that it is one, as it does not of what ``detach()`` gives.  ``shares_version``: whether
    autograd counts writes to it as the input's, which it does not those to ``.data``.  ``is_older``: the
    program made it before it last wrote to the input, so that autograd looks for a history of it when the
    input is made to require gradients.  ``made_of``: the user output, by position, that it is a view of, too.
    """

    input_index: int
    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    refusal: WriteRefusal | None = None
    reading: Reading | None = None
    is_view: bool = True
    shares_version: bool = True
    is_older: bool = False
    made_of: int | None = None


@dataclass(frozen=True)
class SameAsInput:
    """The very object passed as the functional graph's input ``input_index``."""

    input_index: int


@dataclass(frozen=True)
class SameAsArgument:
    """The very object that the caller passes at ``position``, which is a member of a shared base."""

    position: int


@dataclass(frozen=True)
class ViewOfOutput:
    """A view of output ``output_index`` of the graph; ``offset`` is relative to that output's own.

    ``reading`` is None where it reads as the base does, else ``offset`` counts in the smaller of both dtypes.
    ``covers``: it has all elements where the output has them, whose own strides it takes: a kernel may give
    others than torch's fakes promise.  The others are as for views of inputs.
    """

    output_index: int
    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    refusal: WriteRefusal | None = None
    reading: Reading | None = None
    made_of: int | None = None
    is_view: bool = True
    shares_version: bool = True
    covers: bool = False
    is_older: bool = False


@dataclass(frozen=True)
class SameAsOutput:
    """The very object that the user output ``position`` is, an earlier one."""

    position: int


@dataclass(frozen=True)
class WholeOutput:
    """Output ``output_index`` of the graph itself, of which other user outputs are views.

    So it is no view of anything, and may leave autograd's graph in place, as in eager PyTorch.
    """

    output_index: int


@dataclass(frozen=True)
class Constant:
    """A number, None or other value that is not a tensor, known when the graph was traced."""

    value: object


@dataclass(frozen=True, eq=False)
class Number:
    """A symbolic number (``torch.SymInt``, ``SymFloat``) that the inputs of a call determine."""

    value: object


Alias = (
    ViewOfInput
    | SameAsInput
    | SameAsArgument
    | ViewOfOutput
    | WholeOutput
    | SameAsOutput
    | Constant
    | Number
)


def view_key(position: int) -> int:
    """The number of a view among the user outputs beside the graph's own; gives its position back, too."""
    return -1 - position


@dataclass(frozen=True)
class HeldValues:
    """What eager's autograd holds for an output's gradients on their way to the inputs ``reached``.

    It raises in backward if one of the ``inputs`` and ``outputs`` of the functional graph is written to after
    the call; ``error`` is what it raises anyway, as the program has written to something held itself.
    """

    reached: frozenset[int]
    inputs: frozenset[int] = frozenset()
    outputs: frozenset[int] = frozenset()
    error: str = ""


@dataclass(frozen=True)
class OutputDescriptor:
    """One output of the functional graph, or a user output that is regenerated from others.

    ``graph_index`` is the position in the graph's output tuple, None where ``alias`` says how the value is
    regenerated instead.  ``input_index`` is set for a mutated input, ``position`` (index in the captured
    graph's output tuple) for a user output.  ``requires_grad`` says whether a user output has gradients in
    eager PyTorch.  ``reached`` are the inputs that have a gradient when this output alone has; of these, the
    ``reached_in_some`` only in some calls, as the branch taken or a loop's length says.  Where these are all,
    that also says whether the output has gradients.  ``unrecorded``: a view made under ``no_grad``.
    ``writes``: how many writes to a mutated input, or a result of the graph, autograd counts, those to its
    ``.data`` not.
    ``exposed`` and ``spared`` are as for inputs.  ``through`` are the graph's outputs, by index, and views
    among the user outputs, by :func:`view_key`, from which eager's autograd knows this one to be computed.
    ``held``: what it holds for its gradients.
    """

    kind: OutputKind
    graph_index: int | None
    input_index: int | None = None
    position: int | None = None
    alias: Alias | None = None
    requires_grad: bool = False
    reached: frozenset[int] | None = None
    reached_in_some: frozenset[int] = frozenset()
    unrecorded: bool = False
    exposed: bool = False
    writes: int = 0
    spared: frozenset[int] = frozenset()
    through: frozenset[int] = frozenset()
    held: tuple[HeldValues, ...] = ()


@dataclass(frozen=True)
class SharedMember:
    """A tensor that the caller passes at ``position``, and its place, in elements of the storage.

    ``unrecorded``: it was made a view under ``no_grad``, so that its gradient goes nowhere.
    """

    position: int
    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    unrecorded: bool = False


@dataclass(frozen=True)
class SharedBase:
    """The functional graph's input ``input_index``: one flat tensor for several that the caller passes.

    They lie in one storage and the graph writes to some; the flat tensor begins where the first of them does.
    ``led_through``: whether eager's autograd knows results to be computed from what is returned or written.
    Then it has ways from them to the members, of which a call on the flat tensor knows nothing.
    ``records_gradients``: whether the graph records gradients anywhere, be it begun under ``no_grad``.
    """

    input_index: int
    members: tuple[SharedMember, ...]
    led_through: bool = False
    records_gradients: bool = True


def enables_gradients(source: torch.fx.Graph) -> bool:
    """Whether a captured graph switches gradients on: it may be called without them, and give some."""
    switches = source.find_nodes(op="call_function", target=set_grad_enabled)
    return any(node.args[0] is not False for node in switches)


def is_read_as_eager(source: torch.fx.Graph) -> bool:
    """Whether somebody may write to tensors of a captured graph before backward, and autograd not be told.

    Backward sees that in what eager's autograd holds of them, and not in what it has computed from them.
    """
    return any("read_as_eager" in node.meta for node in source.find_nodes(op="output"))


def has_views_as_eager(source: torch.fx.Graph) -> bool:
    """Whether what eager has as a view has to be one: code behind a captured graph may set hooks."""
    return any("views_as_eager" in node.meta for node in source.find_nodes(op="output"))


@dataclass(frozen=True)
class FunctionalGraph:
    """A graph in which no operator writes.

    ``graph_module``'s placeholders correspond to ``inputs``: lifted tensors first, then user inputs.  Its
    outputs, a flat tuple of tensors, are the new values of mutated inputs, then the
    user outputs that are computed, then hidden bases that returned views share.  ``outputs`` describes these
    and the user outputs that are regenerated.  ``lifted`` holds the tensors of the inputs that are no user
    inputs, by input index.  ``source`` is the captured module.  A user input may stand for several that the
    caller passes in one storage (``shared_bases``), in the place of the first of them.

    Nodes that the program itself runs with gradients disabled have ``meta["gradients_disabled"]``, and calls
    of ``as_strided_scatter`` that stand for no write ``meta["own_formula"]``.  What the program writes behind
    autograd's back, so or through a detached view, has the history of the version before by
    :func:`~.tensor_ssa.kept_history.keep_history`.  ``has_writes``: whether the program writes to anything.
    """

    graph_module: torch.fx.GraphModule
    inputs: tuple[InputDescriptor, ...]
    outputs: tuple[OutputDescriptor, ...]
    lifted: Mapping[int, torch.Tensor] = field(repr=False)
    source: torch.fx.GraphModule = field(repr=False)
    has_writes: bool = False
    shared_bases: tuple[SharedBase, ...] = ()

    @property
    def enables_gradients(self) -> bool:
        """Whether the program switches gradients on: called without them, it has to run with them."""
        return enables_gradients(self.source.graph)

    @property
    def read_as_eager(self) -> bool:
        """Whether backward has to read what eager's would: see :func:`is_read_as_eager`."""
        return is_read_as_eager(self.source.graph)

    @property
    def user_input_indices(self) -> tuple[int, ...]:
        """Indices in ``inputs`` of the user inputs, in the order in which the caller passes them."""
        found = [i for i, d in enumerate(self.inputs) if d.kind is InputKind.USER_INPUT]
        return tuple(sorted(found, key=lambda i: self.inputs[i].position or 0))

    @property
    def mutated_inputs(self) -> dict[int, int]:
        """By index of an output of the graph that is the new value of an input: the input's index."""
        return {
            d.graph_index: d.input_index
            for d in self.outputs
            if d.kind is OutputKind.MUTATED_INPUT
            and d.graph_index is not None
            and d.input_index is not None
        }

    @property
    def written_results(self) -> tuple[int, ...]:
        """The graph's outputs, by index, that are new tensors: each as often as the program wrote to it."""
        made = OutputKind.USER_OUTPUT, OutputKind.ALIAS_BASE
        return tuple(
            index
            for d in self.outputs
            if d.kind in made and (index := d.graph_index) is not None
            for _ in range(d.writes)
        )

    def print_readable(self) -> str:
        """The graph as runnable Python, with what each input and output stands for as comments."""
        lines = [f"# input {index}: {d}" for index, d in enumerate(self.inputs)]
        lines += [f"# {base}" for base in self.shared_bases]
        lines += [f"# output {index}: {d}" for index, d in enumerate(self.outputs)]
        body = self.graph_module.print_readable(print_output=False, include_stride=True)
        return "\n".join([*lines, body])
