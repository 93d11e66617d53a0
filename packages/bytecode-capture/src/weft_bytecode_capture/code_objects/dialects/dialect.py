"""What may be special about a version's bytecode."""

from __future__ import annotations

import types
from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Dialect:
    """The bytecode of one version of CPython, as far as it differs from another's.

    :mod:`..reading` and :mod:`..spelling` turn what ``pairs``, ``synonyms``, ``sequences``,
    ``bools_before`` and ``indexed_iterators`` are about into plain instructions and back, so that nothing
    else knows of it.  The rest is asked for where it matters.
    """

    name_flags: Mapping[str, int]
    """How many low bits of an operand that names something are flags."""

    comparison_shift: int
    """How many low bits of ``COMPARE_OP``'s operand are flags."""

    comparison_to_bool: int = 0
    """The flag of ``COMPARE_OP`` that asks for a bool; 0 where there is none."""

    null_above_callee: bool = False
    """Whether the NULL of a call lies on the callee rather than under it."""

    announced_calls: bool = False
    """Whether ``PRECALL`` comes before a call."""

    docstring_flag: int = 0
    """The code's flag for a first constant that is the docstring; 0 where any text there is it."""

    keyword_names_on_stack: bool = False
    """Whether ``CALL_KW`` takes the names of keywords from the stack, rather than from ``KW_NAMES``."""

    function_attributes: bool = False
    """Whether ``SET_FUNCTION_ATTRIBUTE`` gives a new function what ``MAKE_FUNCTION``'s flags do elsewhere."""

    attribute_loads_methods: bool = True
    """Whether the low bit of ``LOAD_ATTR`` asks for a method and its receiver."""

    loop_end: tuple[str, ...] = ()
    """The instructions behind a loop that ``FOR_ITER`` passes over at the iterator's end."""

    send_keeps_iterator: bool = True
    """Whether ``SEND`` leaves the iterator at its end to ``END_SEND``, and to ``CLEANUP_THROW``."""

    close_gives_result: bool = False
    """Whether a generator's ``close()`` gives what the generator returns then."""

    key_errors_say_where: bool = False
    """Whether the TypeError of an unhashable key says if it was to be a dict's or a set's."""

    tuple_asks_length: bool = True
    """Whether making a tuple of an iterable asks for its length, or a hint of it, as making a list does."""

    cells_are_locals: bool = False
    """Whether ``LOAD_FAST`` loads cells too, in place of ``LOAD_CLOSURE``."""

    indexed_iterators: bool = False
    """Whether a slot lies on each iterator of a loop, for what counts a list's or tuple's elements.

    :mod:`..indexed_iterators` leaves it out of what is read, and puts it into what is written.
    """

    early_iterators: bool = False
    """Whether a generator expression takes its iterator when it is called, rather than its caller."""

    pairs: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    """Instructions that do what two do, on variables numbered by four bits each."""

    synonyms: Mapping[str, str] = field(default_factory=dict)
    """Instructions that differ from another only in what the interpreter knows about its operands."""

    sequences: Mapping[str, tuple[tuple[str, int], ...]] = field(default_factory=dict)
    """Instructions of other versions that the compiler writes as several, always the same ones."""

    stack_effects: Mapping[str, int] = field(default_factory=dict)
    """By how much the stack grows by what ``sequences`` names."""

    null_above_exit: bool = False
    """Whether ``BEFORE_WITH`` leaves NULL above ``__exit__``; elsewhere an argument of its call is there."""

    keywords_or_null: bool = False
    """Whether ``CALL_FUNCTION_EX`` takes NULL where there are no keywords, and has no flag for them."""

    bools_before: frozenset[str] = frozenset()
    """Instructions that take a bool, which ``TO_BOOL`` before them makes; elsewhere they test any object."""

    def docstring(self, code: types.CodeType) -> str | None:
        """The ``__doc__`` of a function that is made of ``code``."""
        if code.co_flags & self.docstring_flag != self.docstring_flag:
            return None
        first = code.co_consts[0] if code.co_consts else None
        return first if isinstance(first, str) else None
