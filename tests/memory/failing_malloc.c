/* Lets the n-th allocation fail that code in chosen libraries asks for: where such a library has the address of a
 * function that allocates, it gets that of one here.  CPython and torch may end the process where their own
 * allocations fail, so these succeed. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <elf.h>
#include <errno.h>
#include <link.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#if defined(__x86_64__)
#define ADDRESS_OF_SYMBOL R_X86_64_GLOB_DAT
#elif defined(__aarch64__)
#define ADDRESS_OF_SYMBOL R_AARCH64_GLOB_DAT
#endif

static char libraries[4][256]; /* parts of their paths */
static int library_count;
static long seen, wanted;
static int armed;

static int fails(void) {
    return __atomic_load_n(&armed, __ATOMIC_SEQ_CST) && __atomic_add_fetch(&seen, 1, __ATOMIC_SEQ_CST) == wanted;
}
static void *none(void) {
    errno = ENOMEM;
    return NULL;
}
static void *no_object(void) {
    ((void *(*)(void))dlsym(RTLD_DEFAULT, "PyErr_NoMemory"))();
    return NULL;
}

#define FUNCTION(failure, name, parameters, arguments, ...) \
    void *failing_##name parameters { \
        static void *(*real)(__VA_ARGS__); \
        if (real == NULL) real = (void *(*)(__VA_ARGS__))dlsym(RTLD_DEFAULT, #name); \
        return fails() ? failure() : real arguments; \
    }
#define MEMORY(...) FUNCTION(none, __VA_ARGS__)
#define OBJECT(...) FUNCTION(no_object, __VA_ARGS__)
MEMORY(malloc, (size_t size), (size), size_t)
MEMORY(calloc, (size_t count, size_t size), (count, size), size_t, size_t)
MEMORY(realloc, (void *old, size_t size), (old, size), void *, size_t)
MEMORY(aligned_alloc, (size_t alignment, size_t size), (alignment, size), size_t, size_t)
int failing_posix_memalign(void **result, size_t alignment, size_t size) {
    return fails() ? ENOMEM : posix_memalign(result, alignment, size);
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

static const struct {
    const char *name;
    void *failing;
} functions[] = {
#define ENTRY(name) {#name, (void *)failing_##name},
    ENTRY(malloc) ENTRY(calloc) ENTRY(realloc) ENTRY(aligned_alloc) ENTRY(posix_memalign) ENTRY(PyMem_Malloc)
    ENTRY(PyMem_Calloc) ENTRY(PyMem_Realloc) ENTRY(PyTuple_New) ENTRY(PyList_New) ENTRY(PyDict_New)
    ENTRY(PyLong_FromLong) ENTRY(PyLong_FromLongLong) ENTRY(PyLong_FromSsize_t) ENTRY(PyFloat_FromDouble)
    ENTRY(PyUnicode_FromString) ENTRY(PyMethod_New) ENTRY(PyType_GenericAlloc)
};

static void replace(uintptr_t base, const Elf64_Rela *relocation, const char *name) {
    for (size_t k = 0; k < sizeof(functions) / sizeof(functions[0]); k++) {
        if (strcmp(name, functions[k].name) == 0) {
            void **slot = (void **)(base + relocation->r_offset);
            uintptr_t size = (uintptr_t)sysconf(_SC_PAGESIZE), page = (uintptr_t)slot & -size;
            mprotect((void *)page, size, PROT_READ | PROT_WRITE); /* the loader may have closed it */
            *slot = functions[k].failing;
        }
    }
}
static int replace_in(struct dl_phdr_info *library, size_t size, void *data) {
    int chosen = 0;
    for (int k = 0; k < library_count; k++) {
        chosen |= strstr(library->dlpi_name, libraries[k]) != NULL;
    }
    const Elf64_Dyn *entry = NULL;
    for (int k = 0; chosen && k < library->dlpi_phnum; k++) {
        if (library->dlpi_phdr[k].p_type == PT_DYNAMIC) {
            entry = (const Elf64_Dyn *)(library->dlpi_addr + library->dlpi_phdr[k].p_vaddr);
        }
    }
    uintptr_t base = library->dlpi_addr, found[DT_JMPREL + 1] = {0};
    for (; entry != NULL && entry->d_tag != DT_NULL; entry++) {
        if (entry->d_tag <= DT_JMPREL) {
            found[entry->d_tag] = entry->d_un.d_val;
        }
    }
    const Elf64_Sym *symbols = (const Elf64_Sym *)found[DT_SYMTAB];
    const char *names = (const char *)found[DT_STRTAB];
    const Elf64_Rela *calls = (const Elf64_Rela *)found[DT_JMPREL], *others = (const Elf64_Rela *)found[DT_RELA];
    for (size_t k = 0; k < found[DT_PLTRELSZ] / sizeof(*calls); k++) {
        replace(base, &calls[k], names + symbols[ELF64_R_SYM(calls[k].r_info)].st_name);
    }
    for (size_t k = 0; k < found[DT_RELASZ] / sizeof(*others); k++) {
        if (ELF64_R_TYPE(others[k].r_info) == ADDRESS_OF_SYMBOL) {
            replace(base, &others[k], names + symbols[ELF64_R_SYM(others[k].r_info)].st_name);
        }
    }
    return 0;
}

void failing_in(const char *part) {
    strncpy(libraries[library_count++], part, sizeof(libraries[0]) - 1);
}
void fail_at(long number) {
    dl_iterate_phdr(replace_in, NULL); /* libraries may have been loaded since the last time */
    seen = 0;
    wanted = number;
    __atomic_store_n(&armed, 1, __ATOMIC_SEQ_CST);
}
/* Ends it; how many allocations there were. */
long fail_no_more(void) {
    __atomic_store_n(&armed, 0, __ATOMIC_SEQ_CST);
    return seen;
}

/* torch's, which generated code has by their addresses: `real_NAME` is the function, `failing_NAME` comes in its
 * place. */
#define TORCH(name, parameters, arguments, ...) \
    int (*real_##name)(__VA_ARGS__); \
    int failing_##name parameters { return fails() ? 1 : real_##name arguments; }
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
void *failing_wrap(void *tensor) { return fails() ? no_object() : real_wrap(tensor); }
