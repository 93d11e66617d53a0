"""Makes Triton's interpreter quicker: it does half of all that tests run.

Each block that a kernel computes gets a type, a shape and their names, and each call of a device function
looks through Triton's modules for what it replaces.  Nothing of that changes while the process lives.  Scans
take one step for each element.  It is stricter, too, where compiled loops would go wrong.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

_FACTS = "_weft_facts"
"""Of a type: what its blocks have besides their values."""


@functools.cache
def make_interpreter_quick() -> None:
    """Replace the parts of Triton's language and interpreter that are asked most by ones that remember.

    Those that have another signature in this version of Triton stay.
    """
    from triton.language import core, semantic
    from triton.runtime import interpreter

    block_type: Any = core.block_type
    if _takes(block_type.__init__, "self", "element_ty", "shape"):
        _share_block_types(block_type, core.constexpr)
    tensor: Any = core.tensor
    if _takes(tensor.__init__, "self", "handle", "type"):
        tensor.__init__ = _with_facts_of_type(tensor.__init__)
    values: Any = core.tuple
    values.__eq__ = _compared_with_numbers(values.__eq__, core.constexpr)
    meaning: Any = semantic.TritonSemantic
    if _takes(getattr(meaning, "broadcast_impl_value", None), "self", "lhs", "rhs"):
        meaning.broadcast_impl_value = _as_they_are(meaning.broadcast_impl_value)
    module: Any = interpreter
    module.ScanOps.generic_scan = _scan
    if _takes(getattr(module, "_get_np_dtype", None), "tt_dtype"):
        module._get_np_dtype = _by_name(module._get_np_dtype)
    if _takes(getattr(module, "_patch_builtin", None), "pkg", "builder", "scope"):
        module._patch_builtin = _patch_known_names(module._patch_attr, core.is_builtin)
    if _takes(getattr(module, "_patch_lang_core", None), "lang", "scope"):
        module._patch_lang_core = _with_checked_ranges(module._patch_lang_core)


def _takes(function: Any, *names: str) -> bool:
    return function is not None and (*inspect.signature(function).parameters,) == names


def _share_block_types(block_type: Any, constexpr: Any) -> None:
    plain = block_type.__init__
    known: dict[Any, Any] = {}

    def new(cls: Any, element_ty: Any, shape: Any) -> Any:
        numbers = (*(s.value if isinstance(s, constexpr) else s for s in shape),)
        if not all(type(number) is int for number in numbers):
            return object.__new__(cls)  # 4.0 is found where 4 is
        space = getattr(element_ty, "address_space", None)
        key = cls, type(element_ty), element_ty.name, space, numbers
        found = known.get(key)
        if found is None:
            found = known[key] = object.__new__(cls)
        return found

    def init(self: Any, element_ty: Any, shape: Any) -> None:
        if "numel" not in vars(self):  # which is set last
            plain(self, element_ty, shape)

    block_type.__new__ = new
    block_type.__init__ = init


def _with_facts_of_type(plain: Callable[..., None]) -> Callable[..., None]:
    def init(self: Any, handle: Any, type: Any) -> None:
        facts = vars(type).get(_FACTS)
        if facts is None:
            plain(self, handle, type)
            facts = {name: value for name, value in vars(self).items() if name != "handle"}
            setattr(type, _FACTS, facts)
        else:
            self.handle = handle
            vars(self).update(facts)

    return init


def _compared_with_numbers(plain: Callable[..., Any], constexpr: Any) -> Callable[..., Any]:
    def equal(self: Any, other: Any) -> Any:
        if type(other) is list and all(type(value) is int for value in other):
            return constexpr(self.values == other)
        return plain(self, other)

    return equal


def _as_they_are(plain: Callable[..., Any]) -> Callable[..., Any]:
    """Values of one type, which is one object, need not be made alike."""

    def broadcast(self: Any, lhs: Any, rhs: Any) -> Any:
        return (lhs, rhs) if lhs.type is rhs.type else plain(self, lhs, rhs)

    return broadcast


def _by_name(plain: Callable[[Any], Any]) -> Callable[[Any], Any]:
    known: dict[str, Any] = {}

    def dtype(tt_dtype: Any) -> Any:
        found = known.get(tt_dtype.name)
        if found is None:
            found = known[tt_dtype.name] = plain(tt_dtype)
        return found

    return dtype


def _patch_known_names(
    patch: Callable[..., None], is_builtin: Callable[[Any], bool]
) -> Callable[..., None]:
    @functools.cache
    def names(pkg: Any) -> tuple[str, ...]:
        return (*(name for name, member in inspect.getmembers(pkg) if is_builtin(member)),)

    def patch_all(pkg: Any, builder: Any, scope: Any) -> None:
        for name in names(pkg):
            member = getattr(pkg, name)
            if is_builtin(member):  # no longer, inside a kernel
                patch(pkg, name, member, builder, scope)

    return patch_all


def _with_checked_ranges(patch: Callable[..., None]) -> Callable[..., None]:
    """No unrolled loop ends before it begins: compiled, it would not be empty.

    Triton counts its steps without a sign, and begins what is left of them far before its start.
    """

    def checked(plain: Callable[..., range]) -> Callable[..., range]:
        def new_range(*bounds: Any, loop_unroll_factor: Any = None, **options: Any) -> range:
            steps = plain(*bounds, **options)
            if loop_unroll_factor is not None and steps.stop < steps.start:
                raise ValueError(f"{steps}: an unrolled loop ends before it begins")
            return steps

        return new_range

    def patch_all(lang: Any, scope: Any) -> None:
        patch(lang, scope)
        scope.set_attr(lang, "range", checked(lang.range))

    return patch_all


def _scan(operation: Any, values: Any) -> list[Any]:
    """A scan in as many steps as its length has bits; the interpreter's own takes one for each element."""
    arrays = [value.handle.data for value in values]
    axis, length = operation.axis, arrays[0].shape[operation.axis]
    distance = 1
    while distance < length:
        before = [a.take([max(k - distance, 0) for k in range(length)], axis) for a in arrays]
        given = [
            operation.to_tensor(a, value.dtype)
            for side in (before, arrays)
            for a, value in zip(side, values, strict=True)
        ]
        made = operation.combine_fn.fn(*given)
        later = (slice(None),) * axis + (slice(distance, None),)
        arrays = [a.copy() for a in arrays]
        for array, tensor in zip(arrays, made if isinstance(made, tuple) else (made,), strict=True):
            data = tensor.handle.data
            array[later] = data[later] if data.shape else data
        distance *= 2
    return [operation.to_tensor(a, v.dtype) for a, v in zip(arrays, values, strict=True)]
