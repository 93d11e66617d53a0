// What the kernels that weft-codegen-cpp prints are made of; here: what goes wrong in them, and index arithmetic.
//
// Includes nothing of the system: parsing it costs a few milliseconds.
#pragma once
#include "weft_memory.h"
#include "weft_small_floats.h"

namespace weft {

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

}  // namespace weft

#include "weft_far.h"
#include "weft_reduce.h"
