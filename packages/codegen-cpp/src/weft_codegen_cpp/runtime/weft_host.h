// What the host program of a graph needs: the functions of Python, torch and OpenMP that it calls, bound when
// the library is loaded, and the memory that one call of the graph uses.
#pragma once
#include "weft_kernel.h"

namespace weft {

typedef void* Object;  // PyObject*
typedef void* Handle;  // AtenTensorHandle, an at::Tensor*

struct Memory;

// While a profiler of torch's looks at this thread: an event of that name, from here to the end of the block.
struct Record {
  WEFT_INLINE explicit Record(const char* name);
  WEFT_INLINE ~Record();
  Record(const Record&) = delete;
  void* event = nullptr;
};

// A function of torch's that no dispatcher calls, which would tell profilers of it.
template <class Signature, const char* name> struct Recorded;
template <class R, class... A, const char* name> struct Recorded<R(A...), name> {
  R (*function)(A...);
  WEFT_INLINE R operator()(A... arguments) const {
    const Record record(name);
    return function(arguments...);
  }
};
template <const char* name, class... A> using Operator = Recorded<i32(A...), name>;
inline constexpr char mm_name[] = "aten::mm", addmm_name[] = "aten::addmm", bmm_name[] = "aten::bmm",
                      baddbmm_name[] = "aten::baddbmm", convolution_name[] = "aten::convolution",
                      attention_name[] = "aten::_scaled_dot_product_flash_attention_for_cpu",
                      linear_name[] = "mkldnn::_linear_pointwise",
                      pointwise_name[] = "mkldnn::_convolution_pointwise";

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
  Operator<mm_name, Handle, Handle, Handle> mm_out;
  Operator<addmm_name, Handle, Handle, Handle, Handle, f64, f64> addmm_out;
  Operator<bmm_name, Handle, Handle, Handle> bmm_out;
  Operator<baddbmm_name, Handle, Handle, Handle, Handle, f64, f64> baddbmm_out;
  Operator<convolution_name, Handle, Handle, Handle*, const i64*, i64, const i64*, i64, const i64*, i64, i32,
           const i64*, i64, i64, Handle*>
      convolution;
  Operator<attention_name, Handle, Handle, Handle, f64, i32, Handle*, f64*, Handle*, Handle*> attention;
  const char* (*what)();  // may be null
  Operator<linear_name, Handle, Handle, Handle*, const char*, const f64**, i64, const char**, Handle*>
      linear_pointwise;  // may be null
  Operator<pointwise_name, Handle, Handle, Handle*, const i64*, i64, const i64*, i64, const i64*, i64, i64,
           const char*, const f64**, i64, const char**, Handle*>
      convolution_pointwise;  // may be null
  bool (*has_callbacks)();  // at::hasCallbacks, may be null, as the next
  i32 (*begin_event)(const char*, void*, const void*, ui64, void**);
  i32 (*end_event)(void*);
  void (*GOMP_parallel)(void (*)(void*), void*, unsigned, unsigned);  // may be null: one thread
  int (*omp_get_max_threads)();
  int (*omp_get_thread_num)();
  int (*omp_get_num_threads)();
  int (*omp_in_parallel)();
  Memory* memory;  // one for all programs of the process
};

// What a program calls at most a few times a call is compiled once, to an object that programs are linked with:
// without, it is part of each, and takes the compiler half of a small program's time.
#ifdef WEFT_LINKED_HOST
#define WEFT_HOST __attribute__((visibility("hidden")))
extern WEFT_HOST Api api;
#else
#define WEFT_HOST static
WEFT_HOST Api api;
#endif

Record::Record(const char* name) {
  if (api.has_callbacks && api.has_callbacks() && api.begin_event(name, nullptr, nullptr, 0, &event))
    event = nullptr;
}
Record::~Record() {
  if (event) api.end_event(event);
}

// ---- parallel loops --------------------------------------------------------------------------------------

typedef void (*KernelFunction)(const void*, i64, i64);
struct Task {
  KernelFunction kernel;
  const void* call;
  i64 units;
  f64 nanoseconds;  // estimated, of all units
  const char* name;
};
WEFT_HOST void run_share(void* raw);
WEFT_HOST i64 most_threads(i64 max_threads);
// How many threads run `units` that take so long together, of `most_threads`.
WEFT_HOST i64 useful_threads(i64 units, f64 nanoseconds, i64 max_threads);
static inline void run_task(const Task& task, i64 max_threads) {
  if (task.units <= 0) return;
  const Record record(task.name);
  i64 threads = useful_threads(task.units, task.nanoseconds, max_threads);
  if (threads <= 1) return task.kernel(task.call, 0, task.units);
  api.GOMP_parallel(run_share, (void*)&task, unsigned(threads), 0);
}
// Independent tasks in one region: each thread takes the units of an equal part of the estimated time.
WEFT_HOST void run_tasks(const Task* tasks, i64 count, i64 max_threads);

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

// A frame for a call that needs `bytes`; null where there is no memory.
WEFT_HOST Frame* take_frame(Program* program, i64 bytes, i64 views);

WEFT_HOST void give_frame(Program* program, Frame* frame, i64 views);
// Whether `frame` and its helpers are enough for `threads`, each with an arena as large; makes what is missing.
WEFT_HOST bool with_helpers(Frame* frame, i64 threads, i64 views);
WEFT_HOST void* create_program(Object const* objects, i64 count);
WEFT_HOST void destroy_program(Program* program, i64 views);
// The bytes that idle frames hold.
WEFT_HOST i64 held_bytes(const Program* program);

// Sizes as doubles: what is beyond 64 bits as integers has its magnitude still.
static inline f64 floor_div_f64(f64 a, f64 b) { return __builtin_floor(a / b); }
static inline f64 floor_mod_f64(f64 a, f64 b) { return a - b * __builtin_floor(a / b); }
static inline f64 min_f64(f64 a, f64 b) { return a < b ? a : b; }
static inline f64 max_f64(f64 a, f64 b) { return a > b ? a : b; }
static inline f64 power_f64(f64 a, int n) { f64 r = 1; while (n-- > 0) r *= a; return r; }
constexpr i64 max_copied_bytes = 65536;  // of a copy that one thread makes by itself
constexpr f64 max_bytes = 9.2e18;  // of a size, and of a call's memory
// Tasks that would take a year: there may be more iterations than an integer counts.
WEFT_HOST bool endless(const Task* tasks, i64 count);

// The text of the exception that an operator has left in this thread.
WEFT_HOST const char* torch_message();
WEFT_HOST void keep_message(Frame* frame);

// A tensor on `data`, made again only when the memory or the sizes changed since the frame's last call.
WEFT_HOST bool set_view(View& view, void* data, int ndim, const i64* sizes, const i64* strides, i32 dtype);

// ---- tensors -------------------------------------------------------------------------------------------------

static WEFT_INLINE Handle handle_of(Object tensor) { return (char*)tensor + api.tensor_offset; }
WEFT_HOST void* data_of(Handle handle);
// Makes a tensor in `slot` and lets `pointer`, a pointer to any type, be its memory; false for an error.  Not
// inlined: compilers take long over a function that has it hundreds of times.
__attribute__((noinline)) WEFT_HOST bool allocate(Handle& slot, void* pointer, i64 ndim, const i64* sizes,
                                                  const i64* strides, i32 dtype);
// Lets `count` pointers of a call, one after the other from byte `first` on, be the memory of `tensors`.
WEFT_HOST void point_all(void* call, i64 first, Object const* tensors, i64 count);
static inline bool is_tensor(Object object) {
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
WEFT_HOST bool put(Object tuple, i64 position, Object item);
// The Python object of a tensor that nothing else needs.
WEFT_HOST Object object_from(Handle handle);
WEFT_HOST bool owned_from(Handle& slot, Object object, int ndim);
static inline Object same(Object object) {
  api.Py_IncRef(object);
  return object;
}
WEFT_HOST Object shared_view(Handle handle, int ndim, const i64* sizes, const i64* strides, i64 offset);
// Makes `fresh`, a copy of what lies at `data`; `view` is where a tensor on that is kept if one is needed.
WEFT_HOST bool copied(Handle& fresh, View& view, const void* data, int ndim, const i64* sizes,
                      const i64* strides, const i64* fresh_strides, i32 dtype, i64 item);
// Gives `handle` the strides that the program was compiled for, if the operator chose others.
WEFT_HOST bool settle_layout(Handle& handle, int ndim, const i64* sizes, const i64* strides, i32 dtype);

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
WEFT_HOST Object no_memory(i64 bytes);
// Raises what a call's `status` says, which of a result that could not be made is `ok`.
WEFT_HOST void raise_error(Status status, const KernelError& error, const char* failed, const Frame* frame);

}  // namespace weft

#ifndef WEFT_LINKED_HOST
#include "weft_host_functions.h"
#endif
