// Reductions: how two values combine, where accumulation starts, and how the lanes of one accumulator join.
#pragma once

namespace weft {

#define WEFT_REDUCTION(Name, first, join)                                        \
  struct Name {                                                                  \
    template <class T> static constexpr T start() { return first; }              \
    template <class X> static WEFT_INLINE X combine(X a, X b) { return join(a, b); } \
  };
WEFT_REDUCTION(Sum, T(0), add) WEFT_REDUCTION(Prod, T(1), mul)
WEFT_REDUCTION(Max, Limits<T>::lowest(), maximum) WEFT_REDUCTION(Min, Limits<T>::highest(), minimum)
WEFT_REDUCTION(Any, T(0), logical_or) WEFT_REDUCTION(All, T(1), logical_and)
#undef WEFT_REDUCTION

#if defined(__has_builtin) && __has_builtin(__builtin_shufflevector)
template <int step, class V, int... j> WEFT_INLINE V swap_lanes(V v, LaneNumbers<j...>) {
  return __builtin_shufflevector(v, v, (j ^ step)...);
}
#else
template <int step, class V, int... j> WEFT_INLINE V swap_lanes(V v, LaneNumbers<j...>) { return V{v[j ^ step]...}; }
#endif
template <int step, class V> WEFT_INLINE V swap_lanes(V v) { return swap_lanes<step>(v, AllLanes{}); }
template <int step> WEFT_INLINE Mask swap_lanes(Mask m) { return Mask{swap_lanes<step>(m.bits)}; }
WEFT_INLINE bool first_lane(Mask m) { return m.bits[0] != 0; }
template <class V> WEFT_INLINE Element<V> first_lane(V v) { return v[0]; }

template <int n> struct Doubles { typedef f64 type __attribute__((vector_size(8 * n))); };
template <int n> WEFT_INLINE f64 total_of(typename Doubles<n>::type v) {
  if constexpr (n == 2) return v[0] + v[1];
  else {
    typename Doubles<n / 2>::type half[2];
    __builtin_memcpy(half, &v, sizeof(v));
    return total_of<n / 2>(half[0] + half[1]);
  }
}

// One running value.  X is the type of a step's values: T in a scalar context, else Vec<T>.
template <class Op, class X> struct Accumulator {
  typedef Element<X> T;
  X value = widen_to<X>(Op::template start<T>());
  template <class Tag> WEFT_INLINE void step(Tag tag, X x) {
    value = tag.select(Op::combine(value, x), value);
  }
  WEFT_INLINE void join(const Accumulator& other) { value = Op::combine(value, other.value); }
  WEFT_INLINE T across() const {
    if constexpr (!is_vector<X>) return value;
    else {
      X v = value;
      if constexpr (lanes > 8) v = Op::combine(v, swap_lanes<8>(v));
      if constexpr (lanes > 4) v = Op::combine(v, swap_lanes<4>(v));
      v = Op::combine(v, swap_lanes<2>(v));
      v = Op::combine(v, swap_lanes<1>(v));
      if constexpr (is_same<Op, Sum> && is_same<T, f32>)  // the sum of some lanes may be too large, not that of all
        if (__builtin_expect(!(abs(first_lane(v)) < __builtin_inff()), 0))
          return f32(total_of<lanes>(convert<f64>(value)));
      return first_lane(v);
    }
  }
};

// What many short running totals join.
template <class A> struct TotalOf {
  A whole;
  WEFT_INLINE void join(const A& other) { whole.join(other); }
  WEFT_INLINE A get() const { return whole; }
};

// Sums of floats join a double: there may be thousands, each of which would lose digits of the total.
template <class X> struct SumOfFloats {
  decltype(convert<f64>(X{})) value = convert<f64>(Accumulator<Sum, X>().value);
  WEFT_INLINE void join(const Accumulator<Sum, X>& other) { value = value + convert<f64>(other.value); }
  WEFT_INLINE Accumulator<Sum, X> get() const {
    Accumulator<Sum, X> sum;
    sum.value = convert<f32>(value);
    return sum;
  }
};
template <> struct TotalOf<Accumulator<Sum, f32>> : SumOfFloats<f32> {};
template <> struct TotalOf<Accumulator<Sum, Vec<f32>>> : SumOfFloats<Vec<f32>> {};

// Position of the greatest (or least) value: the first of equals, NaN before all.
template <bool greatest, class X> struct ArgAccumulator {
  typedef Element<X> T;
  static constexpr T start() { return greatest ? Limits<T>::lowest() : Limits<T>::highest(); }
  typedef decltype(convert<i64>(X{})) I;
  X value = widen_to<X>(start());
  I position = widen_to<I>(Limits<i64>::highest());

  template <class V, class P> static WEFT_INLINE auto better(V a, P pa, V b, P pb) {
    auto ahead = greatest ? gt(a, b) : lt(a, b);
    auto tie = logical_and(logical_or(eq(a, b), logical_and(isnan(a), isnan(b))), lt(pa, pb));
    return logical_or(logical_or(ahead, tie), logical_and(isnan(a), logical_not(isnan(b))));
  }
  template <class Tag> WEFT_INLINE void step(Tag tag, X x, I p) {
    auto take = better(x, p, value, position);
    value = tag.select(where(take, x, value), value);
    position = tag.select(where(take, p, position), position);
  }
  WEFT_INLINE void join(const ArgAccumulator& o) {
    auto take = better(o.value, o.position, value, position);
    value = where(take, o.value, value);
    position = where(take, o.position, position);
  }
  WEFT_INLINE i64 across() const {
    if constexpr (!is_vector<X>) return position;
    else {
      T best = start();
      i64 at = Limits<i64>::highest();
      for (int k = 0; k < lanes; ++k) {
        T candidate;
        if constexpr (is_same<X, Mask>) candidate = value.bits[k] != 0;
        else candidate = value[k];
        if (better(candidate, i64(position[k]), best, at)) best = candidate, at = position[k];
      }
      return at;
    }
  }
};

// Mean and sum of squared deviations.  A run of steps adds up distances from a value near the mean, its
// first one or the mean so far, and their squares: unlike Welford's recurrence without a division a step, and
// as exact, as long as runs are short.  `settle` ends a run; parts are joined by Chan's formula.  Squares of
// finite distances that are too large make the sum infinite, not NaN.
template <class X> struct Moments {
  typedef Element<X> T;
  X mean = {}, m2 = {}, count = {};
  X near = {}, distances = {}, squares = {}, steps = {};
  T whole = 0;  // steps of all lanes, not in `steps`
  bool fresh = true;
  template <class Tag> WEFT_INLINE void step(Tag tag, X x) {
    if (fresh) near = tag.select(x, near), fresh = false;
    X distance = x - near;
    distances = tag.select(distances + distance, distances);
    squares = tag.select(squares + distance * distance, squares);
    if constexpr (is_same<Tag, Full> || is_same<Tag, One>) whole += 1;
    else steps = tag.select(steps + T(1), steps);
  }
  WEFT_INLINE void settle() {
    X all = steps + whole;
    X share = where(eq(all, X{}), X{}, X(distances / all));
    X spread = squares - distances * share;
    spread = where(lt(spread, X{}), X{}, spread);
    X highest = widen_to<X>(Limits<T>::highest());
    spread = where(logical_and(eq(squares, highest), lt(abs(distances), highest)), squares, spread);
    add_part(near + share, spread, all);
    near = mean;
    distances = squares = steps = X{};
    whole = 0;
  }
  WEFT_INLINE void add_part(X part_mean, X part_m2, X part_count) {
    X total = count + part_count;
    X share = where(eq(total, X{}), X{}, X(part_count / total));
    X delta = part_mean - mean;
    mean = mean + delta * share;
    m2 = m2 + part_m2 + (delta * count) * (delta * share);
    count = total;
  }
  WEFT_INLINE void join(const Moments& o) { add_part(o.mean, o.m2, o.count); }
  template <int step> WEFT_INLINE void join_lanes() {
    add_part(swap_lanes<step>(mean), swap_lanes<step>(m2), swap_lanes<step>(count));
  }
  WEFT_INLINE Moments<T> across() const {
    if constexpr (!is_vector<X>) return *this;
    else {
      Moments all = *this;
      if constexpr (lanes > 8) all.template join_lanes<8>();
      if constexpr (lanes > 4) all.template join_lanes<4>();
      all.template join_lanes<2>();
      all.template join_lanes<1>();
      Moments<T> total;
      total.mean = first_lane(all.mean);
      total.m2 = first_lane(all.m2);
      total.count = first_lane(all.count);
      return total;
    }
  }
};

// The same for float32, with results in float64: steps in float32, of short runs, whose sums are added up in
// float64.  Squares that leave float32's range make `rescale` ask for the run to be repeated, with distances
// multiplied by a power of two; that power is kept, so this happens once where data is alike.  Lanes and
// `copies`, which steps take turns with, are parts of one result (`row`), or lanes are results of their own.
template <bool row, int copies> struct WideMoments {
  typedef Vec<f32> X;
  typedef Vec<f64> W;
  static constexpr f32 large = 0x1p100f, small = 0x1p-100f;
  X near = {}, shift = {};                                  // shift is -near * scale
  X scale = splat<f32>(1), unit = splat<f32>(1);            // unit is 1 / scale
  X distances[copies] = {}, squares[copies] = {}, steps = {};  // of this run; steps not in `whole`
  f32 whole = 0, parts = 0;
  W reference = {}, sum = {}, squared = {}, count = {};  // of all runs: distances from `reference`
  f64 taken = 0;
  bool fresh = true, settled = false;

  template <class Tag> WEFT_INLINE void step(Tag tag, int which, X x) {
    if (fresh) near = tag.select(x, near), shift = -near * scale, fresh = false;
#if defined(__FMA__)
    X distance = fma(x, scale, shift);
    X square = fma(distance, distance, squares[which]);
#else
    X distance = x * scale + shift;
    X square = squares[which] + distance * distance;
#endif
    distances[which] = tag.select(distances[which] + distance, distances[which]);
    squares[which] = tag.select(square, squares[which]);
    if constexpr (is_same<Tag, Full>) whole += 1;
    else steps = tag.select(steps + 1.0f, steps), parts += f32(tag.count);
  }
  WEFT_INLINE void restart() {
    for (int k = 0; k < copies; ++k) distances[k] = squares[k] = X{};
    steps = X{};
    whole = parts = 0;
  }
  // Whether the run has to be repeated: what is too small beside other lanes of a row doesn't matter.
  WEFT_INLINE bool rescale() {
    X largest = squares[0];
    for (int k = 1; k < copies; ++k) largest += squares[k];
    Mask high = to_mask(largest == __builtin_inff()), low = to_mask(largest < small);
    if (__builtin_expect(!any_lane(logical_or(high, low)), 1)) return false;
    return rescale_lanes(high, low);
  }
  WEFT_INLINE bool rescale_lanes(Mask high, Mask low) {
    high = logical_and(high, to_mask(scale > small));
    Mask several = to_mask(steps + whole > 1.0f);
    if (row && any_lane(logical_and(several, logical_not(low)))) low = Mask{};
    low = logical_and(logical_and(low, several), to_mask(scale == 1.0f));
    low = logical_and(low, logical_and(to_mask(abs(near) < 0x1p27f), to_mask(squared < 0x1p-60)));
    if (!any_lane(logical_or(high, low))) return false;
    X smaller = where(to_mask(scale == 1.0f), splat<f32>(small), splat<f32>(1));
    scale = where(high, smaller, where(low, splat<f32>(large), scale));
    unit = 1.0f / scale;
    shift = -near * scale;
    return true;
  }
  // Ends a run: sum of (x - reference) and of its square, from those of (x - near).
  WEFT_INLINE void settle() {
    if (!settled) reference = convert<f64>(row ? splat<f32>(first_lane(near)) : near), settled = true;
    X total = distances[0], spread = squares[0];
    for (int k = 1; k < copies; ++k) total += distances[k], spread += squares[k];
    const X made = steps + whole;
    const W one = convert<f64>(unit), n = convert<f64>(made), d = convert<f64>(total) * one;
    const W away = reference - convert<f64>(near), moved = d - n * away;
    sum += moved;
    squared += convert<f64>(spread) * one * one - away * (d + moved);
    count += n;
    taken += whole * lanes + parts;
    const X middle = near + total * unit / made;  // no number where no step was made
    near = where(to_mask(abs(middle) < __builtin_inff()), middle, near);
    shift = -near * scale;
    restart();
  }
  template <class V> static WEFT_INLINE V deviations(V sum, V squared, V count) {
    V m2 = squared - sum * (sum / count);
    return where(lt(m2, V{}), V{}, m2);
  }
  WEFT_INLINE Moments<f64> across() const {
    Moments<f64> all;
    if (taken > 0) {
      const f64 total = total_of<lanes>(sum);
      all.mean = reference[0] + total / taken;
      all.m2 = deviations(total, total_of<lanes>(squared), taken);
    }
    return all;
  }
  WEFT_INLINE W mean() const { return where(to_mask(count > 0.0), W(reference + sum / count), W{}); }
  WEFT_INLINE W m2() const { return where(to_mask(count > 0.0), deviations(sum, squared, count), W{}); }
};

}  // namespace weft
