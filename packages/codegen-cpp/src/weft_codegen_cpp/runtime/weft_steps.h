// Runs the steps of a long program, which are in tables: compilers take their time over hundreds of statements.
//
// A field of a call is given by its place, in pointers from the call's beginning.
#pragma once
#include "weft_host.h"

namespace weft {

struct Call;
// With the numbers by which steps of one function differ, and what errors may be told of.
typedef Status (*StepFunction)(Call&, const i32*, const char* const*);

enum Action : i32 { run_kernels, run_function, make_tensor, make_view, drop_tensor, drop_object };

struct TableRow {
  Action action;
  i32 first;  // of the pointers that a kernel is given, or a function, or a tensor's slot
  i32 count;  // how many pointers, or the tensor's layout, or the first of a function's numbers
  i32 together;  // this row and the next ones that one parallel region runs
  KernelFunction kernel;
  i64 units;  // or a view's offset in bytes
  f64 nanoseconds;
  const char* name;  // of a kernel
};
struct TableLayout {
  i64 ndim;
  const i64 *sizes, *strides;
  i32 dtype;
};
struct Place { i64 field, offset; };

// What the rows of a program refer to.
struct Tables {
  const TableRow* rows;
  const i32* fields;
  const TableLayout* layouts;
  const StepFunction* functions;
  const char* const* texts;
};

// The pointer of a call that lies behind `number` others.
template <class T, class C>
[[maybe_unused]] static T*& field(C& call, i32 number) { return ((T**)&call)[number]; }

// Lets fields of a call point into its arena.
[[maybe_unused]] static void place_all(void* call, char* arena, const Place* places, i64 count) {
  for (i64 k = 0; k < count; ++k) {
    char* data = arena + places[k].offset;
    __builtin_memcpy((char*)call + places[k].field * i64(sizeof(data)), &data, sizeof(data));
  }
}

// Runs all rows.  `words` and `tasks` are the most that kernels of one region need: pointers of
// their structures, whose last one is the call's error, and structures.
template <int words, int tasks, class C>
__attribute__((noinline)) static Status run_rows(C& c, const Tables& tables, i64 count, i64 max_threads) {
  constexpr i64 size = sizeof(void*);
  alignas(64) char structures[words * size];
  Task list[tasks];
  for (i64 row = 0; row < count; ++row) {
    const TableRow& first = tables.rows[row];
    if (first.action == run_kernels) {
      char* place = structures;
      for (i32 k = 0; k < first.together; ++k) {
        const TableRow& one = (&first)[k];
        list[k] = {one.kernel, place, one.units, one.nanoseconds, one.name};
        for (i32 j = 0; j < one.count; ++j, place += size)
          __builtin_memcpy(place, (const char*)&c + tables.fields[one.first + j] * size, size);
        const KernelError* error = &c.error;
        __builtin_memcpy(place, &error, size);
        place += size;
      }
      if (first.together == 1) run_task(list[0], max_threads);
      else run_tasks(list, first.together, max_threads);
      if (c.error.status) return Status(c.error.status);
      row += first.together - 1;
    } else if (first.action == run_function) {
      const i32* numbers = tables.fields + first.count;
      if (Status status = tables.functions[first.first](c, numbers, tables.texts)) return status;
    } else if (first.action == make_tensor) {
      const TableLayout& layout = tables.layouts[first.count];
      char* field = (char*)&c + tables.fields[first.first] * size;
      const i32 slot = tables.fields[first.first + 1];
      if (!allocate(c.owned[slot], field, layout.ndim, layout.sizes, layout.strides, layout.dtype))
        return c.failed = "allocation", operator_failed;
    } else if (first.action == make_view) {
      const TableLayout& layout = tables.layouts[first.count];
      char* data = nullptr;
      __builtin_memcpy(&data, (const char*)&c + tables.fields[first.first] * size, size);
      View& view = c.frame->views[tables.fields[first.first + 1]];
      if (!set_view(view, data + first.units, int(layout.ndim), layout.sizes, layout.strides, layout.dtype))
        return c.failed = "a view", operator_failed;
    } else if (first.action == drop_tensor) {
      drop_owned(c.owned[first.first]);
    } else {
      drop_made(c.made[first.first]);
    }
  }
  return ok;
}

}  // namespace weft
