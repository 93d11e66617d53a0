// The functions that `weft_host.h` declares.
#pragma once
#include "weft_host.h"

namespace weft {

#ifdef WEFT_LINKED_HOST
Api api;
#endif

// ---- parallel loops --------------------------------------------------------------------------------------

WEFT_HOST void run_share(void* raw) {
  const Task& task = *(const Task*)raw;
  i64 threads = api.omp_get_num_threads(), thread = api.omp_get_thread_num();
  i64 begin = task.units * thread / threads, end = task.units * (thread + 1) / threads;
  if (begin < end) task.kernel(task.call, begin, end);
}
// Two threads break even at about 2 µs of work while the second spins; to wake it takes about 16 µs, so that
// a region of less than 20 µs gains little at best.
WEFT_HOST i64 most_threads(i64 max_threads) {
  i64 threads = api.omp_get_max_threads();
  return max_threads > 0 ? min_index(threads, max_threads) : threads;
}
WEFT_HOST i64 useful_threads(i64 units, f64 nanoseconds, i64 max_threads) {
  if (nanoseconds <= 20000 || units <= 1 || !api.GOMP_parallel || max_threads == 1 || api.omp_in_parallel())
    return 1;
  return min_index(min_index(most_threads(max_threads), units), max_index(1, i64(nanoseconds / 4000)));
}

struct TaskList {
  const Task* tasks;
  i64 count;
  f64 nanoseconds;
};
static f64 weight(const Task& task) { return task.nanoseconds > 1 ? task.nanoseconds : 1; }
// The number of units of `task`, which begins at time `start`, that lie before time `bound`.
static i64 units_before(const Task& task, f64 start, f64 bound) {
  if (bound <= start) return 0;
  if (bound >= start + weight(task)) return task.units;
  return i64((bound - start) / weight(task) * f64(task.units));
}
static void run_list_share(void* raw) {
  const TaskList& list = *(const TaskList*)raw;
  i64 threads = api.omp_get_num_threads(), thread = api.omp_get_thread_num();
  f64 low = list.nanoseconds * f64(thread) / f64(threads);
  f64 high = thread + 1 == threads ? __builtin_inf() : list.nanoseconds * f64(thread + 1) / f64(threads);
  f64 start = 0;
  for (i64 k = 0; k < list.count; ++k) {
    const Task& task = list.tasks[k];
    i64 begin = units_before(task, start, low), end = units_before(task, start, high);
    if (begin < end) task.kernel(task.call, begin, end);
    start += weight(task);
  }
}
// Writes the tasks' names, as many as there is room for.
static void join_names(char* text, i64 room, const Task* tasks, i64 count) {
  const char* const end = text + room - 1;
  for (i64 k = 0; k < count; ++k) {
    for (const char* c = k ? " + " : ""; *c && text < end; ++c) *text++ = *c;
    for (const char* c = tasks[k].name; *c && text < end; ++c) *text++ = *c;
  }
  *text = 0;
}
WEFT_HOST void run_tasks(const Task* tasks, i64 count, i64 max_threads) {
  char names[message_bytes];
  names[0] = 0;
  if (api.has_callbacks && api.has_callbacks()) join_names(names, message_bytes, tasks, count);
  const Record record(names);
  TaskList list = {tasks, count, 0};
  i64 units = 0;
  for (i64 k = 0; k < count; ++k) units += tasks[k].units, list.nanoseconds += weight(tasks[k]);
  i64 threads = useful_threads(units, list.nanoseconds, max_threads);
  if (threads > 1) return api.GOMP_parallel(run_list_share, &list, unsigned(threads), 0);
  for (i64 k = 0; k < count; ++k)
    if (tasks[k].units > 0) tasks[k].kernel(tasks[k].call, 0, tasks[k].units);
}

// ---- the memory of one call --------------------------------------------------------------------------------

static void free_arena(Frame* frame) {
  __builtin_free(frame->whole);
  frame->whole = frame->arena = nullptr;
  frame->bytes = 0;
}
static bool grow_arena(Frame* frame, i64 bytes) {
  if (frame->bytes >= bytes) return true;
  free_arena(frame);
  frame->whole = take_memory(bytes);
  if (!frame->whole) return false;
  frame->bytes = bytes;
  frame->arena = aligned(frame->whole);
  return true;
}
static void destroy_frame(Frame* frame, i64 views) {
  if (frame->helper) destroy_frame(frame->helper, views);
  for (i64 k = 0; k < views && frame->views; ++k)
    if (frame->views[k].handle) api.delete_tensor(frame->views[k].handle);
  __builtin_free(frame->whole);
  __builtin_free(frame->views);
  __builtin_free(frame);
}
static Frame* make_frame(i64 views) {
  Frame* frame = (Frame*)__builtin_calloc(1, sizeof(Frame));
  if (!frame) return nullptr;
  frame->views = (View*)__builtin_calloc(views + 1, sizeof(View));
  if (frame->views) return frame;
  destroy_frame(frame, views);
  return nullptr;
}

// Memory is kept from call to call, so that pages need not be mapped again, but not for ever what one large call
// or many threads at once have needed: after so many calls it is cut down to what these have used.
constexpr i64 calls_between_cuts = 16;
constexpr i64 spare_bytes = 1 << 20;  // as much more than that may be kept

WEFT_HOST Frame* take_frame(Program* program, i64 bytes, i64 views) {
  Frame* frame = program->idle;
  if (frame) program->idle = frame->next;
  else frame = make_frame(views);
  if (!frame) return nullptr;
  if (!grow_arena(frame, bytes)) return destroy_frame(frame, views), nullptr;
  frame->message[0] = 0;
  frame->most = max_index(frame->most, bytes);
  program->max_running = max_index(program->max_running, ++program->running);
  return frame;
}
// Cuts the arenas of `frame` and its helpers down to what its last calls have used.
static void cut_arena(Frame* frame) {
  if (++frame->calls < calls_between_cuts) return;
  if (frame->bytes > 2 * frame->most + spare_bytes)
    for (Frame* f = frame; f; f = f->helper) free_arena(f);
  frame->calls = frame->most = 0;
}

// A program that is not called while others are, so many times, gives all its memory back.
constexpr i64 calls_of_others = 4096;

static void unlist(Program* program) {
  if (!program->is_listed) return;
  (program->later ? program->later->earlier : api.memory->latest) = program->earlier;
  (program->earlier ? program->earlier->later : api.memory->oldest) = program->later;
  program->earlier = program->later = nullptr;
  program->is_listed = false;
}
static void note_call(Program* program) {
  Memory& memory = *api.memory;
  program->last_call = ++memory.calls;
  if (memory.latest == program) return;
  unlist(program);
  program->earlier = memory.latest;
  (memory.latest ? memory.latest->later : memory.oldest) = program;
  memory.latest = program;
  program->is_listed = true;
}
static void free_unused() {
  const Memory& memory = *api.memory;
  while (memory.oldest && memory.calls - memory.oldest->last_call > calls_of_others) {
    for (Frame* frame = memory.oldest->idle; frame; frame = frame->next)
      for (Frame* f = frame; f; f = f->helper) free_arena(f);
    unlist(memory.oldest);
  }
}
WEFT_HOST void give_frame(Program* program, Frame* frame, i64 views) {
  note_call(program);
  if (api.memory->calls % calls_between_cuts == 0) free_unused();
  cut_arena(frame);
  frame->next = program->idle;
  program->idle = frame;
  --program->running;
  if (++program->calls < calls_between_cuts * program->max_running) return;
  i64 kept = program->max_running - program->running;
  Frame** last = &program->idle;
  for (; kept > 0 && *last; --kept) last = &(*last)->next;
  while (Frame* rest = *last) {
    *last = rest->next;
    destroy_frame(rest, views);
  }
  program->calls = 0;
  program->max_running = program->running;
}
WEFT_HOST bool with_helpers(Frame* frame, i64 threads, i64 views) {
  const i64 bytes = frame->bytes;
  for (i64 k = 1; k < threads; ++k, frame = frame->helper) {
    if (!frame->helper) frame->helper = make_frame(views);
    if (!frame->helper || !grow_arena(frame->helper, bytes)) return false;
  }
  return true;
}
WEFT_HOST void destroy_program(Program* program, i64 views) {
  unlist(program);
  while (Frame* frame = program->idle) {
    program->idle = frame->next;
    destroy_frame(frame, views);
  }
  __builtin_free(program->objects);
  __builtin_free(program);
}
WEFT_HOST i64 held_bytes(const Program* program) {
  i64 bytes = 0;
  for (const Frame* frame = program->idle; frame; frame = frame->next)
    for (const Frame* f = frame; f; f = f->helper) bytes += f->bytes;
  return bytes;
}

WEFT_HOST bool endless(const Task* tasks, i64 count) {
  for (i64 k = 0; k < count; ++k) if (!(tasks[k].nanoseconds < 3e16)) return true;
  return false;
}
WEFT_HOST const char* torch_message() { return api.what ? api.what() : ""; }
WEFT_HOST void keep_message(Frame* frame) {
  const char* text = torch_message();
  int k = 0;
  for (; k + 1 < message_bytes && text[k]; ++k) frame->message[k] = text[k];
  frame->message[k] = 0;
}

// ---- tensors -------------------------------------------------------------------------------------------------

WEFT_HOST bool set_view(View& view, void* data, int ndim, const i64* sizes, const i64* strides, i32 dtype) {
  bool same = view.handle && view.data == data;
  for (int k = 0; k < ndim && same; ++k) same = view.sizes[k] == sizes[k] && view.strides[k] == strides[k];
  if (same) return true;
  if (view.handle) api.delete_tensor(view.handle), view.handle = nullptr;
  if (api.from_blob(data, ndim, sizes, strides, 0, dtype, 0, 0, &view.handle)) return false;
  view.data = data;
  for (int k = 0; k < ndim; ++k) view.sizes[k] = sizes[k], view.strides[k] = strides[k];
  return true;
}

alignas(64) static char nothing[64];  // where tensors without elements point

WEFT_HOST void* data_of(Handle handle) {
  void* data = nullptr;
  api.get_data_ptr(handle, &data);
  return data ? data : nothing;
}
WEFT_HOST bool allocate(Handle& slot, void* pointer, i64 ndim, const i64* sizes, const i64* strides, i32 dtype) {
  if (api.empty_strided(ndim, sizes, strides, dtype, 0, 0, &slot)) return false;
  void* data = data_of(slot);
  __builtin_memcpy(pointer, &data, sizeof(data));
  return true;
}
WEFT_HOST void point_all(void* call, i64 first, Object const* tensors, i64 count) {
  for (i64 k = 0; k < count; ++k) {
    void* data = data_of(handle_of(tensors[k]));
    __builtin_memcpy((char*)call + first + k * i64(sizeof(data)), &data, sizeof(data));
  }
}
WEFT_HOST bool put(Object tuple, i64 position, Object item) {
  return item && api.PyTuple_SetItem(tuple, position, item) == 0;
}
WEFT_HOST Object object_from(Handle handle) {
  Object object = api.wrap(handle);
  api.delete_tensor(handle);
  return object;
}
// A tensor of the call's own on the memory of an object's.
WEFT_HOST bool owned_from(Handle& slot, Object object, int ndim) {
  Handle handle = handle_of(object);
  i64 *sizes = nullptr, *strides = nullptr;
  if (api.get_sizes(handle, &sizes) || api.get_strides(handle, &strides)) return false;
  return api.reinterpret(handle, ndim, sizes, strides, 0, &slot) == 0;
}
WEFT_HOST Object shared_view(Handle handle, int ndim, const i64* sizes, const i64* strides, i64 offset) {
  Handle view = nullptr;  // the offset counts from the tensor's own
  if (api.reinterpret(handle, ndim, sizes, strides, offset, &view)) return nullptr;
  return object_from(view);
}
// A small copy of the same strides is one of bytes: torch's own may begin with waking threads.
WEFT_HOST bool copied(Handle& fresh, View& view, const void* data, int ndim, const i64* sizes,
                      const i64* strides, const i64* fresh_strides, i32 dtype, i64 item) {
  if (api.empty_strided(ndim, sizes, fresh_strides, dtype, 0, 0, &fresh)) return false;
  i64 count = 1, span = 1;
  bool same = true;
  for (int k = 0; k < ndim; ++k) {
    count *= sizes[k];
    span += (sizes[k] - 1) * fresh_strides[k];
    same = same && (sizes[k] <= 1 || strides[k] == fresh_strides[k]);
  }
  if (count == 0) return true;
  if (same && span == count && count * item <= max_copied_bytes) {
    __builtin_memcpy(data_of(fresh), data, count * item);
    return true;
  }
  if (set_view(view, (void*)data, ndim, sizes, strides, dtype) && !api.copy(fresh, view.handle, 0)) return true;
  api.delete_tensor(fresh);
  fresh = nullptr;
  return false;
}
WEFT_HOST bool settle_layout(Handle& handle, int ndim, const i64* sizes, const i64* strides, i32 dtype) {
  i64* actual = nullptr;
  api.get_strides(handle, &actual);
  bool same = true;
  for (int k = 0; k < ndim; ++k) same = same && (sizes[k] <= 1 || actual[k] == strides[k]);
  if (same) return true;
  Handle fresh = nullptr;
  if (api.empty_strided(ndim, sizes, strides, dtype, 0, 0, &fresh)) return false;
  bool failed = api.copy(fresh, handle, 0) != 0;
  api.delete_tensor(handle);
  handle = fresh;
  return !failed;
}

// ---- a program's life and its errors ---------------------------------------------------------------------------

WEFT_HOST Object no_memory(i64 bytes) {
  return api.PyErr_Format(api.runtime_error,
                          "DefaultCPUAllocator: can't allocate memory: you tried to allocate %lld bytes.",
                          (long long)bytes);
}
WEFT_HOST void raise_error(Status status, const KernelError& error, const char* failed, const Frame* frame) {
  if (status == index_out_of_range)
    api.PyErr_Format(api.index_error, "index %lld is out of bounds for dimension with size %lld",
                     (long long)error.index, (long long)error.size);
  else if (status == operator_failed)
    api.PyErr_Format(api.runtime_error, "%s failed: %s", failed,
                     frame->message[0] ? frame->message : torch_message());
  else if (status == requirement_failed)
    api.PyErr_SetString(api.runtime_error, failed);
  else if (status == out_of_memory)
    no_memory(error.size);
  else if (status == too_large)
    api.PyErr_SetString(api.runtime_error, "Storage size calculation overflowed");
  else if (!api.PyErr_Occurred())
    api.PyErr_SetString(api.runtime_error, "a result could not be made");
}
WEFT_HOST void* create_program(Object const* objects, i64 count) {
  Program* program = (Program*)__builtin_calloc(1, sizeof(Program));
  Object* kept = (Object*)__builtin_malloc(sizeof(Object) * (count + 1));
  if (!program || !kept) {
    __builtin_free(program);
    __builtin_free(kept);
    return api.PyErr_NoMemory();
  }
  program->objects = kept;
  for (i64 k = 0; k < count; ++k) program->objects[k] = objects[k];
  return program;
}

}  // namespace weft
