#include "python_free.h"

/* Functions of C that stand in for an attribute of functions and classes (`__code__`, `__mro__`). */
static int is_plain_getset(PyObject *descriptor)
{
    PyTypeObject *owner = PyDescr_TYPE(descriptor);
    return owner == &PyFunction_Type || owner == &PyType_Type;
}

/* What is found in a class: NULL, a value as it is, or a descriptor that gives the function or the
 * member of a C structure. */
static int is_python_free(PyObject *found)
{
    if (found == NULL) {
        return 1;
    }
    PyTypeObject *type = Py_TYPE(found);
    if (type->tp_descr_get == NULL && type->tp_descr_set == NULL) {
        return 1;
    }
    return type == &PyFunction_Type || type == &PyStaticMethod_Type || type == &PyMethodDescr_Type
        || type == &PyWrapperDescr_Type || type == &PyMemberDescr_Type
        || (type == &PyGetSetDescr_Type && is_plain_getset(found));
}

/* A module without the attribute would ask its own __getattr__. */
static int module_has(PyObject *module, PyObject *name)
{
    PyObject *dictionary = PyModule_GetDict(module);
    int found = dictionary == NULL ? -1 : PyDict_Contains(dictionary, name);
    if (found < 0) {
        PyErr_Clear();
    }
    return found == 1;
}

int attribute_is_python_free(PyObject *value, PyObject *name)
{
    PyTypeObject *type = Py_TYPE(value);
    if (!is_python_free(_PyType_Lookup(type, name))) {
        return 0;
    }
    if (type->tp_getattro == PyModule_Type.tp_getattro) {
        return module_has(value, name);
    }
    if (type->tp_getattro == PyType_Type.tp_getattro) {
        return is_python_free(_PyType_Lookup((PyTypeObject *)value, name));
    }
    return type->tp_getattro == PyObject_GenericGetAttr;
}

int class_lacks(PyObject *value, PyObject *name)
{
    PyTypeObject *metaclass = Py_TYPE(value);
    return PyType_Check(value) && metaclass->tp_getattro == PyType_Type.tp_getattro
        && _PyType_Lookup(metaclass, name) == NULL
        && _PyType_Lookup((PyTypeObject *)value, name) == NULL;
}
