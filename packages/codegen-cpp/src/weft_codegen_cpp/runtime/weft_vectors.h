// Vectors and masks: their types, conversions, comparisons and choices.
//
// A vector has `lanes` elements whatever their type; a bool vector is a Mask.  Every function has a form on
// scalars and one on vectors, so that a printed body reads the same for both.
#pragma once

#define WEFT_INLINE inline __attribute__((always_inline))
#ifdef WEFT_SEPARATE  // a kernel and its callers are in different translation units
#define WEFT_KERNEL __attribute__((visibility("hidden")))
#else
#define WEFT_KERNEL static
#endif
#define WEFT_LAMBDA __attribute__((always_inline))
#define WEFT_STRINGIFY(x) #x
#if defined(__clang__)
#define WEFT_UNROLL(n) _Pragma("unroll")
#else
#define WEFT_UNROLL(n) _Pragma(WEFT_STRINGIFY(GCC unroll n))
#endif

namespace weft {

typedef __INT8_TYPE__ i8;
typedef __INT16_TYPE__ i16;
typedef __INT32_TYPE__ i32;
typedef __INT64_TYPE__ i64;
typedef __UINT8_TYPE__ ui8;
typedef __UINT16_TYPE__ ui16;
typedef __UINT32_TYPE__ ui32;
typedef __UINT64_TYPE__ ui64;
typedef float f32;
typedef double f64;

#if !defined(WEFT_LANES)
#if defined(__AVX512F__)
#define WEFT_LANES 16
#elif defined(__AVX__)
#define WEFT_LANES 8
#else
#define WEFT_LANES 4
#endif
#endif
constexpr int lanes = WEFT_LANES;

// Where the instruction set has the vectors of float32 whole, GCC's builtins are used directly.
#if defined(__AVX512F__) && !defined(__clang__) && WEFT_LANES == 16
#define WEFT_ZMM 1
#else
#define WEFT_ZMM 0
#endif
#if defined(__AVX2__) && defined(__FMA__) && !defined(__clang__) && WEFT_LANES == 8
#define WEFT_YMM 1
#else
#define WEFT_YMM 0
#endif

template <class T> struct VectorOf;
template <class X> struct ElementOf { typedef X type; static constexpr bool is_vector = false; };
#define WEFT_VECTOR(T)                                                              \
  typedef T v##T __attribute__((vector_size(sizeof(T) * lanes)));                   \
  template <> struct VectorOf<T> { typedef v##T type; };                            \
  template <> struct ElementOf<v##T> { typedef T type; static constexpr bool is_vector = true; };
WEFT_VECTOR(f32) WEFT_VECTOR(f64)
WEFT_VECTOR(i8) WEFT_VECTOR(i16) WEFT_VECTOR(i32) WEFT_VECTOR(i64)
WEFT_VECTOR(ui8) WEFT_VECTOR(ui16) WEFT_VECTOR(ui32) WEFT_VECTOR(ui64)
#undef WEFT_VECTOR

struct Mask { vi32 bits; };  // a lane is 0 or -1
template <> struct VectorOf<bool> { typedef Mask type; };
template <> struct ElementOf<Mask> { typedef bool type; static constexpr bool is_vector = true; };

template <class T> using Vec = typename VectorOf<T>::type;
template <class X> using Element = typename ElementOf<X>::type;
template <class X> constexpr bool is_vector = ElementOf<X>::is_vector;

template <class T> struct IsFloat { static constexpr bool value = false; };
template <> struct IsFloat<f32> { static constexpr bool value = true; };
template <> struct IsFloat<f64> { static constexpr bool value = true; };
template <class X> constexpr bool is_float = IsFloat<Element<X>>::value;
template <class T> constexpr bool is_signed = T(-1) < T(1);
template <class A, class B> constexpr bool is_same = false;
template <class A> constexpr bool is_same<A, A> = true;

template <int bytes> struct SignedOf;
template <> struct SignedOf<1> { typedef i8 type; };
template <> struct SignedOf<2> { typedef i16 type; };
template <> struct SignedOf<4> { typedef i32 type; };
template <> struct SignedOf<8> { typedef i64 type; };
template <class T> using Signed = typename SignedOf<sizeof(T)>::type;

// The numbers 0 ... lanes - 1 as template arguments: lanes written out compile much faster than unrolled loops over them.
template <int... j> struct LaneNumbers {};
template <int n, int... j> struct CountLanes : CountLanes<n - 1, n - 1, j...> {};
template <int... j> struct CountLanes<0, j...> { using Numbers = LaneNumbers<j...>; };
using AllLanes = typename CountLanes<lanes>::Numbers;

// ---- making and converting values ------------------------------------------------------------------

template <class T> WEFT_INLINE Vec<T> splat(T value) { return value - Vec<T>{}; }
template <> WEFT_INLINE Mask splat<bool>(bool value) { return Mask{(value ? -1 : 0) - vi32{}}; }

template <class To, class From> WEFT_INLINE To bitcast(From value) {
  static_assert(sizeof(To) == sizeof(From), "a bit cast keeps the size");
  To result;
  __builtin_memcpy(&result, &value, sizeof(To));
  return result;
}

// As __builtin_convertvector, which GCC takes apart lane by lane where small integers are on one side.
typedef char w_i8x16 __attribute__((vector_size(16)));
template <class To, class V> WEFT_INLINE Vec<To> convert_lanes(V v) {
  typedef Element<V> From;
  constexpr bool integers = !IsFloat<From>::value && !IsFloat<To>::value;
  constexpr bool widens = sizeof(From) < 4 && !IsFloat<From>::value;
  if constexpr ((WEFT_ZMM || WEFT_YMM) && widens && (sizeof(To) == 8 || IsFloat<To>::value))
    return __builtin_convertvector(convert_lanes<i32>(v), Vec<To>);
  else if constexpr (WEFT_ZMM && integers && sizeof(From) == 8 && sizeof(To) < 4)
    return convert_lanes<To>(__builtin_convertvector(v, vi32));
#if WEFT_ZMM
  else if constexpr (integers && sizeof(From) == 1 && sizeof(To) == 4) {
    if constexpr (is_signed<From>)
      return (Vec<To>)__builtin_ia32_pmovsxbd512_mask((w_i8x16)v, vi32{}, (unsigned short)-1);
    else return (Vec<To>)__builtin_ia32_pmovzxbd512_mask((w_i8x16)v, vi32{}, (unsigned short)-1);
  } else if constexpr (integers && sizeof(From) == 2 && sizeof(To) == 4) {
    if constexpr (is_signed<From>)
      return (Vec<To>)__builtin_ia32_pmovsxwd512_mask((vi16)v, vi32{}, (unsigned short)-1);
    else return (Vec<To>)__builtin_ia32_pmovzxwd512_mask((vi16)v, vi32{}, (unsigned short)-1);
  } else if constexpr (integers && sizeof(From) == 4 && sizeof(To) == 1)
    return (Vec<To>)__builtin_ia32_pmovdb512_mask((vi32)v, w_i8x16{}, (unsigned short)-1);
  else if constexpr (integers && sizeof(From) == 4 && sizeof(To) == 2)
    return (Vec<To>)__builtin_ia32_pmovdw512_mask((vi32)v, vi16{}, (unsigned short)-1);
#elif WEFT_YMM
  else if constexpr (integers && sizeof(From) == 1 && sizeof(To) == 4) {
    w_i8x16 low = {};
    __builtin_memcpy(&low, &v, sizeof(v));
    if constexpr (is_signed<From>) return (Vec<To>)__builtin_ia32_pmovsxbd256(low);
    else return (Vec<To>)__builtin_ia32_pmovzxbd256(low);
  } else if constexpr (integers && sizeof(From) == 2 && sizeof(To) == 4) {
    if constexpr (is_signed<From>) return (Vec<To>)__builtin_ia32_pmovsxwd256((vi16)v);
    else return (Vec<To>)__builtin_ia32_pmovzxwd256((vi16)v);
  }
#endif
#ifndef __OPTIMIZE__  // GCC 12 ends with an internal error over the upper half of a vector in memory
  else if constexpr (!IsFloat<From>::value && sizeof(From) == 4 && sizeof(To) == 8) {
    Vec<To> wide = {};
    for (int lane = 0; lane < lanes; ++lane) wide[lane] = (To)v[lane];
    return wide;
  }
#endif
  else return __builtin_convertvector(v, Vec<To>);
}
template <class T> WEFT_INLINE Vec<Signed<T>> lane_mask(Mask m) {
  if constexpr (sizeof(T) == 4) return m.bits;
  else return convert_lanes<Signed<T>>(m.bits);
}
template <class V> WEFT_INLINE Mask to_mask(V compared) {
  if constexpr (sizeof(compared[0]) == 4) return Mask{(vi32)compared};
  else return Mask{convert_lanes<i32>(compared)};
}

// `convert<To>(x)`: as Tensor.to does; bool is "not equal to zero".
template <class To, class From> WEFT_INLINE auto convert(From value) {
  if constexpr (is_vector<From>) {
    typedef Element<From> Source;
    if constexpr (is_same<Source, To>) return value;
    else if constexpr (is_same<Source, bool>)
      return convert_lanes<To>(value.bits & 1);
    else if constexpr (is_same<To, bool>) return to_mask(value != From{});
    else if constexpr (is_float<From> && !IsFloat<To>::value && is_same<To, ui8>) {
      vi64 wide = __builtin_convertvector(value, vi64);
      return convert_lanes<To>(wide);
    } else if constexpr (is_float<From> && !IsFloat<To>::value && sizeof(To) < 4) {
      vi32 wide = __builtin_convertvector(value, vi32);
      return convert_lanes<To>(wide);
    } else return convert_lanes<To>(value);
  } else {
    if constexpr (is_same<From, To>) return value;
    else if constexpr (is_same<To, bool>) return value != From(0);
    else if constexpr (is_float<From> && is_same<To, ui8>) return To(i64(value));
    else if constexpr (is_float<From> && !IsFloat<To>::value && sizeof(To) < 4)
      return To(i32(value));
    else return To(value);
  }
}

template <class T> struct Limits {
  static constexpr T highest() { return is_signed<T> ? T((ui64(1) << (8 * sizeof(T) - 1)) - 1) : T(-1); }
  static constexpr T lowest() { return is_signed<T> ? T(-highest() - 1) : T(0); }
};
template <> struct Limits<f32> {
  static constexpr f32 lowest() { return -__builtin_inff(); }
  static constexpr f32 highest() { return __builtin_inff(); }
};
template <> struct Limits<f64> {
  static constexpr f64 lowest() { return -__builtin_inf(); }
  static constexpr f64 highest() { return __builtin_inf(); }
};
template <> struct Limits<bool> {
  static constexpr bool lowest() { return false; }
  static constexpr bool highest() { return true; }
};

// The wide form of a scalar: X is T itself or Vec<T>.
template <class X> WEFT_INLINE X widen_to(Element<X> value) {
  if constexpr (is_vector<X>) return splat<Element<X>>(value);
  else return value;
}

// ---- bool, comparison, choice ------------------------------------------------------------------------

WEFT_INLINE bool logical_not(bool a) { return !a; }
WEFT_INLINE Mask logical_not(Mask a) { return Mask{~a.bits}; }
WEFT_INLINE bool logical_and(bool a, bool b) { return a & b; }
WEFT_INLINE bool logical_or(bool a, bool b) { return a | b; }
WEFT_INLINE bool logical_xor(bool a, bool b) { return a ^ b; }
WEFT_INLINE Mask logical_and(Mask a, Mask b) { return Mask{a.bits & b.bits}; }
WEFT_INLINE Mask logical_or(Mask a, Mask b) { return Mask{a.bits | b.bits}; }
WEFT_INLINE Mask logical_xor(Mask a, Mask b) { return Mask{a.bits ^ b.bits}; }

#define WEFT_COMPARE(name, op)                                                       \
  template <class X> WEFT_INLINE auto name(X a, X b) {                               \
    if constexpr (is_vector<X>) return to_mask(a op b);                              \
    else return bool(a op b);                                                        \
  }
WEFT_COMPARE(lt, <) WEFT_COMPARE(le, <=) WEFT_COMPARE(gt, >) WEFT_COMPARE(ge, >=)
#undef WEFT_COMPARE
template <class X> WEFT_INLINE auto eq(X a, X b) {
  if constexpr (is_same<X, Mask>) return Mask{~(a.bits ^ b.bits)};
  else if constexpr (is_vector<X>) return to_mask(a == b);
  else return a == b;
}
template <class X> WEFT_INLINE auto ne(X a, X b) { return logical_not(eq(a, b)); }
WEFT_INLINE Mask lt(Mask a, Mask b) { return Mask{~a.bits & b.bits}; }
WEFT_INLINE Mask gt(Mask a, Mask b) { return lt(b, a); }
WEFT_INLINE Mask le(Mask a, Mask b) { return logical_not(gt(a, b)); }
WEFT_INLINE Mask ge(Mask a, Mask b) { return logical_not(lt(a, b)); }

template <class X> WEFT_INLINE X where(bool condition, X a, X b) { return condition ? a : b; }
template <class X> WEFT_INLINE X where(Mask condition, X a, X b) {
  if constexpr (is_same<X, Mask>)
    return Mask{(condition.bits & a.bits) | (~condition.bits & b.bits)};
  else return lane_mask<Element<X>>(condition) ? a : b;
}

template <class X> WEFT_INLINE auto isnan(X a) {
  if constexpr (is_float<X>) return ne(a, a);
  else if constexpr (is_vector<X>) return Mask{vi32{}};
  else return false;
}
WEFT_INLINE bool any_lane(bool m) { return m; }
WEFT_INLINE bool any_lane(Mask m) {
#if WEFT_ZMM && defined(__AVX512DQ__)
  return __builtin_ia32_cvtd2mask512((__attribute__((vector_size(64))) int)m.bits) != 0;
#endif
  i32 result = 0;
  WEFT_UNROLL(16) for (int k = 0; k < lanes; ++k) result |= m.bits[k];
  return result != 0;
}

}  // namespace weft
