#include "overlap.h"

#include "torch_access.h"

OverlapExpectation *overlap_parse(PyObject *description, Py_ssize_t registers)
{
    Py_ssize_t written;
    PyObject *found;
    if (!PyArg_ParseTuple(description, "nO!:overlap", &written, &PyTuple_Type, &found)) {
        return NULL;
    }
    Py_ssize_t count = PyTuple_GET_SIZE(found);
    OverlapExpectation *expected =
        PyMem_Malloc(sizeof(OverlapExpectation) + count * sizeof(Py_ssize_t));
    if (expected == NULL) {
        PyErr_NoMemory();
        return NULL;
    }
    expected->written = written;
    expected->count = count;
    for (Py_ssize_t i = 0; i < count; i++) {
        expected->registers[i] = PyLong_AsSsize_t(PyTuple_GET_ITEM(found, i));
        if (expected->registers[i] < 0 || expected->registers[i] >= registers) {
            if (!PyErr_Occurred()) {
                PyErr_SetString(PyExc_ValueError, "no such register holds a tensor");
            }
            PyMem_Free(expected);
            return NULL;
        }
    }
    if (written < 0 || written > count) {
        PyErr_SetString(PyExc_ValueError, "more tensors are written than there are");
        PyMem_Free(expected);
        return NULL;
    }
    return expected;
}

#define SLOTS_ON_STACK 64

/* A set of addresses: open addressing, a power of two of slots, at most half of them taken. */
typedef struct {
    uintptr_t *slots;
    size_t mask;
} AddressSet;

static uintptr_t *slot_of(const AddressSet *set, uintptr_t address)
{
    size_t position = (size_t)((address >> 6) * 0x9E3779B97F4A7C15ull >> 20) & set->mask;
    while (set->slots[position] != 0 && set->slots[position] != address) {
        position = (position + 1) & set->mask;
    }
    return &set->slots[position];
}

static int disjoint(const OverlapExpectation *expected, PyObject *const *registers,
                    const AddressSet *set)
{
    for (Py_ssize_t i = 0; i < expected->count; i++) {
        uintptr_t address;
        if (!tensor_storage_address(registers[expected->registers[i]], &address)) {
            return 0;
        }
        if (address == 0) {
            continue;
        }
        uintptr_t *slot = slot_of(set, address);
        if (*slot != 0) {
            return 0;
        }
        if (i < expected->written) {
            *slot = address;
        }
    }
    return 1;
}

int storages_are_apart(const OverlapExpectation *expected, PyObject *const *registers)
{
    uintptr_t on_stack[SLOTS_ON_STACK] = {0};
    size_t slots = SLOTS_ON_STACK;
    while (slots < 2 * (size_t)expected->written) {
        slots *= 2;
    }
    AddressSet set = {on_stack, slots - 1};
    if (slots > SLOTS_ON_STACK) {
        set.slots = PyMem_Calloc(slots, sizeof(uintptr_t));
        if (set.slots == NULL) {
            return 0;
        }
    }
    int apart = disjoint(expected, registers, &set);
    if (set.slots != on_stack) {
        PyMem_Free(set.slots);
    }
    return apart;
}

SharedExpectation *shared_parse(PyObject *description, Py_ssize_t registers)
{
    PyObject *sources, *offsets;
    if (!PyArg_ParseTuple(description, "O!O!:shared storage", &PyTuple_Type, &sources,
                          &PyTuple_Type, &offsets)) {
        return NULL;
    }
    Py_ssize_t count = PyTuple_GET_SIZE(sources);
    if (count != PyTuple_GET_SIZE(offsets) || count == 0) {
        PyErr_SetString(PyExc_ValueError, "each tensor in a shared storage has one offset");
        return NULL;
    }
    SharedExpectation *expected =
        PyMem_Malloc(sizeof(SharedExpectation) + count * sizeof(expected->tensors[0]));
    if (expected == NULL) {
        PyErr_NoMemory();
        return NULL;
    }
    expected->count = count;
    for (Py_ssize_t i = 0; i < count; i++) {
        Py_ssize_t source = PyLong_AsSsize_t(PyTuple_GET_ITEM(sources, i));
        expected->tensors[i].source = source;
        expected->tensors[i].offset = PyLong_AsLongLong(PyTuple_GET_ITEM(offsets, i));
        if (PyErr_Occurred() || source < 0 || source >= registers) {
            if (!PyErr_Occurred()) {
                PyErr_SetString(PyExc_ValueError, "no such register holds a tensor");
            }
            PyMem_Free(expected);
            return NULL;
        }
    }
    return expected;
}

int storage_is_shared(const SharedExpectation *expected, PyObject *const *registers)
{
    uintptr_t storage = 0;
    for (Py_ssize_t i = 0; i < expected->count; i++) {
        PyObject *tensor = registers[expected->tensors[i].source];
        uintptr_t address;
        int64_t offset;
        if (!tensor_storage_address(tensor, &address) || address == 0
            || !tensor_storage_offset(tensor, &offset)) {
            return 0;
        }
        storage = i == 0 ? address : storage;
        if (address != storage || offset != expected->tensors[i].offset) {
            return 0;
        }
    }
    return 1;
}
