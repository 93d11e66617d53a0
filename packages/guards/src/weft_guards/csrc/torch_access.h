/* Reads tensors and torch's interpreter-wide state without torch's headers and without Python.
 *
 * The functions are found in the loaded libtorch by name, and two offsets (of the tensor in its
 * Python object, of the dispatch keys in the TensorImpl) are found by looking for known values.
 * Nothing here is used before `_torch.py` has compared what it reads with torch's own answers.
 */
#ifndef WEFT_GUARDS_TORCH_ACCESS_H
#define WEFT_GUARDS_TORCH_ACCESS_H

#include <Python.h>
#include <stdint.h>

/* What a plain Tensor or Parameter must be.  Made from the tuple
 * (type, dtype, device type, device index, layout, dispatch key mask, dispatch keys,
 *  requires_grad, sizes, strides or None), numbers as torch's C interface gives them,
 * -1 for a size or stride that may vary. */
typedef struct {
    PyTypeObject *type; /* owned by the step's object */
    int32_t dtype, device_type, device_index, layout;
    uint64_t key_mask, keys;
    int requires_grad;
    int64_t dimensions;
    int check_strides;
    int64_t extents[]; /* the sizes, then the strides */
} TensorExpectation;

#define GLOBAL_STATE_FIELDS 10
#define MAX_AUTOCAST_DEVICES 4

/* Made from ((the ten numbers of read_global_state), ((device type, enabled, dtype), ...)). */
typedef struct {
    int64_t fields[GLOBAL_STATE_FIELDS];
    int autocast_devices;
    int64_t autocast[MAX_AUTOCAST_DEVICES][3];
} GlobalStateExpectation;

TensorExpectation *tensor_expectation_parse(PyObject *description);
GlobalStateExpectation *global_state_expectation_parse(PyObject *description);

/* 1 or 0; no exception, no Python code. */
int tensor_matches(const TensorExpectation *expected, PyObject *value);
int global_state_matches(const GlobalStateExpectation *expected);

/* The size, or the stride if `is_stride`, of a plain strided tensor in a dimension: 1, or 0 when it
 * has no such dimension.  Call it only for an object that `tensor_matches` has accepted. */
int tensor_extent(PyObject *tensor, int is_stride, int64_t dimension, int64_t *extent);

/* Where the storage of a plain strided tensor begins, 0 for one without elements: 1, or 0 when torch
 * does not say.  Call it only for an object that `tensor_matches` has accepted. */
int tensor_storage_address(PyObject *tensor, uintptr_t *address);

/* Where it begins in its storage, in elements; otherwise as above. */
int tensor_storage_offset(PyObject *tensor, int64_t *offset);

extern PyMethodDef torch_access_methods[];

#endif
