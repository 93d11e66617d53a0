/* Whether reading an attribute can run code of the user's. */
#ifndef WEFT_GUARDS_PYTHON_FREE_H
#define WEFT_GUARDS_PYTHON_FREE_H

#include <Python.h>

/* 0 where it may: a property, a __getattr__, a descriptor of an unknown kind.  No exception. */
int attribute_is_python_free(PyObject *value, PyObject *name);

/* 1 where `value` is a class that surely lacks the attribute, found without making an exception; else 0. */
int class_lacks(PyObject *value, PyObject *name);

#endif
