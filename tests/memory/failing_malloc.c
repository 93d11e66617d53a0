/* Preloaded: lets the n-th allocation fail that code in chosen libraries asks for, by the address that it returns
 * to.  CPython and torch may end the process where their own allocations fail, so these succeed. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

static char libraries[4][256]; /* parts of their paths */
static int library_count;
static long seen, wanted;
static int armed;

void failing_in(const char *part) {
    strncpy(libraries[library_count++], part, sizeof(libraries[0]) - 1);
}
void fail_at(long number) {
    seen = 0;
    wanted = number;
    __atomic_store_n(&armed, 1, __ATOMIC_SEQ_CST);
}
/* Ends it; how many allocations there were. */
long fail_no_more(void) {
    __atomic_store_n(&armed, 0, __ATOMIC_SEQ_CST);
    return seen;
}

static int counted(void) {
    return __atomic_add_fetch(&seen, 1, __ATOMIC_SEQ_CST) == wanted;
}
static int fails(void *caller) {
    Dl_info found;
    if (!__atomic_load_n(&armed, __ATOMIC_SEQ_CST) || !dladdr(caller, &found) || found.dli_fname == NULL) {
        return 0;
    }
    for (int k = 0; k < library_count; k++) {
        if (strstr(found.dli_fname, libraries[k]) != NULL) {
            return counted();
        }
    }
    return 0;
}
#define FAILS fails(__builtin_return_address(0))

extern void *__libc_malloc(size_t), *__libc_calloc(size_t, size_t), *__libc_realloc(void *, size_t),
    *__libc_memalign(size_t, size_t);
static void *none(void) {
    errno = ENOMEM;
    return NULL;
}
void *malloc(size_t size) { return FAILS ? none() : __libc_malloc(size); }
void *calloc(size_t count, size_t size) { return FAILS ? none() : __libc_calloc(count, size); }
void *realloc(void *old, size_t size) { return FAILS ? none() : __libc_realloc(old, size); }
void *aligned_alloc(size_t alignment, size_t size) { return FAILS ? none() : __libc_memalign(alignment, size); }
int posix_memalign(void **result, size_t alignment, size_t size) {
    void *memory = FAILS ? NULL : __libc_memalign(alignment, size);
    if (memory == NULL) {
        return ENOMEM;
    }
    *result = memory;
    return 0;
}

/* CPython's, where it is a shared library. */
static void *next(const char *name) { return dlsym(RTLD_NEXT, name); }
static void *no_object(void) {
    ((void *(*)(void))dlsym(RTLD_DEFAULT, "PyErr_NoMemory"))();
    return NULL;
}
#define MEMORY(name, parameters, arguments, ...) \
    void *name parameters { \
        static void *(*real)(__VA_ARGS__); \
        if (real == NULL) real = (void *(*)(__VA_ARGS__))next(#name); \
        return FAILS ? NULL : real arguments; \
    }
#define OBJECT(name, parameters, arguments, ...) \
    void *name parameters { \
        static void *(*real)(__VA_ARGS__); \
        if (real == NULL) real = (void *(*)(__VA_ARGS__))next(#name); \
        return FAILS ? no_object() : real arguments; \
    }
MEMORY(PyMem_Malloc, (size_t size), (size), size_t)
MEMORY(PyMem_Calloc, (size_t count, size_t size), (count, size), size_t, size_t)
MEMORY(PyMem_Realloc, (void *old, size_t size), (old, size), void *, size_t)
OBJECT(PyTuple_New, (long size), (size), long)
OBJECT(PyList_New, (long size), (size), long)
OBJECT(PyDict_New, (void), (), void)
OBJECT(PyLong_FromLong, (long value), (value), long)
OBJECT(PyLong_FromLongLong, (long long value), (value), long long)
OBJECT(PyLong_FromSsize_t, (long value), (value), long)
OBJECT(PyFloat_FromDouble, (double value), (value), double)
OBJECT(PyUnicode_FromString, (const char *value), (value), const char *)
OBJECT(PyMethod_New, (void *function, void *self), (function, self), void *, void *)
OBJECT(PyType_GenericAlloc, (void *type, long items), (type, items), void *, long)

/* torch's, which generated code has by their addresses: `real_NAME` is the function, `failing_NAME` comes in its
 * place. */
#define TORCH(name, parameters, arguments, ...) \
    int (*real_##name)(__VA_ARGS__); \
    int failing_##name parameters { return armed && counted() ? 1 : real_##name arguments; }
TORCH(aoti_torch_empty_strided,
      (int64_t rank, const int64_t *sizes, const int64_t *strides, int dtype, int device, int index, void **made),
      (rank, sizes, strides, dtype, device, index, made),
      int64_t, const int64_t *, const int64_t *, int, int, int, void **)
TORCH(aoti_torch_create_tensor_from_blob,
      (void *data, int64_t rank, const int64_t *sizes, const int64_t *strides, int64_t offset, int dtype,
       int device, int index, void **made),
      (data, rank, sizes, strides, offset, dtype, device, index, made),
      void *, int64_t, const int64_t *, const int64_t *, int64_t, int, int, int, void **)
TORCH(aoti_torch__reinterpret_tensor,
      (void *tensor, int64_t rank, const int64_t *sizes, const int64_t *strides, int64_t offset, void **made),
      (tensor, rank, sizes, strides, offset, made),
      void *, int64_t, const int64_t *, const int64_t *, int64_t, void **)
void *(*real_wrap)(void *);
void *failing_wrap(void *tensor) { return armed && counted() ? no_object() : real_wrap(tensor); }
