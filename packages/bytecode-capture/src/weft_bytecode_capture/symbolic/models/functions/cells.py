"""Cells: the variables that closures share."""

from __future__ import annotations

import types

from weft_guards import CellContentsSource, ClosureSource, ConstantSource, Source, TypeIs

from ....frame.emitter import Emitter
from ....unsupported import Unsupported
from ...protocol import Evaluator
from ...variables.base import Variable
from ...variables.builder import register_wrapper


class CellVariable(Variable):
    """A cell object.

    A cell made in the evaluated frame has ``contents`` only.  A cell from before has the real ``cell`` and
    ``contents_source``, where its contents can be read again; ``root_name`` if it is a free variable of
    the root frame itself.
    """

    kind = types.CellType

    def __init__(
        self,
        contents: Variable | None = None,
        cell: types.CellType | None = None,
        source: Source | None = None,
        contents_source: Source | None = None,
        root_name: str | None = None,
    ) -> None:
        self.contents = contents
        self.cell = cell
        self.source = source
        self.contents_source = contents_source
        self.root_name = root_name
        self._read = cell is None

    def is_empty_outside(self) -> bool:
        """Whether it came empty from outside, and nothing has been written to it since."""
        if self._read or self.cell is None:
            return False
        try:
            self.cell.cell_contents  # noqa: B018
        except ValueError:
            return True
        return False

    def read(self, evaluator: Evaluator) -> Variable | None:
        """The contents; None for an empty cell."""
        if self.cell is not None:
            evaluator.state.kernel_writes.check_cell(self.cell)
        if not self._read:
            assert self.cell is not None
            assert self.contents_source is not None
            try:
                value = self.cell.cell_contents
            except ValueError:
                raise Unsupported("empty cell from outside the frame", repr(self)) from None
            self.contents = evaluator.builder.wrap(value, self.contents_source)
            self._read = True
        return self.contents

    def write(self, evaluator: Evaluator, value: Variable | None) -> None:
        self.contents = value
        self._read = True
        if self.cell is not None:
            evaluator.side_effects.mutated(self)

    def get_attribute(self, evaluator: Evaluator, name: str) -> Variable:
        if name == "cell_contents":
            contents = self.read(evaluator)
            if contents is None:
                evaluator.raise_error(ValueError, "Cell is empty")
            return contents
        raise Unsupported("attribute of a cell", name)

    def set_attribute(self, evaluator: Evaluator, name: str, value: Variable) -> None:
        if name != "cell_contents":
            raise Unsupported("attribute of a cell", name)
        self.write(evaluator, value)

    def delete_attribute(self, evaluator: Evaluator, name: str) -> None:
        if name != "cell_contents":
            raise Unsupported("attribute of a cell", name)
        self.write(evaluator, None)

    def binary_operation(
        self, evaluator: Evaluator, operator: str, other: Variable, reflected: bool
    ) -> Variable | None:
        """Cells compare as what they hold; an empty one is less than any other."""
        raise Unsupported("attribute of a cell", f"{operator} of {self!r} and {other!r}")

    def emit_mutation(self, emitter: Emitter) -> None:
        if self.contents is None:
            emitter.load_callable(types.CellType.__delattr__)
            self._load_cell(emitter)
            emitter.load_constant("cell_contents")
            emitter.call(2)
            emitter.pop()
            return
        emitter.load_variable(self.contents)
        self._load_cell(emitter)
        emitter.store_attribute("cell_contents")

    def _load_cell(self, emitter: Emitter) -> None:
        if self.root_name is not None:
            emitter.load_cell(self.root_name)
        elif self.source is not None:
            emitter.load_source(self.source)
        else:
            raise Unsupported("cell without a source", repr(self))

    def reconstruct(self, emitter: Emitter) -> None:
        if self.cell is not None:
            self._load_cell(emitter)
        else:
            given = [] if self.contents is None else [self.contents]
            emitter.load_call(types.CellType, *given)


class SavedCellVariable(Variable):
    """A local's cell on the stack, while an inlined comprehension (3.12) uses the local's slot."""

    def __init__(self, cell: CellVariable) -> None:
        self.cell = cell

    def reconstruct(self, emitter: Emitter) -> None:
        emitter.load_variable(self.cell)


def root_cell(evaluator: Evaluator, name: str, cell: types.CellType) -> CellVariable:
    """The cell of a free variable of the root frame."""
    return known_cell(evaluator, cell, None, ClosureSource(name), name)


def known_cell(
    evaluator: Evaluator,
    cell: types.CellType,
    source: Source | None,
    contents_source: Source,
    root_name: str | None = None,
) -> CellVariable:
    """The one variable of a cell that existed before the frame."""
    variable = evaluator.builder.known(cell)
    if variable is None:
        variable = CellVariable(None, cell, source, contents_source, root_name)
        evaluator.builder.remember(cell, variable, source or ConstantSource("cell", cell))
    assert isinstance(variable, CellVariable)
    if variable.source is None:
        variable.source = source
    if variable.root_name is None:
        variable.root_name = root_name
    return variable


@register_wrapper(types.CellType)
def _wrap_cell(evaluator: Evaluator, value: types.CellType, source: Source) -> Variable:
    evaluator.guard(source, TypeIs(types.CellType))
    return CellVariable(None, value, source, CellContentsSource(source))
