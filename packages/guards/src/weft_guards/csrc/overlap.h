/* Whether the tensors that a graph writes to share storage with each other or with others. */
#ifndef WEFT_GUARDS_OVERLAP_H
#define WEFT_GUARDS_OVERLAP_H

#include <Python.h>
#include <stdint.h>

/* Registers of tensors that guards have found to be plain ones: those written, then the others. */
typedef struct {
    Py_ssize_t written, count;
    Py_ssize_t registers[];
} OverlapExpectation;

/* NULL with an exception for what is no (number of written ones, tuple of registers). */
OverlapExpectation *overlap_parse(PyObject *description, Py_ssize_t registers);

/* 1 or 0; no exception, no Python code. */
int storages_are_apart(const OverlapExpectation *expected, PyObject *const *registers);

/* Registers of tensors that guards have found to be plain ones, and their places in one storage. */
typedef struct {
    Py_ssize_t count;
    struct {
        Py_ssize_t source;
        int64_t offset; /* in elements from the storage's start */
    } tensors[];
} SharedExpectation;

/* NULL with an exception for what is no (tuple of registers, tuple of offsets) of one length. */
SharedExpectation *shared_parse(PyObject *description, Py_ssize_t registers);

/* 1 or 0; no exception, no Python code. */
int storage_is_shared(const SharedExpectation *expected, PyObject *const *registers);

#endif
