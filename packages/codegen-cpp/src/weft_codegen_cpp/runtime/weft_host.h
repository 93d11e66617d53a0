// What the host program of a graph needs: the functions of Python, torch and OpenMP that it calls, bound when
// the library is loaded, and the memory that one call of the graph uses.
#pragma once
#include "weft_kernel.h"

namespace weft {

typedef void* Object;  // PyObject*
typedef void* Handle;  // AtenTensorHandle, an at::Tensor*

struct Memory;

// The order of host/api.py.
struct Api {
  i64 tensor_offset;  // from a Python tensor's address to its at::Tensor
  Object tensor_type, parameter_type, index_error, runtime_error, type_error, none;
  Object (*PyTuple_New)(i64);
  int (*PyTuple_SetItem)(Object, i64, Object);
  Object (*PyTuple_GetItem)(Object, i64);
  void (*Py_IncRef)(Object);
  void (*Py_DecRef)(Object);
  void (*PyErr_SetString)(Object, const char*);
  Object (*PyErr_Format)(Object, const char*, ...);
  Object (*PyObject_CallObject)(Object, Object);
  int (*PyObject_IsInstance)(Object, Object);
  Object (*PyLong_FromLongLong)(long long);
  long long (*PyLong_AsLongLong)(Object);
  Object (*PyFloat_FromDouble)(double);
  double (*PyFloat_AsDouble)(Object);
  Object (*PyErr_Occurred)();
  Object (*PyErr_NoMemory)();
  void* (*PyCapsule_GetPointer)(Object, const char*);
  void* (*PyEval_SaveThread)();
  void (*PyEval_RestoreThread)(void*);
  Object (*wrap)(Handle);  // THPVariable_Wrap: a new reference
  i32 (*get_data_ptr)(Handle, void**);
  i32 (*get_sizes)(Handle, i64**);
  i32 (*get_strides)(Handle, i64**);
  i32 (*empty_strided)(i64, const i64*, const i64*, i32, i32, i32, Handle*);
  i32 (*from_blob)(void*, i64, const i64*, const i64*, i64, i32, i32, i32, Handle*);
  i32 (*reinterpret)(Handle, i64, const i64*, const i64*, i64, Handle*);
  i32 (*copy)(Handle, Handle, i32);
  i32 (*delete_tensor)(Handle);
  bool (*grad_enabled)();
  void (*set_grad_enabled)(bool);
  i32 (*mm_out)(Handle, Handle, Handle);
  i32 (*addmm_out)(Handle, Handle, Handle, Handle, f64, f64);
  i32 (*bmm_out)(Handle, Handle, Handle);
  i32 (*baddbmm_out)(Handle, Handle, Handle, Handle, f64, f64);
  i32 (*convolution)(Handle, Handle, Handle*, const i64*, i64, const i64*, i64, const i64*, i64, i32,
                     const i64*, i64, i64, Handle*);
  i32 (*attention)(Handle, Handle, Handle, f64, i32, Handle*, f64*, Handle*, Handle*);
  const char* (*what)();  // may be null
  i32 (*linear_pointwise)(Handle, Handle, Handle*, const char*, const f64**, i64, const char**,
                          Handle*);  // may be null
  i32 (*convolution_pointwise)(Handle, Handle, Handle*, const i64*, i64, const i64*, i64, const i64*, i64,
                               i64, const char*, const f64**, i64, const char**, Handle*);  // may be null
  void (*GOMP_parallel)(void (*)(void*), void*, unsigned, unsigned);  // may be null: one thread
  int (*omp_get_max_threads)();
  int (*omp_get_thread_num)();
  int (*omp_get_num_threads)();
  int (*omp_in_parallel)();
  Memory* memory;  // one for all programs of the process
};
static Api api;

// ---- parallel loops --------------------------------------------------------------------------------------

typedef void (*KernelFunction)(const void*, i64, i64);
struct Task {
  KernelFunction kernel;
  const void* call;
  i64 units;
  f64 nanoseconds;  // estimated, of all units
};
static void run_share(void* raw) {
  const Task& task = *(const Task*)raw;
  i64 threads = api.omp_get_num_threads(), thread = api.omp_get_thread_num();
  i64 begin = task.units * thread / threads, end = task.units * (thread + 1) / threads;
  if (begin < end) task.kernel(task.call, begin, end);
}
// Two threads break even at about 2 µs of work while the second spins; to wake it takes about 16 µs, so that
// a region of less than 20 µs gains little at best.
static i64 most_threads(i64 max_threads) {
  i64 threads = api.omp_get_max_threads();
  return max_threads > 0 ? min_index(threads, max_threads) : threads;
}
static i64 useful_threads(i64 units, f64 nanoseconds, i64 max_threads) {
  if (nanoseconds <= 20000 || units <= 1 || !api.GOMP_parallel || max_threads == 1 || api.omp_in_parallel())
    return 1;
  return min_index(min_index(most_threads(max_threads), units), max_index(1, i64(nanoseconds / 4000)));
}
static inline void run_task(const Task& task, i64 max_threads) {
  if (task.units <= 0) return;
  i64 threads = useful_threads(task.units, task.nanoseconds, max_threads);
  if (threads <= 1) return task.kernel(task.call, 0, task.units);
  api.GOMP_parallel(run_share, (void*)&task, unsigned(threads), 0);
}

// Independent tasks in one region: each thread takes the units of an equal part of the estimated time.
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
static inline void run_tasks(const Task* tasks, i64 count, i64 max_threads) {
  TaskList list = {tasks, count, 0};
  i64 units = 0;
  for (i64 k = 0; k < count; ++k) units += tasks[k].units, list.nanoseconds += weight(tasks[k]);
  i64 threads = useful_threads(units, list.nanoseconds, max_threads);
  if (threads > 1) return api.GOMP_parallel(run_list_share, &list, unsigned(threads), 0);
  for (i64 k = 0; k < count; ++k)
    if (tasks[k].units > 0) tasks[k].kernel(tasks[k].call, 0, tasks[k].units);
}

static inline void drop_owned(Handle& handle) {
  api.delete_tensor(handle);
  handle = nullptr;
}
static inline void drop_made(Object& object) {
  api.Py_DecRef(object);
  object = nullptr;
}

// ---- the memory of one call --------------------------------------------------------------------------------

template <int n> struct Extents { i64 values[n]; };
template <i64... values> static constexpr i64 fixed[] = {values...};

constexpr int max_dimensions = 8;
struct View {  // a tensor on memory that something else owns
  Handle handle;
  void* data;
  i64 sizes[max_dimensions], strides[max_dimensions];
};
constexpr int message_bytes = 256;
struct Frame {
  Frame* next;
  Frame* helper;  // as many more as threads have run a loop of the program together
  char* whole;  // malloc's
  char* arena;  // aligned
  i64 bytes;
  i64 calls, most;  // since the arena was last looked at: how many, and the bytes of the largest
  View* views;
  char message[message_bytes];  // of an exception in another thread, empty for none
};
struct Program {
  Frame* idle;
  i64 running, max_running;  // calls at once: now, and since idle frames were last looked at
  i64 calls;  // since then
  Program *earlier, *later;  // among those called, by their last calls
  i64 last_call;  // its number among all calls of the process
  bool is_listed;
  Object* objects;  // borrowed: the Python side keeps them
};
struct Memory {  // who holds Python's lock may use it
  Program *latest, *oldest;
  i64 calls;
};

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

// A frame for a call that needs `bytes`; null where there is no memory.
static Frame* take_frame(Program* program, i64 bytes, i64 views) {
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
static void give_frame(Program* program, Frame* frame, i64 views) {
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
// Whether `frame` and its helpers are enough for `threads`, each with an arena as large; makes what is missing.
[[maybe_unused]] static bool with_helpers(Frame* frame, i64 threads, i64 views) {
  const i64 bytes = frame->bytes;
  for (i64 k = 1; k < threads; ++k, frame = frame->helper) {
    if (!frame->helper) frame->helper = make_frame(views);
    if (!frame->helper || !grow_arena(frame->helper, bytes)) return false;
  }
  return true;
}
static void destroy_program(Program* program, i64 views) {
  unlist(program);
  while (Frame* frame = program->idle) {
    program->idle = frame->next;
    destroy_frame(frame, views);
  }
  __builtin_free(program->objects);
  __builtin_free(program);
}
// The bytes that idle frames hold.
static i64 held_bytes(const Program* program) {
  i64 bytes = 0;
  for (const Frame* frame = program->idle; frame; frame = frame->next)
    for (const Frame* f = frame; f; f = f->helper) bytes += f->bytes;
  return bytes;
}

// Sizes as doubles: what is beyond 64 bits as integers has its magnitude still.
[[maybe_unused]] static f64 floor_div_f64(f64 a, f64 b) { return __builtin_floor(a / b); }
[[maybe_unused]] static f64 floor_mod_f64(f64 a, f64 b) { return a - b * __builtin_floor(a / b); }
[[maybe_unused]] static f64 min_f64(f64 a, f64 b) { return a < b ? a : b; }
[[maybe_unused]] static f64 max_f64(f64 a, f64 b) { return a > b ? a : b; }
[[maybe_unused]] static f64 power_f64(f64 a, int n) { f64 r = 1; while (n-- > 0) r *= a; return r; }
constexpr f64 max_bytes = 9.2e18;  // of a size, and of a call's memory
// Tasks that would take a year: there may be more iterations than an integer counts.
[[maybe_unused]] static bool endless(const Task* tasks, i64 count) {
  for (i64 k = 0; k < count; ++k) if (!(tasks[k].nanoseconds < 3e16)) return true;
  return false;
}

// The text of the exception that an operator has left in this thread.
static const char* torch_message() { return api.what ? api.what() : ""; }
[[maybe_unused]] static void keep_message(Frame* frame) {
  const char* text = torch_message();
  int k = 0;
  for (; k + 1 < message_bytes && text[k]; ++k) frame->message[k] = text[k];
  frame->message[k] = 0;
}

// A tensor on `data`, made again only when the memory or the sizes changed since the frame's last call.
static bool set_view(View& view, void* data, int ndim, const i64* sizes, const i64* strides, i32 dtype) {
  bool same = view.handle && view.data == data;
  for (int k = 0; k < ndim && same; ++k) same = view.sizes[k] == sizes[k] && view.strides[k] == strides[k];
  if (same) return true;
  if (view.handle) api.delete_tensor(view.handle), view.handle = nullptr;
  if (api.from_blob(data, ndim, sizes, strides, 0, dtype, 0, 0, &view.handle)) return false;
  view.data = data;
  for (int k = 0; k < ndim; ++k) view.sizes[k] = sizes[k], view.strides[k] = strides[k];
  return true;
}

// ---- tensors -------------------------------------------------------------------------------------------------

alignas(64) static char nothing[64];  // where tensors without elements point

static WEFT_INLINE Handle handle_of(Object tensor) { return (char*)tensor + api.tensor_offset; }
static void* data_of(Handle handle) {
  void* data = nullptr;
  api.get_data_ptr(handle, &data);
  return data ? data : nothing;
}
// Makes a tensor in `slot` and lets `pointer`, a pointer to any type, be its memory; false for an error.  Not
// inlined: compilers take long over a function that has it hundreds of times.
__attribute__((noinline)) static bool allocate(Handle& slot, void* pointer, i64 ndim, const i64* sizes,
                                               const i64* strides, i32 dtype) {
  if (api.empty_strided(ndim, sizes, strides, dtype, 0, 0, &slot)) return false;
  void* data = data_of(slot);
  __builtin_memcpy(pointer, &data, sizeof(data));
  return true;
}
// Lets `count` pointers of a call, one after the other from byte `first` on, be the memory of `tensors`.
static void point_all(void* call, i64 first, Object const* tensors, i64 count) {
  for (i64 k = 0; k < count; ++k) {
    void* data = data_of(handle_of(tensors[k]));
    __builtin_memcpy((char*)call + first + k * i64(sizeof(data)), &data, sizeof(data));
  }
}
static bool is_tensor(Object object) {
  Object type = ((Object*)object)[1];  // PyObject.ob_type
  return type == api.tensor_type || type == api.parameter_type ||
         api.PyObject_IsInstance(object, api.tensor_type) == 1;
}
// A reference that ends with its block unless it is given away.
struct Reference {
  Object object;
  explicit Reference(Object made) : object(made) {}
  ~Reference() { if (object) api.Py_DecRef(object); }
  Reference(const Reference&) = delete;
  operator Object() const { return object; }
  Object give() {
    Object given = object;
    object = nullptr;
    return given;
  }
};
// Puts `item`, a new reference or null for an error, in a tuple.
static bool put(Object tuple, i64 position, Object item) {
  return item && api.PyTuple_SetItem(tuple, position, item) == 0;
}
// The Python object of a tensor that nothing else needs.
static Object object_from(Handle handle) {
  Object object = api.wrap(handle);
  api.delete_tensor(handle);
  return object;
}
static Object same(Object object) {
  api.Py_IncRef(object);
  return object;
}
static Object shared_view(Handle handle, int ndim, const i64* sizes, const i64* strides, i64 offset) {
  Handle view = nullptr;  // the offset counts from the tensor's own
  if (api.reinterpret(handle, ndim, sizes, strides, offset, &view)) return nullptr;
  return object_from(view);
}
// Gives `handle` the strides that the program was compiled for, if the operator chose others.
static bool settle_layout(Handle& handle, int ndim, const i64* sizes, const i64* strides, i32 dtype) {
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

// x [m, k] times the transpose of weight [n, k], plus bias [n] unless it is null.
static inline i32 linear(Handle x, Handle weight, Handle* bias, Handle* result) {
  return api.linear_pointwise(x, weight, bias, "none", nullptr, 0, nullptr, result);
}

// A convolution in oneDNN; the weight may be one that it has laid out.
static inline i32 onednn_convolution(Handle x, Handle weight, Handle* bias, const i64* stride, i64 rank,
                                     const i64* padding, const i64* dilation, i64 groups, Handle* result) {
  return api.convolution_pointwise(x, weight, bias, padding, rank, stride, rank, dilation, rank, groups,
                                   "none", nullptr, 0, nullptr, result);
}

// Raises what eager does where a tensor's memory is not to be had.
static Object no_memory(i64 bytes) {
  return api.PyErr_Format(api.runtime_error,
                          "DefaultCPUAllocator: can't allocate memory: you tried to allocate %lld bytes.",
                          (long long)bytes);
}

}  // namespace weft
