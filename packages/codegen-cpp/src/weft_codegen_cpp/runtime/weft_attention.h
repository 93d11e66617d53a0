// softmax(query keys^T scale + mask) values, a tile of queries at a time: scores and weights never leave the
// nearest cache.  Included by programs that attend.
//
// Numbers are float32, or bfloat16 multiplied in pairs where the processor has an instruction for that and
// widened elsewhere; sums are float32.  Keys lie transposed and packed, so that lanes are keys in the first
// product; lanes are elements of a value in the second.
#pragma once
#include "weft_kernel.h"

namespace weft {

struct Attention {
  const void *query, *key, *value, *mask;  // mask: null, or added to the scores
  void* out;      // null, or where the values go
  f32* log_sums;  // null, or where the logarithm of each query's sum goes
  i64 batch, heads, queries, keys;
  i64 heads_of_one;  // heads of queries that share one of keys and values
  i64 query_stride[3], key_stride[3], value_stride[3], out_stride[3];  // of batch, head, row
  i64 mask_stride[4], log_sums_stride[3];
  f32 scale;
  bool causal;
  KernelError* error;
};

constexpr int attention_rows = lanes == 16 ? 8 : 4;   // queries in a tile
constexpr int attention_queries = 128;                // queries in a unit of work
constexpr int attention_keys = 256;                   // keys packed at once
constexpr int attention_run = 64;                     // elements of a weight's row in one running total
constexpr int attention_abreast = lanes == 16 ? 4 : 2;  // vectors of a value side by side

#if WEFT_ZMM && defined(__AVX512BF16__)
constexpr bool multiplies_pairs = true;
WEFT_INLINE vf32 dot_pairs(vf32 sum, vui32 a, vui32 b) {
  asm("vdpbf16ps %2, %1, %0" : "+v"(sum) : "v"(a), "v"(b));
  return sum;
}
#else
constexpr bool multiplies_pairs = false;
WEFT_INLINE vf32 dot_pairs(vf32 sum, vui32, vui32) { return sum; }
#endif
WEFT_INLINE vf32 dot(vf32 sum, f32 a, vf32 b) { return fma(splat<f32>(a), b, sum); }
WEFT_INLINE vf32 dot(vf32 sum, ui32 a, vui32 b) { return dot_pairs(sum, splat<ui32>(a), b); }

WEFT_INLINE vf32 as_f32(vf32 a) { return a; }
WEFT_INLINE vf32 as_f32(vui16 a) { return bf16_to_f32(a); }
WEFT_INLINE void store_as(f32* p, vf32 a) { Full::store(p, a); }
WEFT_INLINE void store_as(ui16* p, vf32 a) { Full::store(p, bf16_from_f32(a)); }

// The types of one attention: T lies in memory, E is multiplied (an element, or a pair of them).
template <class T> struct AttentionTypes { typedef f32 E; };
template <> struct AttentionTypes<ui16> {
  template <bool pairs, class A, class B> struct Choose { typedef A type; };
  template <class A, class B> struct Choose<false, A, B> { typedef B type; };
  typedef Choose<multiplies_pairs, ui32, f32>::type E;
};

template <class T, int depth> struct AttentionTile {
  typedef typename AttentionTypes<T>::E E;
  static constexpr int in_one = sizeof(E) / sizeof(T) == 2 && !is_same<E, f32> ? 2 : 1;
  static constexpr int steps = depth / in_one;
  static constexpr int rows = attention_rows;
  static constexpr int columns = attention_keys + 2 * lanes;

  E keys[columns * steps];                // [block of lanes][step][lane]
  E values[(attention_keys / in_one) * depth];
  E queries[rows * steps];
  f32 scores[rows * columns];
  f32 out[attention_queries * depth];
  f32 most[attention_queries], sum[attention_queries];

  // Rows of T as rows of E: pairs are what lies side by side.
  WEFT_INLINE static Vec<E> row_of(const T* p, int count) {
    if constexpr (in_one == 2) return Part(count).load((const ui32*)p);
    else return as_f32(Part(count).load(p));
  }

  void pack_keys(const T* key, i64 stride, i64 count) {
    for (i64 first = 0; first < count; first += lanes)
      for (int step = 0; step < steps; step += lanes) {
        const int width = steps - step < lanes ? steps - step : lanes;
        Vec<E> tile[lanes];
        WEFT_UNROLL(16) for (int k = 0; k < lanes; ++k)
          tile[k] = first + k < count ? row_of(key + (first + k) * stride + step * in_one, width) : Vec<E>{};
        transpose_lanes(tile);
        for (int k = 0; k < width; ++k) Full::store(keys + (first * steps + (step + k) * lanes), tile[k]);
      }
  }

  // A pair of values is one element of two neighbouring keys.
  void pack_values(const T* value, i64 stride, i64 count) {
    for (i64 k = 0; k < count; k += in_one)
      for (int d = 0; d < depth; d += lanes) {
        const T* p = value + k * stride + d;
        if constexpr (in_one == 2) {
          vui32 low = convert_lanes<ui32>(Full::load(p)), high = {};
          if (k + 1 < count) high = convert_lanes<ui32>(Full::load(p + stride));
          Full::store(values + (k / 2) * depth + d, low | (high << 16));
        } else Full::store(values + k * depth + d, as_f32(Full::load(p)));
      }
  }

  void take_queries(const T* query, i64 stride, i64 count) {
    for (int r = 0; r < rows; ++r)
      for (int step = 0; step < steps; step += lanes) {
        const int width = steps - step < lanes ? steps - step : lanes;
        const Vec<E> row = row_of(query + (r < count ? r : count - 1) * stride + step * in_one, width);
        Part(width).store(queries + r * steps + step, row);
      }
  }

  WEFT_INLINE void score(i64 count) {
    for (i64 first = 0; first < count; first += 2 * lanes) {
      const E* key = keys + first * steps;
      vf32 total[rows][2] = {};
      for (int step = 0; step < steps; ++step) {
        const Vec<E> left = Full::load(key + step * lanes), right = Full::load(key + (steps + step) * lanes);
        WEFT_UNROLL(8) for (int r = 0; r < rows; ++r) {
          total[r][0] = dot(total[r][0], queries[r * steps + step], left);
          total[r][1] = dot(total[r][1], queries[r * steps + step], right);
        }
      }
      WEFT_UNROLL(8) for (int r = 0; r < rows; ++r) {
        Full::store(scores + r * columns + first, total[r][0]);
        Full::store(scores + r * columns + first + lanes, total[r][1]);
      }
    }
  }

  // Weights of one row in place of its scores; `out` and `sum` are scaled to the new maximum.
  template <class M> WEFT_INLINE void weigh(int r, i64 row, i64 count, i64 seen, const Attention& a, const M* mask) {
    f32* score = scores + r * columns;
    vf32 most_yet = splat<f32>(-__builtin_inff());
    for (i64 k = 0; k < count; k += lanes) {
      vf32 s = Full::load(score + k) * a.scale;
      if (mask) {
        const i64 step = a.mask_stride[3];
        if (step == 0) s = s + as_f32(splat<M>(*mask));
        else if (k + lanes <= count) s = s + as_f32(Full::load(mask + k));
        else s = s + as_f32(Part(count - k).load(mask + k));
      }
      if (k + lanes > seen) s = where(Mask{iota32() + i32(k) < i32(seen)}, s, splat<f32>(-__builtin_inff()));
      Full::store(score + k, s);
      most_yet = s > most_yet ? s : most_yet;
    }
    const f32 before = most[row];
    f32 now = Accumulator<Max, vf32>{most_yet}.across();
    now = now > before ? now : before;
    const f32 base = now == -__builtin_inff() ? 0.0f : now;
    vf32 total = {};
    for (i64 k = 0; k < count; k += lanes) {
      const vf32 p = exp(Full::load(score + k) - base);
      total = total + p;
      if constexpr (in_one == 2) Full::store((ui16*)score + k, bf16_from_f32(p));
      else Full::store(score + k, p);
    }
    const f32 kept = first_lane(exp(splat<f32>(before - base)));  // 0 before the first keys
    most[row] = now;
    sum[row] = sum[row] * kept + Accumulator<Sum, vf32>{total}.across();
    if (kept != 1.0f)
      for (int d = 0; d < depth; d += lanes)
        Full::store(out + row * depth + d, Full::load(out + row * depth + d) * kept);
  }

  // In short runs, each with a total of its own: one running total of thousands of keys would lose digits.
  template <int some, int abreast> WEFT_INLINE void add_values(int r, i64 row, i64 count, int d) {
    const E* weight = (const E*)(scores + r * columns);
    const i64 end = (count + in_one - 1) / in_one;
    for (i64 first = 0; first < end; first += attention_run) {
      vf32 total[some][abreast] = {};
      const i64 last = min_index(first + attention_run, end);
      for (i64 k = first; k < last; ++k) {
        Vec<E> value[abreast];
        WEFT_UNROLL(4) for (int j = 0; j < abreast; ++j) value[j] = Full::load(values + k * depth + d + j * lanes);
        WEFT_UNROLL(8) for (int q = 0; q < some; ++q)
          WEFT_UNROLL(4) for (int j = 0; j < abreast; ++j)
            total[q][j] = dot(total[q][j], weight[q * columns + k], value[j]);
      }
      WEFT_UNROLL(8) for (int q = 0; q < some; ++q)
        WEFT_UNROLL(4) for (int j = 0; j < abreast; ++j) {
          f32* p = out + (row + q) * depth + d + j * lanes;
          Full::store(p, Full::load(p) + total[q][j]);
        }
    }
  }

  WEFT_INLINE void add_values(i64 row, i64 count) {
    constexpr int wide = attention_abreast * lanes, whole = depth / wide * wide, rest = (depth - whole) / lanes;
    for (int r = 0; r < rows; r += 4) {
      for (int d = 0; d < whole; d += wide) add_values<4, attention_abreast>(r, row + r, count, d);
      if constexpr (rest > 0) add_values<4, rest>(r, row + r, count, whole);
    }
  }
};

// Units are blocks of `attention_queries` queries of each head of each batch.  M: the mask's type in memory.
template <class T, class M, int depth> static void attend(const void* raw, i64 begin, i64 end) {
  typedef AttentionTile<T, depth> Tile;
  const Attention& a = *(const Attention*)raw;
  Scratch<Tile> scratch(1, a.error);
  if (scratch.failed) return;
  Tile& t = *(Tile*)scratch;
  const i64 blocks = (a.queries + attention_queries - 1) / attention_queries;
  for (i64 unit = begin; unit < end; ++unit) {
    const i64 first = unit % blocks * attention_queries, head = unit / blocks % a.heads, batch = unit / blocks / a.heads;
    const i64 count = min_index(attention_queries, a.queries - first);
    auto of = [&](const void* p, const i64* stride, i64 h) { return (const T*)p + batch * stride[0] + h * stride[1]; };
    const T *query = of(a.query, a.query_stride, head), *key = of(a.key, a.key_stride, head / a.heads_of_one),
            *value = of(a.value, a.value_stride, head / a.heads_of_one);
    for (i64 q = 0; q < attention_queries; ++q) t.most[q] = -__builtin_inff(), t.sum[q] = 0;
    for (i64 q = 0; q < attention_queries * depth; q += lanes) Full::store(t.out + q, vf32{});
    const i64 needed = a.causal ? min_index(a.keys, first + count) : a.keys;
    for (i64 start = 0; start < needed; start += attention_keys) {
      const i64 keys = min_index(attention_keys, needed - start);
      t.pack_keys(key + start * a.key_stride[2], a.key_stride[2], keys);
      if (a.out) t.pack_values(value + start * a.value_stride[2], a.value_stride[2], keys);
      for (i64 row = 0; row < count; row += Tile::rows) {
        const i64 rows = min_index(Tile::rows, count - row), last = first + row + rows;
        const i64 here = a.causal ? min_index(keys, last - start) : keys;
        if (here <= 0) continue;
        t.take_queries(query + (first + row) * a.query_stride[2], a.query_stride[2], rows);
        t.score(here);
        for (int r = 0; r < Tile::rows; ++r) {
          const i64 q = first + row + min_index(r, rows - 1);
          const M* mask = (const M*)a.mask;
          if (mask) mask += batch * a.mask_stride[0] + head * a.mask_stride[1] + q * a.mask_stride[2] + start * a.mask_stride[3];
          t.weigh(r, row + r, here, a.causal ? min_index(here, q + 1 - start) : here, a, mask);
        }
        if (a.out) t.add_values(row, here);
      }
    }
    for (i64 row = 0; row < count; ++row) {
      const bool nothing = t.sum[row] == 0;
      if (a.out) {
        T* out = (T*)of(a.out, a.out_stride, head) + (first + row) * a.out_stride[2];
        for (int d = 0; d < depth; d += lanes)
          store_as(out + d, nothing ? vf32{} : Full::load(t.out + row * depth + d) / t.sum[row]);
      }
      if (a.log_sums)
        a.log_sums[batch * a.log_sums_stride[0] + head * a.log_sums_stride[1] + (first + row) * a.log_sums_stride[2]] =
            nothing ? 0.0f : t.most[row] + first_lane(log(splat<f32>(t.sum[row])));
    }
  }
}

}  // namespace weft
