"""Names of buffers that come from the program, kept apart from words that generated code needs itself."""

from __future__ import annotations

import re
from collections.abc import Container

# The words that C++ keeps for itself and Python, which has checked names already, does not
# (ISO/IEC 14882, 5.11 and 5.5).
_CPP_WORDS = frozenset(
    "alignas alignof and_eq asm auto bitand bitor bool catch char char8_t char16_t char32_t co_await "
    "co_return co_yield compl concept const const_cast consteval constexpr constinit decltype default "
    "delete do double dynamic_cast enum explicit export extern false float friend goto inline int long "
    "mutable namespace new noexcept not_eq nullptr operator or_eq private protected public register "
    "reinterpret_cast requires short signed sizeof static static_assert static_cast struct switch "
    "template this thread_local throw true typedef typeid typename union unsigned using virtual void "
    "volatile wchar_t xor xor_eq".split()
)
# What host programs and kernels call their own values.
_HOST_WORDS = frozenset(
    "api arguments bf16 call f16 f32 f64 failed frame i8 i16 i32 i64 index_error made main ok owned "
    "program raw steps u8 u16 u32 u64 weft".split()
)
_MADE_NAMES = re.compile(r"(buf|call|kernel|region|task|tmp|view)_?\d+")


def safe_buffer_name(name: str, taken: Container[str]) -> str:
    """``name``, with underscores behind it where it would be mistaken, or is among ``taken``."""
    if name in _CPP_WORDS or name in _HOST_WORDS or _MADE_NAMES.fullmatch(name):
        name += "_"
    while name in taken:
        name += "_"
    return name
