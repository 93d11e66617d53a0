// Memory as vectors: which lanes take part (all, the first n, those of a mask), loads and stores, transpositions.
#pragma once
#include "weft_vectors.h"

namespace weft {

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

}  // namespace weft
