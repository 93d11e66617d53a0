// Vectors, masks, memory access and reductions for the kernels that weft-codegen-cpp prints.
//
// Includes nothing of the system: parsing it costs a few milliseconds.  A vector has `lanes` elements
// whatever their type; a bool vector is a Mask.  Every function has a form on scalars and one on vectors,
// so that a printed body reads the same for both.
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

// ---- which lanes take part: all, the first n, or those of a mask -------------------------------------

struct One {  // a scalar context
  static WEFT_INLINE bool active(int) { return true; }
  static WEFT_INLINE bool any() { return true; }
  template <class X> static WEFT_INLINE X select(X fresh, X) { return fresh; }
};
struct Full {
  static WEFT_INLINE bool active(int) { return true; }
  static WEFT_INLINE bool any() { return true; }
  static WEFT_INLINE Mask mask() { return Mask{~vi32{}}; }
  template <class T> static WEFT_INLINE Vec<T> load(const T* p) {
    Vec<T> v;
    __builtin_memcpy(&v, p, sizeof(v));
    return v;
  }
  template <class T> static WEFT_INLINE void store(T* p, Vec<T> v) {
    __builtin_memcpy(p, &v, sizeof(v));
  }
  template <class X> static WEFT_INLINE X select(X fresh, X) { return fresh; }
};

template <int... j> WEFT_INLINE vi32 iota32_of(LaneNumbers<j...>) { return vi32{j...}; }
WEFT_INLINE vi32 iota32() { return iota32_of(AllLanes{}); }

#if WEFT_ZMM && defined(__AVX512BW__) && defined(__AVX512VL__) && defined(__AVX512DQ__)
#define WEFT_MASKED_ACCESS 1
#else
#define WEFT_MASKED_ACCESS 0
#endif

#if WEFT_MASKED_ACCESS
typedef int w_i32x16 __attribute__((vector_size(64)));
typedef float w_f32x16 __attribute__((vector_size(64)));
typedef short w_i16x16 __attribute__((vector_size(32)));
typedef long long w_i64x8 __attribute__((vector_size(64)));
template <class T> WEFT_INLINE Vec<T> masked_load(const T* p, unsigned short bits) {
  if constexpr (sizeof(T) == 4)
    return (Vec<T>)__builtin_ia32_loadups512_mask((const float*)p, w_f32x16{}, bits);
  else if constexpr (sizeof(T) == 1)
    return (Vec<T>)__builtin_ia32_loaddquqi128_mask((const char*)p, w_i8x16{}, bits);
  else if constexpr (sizeof(T) == 2)
    return (Vec<T>)__builtin_ia32_loaddquhi256_mask((const short*)p, w_i16x16{}, bits);
  else {
    struct { w_i64x8 half[2]; } v;
    v.half[0] = __builtin_ia32_loaddqudi512_mask((const long long*)p, w_i64x8{}, bits & 255);
    v.half[1] = __builtin_ia32_loaddqudi512_mask((const long long*)p + 8, w_i64x8{}, bits >> 8);
    return bitcast<Vec<T>>(v);
  }
}
template <class T> WEFT_INLINE void masked_store(T* p, Vec<T> v, unsigned short bits) {
  if constexpr (sizeof(T) == 4)
    __builtin_ia32_storeups512_mask((float*)p, (w_f32x16)v, bits);
  else if constexpr (sizeof(T) == 1)
    __builtin_ia32_storedquqi128_mask((char*)p, (w_i8x16)v, bits);
  else if constexpr (sizeof(T) == 2)
    __builtin_ia32_storedquhi256_mask((short*)p, (w_i16x16)v, bits);
  else {
    struct { w_i64x8 half[2]; } s;
    __builtin_memcpy(&s, &v, sizeof(s));
    __builtin_ia32_storedqudi512_mask((long long*)p, s.half[0], bits & 255);
    __builtin_ia32_storedqudi512_mask((long long*)p + 8, s.half[1], bits >> 8);
  }
}
WEFT_INLINE unsigned short mask_bits(Mask m) {
  return __builtin_ia32_cvtd2mask512((w_i32x16)m.bits);
}
#endif

struct Part {  // the first `count` lanes, 1 <= count <= lanes
  int count;
  explicit WEFT_INLINE Part(i64 n) : count(int(n)) {}
  WEFT_INLINE bool active(int k) const { return k < count; }
  static WEFT_INLINE bool any() { return true; }
  WEFT_INLINE Mask mask() const { return Mask{iota32() < count}; }
  template <class T> WEFT_INLINE Vec<T> load(const T* p) const {
#if WEFT_MASKED_ACCESS
    return masked_load<T>(p, (unsigned short)((1u << count) - 1));
#else
    Vec<T> v = {};
    __builtin_memcpy(&v, p, sizeof(T) * count);
    return v;
#endif
  }
  template <class T> WEFT_INLINE void store(T* p, Vec<T> v) const {
#if WEFT_MASKED_ACCESS
    masked_store<T>(p, v, (unsigned short)((1u << count) - 1));
#else
    __builtin_memcpy(p, &v, sizeof(T) * count);
#endif
  }
  template <class X> WEFT_INLINE X select(X fresh, X old) const { return where(mask(), fresh, old); }
};

struct Chosen {  // the lanes of a mask, perhaps none
  Mask m;
  WEFT_INLINE bool active(int k) const { return m.bits[k] != 0; }
  WEFT_INLINE bool any() const { return any_lane(m); }
  WEFT_INLINE Mask mask() const { return m; }
  template <class T> WEFT_INLINE Vec<T> load(const T* p) const {
#if WEFT_MASKED_ACCESS
    return masked_load<T>(p, mask_bits(m));
#else
    Vec<T> v = {};
    WEFT_UNROLL(16) for (int k = 0; k < lanes; ++k) if (m.bits[k]) v[k] = p[k];
    return v;
#endif
  }
  template <class T> WEFT_INLINE void store(T* p, Vec<T> v) const {
#if WEFT_MASKED_ACCESS
    masked_store<T>(p, v, mask_bits(m));
#else
    WEFT_UNROLL(16) for (int k = 0; k < lanes; ++k) if (m.bits[k]) p[k] = v[k];
#endif
  }
  template <class X> WEFT_INLINE X select(X fresh, X old) const { return where(m, fresh, old); }
};
template <class Tag> WEFT_INLINE Chosen narrow(Tag tag, Mask m) {
  return Chosen{logical_and(tag.mask(), m)};
}

// Bool lies in memory as bytes 0 and 1.
WEFT_INLINE Mask byte_mask(vui8 bytes) { return Mask{convert_lanes<i32>(bytes) != 0}; }
template <class Tag> WEFT_INLINE Mask load_bool(Tag tag, const ui8* p) {
  return byte_mask(tag.load(p));
}
template <class Tag> WEFT_INLINE void store_bool(Tag tag, ui8* p, Mask m) {
  tag.store(p, convert_lanes<ui8>(m.bits & 1));
}
template <class T, class Tag, class Index>
WEFT_INLINE Vec<T> gather(Tag tag, const T* p, Index index) {
  Vec<T> v = {};
  WEFT_UNROLL(16) for (int k = 0; k < lanes; ++k) if (tag.active(k)) v[k] = p[index(k)];
  return v;
}
template <class Tag, class Index> WEFT_INLINE Mask gather_bool(Tag tag, const ui8* p, Index index) {
  return byte_mask(gather<ui8>(tag, p, index));
}
template <class T, class Tag, class Index>
WEFT_INLINE void scatter(Tag tag, T* p, Index index, Vec<T> v) {
  for (int k = 0; k < lanes; ++k) if (tag.active(k)) p[index(k)] = v[k];
}
template <class Tag, class Index>
WEFT_INLINE void scatter_bool(Tag tag, ui8* p, Index index, Mask v) {
  for (int k = 0; k < lanes; ++k) if (tag.active(k)) p[index(k)] = v.bits[k] & 1;
}
template <class T, class Combine> inline void atomic_update(T* p, T value, Combine combine) {
  typedef Signed<T> Bits;
  Bits* cell = (Bits*)p;
  Bits old = __atomic_load_n(cell, __ATOMIC_RELAXED), fresh;
  do fresh = bitcast<Bits>(T(combine(bitcast<T>(old), value)));
  while (!__atomic_compare_exchange_n(cell, &old, fresh, true, __ATOMIC_RELAXED,
                                      __ATOMIC_RELAXED));
}
template <class T> inline void atomic_add(T* p, T value) {
  if constexpr (IsFloat<T>::value) atomic_update(p, value, [](T a, T b) { return a + b; });
  else __atomic_fetch_add(p, value, __ATOMIC_RELAXED);
}
template <class T> inline void atomic_mul(T* p, T value) {
  atomic_update(p, value, [](T a, T b) { return a * b; });
}
template <class T> inline void atomic_max(T* p, T value) {
  atomic_update(p, value, [](T a, T b) { return a != a || a > b ? a : b; });
}
template <class T> inline void atomic_min(T* p, T value) {
  atomic_update(p, value, [](T a, T b) { return a != a || a < b ? a : b; });
}
#define WEFT_SCATTER(NAME)                                                       \
  template <class T, class Tag, class Index>                                     \
  WEFT_INLINE void scatter_##NAME(Tag tag, T* p, Index index, Vec<T> v) {        \
    for (int k = 0; k < lanes; ++k)                                              \
      if (tag.active(k)) atomic_##NAME<T>(p + index(k), v[k]);                   \
  }
WEFT_SCATTER(add) WEFT_SCATTER(mul) WEFT_SCATTER(max) WEFT_SCATTER(min)
#undef WEFT_SCATTER
template <class Index> WEFT_INLINE vi64 build_index(Index index) {
  vi64 v = {};
  WEFT_UNROLL(16) for (int k = 0; k < lanes; ++k) v[k] = index(k);
  return v;
}
WEFT_INLINE vi64 iota(i64 first, i64 step) {
  return __builtin_convertvector(iota32(), vi64) * step + first;
}

// Exchange, between the vectors a and b, the blocks of `step` lanes that a transposition moves.
#if defined(__has_builtin) && __has_builtin(__builtin_shufflevector)
template <int step, class V, int... j> WEFT_INLINE void exchange(V& a, V& b, LaneNumbers<j...>) {
  V low = __builtin_shufflevector(a, b, ((j & step) ? lanes + (j & ~step) : j)...);
  V high = __builtin_shufflevector(a, b, ((j & step) ? lanes + j : j | step)...);
  a = low;
  b = high;
}
#else
template <int step, class V, int... j> WEFT_INLINE void exchange(V& a, V& b, LaneNumbers<j...>) {
  V low = V{((j & step) ? b[j & ~step] : a[j])...};
  V high = V{((j & step) ? b[j] : a[j | step])...};
  a = low;
  b = high;
}
#endif
// The same between the vectors k and k + step, for all of them.
template <int step, class V> WEFT_INLINE void exchange_blocks(V* rows) {
  WEFT_UNROLL(16) for (int k = 0; k < lanes; ++k)
    if (!(k & step)) exchange<step>(rows[k], rows[k | step], AllLanes{});
}
// rows[j][lane] becomes rows[lane][j].
template <class V> WEFT_INLINE void transpose_lanes(V* rows) {
  if constexpr (lanes > 8) exchange_blocks<8>(rows);
  if constexpr (lanes > 4) exchange_blocks<4>(rows);
  exchange_blocks<2>(rows);
  exchange_blocks<1>(rows);
}
// tile[j][lane] = row(lane)[j] for j < count: rows are read along, then transposed in registers.
template <class V, class Tag, class Row>
WEFT_INLINE void read_transposed(V* tile, Tag tag, i64 count, Row row) {
  V rows[lanes];
  if (count == lanes) {
    WEFT_UNROLL(16) for (int k = 0; k < lanes; ++k)
      rows[k] = tag.active(k) ? Full::load(row(k)) : V{};
  } else {
    for (int k = 0; k < lanes; ++k) rows[k] = tag.active(k) ? Part(count).load(row(k)) : V{};
  }
  transpose_lanes(rows);
  WEFT_UNROLL(16) for (int k = 0; k < lanes; ++k) tile[k] = rows[k];
}

template <int n> struct Count { static constexpr int value = n; };

enum Status { ok, python_error, index_out_of_range, operator_failed, requirement_failed, out_of_memory, too_large };

// What first went wrong in the kernels of a call: an index out of `size`, or memory of `size` bytes that is not
// to be had.
struct KernelError { i64 status, index, size; };

inline __attribute__((noinline, cold)) void fail_kernel(KernelError* error, Status status, i64 index, i64 size) {
  i64 none = ok;
  if (__atomic_compare_exchange_n(&error->status, &none, i64(status), false, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
    error->index = index;
    error->size = size;
  }
}

// malloc's memory with a first address that is a multiple of 64; null where there is none, or for too many bytes.
static inline char* take_memory(i64 bytes) {
  i64 whole;
  if (bytes < 0 || __builtin_add_overflow(bytes, 64, &whole)) return nullptr;
  return (char*)__builtin_malloc(whole);
}
static inline char* aligned(char* whole) { return (char*)((ui64(whole) + 63) & ~ui64(63)); }

// Memory for one thread's local rows that are too large for the stack; a kernel ends where it has failed.
template <class T> struct Scratch {
  char* whole;
  bool failed;
  Scratch(i64 count, KernelError* error) : whole(nullptr) {
    i64 bytes;
    if (__builtin_mul_overflow(count, i64(sizeof(T)), &bytes)) bytes = ~ui64(0) >> 1;
    whole = take_memory(bytes);
    failed = !whole;
    if (failed) fail_kernel(error, out_of_memory, 0, bytes);
  }
  ~Scratch() { __builtin_free(whole); }
  Scratch(const Scratch&) = delete;
  operator T*() const { return (T*)aligned(whole); }
};

// ---- index arithmetic --------------------------------------------------------------------------------

WEFT_INLINE i64 floor_div(i64 a, i64 b) { i64 q = a / b; return q - (a % b < 0); }
WEFT_INLINE i64 floor_mod(i64 a, i64 b) { i64 r = a % b; return r < 0 ? r + b : r; }
WEFT_INLINE i64 min_index(i64 a, i64 b) { return a < b ? a : b; }
WEFT_INLINE i64 max_index(i64 a, i64 b) { return a > b ? a : b; }
WEFT_INLINE i64 power_index(i64 a, int n) { i64 r = 1; while (n-- > 0) r *= a; return r; }

template <bool check> WEFT_INLINE i64 wrap_index(bool active, i64 index, i64 size, KernelError* error) {
  i64 wrapped = index < 0 ? index + size : index;
  if constexpr (check)
    if (active && ui64(wrapped) >= ui64(size)) {
      fail_kernel(error, index_out_of_range, index, size);
      return 0;
    }
  return wrapped;
}
template <bool check, class Tag>
WEFT_INLINE vi64 wrap_index(Tag tag, vi64 index, i64 size, KernelError* error) {
  vi64 wrapped = index < 0 ? index + size : index;
  if constexpr (check) {
    for (int k = 0; k < lanes; ++k)
      if (ui64(wrapped[k]) >= ui64(size)) {
        if (tag.active(k)) fail_kernel(error, index_out_of_range, index[k], size);
        wrapped[k] = 0;
      }
  }
  return wrapped;
}

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

#include "weft_far.h"
#include "weft_reduce.h"
