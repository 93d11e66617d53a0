/* Whether the tensors that a graph writes to share storage with each other or with others. */
#ifndef WEFT_GUARDS_OVERLAP_H
#define WEFT_GUARDS_OVERLAP_H

#include <Python.h>

/* Registers of tensors that guards have found to be plain ones: those written, then the others. */
typedef struct {
    Py_ssize_t written, count;
    Py_ssize_t registers[];
} OverlapExpectation;

/* NULL with an exception for what is no (number of written ones, tuple of registers). */
OverlapExpectation *overlap_parse(PyObject *description, Py_ssize_t registers);

/* 1 or 0; no exception, no Python code. */
int storages_are_apart(const OverlapExpectation *expected, PyObject *const *registers);

#endif
