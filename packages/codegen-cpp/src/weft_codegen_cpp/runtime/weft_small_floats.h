// Floats of 16 and 8 bits as they lie in memory: bfloat16 and half as ui16, float8 as ui8.
#pragma once
#include "weft_vectors.h"

namespace weft {

// ---- bfloat16 and half, as they lie in memory (ui16) ----------------------------------------------------

// Round to nearest, ties to even; NaN becomes 0x7fc0 as in c10::BFloat16; denormals are kept.
WEFT_INLINE ui16 bf16_from_f32(f32 a) {
  ui32 bits = bitcast<ui32>(a);
  return a != a ? ui16(0x7fc0) : ui16((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}
WEFT_INLINE vui16 bf16_rounded(vf32 a) {
  vui32 bits = bitcast<vui32>(a);
  vui32 rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  rounded = (a != a) ? (vui32{} + 0x7fc0u) : rounded;
  return convert_lanes<ui16>(rounded);
}
#if WEFT_ZMM && defined(__AVX512BF16__) && defined(__AVX512DQ__) && defined(__has_builtin)
#if __has_builtin(__builtin_ia32_cvtneps2bf16_v16sf) && __has_builtin(__builtin_ia32_fpclassps512_mask)
#define WEFT_BF16_INSTRUCTION 1
#endif
#endif
WEFT_INLINE vui16 bf16_from_f32(vf32 a) {
#if defined(WEFT_BF16_INSTRUCTION)  // the instruction flushes denormals, so vectors that hold one don't take it
  typedef float Whole __attribute__((vector_size(64)));
  if (__builtin_expect(__builtin_ia32_fpclassps512_mask((Whole)a, 0x20, (unsigned short)-1) == 0, 1))
    return bitcast<vui16>(__builtin_ia32_cvtneps2bf16_v16sf((Whole)a));
#endif
  return bf16_rounded(a);
}
// As bf16_to_f32(bf16_from_f32(a)), without leaving the float32 lanes; a NaN stays what it is.
template <class F, class U> WEFT_INLINE F bf16_round_bits(F a, U bits) {
  U rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) & 0xffff0000u;
  return a != a ? a : bitcast<F>(rounded);
}
WEFT_INLINE f32 bf16_round(f32 a) { return bf16_round_bits(a, bitcast<ui32>(a)); }
WEFT_INLINE vf32 bf16_round(vf32 a) { return bf16_round_bits(a, bitcast<vui32>(a)); }
WEFT_INLINE f32 bf16_to_f32(ui16 a) { return bitcast<f32>(ui32(a) << 16); }
WEFT_INLINE vf32 bf16_to_f32(vui16 a) { return bitcast<vf32>(convert_lanes<ui32>(a) << 16); }

inline f32 f16_to_f32(ui16 h) {
  ui32 sign = ui32(h & 0x8000u) << 16, exponent = (h >> 10) & 31, fraction = h & 1023;
  if (exponent == 31) return bitcast<f32>(sign | 0x7f800000u | (fraction << 13));
  if (exponent == 0) {
    f32 magnitude = f32(fraction) * 0x1p-24f;
    return bitcast<f32>(bitcast<ui32>(magnitude) | sign);
  }
  return bitcast<f32>(sign | ((exponent + 112) << 23) | (fraction << 13));
}
inline ui16 f16_from_f32(f32 a) {
  ui32 bits = bitcast<ui32>(a);
  ui16 sign = ui16((bits >> 16) & 0x8000u);
  bits &= 0x7fffffffu;
  if (bits > 0x7f800000u) return ui16(sign | 0x7e00u);
  if (bits >= 0x47800000u) return ui16(sign | 0x7c00u);
  if (bits < 0x38800000u) {  // a denormal half: the addition rounds at the right bit
    f32 shifted = bitcast<f32>(bits) + 0.5f;
    return ui16(sign | ui16(bitcast<ui32>(shifted) - 0x3f000000u));
  }
  ui32 rounded = bits + 0xfffu + ((bits >> 13) & 1u);
  return ui16(sign | ui16((rounded - 0x38000000u) >> 13));
}
#if WEFT_ZMM
typedef float wh_f32x16 __attribute__((vector_size(64)));
typedef short wh_i16x16 __attribute__((vector_size(32)));
WEFT_INLINE vf32 f16_to_f32(vui16 a) {
  return (vf32)__builtin_ia32_vcvtph2ps512_mask((wh_i16x16)a, wh_f32x16{}, (unsigned short)-1, 4);
}
WEFT_INLINE vui16 f16_from_f32(vf32 a) {
  return (vui16)__builtin_ia32_vcvtps2ph512_mask((wh_f32x16)a, 0, wh_i16x16{}, (unsigned short)-1);
}
#else
WEFT_INLINE vf32 f16_to_f32(vui16 a) {
  vf32 v = {};
  for (int k = 0; k < lanes; ++k) v[k] = f16_to_f32(ui16(a[k]));
  return v;
}
WEFT_INLINE vui16 f16_from_f32(vf32 a) {
  vui16 v = {};
  for (int k = 0; k < lanes; ++k) v[k] = f16_from_f32(f32(a[k]));
  return v;
}
#endif

// ---- float8, as it lies in memory (ui8) -----------------------------------------------------------------

// `digits` binary places and an exponent that is `bias` too large; F and U are float32 and its bits, or vectors.
// Round to nearest, ties to even; numbers whose bits are not below `min_above` become `above`, NaN stays NaN.
template <int digits, int bias, class F, class U>
WEFT_INLINE U float8_rounded(F a, ui32 min_above, ui32 above) {
  constexpr int shift = 23 - digits;
  constexpr ui32 magic = ui32(127 + shift - bias + 1) << 23;  // an addition rounds at the place of denormals
  U bits = bitcast<U>(a), sign = (bits >> 24) & 0x80u;
  bits &= 0x7fffffffu;
  U normal = (bits + ((1u << (shift - 1)) - 1) + ((bits >> shift) & 1u) - (ui32(127 - bias) << 23)) >> shift;
  U denormal = bitcast<U>(bitcast<F>(bits) + bitcast<F>(U{} + magic)) - magic;
  U rounded = (bits < U{} + (ui32(128 - bias) << 23)) ? denormal : normal;
  rounded = (bits >= U{} + min_above) ? U{} + above : rounded;
  rounded = (bits > U{} + 0x7f800000u) ? U{} + 0x7fu : rounded;
  return rounded | sign;
}
// `special` is the least magnitude that is no number, widened by setting all bits of the exponent; NaN keeps its sign.
template <int digits, int bias, class F, class U> WEFT_INLINE F float8_widened(U a, F number, ui32 special) {
  U magnitude = a & 0x7fu;
  U denormal = bitcast<U>(number * f32(1.0 / (1u << (bias - 1)) / (1u << digits)));
  U normal = (magnitude << (23 - digits)) + (ui32(127 - bias) << 23);
  U bits = (magnitude < U{} + (1u << digits)) ? denormal : normal;
  bits = (magnitude >= U{} + special) ? (normal | 0x7f800000u) : bits;
  return bitcast<F>(bits | ((a & 0x80u) << 24));
}
// Too large are those above 464, halfway to what would be the next number, and those from 61440 on.
#define WEFT_FLOAT8(name, digits, bias, min_above, special)                                           \
  WEFT_INLINE ui8 name##_from_f32(f32 a, ui32 too_large) {                                            \
    return ui8(float8_rounded<digits, bias, f32, ui32>(a, min_above, too_large));                     \
  }                                                                                                   \
  WEFT_INLINE vui8 name##_from_f32(vf32 a, ui32 too_large) {                                          \
    return convert_lanes<ui8>(float8_rounded<digits, bias, vf32, vui32>(a, min_above, too_large));    \
  }                                                                                                   \
  WEFT_INLINE f32 name##_to_f32(ui8 a) {                                                              \
    return float8_widened<digits, bias>(ui32(a), f32(a & 0x7f), special);                             \
  }                                                                                                   \
  WEFT_INLINE vf32 name##_to_f32(vui8 a) {                                                            \
    vui32 bits = convert_lanes<ui32>(a);                                                              \
    return float8_widened<digits, bias>(bits, convert_lanes<f32>(bits & 0x7fu), special);             \
  }
WEFT_FLOAT8(e4m3, 3, 7, 0x43e80001u, 0x7fu) WEFT_FLOAT8(e5m2, 2, 15, 0x47700000u, 0x7cu)
#undef WEFT_FLOAT8

}  // namespace weft
