// Arithmetic and mathematical functions on scalars and vectors, with eager's floating-point semantics.
//
// The float32 polynomials are minimax fits made for this file; measured errors are in the tests.
#pragma once

extern "C" {
#define WEFT_LIBM1(name) double name(double); float name##f(float);
#define WEFT_LIBM2(name) double name(double, double); float name##f(float, float);
WEFT_LIBM1(exp) WEFT_LIBM1(exp2) WEFT_LIBM1(expm1) WEFT_LIBM1(log) WEFT_LIBM1(log2) WEFT_LIBM1(log10)
WEFT_LIBM1(log1p) WEFT_LIBM1(sin) WEFT_LIBM1(cos) WEFT_LIBM1(tan) WEFT_LIBM1(asin) WEFT_LIBM1(acos)
WEFT_LIBM1(atan) WEFT_LIBM1(sinh) WEFT_LIBM1(cosh) WEFT_LIBM1(tanh) WEFT_LIBM1(asinh)
WEFT_LIBM1(acosh) WEFT_LIBM1(atanh) WEFT_LIBM1(erf) WEFT_LIBM1(erfc) WEFT_LIBM1(lgamma)
WEFT_LIBM2(pow) WEFT_LIBM2(fmod) WEFT_LIBM2(atan2) WEFT_LIBM2(hypot) WEFT_LIBM2(nextafter)
#undef WEFT_LIBM1
#undef WEFT_LIBM2
}

namespace weft {

// ---- arithmetic --------------------------------------------------------------------------------------

#define WEFT_INFIX(name, op) template <class X> WEFT_INLINE X name(X a, X b) { return X(a op b); }
WEFT_INFIX(add, +) WEFT_INFIX(sub, -) WEFT_INFIX(mul, *) WEFT_INFIX(truediv, /)
WEFT_INFIX(bitwise_and, &) WEFT_INFIX(bitwise_or, |) WEFT_INFIX(bitwise_xor, ^)
#undef WEFT_INFIX
template <class X> WEFT_INLINE X neg(X a) { return X(-a); }
template <> WEFT_INLINE bool add<bool>(bool a, bool b) { return a | b; }
template <> WEFT_INLINE bool mul<bool>(bool a, bool b) { return a & b; }
template <> WEFT_INLINE Mask add<Mask>(Mask a, Mask b) { return logical_or(a, b); }
template <> WEFT_INLINE Mask mul<Mask>(Mask a, Mask b) { return logical_and(a, b); }

template <class X> WEFT_INLINE X bitwise_not(X a) { return X(~a); }
WEFT_INLINE Mask bitwise_and(Mask a, Mask b) { return logical_and(a, b); }
WEFT_INLINE Mask bitwise_or(Mask a, Mask b) { return logical_or(a, b); }
WEFT_INLINE Mask bitwise_xor(Mask a, Mask b) { return logical_xor(a, b); }
WEFT_INLINE Mask bitwise_not(Mask a) { return logical_not(a); }
WEFT_INLINE bool bitwise_not(bool a) { return !a; }

template <class F, class X> WEFT_INLINE X map(F f, X a) {
  X r = {};
  WEFT_UNROLL(16) for (int k = 0; k < lanes; ++k) r[k] = f(a[k]);
  return r;
}
template <class F, class X> WEFT_INLINE X map(F f, X a, X b) {
  X r = {};
  for (int k = 0; k < lanes; ++k) r[k] = f(a[k], b[k]);
  return r;
}
#define WEFT_BINARY_BY_LANE(name)                                                            \
  template <class X> WEFT_INLINE X name(X a, X b) {                                          \
    typedef Element<X> T;                                                                    \
    if constexpr (is_vector<X>) return map([](T p, T q) { return name##_one<T>(p, q); }, a, b); \
    else return name##_one<T>(a, b);                                                         \
  }

// A shift by the width or more, or by a negative count, gives what eager gives: 0, or the sign.
template <class T> WEFT_INLINE T left_shift_one(T a, T b) {
  constexpr T width = 8 * sizeof(T);
  return (b < 0 || b >= width) ? T(0) : T(ui64(a) << b);
}
template <class T> WEFT_INLINE T right_shift_one(T a, T b) {
  constexpr T last = 8 * sizeof(T) - (is_signed<T> ? 1 : 0);
  if (b < 0 || b >= last) return is_signed<T> ? T(a >> (8 * sizeof(T) - 1)) : T(b == last ? 0 : 0);
  return T(a >> b);
}
WEFT_BINARY_BY_LANE(left_shift) WEFT_BINARY_BY_LANE(right_shift)

template <class X> WEFT_INLINE auto bits_of(X a) {
  typedef Signed<Element<X>> T;
  if constexpr (is_vector<X>) return bitcast<Vec<T>>(a);
  else return bitcast<T>(a);
}
template <class X> WEFT_INLINE X sign_bits(X a) {  // only the sign of a, for OR with a magnitude
  auto bits = bits_of(a);
  typedef decltype(bits) B;
  return bitcast<X>(B(bits & bits_of(widen_to<X>(Element<X>(-0.0)))));
}
template <class X> WEFT_INLINE X or_bits(X a, X b) {
  auto bits = bits_of(a);
  typedef decltype(bits) B;
  return bitcast<X>(B(bits | bits_of(b)));
}
template <class X> WEFT_INLINE X abs(X a) {
  typedef Element<X> T;
  if constexpr (is_float<X>) {
    typedef Signed<T> B;
    if constexpr (is_vector<X>) return bitcast<X>(bitcast<Vec<B>>(a) & Limits<B>::highest());
    else return bitcast<X>(B(bitcast<B>(a) & Limits<B>::highest()));
  } else if constexpr (is_vector<X>) return a < 0 ? X(-a) : a;
  else return a < 0 ? X(-a) : a;
}
template <class X> WEFT_INLINE X copysign(X a, X b) { return or_bits(abs(a), sign_bits(b)); }
template <class X> WEFT_INLINE auto signbit(X a) {
  typedef Element<X> T;
  if constexpr (is_float<X>) {
    if constexpr (is_vector<X>) return to_mask(bitcast<Vec<Signed<T>>>(a) < 0);
    else return bitcast<Signed<T>>(a) < 0;
  } else return lt(a, X{});
}
template <class X> WEFT_INLINE auto isinf(X a) {
  if constexpr (is_float<X>) return eq(abs(a), widen_to<X>(Element<X>(__builtin_inf())));
  else if constexpr (is_vector<X>) return Mask{vi32{}};
  else return false;
}

#if WEFT_ZMM
typedef float z_f32 __attribute__((vector_size(64)));
#endif
// The larger, and b when one of them is NaN.
template <class V> WEFT_INLINE V larger_or_second(V a, V b) { return a > b ? a : b; }
template <class V> WEFT_INLINE V smaller_or_second(V a, V b) { return a < b ? a : b; }
// a where it is NaN, else b.
template <class V> WEFT_INLINE V nan_or_second(V a, V b) { return a != a ? a : b; }
// Builtins are also what GCC compiles faster: it folds comparisons into the sides of a vector's choices, in time
// that is exponential in how many choices follow one another, such as those that join the lanes of a maximum.
#if WEFT_ZMM
WEFT_INLINE vf32 larger_or_second(vf32 a, vf32 b) {
  return (vf32)__builtin_ia32_maxps512_mask((z_f32)a, (z_f32)b, (z_f32)b, (unsigned short)-1, 4);
}
WEFT_INLINE vf32 smaller_or_second(vf32 a, vf32 b) {
  return (vf32)__builtin_ia32_minps512_mask((z_f32)a, (z_f32)b, (z_f32)b, (unsigned short)-1, 4);
}
WEFT_INLINE vf32 nan_or_second(vf32 a, vf32 b) {
  return (vf32)__builtin_ia32_blendmps_512_mask(
      (z_f32)b, (z_f32)a, __builtin_ia32_cmpps512_mask((z_f32)a, (z_f32)a, 3, (unsigned short)-1, 4));
}
#elif WEFT_YMM
WEFT_INLINE vf32 larger_or_second(vf32 a, vf32 b) { return __builtin_ia32_maxps256(a, b); }
WEFT_INLINE vf32 smaller_or_second(vf32 a, vf32 b) { return __builtin_ia32_minps256(a, b); }
WEFT_INLINE vf32 nan_or_second(vf32 a, vf32 b) {
  return __builtin_ia32_blendvps256(b, a, __builtin_ia32_cmpps256(a, a, 3));
}
// The same of float64: a vector is two of the processor's.
typedef double y_f64 __attribute__((vector_size(32)));
struct TwoHalves { y_f64 half[2]; };
template <class Combine> WEFT_INLINE vf64 by_halves(vf64 a, vf64 b, Combine combine) {
  TwoHalves p = bitcast<TwoHalves>(a), q = bitcast<TwoHalves>(b);
  return bitcast<vf64>(TwoHalves{{combine(p.half[0], q.half[0]), combine(p.half[1], q.half[1])}});
}
WEFT_INLINE vf64 larger_or_second(vf64 a, vf64 b) {
  return by_halves(a, b, [](y_f64 p, y_f64 q) WEFT_LAMBDA { return __builtin_ia32_maxpd256(p, q); });
}
WEFT_INLINE vf64 smaller_or_second(vf64 a, vf64 b) {
  return by_halves(a, b, [](y_f64 p, y_f64 q) WEFT_LAMBDA { return __builtin_ia32_minpd256(p, q); });
}
WEFT_INLINE vf64 nan_or_second(vf64 a, vf64 b) {
  return by_halves(b, a, [](y_f64 p, y_f64 q) WEFT_LAMBDA {
    return __builtin_ia32_blendvpd256(p, q, __builtin_ia32_cmppd256(q, q, 3));
  });
}
#endif

template <class X> WEFT_INLINE X maximum(X a, X b) {
  if constexpr (is_same<X, Mask>) return logical_or(a, b);
  else if constexpr (is_float<X> && is_vector<X>) return nan_or_second(a, larger_or_second(a, b));
  else if constexpr (is_vector<X>) return a > b ? a : b;
  else return (a > b || a != a) ? a : b;
}
template <class X> WEFT_INLINE X minimum(X a, X b) {
  if constexpr (is_same<X, Mask>) return logical_and(a, b);
  else if constexpr (is_float<X> && is_vector<X>) return nan_or_second(a, smaller_or_second(a, b));
  else if constexpr (is_vector<X>) return a < b ? a : b;
  else return (a < b || a != a) ? a : b;
}
template <class X> WEFT_INLINE X relu(X a) {
  if constexpr (is_vector<X>) return a < 0 ? X{} : a;
  else return a < 0 ? X(0) : a;
}
template <class X> WEFT_INLINE X sign(X a) {
  typedef Element<X> T;
  if constexpr (is_same<T, bool>) return a;
  else if constexpr (is_vector<X>) {
    X one = splat<T>(T(1));
    return X(a > 0 ? one : X{}) - X(a < 0 ? one : X{});
  } else return X((a > 0) - (a < 0));
}

// ---- division and remainder --------------------------------------------------------------------------

WEFT_INLINE f32 libm_fmod(f32 a, f32 b) { return ::fmodf(a, b); }
WEFT_INLINE f64 libm_fmod(f64 a, f64 b) { return ::fmod(a, b); }
WEFT_INLINE f32 libm_floor(f32 a) { return __builtin_floorf(a); }
WEFT_INLINE f64 libm_floor(f64 a) { return __builtin_floor(a); }

// Integer division by zero cannot reach here from eager's semantics, except in lanes that are not used.
template <class T> WEFT_INLINE T truncdiv_one(T a, T b) {
  if constexpr (IsFloat<T>::value) {
    T q = a / b;
    if constexpr (sizeof(T) == 4) return __builtin_truncf(q);
    else return __builtin_trunc(q);
  } else {
    if (b == 0) return T(0);
    if (is_signed<T> && b == T(-1)) return T(-a);
    return T(a / b);
  }
}
template <class T> WEFT_INLINE T fmod_one(T a, T b) {
  if constexpr (IsFloat<T>::value) return libm_fmod(a, b);
  else if (b == 0 || (is_signed<T> && b == T(-1))) return T(0);
  else return T(a % b);
}
template <class T> WEFT_INLINE T remainder_one(T a, T b) {
  T r = fmod_one<T>(a, b);
  if (r != 0 && ((b < 0) != (r < 0))) r = T(r + b);
  return r;
}
template <class T> WEFT_INLINE T floordiv_one(T a, T b) {
  if constexpr (IsFloat<T>::value) {  // Python's: exact remainder first
    if (b == 0) return a / b;
    T r = libm_fmod(a, b);
    T q = (a - r) / b;
    if (r != 0 && ((b < 0) != (r < 0))) q -= T(1);
    if (q == 0) return bitcast<T>(Signed<T>(bitcast<Signed<T>>(T(a / b)) & bitcast<Signed<T>>(T(-0.0))));
    T f = libm_floor(q);
    return q - f > T(0.5) ? f + T(1) : f;
  } else {
    if (b == 0) return T(0);
    if (is_signed<T> && b == T(-1)) return T(-a);
    T q = T(a / b);
    return ((a % b != 0) && ((a < 0) != (b < 0))) ? T(q - 1) : q;
  }
}
WEFT_BINARY_BY_LANE(truncdiv) WEFT_BINARY_BY_LANE(fmod) WEFT_BINARY_BY_LANE(remainder)
WEFT_BINARY_BY_LANE(floordiv)

// ---- fused multiply-add, roots, rounding ---------------------------------------------------------------

WEFT_INLINE f32 fma(f32 a, f32 b, f32 c) { return __builtin_fmaf(a, b, c); }
WEFT_INLINE f64 fma(f64 a, f64 b, f64 c) { return __builtin_fma(a, b, c); }
#if WEFT_ZMM
WEFT_INLINE vf32 fma(vf32 a, vf32 b, vf32 c) {
  return (vf32)__builtin_ia32_vfmaddps512_mask((z_f32)a, (z_f32)b, (z_f32)c, (unsigned short)-1, 4);
}
WEFT_INLINE vf32 sqrt(vf32 a) {
  return (vf32)__builtin_ia32_sqrtps512_mask((z_f32)a, (z_f32)a, (unsigned short)-1, 4);
}
template <int mode> WEFT_INLINE vf32 round_by(vf32 a) {
  return (vf32)__builtin_ia32_rndscaleps_mask((z_f32)a, mode, (z_f32)a, (unsigned short)-1, 4);
}
#elif WEFT_YMM
WEFT_INLINE vf32 fma(vf32 a, vf32 b, vf32 c) { return __builtin_ia32_vfmaddps256(a, b, c); }
WEFT_INLINE vf32 sqrt(vf32 a) { return __builtin_ia32_sqrtps256(a); }
template <int mode> WEFT_INLINE vf32 round_by(vf32 a) { return __builtin_ia32_roundps256(a, mode); }
#else
WEFT_INLINE vf32 fma(vf32 a, vf32 b, vf32 c) {
  vf32 r = {};
  WEFT_UNROLL(16) for (int k = 0; k < lanes; ++k) r[k] = __builtin_fmaf(a[k], b[k], c[k]);
  return r;
}
WEFT_INLINE vf32 sqrt(vf32 a) { return map([](f32 x) { return __builtin_sqrtf(x); }, a); }
#endif
#if WEFT_ZMM || WEFT_YMM
#define WEFT_ROUNDING_OF_FLOATS(builtin, mode) return round_by<mode>(a);
#else
#define WEFT_ROUNDING_OF_FLOATS(builtin, mode) return map([](f32 x) { return __builtin_##builtin##f(x); }, a);
#endif
#define WEFT_ROUNDING(name, builtin, mode)                                                            \
  WEFT_INLINE vf32 name(vf32 a) { WEFT_ROUNDING_OF_FLOATS(builtin, mode) }                            \
  WEFT_INLINE f32 name(f32 a) { return __builtin_##builtin##f(a); }                                   \
  WEFT_INLINE f64 name(f64 a) { return __builtin_##builtin(a); }                                      \
  WEFT_INLINE vf64 name(vf64 a) { return map([](f64 x) { return __builtin_##builtin(x); }, a); }      \
  template <class X> WEFT_INLINE X name(X a) { return a; }
WEFT_ROUNDING(floor, floor, 9) WEFT_ROUNDING(ceil, ceil, 10) WEFT_ROUNDING(trunc, trunc, 11)
WEFT_ROUNDING(round, rint, 8)
#undef WEFT_ROUNDING
WEFT_INLINE f32 sqrt(f32 a) { return __builtin_sqrtf(a); }
WEFT_INLINE f64 sqrt(f64 a) { return __builtin_sqrt(a); }
WEFT_INLINE vf64 sqrt(vf64 a) { return map([](f64 x) { return __builtin_sqrt(x); }, a); }
template <class X> WEFT_INLINE X reciprocal(X a) { return Element<X>(1) / a; }
template <class X> WEFT_INLINE X rsqrt(X a) { return Element<X>(1) / sqrt(a); }

// ---- float32 by polynomials ----------------------------------------------------------------------------

template <class X> WEFT_INLINE X horner(X, f32 c) { return widen_to<X>(c); }
template <class X, class... Rest> WEFT_INLINE X horner(X x, f32 c, Rest... rest) {  // c + x * (...)
  return fma(x, horner(x, rest...), widen_to<X>(c));
}
WEFT_INLINE vf32 k(f32 c) { return splat<f32>(c); }

// a * 2**n for an integer n held in a float, |n| < 300; rounds once into the denormals.
WEFT_INLINE vf32 scale_by_power(vf32 a, vf32 n) {
#if WEFT_ZMM
  return (vf32)__builtin_ia32_scalefps512_mask((z_f32)a, (z_f32)n, (z_f32)a, (unsigned short)-1, 4);
#else
  vi32 whole = __builtin_convertvector(n, vi32);
  vi32 half = whole >> 1;
  vf32 first = bitcast<vf32>((half + 127) << 23);
  vf32 second = bitcast<vf32>((whole - half + 127) << 23);
  return a * first * second;
#endif
}
WEFT_INLINE vf32 clamp_keep_nan(vf32 a, f32 low, f32 high) {
#if WEFT_ZMM  // the instructions give their second operand when one is NaN
  z_f32 raised = __builtin_ia32_maxps512_mask((z_f32)k(low), (z_f32)a, (z_f32)a, (unsigned short)-1, 4);
  return (vf32)__builtin_ia32_minps512_mask((z_f32)k(high), raised, raised, (unsigned short)-1, 4);
#endif
  a = a < low ? k(low) : a;
  return a > high ? k(high) : a;
}
#if WEFT_ZMM
WEFT_INLINE vf32 clamp_below_keep_nan(vf32 a, f32 high) {
  return (vf32)__builtin_ia32_minps512_mask((z_f32)k(high), (z_f32)a, (z_f32)a, (unsigned short)-1, 4);
}
WEFT_INLINE vf32 pick(vf32 table, vi32 n) { return __builtin_shuffle(table, n); }  // n modulo 16
#endif
WEFT_INLINE vf32 exp_bounded(vf32 x) {  // |x| < 128
  vf32 n = round(x * 1.44269504f);
  vf32 r = fma(n, k(-0.693359375f), x);
  r = fma(n, k(2.12194440e-4f), r);
  vf32 p = horner(r, 0.5f, 0.166666672f, 0.0416662544f, 0.00833326299f, 0.00139472249f, 0.000199193804f);
  return scale_by_power(fma(p, r * r, r) + 1.0f, n);
}
WEFT_INLINE vf32 exp(vf32 x) { return exp_bounded(clamp_keep_nan(x, -110.0f, 100.0f)); }
WEFT_INLINE vf32 exp2(vf32 x) {
  x = clamp_keep_nan(x, -160.0f, 140.0f);
  vf32 n = round(x);
  vf32 f = x - n;
  vf32 r = f * 0.693147182f;
  vf32 low = fma(f, k(0.693147182f), -r) + f * -1.90465421e-9f;
  vf32 p = horner(r, 0.5f, 0.166666672f, 0.0416662544f, 0.00833326299f, 0.00139472249f, 0.000199193804f);
  return scale_by_power(fma(p, r * r, low) + r + 1.0f, n);
}
// x = m * 2**e with m in [sqrt(1/2), sqrt(2)); x positive and finite.
WEFT_INLINE vf32 split_power(vf32 x, vf32& e) {
  vi32 small = x < 0x1p-126f;
  x = small ? x * 0x1p23f : x;
  vi32 bits = bitcast<vi32>(x);
  vi32 shifted = bits - 0x3f3504f3;
  e = __builtin_convertvector(shifted >> 23, vf32) - (small ? k(23.0f) : vf32{});
  return bitcast<vf32>((shifted & 0x007fffff) + 0x3f3504f3);
}
WEFT_INLINE vf32 log_edges(vf32 x, vf32 result) {
  result = x == __builtin_inff() ? x : result;
  result = x == 0.0f ? k(-__builtin_inff()) : result;
  result = x < 0.0f ? k(__builtin_nanf("")) : result;
  return x != x ? x : result;
}
WEFT_INLINE vf32 log_tail(vf32 f) {  // log(1 + f) - f + f * f / 2
  vf32 p = horner(f, 0.333333135f, -0.250000089f, 0.200021192f, -0.166679963f, 0.142195508f,
                  -0.124055922f, 0.118881777f, -0.116756387f, 0.0674659163f);
  return p * (f * f * f);
}
WEFT_INLINE vf32 log(vf32 x) {
  vf32 e, m = split_power(x, e), f = m - 1.0f;
  vf32 tail = fma(e, k(-2.12194440e-4f), log_tail(f));
  vf32 result = fma(f * f, k(-0.5f), tail) + f;
  return log_edges(x, fma(e, k(0.693359375f), result));
}
// log(x) / log(base): the logarithm of the mantissa in two floats, so that the product rounds once.
WEFT_INLINE vf32 log_scaled(vf32 x, f32 scale_high, f32 scale_low, f32 unit_high, f32 unit_low) {
  vf32 e, m = split_power(x, e), f = m - 1.0f;
  vf32 square = f * f, square_error = fma(f, f, -square);
  vf32 tail = log_tail(f) - 0.5f * square_error;
  vf32 half = square * -0.5f;
  vf32 high = f + half, low = (half - (high - f)) + tail;
  vf32 product = high * scale_high;
  vf32 error = fma(high, k(scale_high), -product);
  vf32 rest = fma(low, k(scale_high), fma(high, k(scale_low), error));
  vf32 whole = e * unit_high;
  vf32 sum = whole + product;
  vf32 sum_error = (product - (sum - whole));
  sum_error = e == 0.0f ? vf32{} : sum_error;
  return log_edges(x, sum + (sum_error + fma(e, k(unit_low), rest)));
}
WEFT_INLINE vf32 log2(vf32 x) { return log_scaled(x, 1.44269502f, 1.92596299e-8f, 1.0f, 0.0f); }
WEFT_INLINE vf32 log10(vf32 x) {
  return log_scaled(x, 0.434294492f, -1.01029110e-8f, 0.301025391f, 4.60503907e-6f);
}
WEFT_INLINE vf32 log1p(vf32 x) {
  vf32 u = 1.0f + x;
  vf32 lost = (x < 1.0f) ? x - (u - 1.0f) : 1.0f - (u - x);
  vf32 result = log(u) + lost / u;
  result = (u == __builtin_inff()) | (x == -1.0f) ? log(u) : result;
  return (abs(x) < 1e-7f) ? x : result;
}
WEFT_INLINE vf32 expm1(vf32 x) {
  x = clamp_keep_nan(x, -40.0f, 100.0f);
  vf32 n = round(x * 1.44269504f);
  vf32 r = fma(n, k(-0.693359375f), x);
  r = fma(n, k(2.12194440e-4f), r);
  vf32 p = horner(r, 0.166666657f, 0.0416664667f, 0.0083334269f, 0.00139350374f, 0.000198234411f);
  vf32 q = fma(fma(p, r, k(0.5f)), r * r, r);  // exp(r) - 1
  vf32 m = n - (n > 127.0f ? k(1.0f) : vf32{});
  vf32 power = scale_by_power(k(1.0f), m);
  vf32 result = fma(q, power, power - 1.0f);
  result = n > 127.0f ? fma(q, power, power) * 2.0f : result;
  result = x > 88.7228394f ? k(__builtin_inff()) : result;
  return n == 0.0f ? (x == 0.0f ? x : q) : result;
}
WEFT_INLINE vf32 tanh(vf32 x) {
  vf32 a = abs(x), z = a * a;
  vf32 p = horner(z, -0.333333284f, 0.133331329f, -0.053937465f, 0.0216501523f, -0.00805394258f,
                  0.00203174842f);
  vf32 near = fma(p * z, a, a);
  vf32 far = 1.0f - 2.0f / (exp(a + a) + 1.0f);
  return copysign(a < 0.66f ? near : far, x);
}
WEFT_INLINE vf32 sigmoid(vf32 x) { return 1.0f / (1.0f + exp(-x)); }
#if WEFT_ZMM
// 16 polynomials around the multiples n of 0.264, whose coefficients are picked by n; the first is of
// erf(a) - a, the last is 1.
WEFT_INLINE vf32 erf(vf32 x) {
  const vf32 c0 = {0.0f, 0.2911138f, 0.5447582f, 0.7373106f, 0.86467f, 0.9380652f, 0.9749165f,
                   0.99103713f, 0.99718106f, 0.9992211f, 0.9998112f, 0.9999599f, 0.99999255f,
                   0.9999988f, 0.9999998f, 1.0f};
  const vf32 c1 = {0.12837917f, 1.0524136f, 0.8538483f, 0.602612f, 0.36996245f, 0.1975788f,
                   0.091787994f, 0.037093192f, 0.013039634f, 0.0039874883f, 0.0010607095f,
                   0.00024544628f, 4.9405986e-05f, 8.6509945e-06f, 1.3176984e-06f, 0.0f};
  const vf32 c2 = {2.7526917e-07f, -0.27783036f, -0.4508236f, -0.47726506f, -0.39068204f, -0.2608078f,
                   -0.14539494f, -0.0685491f, -0.027539434f, -0.009473744f, -0.0027999005f,
                   -0.00071259757f, -0.00015645278f, -2.967101e-05f, -4.8655875e-06f, 0.0f};
  const vf32 c3 = {-0.37614202f, -0.30190098f, -0.12592526f, 0.0511222f, 0.15171474f, 0.16364776f,
                   0.122939706f, 0.0720884f, 0.034429904f, 0.013678053f, 0.004574728f, 0.0012979854f,
                   0.00031403557f, 6.502591e-05f, 1.1555016e-05f, 0.0f};
  const vf32 c4 = {0.00029529555f, 0.13136908f, 0.1822515f, 0.13828528f, 0.050380852f, -0.020492114f,
                   -0.048481345f, -0.043625906f, -0.02721974f, -0.013172526f, -0.0051622973f,
                   -0.0016744247f, -0.00045528193f, -0.000104631006f, -2.0439282e-05f, 0.0f};
  const vf32 c5 = {0.11091817f, 0.07612454f, -0.00075296586f, -0.058748197f, -0.06629563f,
                   -0.037948035f, -0.0060755983f, 0.010561485f, 0.012569126f, 0.008342384f,
                   0.0040396424f, 0.0015391797f, 0.0004771562f, 0.00012257157f, 2.6386164e-05f, 0.0f};
  const f32 bits_of_integers = 12582912.0f;  // 1.5 * 2**23: the sum's low bits are the rounded number
  vf32 a = abs(x);
  vf32 t = clamp_below_keep_nan(a, 4.0f);
  vf32 shifted = fma(t, k(1.0f / 0.264f), k(bits_of_integers));
  vi32 n = bitcast<vi32>(shifted);
  vf32 r = fma(shifted - bits_of_integers, k(-0.264f), t);
  vf32 p = fma(pick(c5, n), r, pick(c4, n));
  p = fma(p, r, pick(c3, n));
  p = fma(p, r, pick(c2, n));
  p = fma(p, r, pick(c1, n));
  return copysign(fma(p, r, shifted == bits_of_integers ? t : pick(c0, n)), x);
}
#else
WEFT_INLINE vf32 erf(vf32 x) {
  vf32 a = abs(x), z = x * x;
  vf32 p = horner(z, 0.128379151f, -0.376124948f, 0.112818025f, -0.0267655663f, 0.00499098003f,
                  -0.000597689359f);
  vf32 near = fma(p, x, x);
  vf32 t = clamp_keep_nan(a, 0.0f, 4.0f);
  vf32 q = horner(t, -0.12865217f, -0.635135889f, -0.106263161f, 0.0237853602f, -0.00365377055f,
                  0.000325654371f, -1.15224639e-05f);
  vf32 far = copysign(1.0f - exp_bounded(fma(q, t, -t)), x);
  return a < 0.93f ? near : far;
}
#endif

// x - n * pi / 2 for |x| < 1e4; `quadrant` is n modulo 4.
WEFT_INLINE vf32 reduce_angle(vf32 x, vi32& quadrant) {
  vf32 n = round(x * 0.636619747f);
  quadrant = __builtin_convertvector(n, vi32);
  vf32 r = fma(n, k(-1.57079637f), x);
  r = fma(n, k(4.37113883e-8f), r);
  return fma(n, k(1.71512451e-15f), r);
}
WEFT_INLINE vf32 sin_or_cos(vf32 r, vi32 quadrant) {
  vf32 z = r * r;
  vf32 s = fma(horner(z, -0.166666672f, 0.00833332911f, -0.000198391761f, 2.71681006e-06f) * z, r, r);
  vf32 c = fma(horner(z, 0.0416666679f, -0.00138888834f, 2.47993503e-05f, -2.71963017e-07f), z * z,
               fma(z, k(-0.5f), k(1.0f)));
  vf32 v = (quadrant & 1) != 0 ? c : s;
  return bitcast<vf32>(bitcast<vi32>(v) ^ ((quadrant & 2) << 30));
}
WEFT_INLINE vf32 sin(vf32 x) {
  if (__builtin_expect(any_lane(Mask{~(abs(x) < 1e4f)}), 0))
    return map([](f32 a) { return ::sinf(a); }, x);
  vi32 quadrant;
  vf32 r = reduce_angle(x, quadrant);
  return x == 0.0f ? x : sin_or_cos(r, quadrant);
}
WEFT_INLINE vf32 cos(vf32 x) {
  if (__builtin_expect(any_lane(Mask{~(abs(x) < 1e4f)}), 0))
    return map([](f32 a) { return ::cosf(a); }, x);
  vi32 quadrant;
  vf32 r = reduce_angle(x, quadrant);
  return sin_or_cos(r, quadrant + 1);
}

// A scalar float32 goes through the vector function, so that both round alike; float64 goes to libm.
#define WEFT_OWN(name)                                                                     \
  WEFT_INLINE f32 name(f32 a) { return name(splat<f32>(a))[0]; }                            \
  WEFT_INLINE f64 name(f64 a) { return ::name(a); }                                         \
  WEFT_INLINE vf64 name(vf64 a) { return map([](f64 x) { return ::name(x); }, a); }
WEFT_OWN(exp) WEFT_OWN(exp2) WEFT_OWN(log) WEFT_OWN(log2) WEFT_OWN(log10) WEFT_OWN(log1p)
WEFT_OWN(expm1) WEFT_OWN(tanh) WEFT_OWN(erf) WEFT_OWN(sin) WEFT_OWN(cos)
#undef WEFT_OWN
WEFT_INLINE f32 sigmoid(f32 a) { return sigmoid(splat<f32>(a))[0]; }
WEFT_INLINE f64 sigmoid(f64 a) { return 1.0 / (1.0 + ::exp(-a)); }
WEFT_INLINE vf64 sigmoid(vf64 a) { return map([](f64 x) { return 1.0 / (1.0 + ::exp(-x)); }, a); }

// ---- by libm, lane by lane -------------------------------------------------------------------------------

#define WEFT_BY_LANE1(name, function)                                                            \
  WEFT_INLINE f32 name(f32 a) { return ::function##f(a); }                                       \
  WEFT_INLINE f64 name(f64 a) { return ::function(a); }                                          \
  WEFT_INLINE vf32 name(vf32 a) { return map([](f32 x) { return ::function##f(x); }, a); }       \
  WEFT_INLINE vf64 name(vf64 a) { return map([](f64 x) { return ::function(x); }, a); }
WEFT_BY_LANE1(tan, tan) WEFT_BY_LANE1(asin, asin) WEFT_BY_LANE1(acos, acos) WEFT_BY_LANE1(atan, atan)
WEFT_BY_LANE1(sinh, sinh) WEFT_BY_LANE1(cosh, cosh) WEFT_BY_LANE1(asinh, asinh)
WEFT_BY_LANE1(acosh, acosh) WEFT_BY_LANE1(atanh, atanh) WEFT_BY_LANE1(erfc, erfc)
WEFT_BY_LANE1(lgamma, lgamma)
#define WEFT_BY_LANE2(name, function)                                                                  \
  WEFT_INLINE f32 name(f32 a, f32 b) { return ::function##f(a, b); }                                   \
  WEFT_INLINE f64 name(f64 a, f64 b) { return ::function(a, b); }                                      \
  WEFT_INLINE vf32 name(vf32 a, vf32 b) {                                                              \
    return map([](f32 x, f32 y) { return ::function##f(x, y); }, a, b);                                \
  }                                                                                                    \
  WEFT_INLINE vf64 name(vf64 a, vf64 b) {                                                              \
    return map([](f64 x, f64 y) { return ::function(x, y); }, a, b);                                   \
  }
WEFT_BY_LANE2(atan2, atan2) WEFT_BY_LANE2(hypot, hypot) WEFT_BY_LANE2(nextafter, nextafter)
WEFT_BY_LANE2(pow, pow)
template <class T> inline T integer_power(T a, T n) {  // a negative exponent as eager: 1, -1 or 0
  if (n < T(0)) return a == T(1) ? T(1) : (a == T(-1) ? ((n & 1) ? T(-1) : T(1)) : T(0));
  T result = T(1);
  for (; n; n = T(n >> 1), a = T(a * a)) if (n & 1) result = T(result * a);
  return result;
}
template <class X> WEFT_INLINE X pow(X a, X b) {
  typedef Element<X> T;
  if constexpr (is_vector<X>) return map([](T p, T q) { return integer_power<T>(p, q); }, a, b);
  else return integer_power<T>(a, b);
}

// Digamma: recurrence up to 10, then the asymptotic series; reflection for negative arguments.
inline f64 digamma_one(f64 x) {
  constexpr f64 pi = 3.14159265358979323846;
  if (x == 0) return bitcast<f64>(bitcast<ui64>(__builtin_inf()) | (~bitcast<ui64>(x) & (ui64(1) << 63)));
  f64 shift = 0;
  if (x < 0) {
    if (x == __builtin_trunc(x)) return __builtin_nan("");
    f64 fraction = x - __builtin_trunc(x);
    shift = -pi / ::tan(pi * fraction);
    x = 1 - x;
  }
  while (x < 10) { shift -= 1 / x; x += 1; }
  f64 series = 0;
  if (x < 1e17) {
    f64 z = 1 / (x * x);
    series = z * (1.0 / 12 + z * (-1.0 / 120 + z * (1.0 / 252 + z * (-1.0 / 240 + z * (1.0 / 132
             + z * (-691.0 / 32760 + z * (1.0 / 12)))))));
  }
  return ::log(x) - 0.5 / x - series + shift;
}
// The inverse of erf: a first guess from logarithms, then Newton steps in float64 on erf or erfc.
inline f64 erfinv_one(f64 y) {
  f64 a = y < 0 ? -y : y;
  if (!(a < 1)) return a == 1 ? y * __builtin_inf() : __builtin_nan("");
  if (a == 0) return y;
  f64 w = -::log((1 - a) * (1 + a)), t = 2 / (3.14159265358979323846 * 0.147) - w / 2;
  f64 x = __builtin_sqrt(__builtin_sqrt(t * t + w / 0.147) - t);
  for (int round = 0; round < 4; ++round) {
    f64 miss = a < 0.5 ? ::erf(x) - a : (1 - a) - ::erfc(x);
    f64 slope = 1.12837916709551257390 * ::exp(-x * x);
    f64 step = miss / slope;
    x -= step / (1 + x * step);
  }
  return y < 0 ? -x : x;
}
#define WEFT_BY_DOUBLE(name)                                                                     \
  WEFT_INLINE f32 name(f32 a) { return f32(name##_one(a)); }                                     \
  WEFT_INLINE f64 name(f64 a) { return name##_one(a); }                                          \
  WEFT_INLINE vf32 name(vf32 a) { return map([](f32 x) { return f32(name##_one(x)); }, a); }     \
  WEFT_INLINE vf64 name(vf64 a) { return map([](f64 x) { return name##_one(x); }, a); }
WEFT_BY_DOUBLE(digamma) WEFT_BY_DOUBLE(erfinv)

// ---- random numbers: Philox 4x32, ten rounds, key = seed, counter = offset --------------------------------

inline void philox(ui64 seed, ui64 offset, ui32 out[4]) {
  ui32 c0 = ui32(offset), c1 = ui32(offset >> 32), c2 = 0, c3 = 0, k0 = ui32(seed), k1 = ui32(seed >> 32);
  for (int round = 0; round < 10; ++round) {
    ui64 a = ui64(0xD2511F53u) * c0, b = ui64(0xCD9E8D57u) * c2;
    ui32 n0 = ui32(b >> 32) ^ c1 ^ k0, n2 = ui32(a >> 32) ^ c3 ^ k1;
    c1 = ui32(b), c3 = ui32(a), c0 = n0, c2 = n2;
    k0 += 0x9E3779B9u, k1 += 0xBB67AE85u;
  }
  out[0] = c0, out[1] = c1, out[2] = c2, out[3] = c3;
}
inline f32 rand(i64 seed, i64 offset) {
  ui32 bits[4];
  philox(ui64(seed), ui64(offset), bits);
  return f32(bits[0] >> 8) * 0x1p-24f;
}
inline f32 randn(i64 seed, i64 offset) {  // Box and Muller
  ui32 bits[4];
  philox(ui64(seed), ui64(offset), bits);
  f64 radius = __builtin_sqrt(-2.0 * ::log((f64(bits[0]) + 0.5) * 0x1p-32));
  return f32(radius * ::cos(6.28318530717958647692 * (f64(bits[1]) * 0x1p-32)));
}
#define WEFT_RANDOM_BY_LANE(name)                                                           \
  template <class I> inline vf32 name(I seed, I offset) {                                   \
    vf32 r = {};                                                                            \
    for (int k = 0; k < lanes; ++k) r[k] = name(i64(seed[k]), i64(offset[k]));              \
    return r;                                                                               \
  }
WEFT_RANDOM_BY_LANE(rand) WEFT_RANDOM_BY_LANE(randn)

}  // namespace weft
