// Reductions: how two values combine, where accumulation starts, and how the lanes of one accumulator join.
#pragma once

namespace weft {

struct Sum {
  template <class T> static constexpr T start() { return T(0); }
  template <class X> static WEFT_INLINE X combine(X a, X b) { return add(a, b); }
};
struct Prod {
  template <class T> static constexpr T start() { return T(1); }
  template <class X> static WEFT_INLINE X combine(X a, X b) { return mul(a, b); }
};
struct Max {
  template <class T> static constexpr T start() { return Limits<T>::lowest(); }
  template <class X> static WEFT_INLINE X combine(X a, X b) { return maximum(a, b); }
};
struct Min {
  template <class T> static constexpr T start() { return Limits<T>::highest(); }
  template <class X> static WEFT_INLINE X combine(X a, X b) { return minimum(a, b); }
};
struct Any {
  template <class T> static constexpr T start() { return T(0); }
  template <class X> static WEFT_INLINE X combine(X a, X b) { return logical_or(a, b); }
};
struct All {
  template <class T> static constexpr T start() { return T(1); }
  template <class X> static WEFT_INLINE X combine(X a, X b) { return logical_and(a, b); }
};

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
      return first_lane(v);
    }
  }
};

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
// as exact, as long as runs are short.  `settle` ends a run; parts are joined by Chan's formula.
template <class X> struct Moments {
  typedef Element<X> T;
  X mean = {}, m2 = {}, count = {};
  X near = {}, distances = {}, squares = {}, steps = {};
  bool fresh = true;
  template <class Tag> WEFT_INLINE void step(Tag tag, X x) {
    if (fresh) near = tag.select(x, near), fresh = false;
    X distance = x - near;
    distances = tag.select(distances + distance, distances);
    squares = tag.select(squares + distance * distance, squares);
    steps = tag.select(steps + T(1), steps);
  }
  WEFT_INLINE void settle() {
    X share = where(eq(steps, X{}), X{}, X(distances / steps));
    X spread = squares - distances * share;
    add_part(near + share, where(lt(spread, X{}), X{}, spread), steps);
    near = mean;
    distances = squares = steps = X{};
  }
  WEFT_INLINE void add_part(X part_mean, X part_m2, X part_count) {
    X total = count + part_count;
    X share = where(eq(total, X{}), X{}, X(part_count / total));
    X delta = part_mean - mean;
    mean = mean + delta * share;
    m2 = m2 + part_m2 + delta * delta * count * share;
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

}  // namespace weft
