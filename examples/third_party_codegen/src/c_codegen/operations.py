"""How C spells dtypes, operations of loop bodies and reductions."""

import torch

TYPES = {
    torch.float32: "float", torch.float64: "double", torch.bool: "bool", torch.uint8: "uint8_t",
    torch.int8: "int8_t", torch.int16: "int16_t", torch.int32: "int32_t", torch.int64: "int64_t",
    torch.float16: "_Float16", torch.bfloat16: "bf16",
}  # fmt: skip
HEADER = """\
#include <stdbool.h>
#include <stdint.h>
#include <tgmath.h>
typedef struct { uint16_t bits; } bf16;
typedef union { uint32_t bits; float value; } word;
static inline float widened(bf16 x) { return (word){(uint32_t)x.bits << 16}.value; }
static inline bf16 narrowed(float x) {  // to nearest, ties to even
  word w = {.value = x};
  return x != x ? (bf16){0x7fc0} : (bf16){(w.bits + 0x7fff + (w.bits >> 16 & 1)) >> 16};
}
#define GREATER(a, b) ((a) != (a) || (a) > (b))  // NaN is the greatest and the least
#define LESS(a, b) ((a) != (a) || (a) < (b))
#define MAXIMUM(a, b) (GREATER(a, b) ? (a) : (b))
#define MINIMUM(a, b) (LESS(a, b) ? (a) : (b))
#define ROUNDS_UP(a, b) ((a) % (b) != 0 && ((a) < 0) != ((b) < 0))  // C's quotient, of floor's
#define QUOTIENT(a, b) ((a) / (b) - ROUNDS_UP(a, b))
#define REMAINDER(a, b) ((a) % (b) + (ROUNDS_UP(a, b) ? (b) : 0))
#define FLOAT_REMAINDER(r, b) ((r) != 0 && ((r) < 0) != ((b) < 0) ? (r) + (b) : (r))
"""
ONE = (
    "exp exp2 expm1 log log2 log10 log1p sin cos tan asin acos atan sinh cosh tanh asinh acosh atanh "
    "erf erfc lgamma floor ceil trunc sqrt"
).split()
TWO = "pow atan2 hypot copysign nextafter fmod".split()
INFIX = {
    "add": "+", "sub": "-", "mul": "*", "truediv": "/", "bitwise_and": "&", "bitwise_or": "|",
    "bitwise_xor": "^", "eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">=",
    "left_shift": "<<", "right_shift": ">>", "logical_and": "&&", "logical_or": "||",
}  # fmt: skip
ANY = {name: f"{{}} {sign} {{}}" for name, sign in INFIX.items()} | {
    "neg": "-{}", "relu": "MAXIMUM({0}, 0)", "sign": "({0} > 0) - ({0} < 0)", "logical_not": "!{}",
    "isnan": "{0} != {0}", "isinf": "isinf((double){})", "logical_xor": "!{} != !{}",
    "maximum": "MAXIMUM({}, {})", "minimum": "MINIMUM({}, {})",
}  # fmt: skip
FLOAT = {f: f"{f}({{}})" for f in ONE} | {f: f"{f}({{}}, {{}})" for f in TWO} | {
    "abs": "fabs({})", "round": "rint({})", "rsqrt": "1 / sqrt({})", "reciprocal": "1 / {}",
    "sigmoid": "1 / (1 + exp(-{}))", "signbit": "signbit({})",
    "remainder": "FLOAT_REMAINDER(fmod({0}, {1}), {1})",
}  # fmt: skip
BOOL = {"bitwise_not": "!{}"}
INTEGER = {
    "abs": "{0} < 0 ? -{0} : {0}", "bitwise_not": "~{}", "floordiv": "QUOTIENT({}, {})",
    "remainder": "REMAINDER({}, {})", "truncdiv": "{} / {}", "fmod": "{} % {}", "signbit": "{} < 0",
    "floor": "{}", "ceil": "{}", "trunc": "{}", "round": "{}",
}  # fmt: skip


def spelling(operation: str, dtype: torch.dtype) -> str | None:
    """The format of an operation on values of ``dtype``; None where there is none."""
    own = FLOAT if dtype.is_floating_point else BOOL if dtype == torch.bool else INTEGER
    return own.get(operation, ANY.get(operation))


REDUCTIONS = {
    "sum": "{a} += {v};", "prod": "{a} *= {v};", "any": "{a} |= {v} != 0;", "all": "{a} &= {v} != 0;",
    "max": "if (!position || GREATER({v}, {a})) {a} = {v};",
    "min": "if (!position || LESS({v}, {a})) {a} = {v};",
    "argmax": "if (!position || GREATER({v}, {b}) && {b} == {b}) {{ {b} = {v}; {a} = position; }}",
    "argmin": "if (!position || LESS({v}, {b}) && {b} == {b}) {{ {b} = {v}; {a} = position; }}",
    "welford_mean": "{a} += ({v} - {a}) / (position + 1);",
    "welford_m2": "{{ {t} d = {v} - {b}; {b} += d / (position + 1); {a} += d * ({v} - {b}); }}",
}  # fmt: skip
"""What element ``v`` number ``position`` does to the result ``a`` and to ``b``, of ``v``'s type ``t``."""
ATOMIC = {
    "atomic_add": "{0} += {1};", "atomic_mul": "{0} *= {1};",
    "atomic_max": "{0} = MAXIMUM({0}, {1});", "atomic_min": "{0} = MINIMUM({0}, {1});",
}  # fmt: skip
"""Iterations run one after another here, so that nothing has to be atomic."""
