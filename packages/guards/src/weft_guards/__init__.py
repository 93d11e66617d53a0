"""Guards: conditions under which compiled code may be used again.

A :class:`Guard` is a source (a path to a value), a predicate on the value and a reason (the user's line
that made it necessary).  A :class:`GuardSet` drops duplicates, orders them and

- ``guard_set.compile(arguments, free_variables)`` makes a :class:`GuardCheck`, whose
  ``check(arguments, globals, builtins, closure)`` runs in C where the extension is built
  (:func:`native_available`).  ``arguments`` are the names of the frame's argument slots in their order
  (positional, keyword-only, ``*args``, ``**kwargs``), ``free_variables`` is ``co_freevars``.  Extensions
  call it through the capsule ``weft_guards._native._C_API``, declared in ``csrc/weft_guards_api.h``;
- ``select(checks)`` merges the checks of several sets of one frame: ``find(...)``, with the arguments of
  ``check``, gives the number of one that holds, the one found last first;
- ``guard_set.evaluate(scope)`` decides the same in Python;
- ``guard_set.explain(scope)`` names the first guard that fails, with what was expected and found.

A guard that raises does not hold.  Objects named by guards are kept alive, but for
``IsObject(weak=True)`` and for keys of dicts and members of sets that are compared by identity.
``GlobalState.current()`` and ``TensorMetadata.of(tensor)`` give what the guards on them expect; read the
former on entry to the frame, outside any mode of the caller's own.  Further sources and predicates are
subclasses that define ``evaluate`` or ``holds``; they are checked in Python.
"""

from ._torch import note_faithful_hook as note_faithful_hook
from ._torch import saved_tensors_hooked as saved_tensors_hooked
from ._torch import transform_active as transform_active
from .computations import ARITHMETIC as ARITHMETIC
from .computations import COMPARISONS as COMPARISONS
from .computations import Computation as Computation
from .computations import Operand as Operand
from .computations import SizeExpression as SizeExpression
from .constants import constants_equal as constants_equal
from .constants import is_constant as is_constant
from .global_state import GlobalState as GlobalState
from .guard import Guard as Guard
from .guard import Reason as Reason
from .guard_set import GuardFailure as GuardFailure
from .guard_set import GuardSet as GuardSet
from .native import GuardCheck as GuardCheck
from .native import GuardSelection as GuardSelection
from .native import native_available as native_available
from .native import native_problem as native_problem
from .predicates.base import Predicate as Predicate
from .predicates.containers import DictContains as DictContains
from .predicates.containers import DictKeysAre as DictKeysAre
from .predicates.containers import LengthHintIs as LengthHintIs
from .predicates.containers import LengthIs as LengthIs
from .predicates.containers import SetIs as SetIs
from .predicates.containers import SetOrderIs as SetOrderIs
from .predicates.containers import iter_set as iter_set
from .predicates.numbers import IsComputable as IsComputable
from .predicates.numbers import IsFinite as IsFinite
from .predicates.numbers import NumbersCompare as NumbersCompare
from .predicates.numbers import ShapeRelation as ShapeRelation
from .predicates.objects import EqualsConstant as EqualsConstant
from .predicates.objects import HasAttribute as HasAttribute
from .predicates.objects import IsNotObject as IsNotObject
from .predicates.objects import IsObject as IsObject
from .predicates.objects import IsOneOf as IsOneOf
from .predicates.objects import NotAliased as NotAliased
from .predicates.objects import SameObject as SameObject
from .predicates.objects import TypeIs as TypeIs
from .predicates.storages import StoragesApart as StoragesApart
from .predicates.storages import StorageShared as StorageShared
from .predicates.storages import storage_address as storage_address
from .predicates.torch_state import ContentsAre as ContentsAre
from .predicates.torch_state import GlobalStateIs as GlobalStateIs
from .predicates.torch_state import TensorMatches as TensorMatches
from .selection import select as select
from .simplification import Relation as Relation
from .simplification import simplify_relations as simplify_relations
from .sources import ArgumentSource as ArgumentSource
from .sources import AttributeSource as AttributeSource
from .sources import CellContentsSource as CellContentsSource
from .sources import ClosureSource as ClosureSource
from .sources import ConstantSource as ConstantSource
from .sources import DictKeySource as DictKeySource
from .sources import GlobalSource as GlobalSource
from .sources import GlobalStateSource as GlobalStateSource
from .sources import InstanceDictSource as InstanceDictSource
from .sources import ItemSource as ItemSource
from .sources import Scope as Scope
from .sources import Source as Source
from .sources import TypeSource as TypeSource
from .symbol_sources import Quantity as Quantity
from .symbol_sources import Readable as Readable
from .symbol_sources import SymbolSource as SymbolSource
from .symbol_sources import expression_function as expression_function
from .symbol_sources import expression_text as expression_text
from .tensor_metadata import TensorMetadata as TensorMetadata
from .weak_keys import is_weak as is_weak
from .weak_keys import weak_references as weak_references
from .weak_keys import weakly as weakly
