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

template <int step, class V> WEFT_INLINE V swap_lanes(V v) {
  V r = {};
  WEFT_UNROLL(16) for (int k = 0; k < lanes; ++k) r[k] = v[k ^ step];
  return r;
}
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

// Mean and sum of squared deviations by Welford's recurrence, joined by Chan's.
template <class X> struct Welford {
  typedef Element<X> T;
  X mean = {}, m2 = {}, count = {};
  template <class Tag> WEFT_INLINE void step(Tag tag, X x) {
    X grown = count + T(1);
    X delta = x - mean;
    X moved = mean + delta / grown;
    X spread = m2 + delta * (x - moved);
    mean = tag.select(moved, mean);
    m2 = tag.select(spread, m2);
    count = tag.select(grown, count);
  }
  WEFT_INLINE void join(const Welford& o) {
    X total = count + o.count;
    X share = where(eq(total, X{}), X{}, X(o.count / total));
    X delta = o.mean - mean;
    mean = mean + delta * share;
    m2 = m2 + o.m2 + delta * delta * count * share;
    count = total;
  }
  WEFT_INLINE Welford<T> across() const {
    Welford<T> total;
    if constexpr (!is_vector<X>) return *this;
    else {
      for (int k = 0; k < lanes; ++k) {
        Welford<T> lane;
        lane.mean = mean[k];
        lane.m2 = m2[k];
        lane.count = count[k];
        total.join(lane);
      }
      return total;
    }
  }
};

}  // namespace weft
