// The large functions of `weft_math.h` once more, out of line: code that calls them takes the compiler a tenth of the
// time that code does which has them inlined.
#pragma once
#include "weft_math.h"

namespace weft {
namespace far {
#define WEFT_FAR(name) \
  template <class... X> __attribute__((noinline)) static auto name(X... x) { return weft::name(x...); }
WEFT_FAR(sigmoid) WEFT_FAR(exp) WEFT_FAR(exp2) WEFT_FAR(expm1) WEFT_FAR(log) WEFT_FAR(log2) WEFT_FAR(log10)
WEFT_FAR(log1p) WEFT_FAR(sin) WEFT_FAR(cos) WEFT_FAR(tan) WEFT_FAR(asin) WEFT_FAR(acos) WEFT_FAR(atan)
WEFT_FAR(sinh) WEFT_FAR(cosh) WEFT_FAR(tanh) WEFT_FAR(asinh) WEFT_FAR(acosh) WEFT_FAR(atanh) WEFT_FAR(erf)
WEFT_FAR(erfc) WEFT_FAR(erfinv) WEFT_FAR(lgamma) WEFT_FAR(digamma) WEFT_FAR(pow) WEFT_FAR(atan2)
WEFT_FAR(hypot) WEFT_FAR(fmod) WEFT_FAR(remainder) WEFT_FAR(floordiv) WEFT_FAR(truncdiv) WEFT_FAR(nextafter)
WEFT_FAR(rand) WEFT_FAR(randn)
#undef WEFT_FAR
}  // namespace far
}  // namespace weft
