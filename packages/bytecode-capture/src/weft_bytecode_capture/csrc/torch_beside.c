/* torch beside compiled code: its own compiler stays out of compiled calls, its profiler sees them. */
#include "frame_hook.h"

static PyObject *set_compiler_callback; /* torch's set_eval_frame */
static PyObject *profiler, *is_on;      /* a module's dictionary, and the name of a flag in it */
static PyObject *begin_event, *end_event;

void weft_connect(PyObject *const functions[4]) {
    if (is_on == NULL) {
        is_on = PyUnicode_InternFromString("_is_profiler_enabled");
    }
    Py_XSETREF(set_compiler_callback, Py_NewRef(functions[0]));
    Py_XSETREF(profiler, Py_NewRef(functions[1]));
    Py_XSETREF(begin_event, Py_NewRef(functions[2]));
    Py_XSETREF(end_event, Py_NewRef(functions[3]));
}

/* Calls `function` whether or not an exception is set, which stays; its own is printed. */
static PyObject *call_aside(PyObject *function, PyObject *argument) {
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    PyObject *result = PyObject_CallOneArg(function, argument);
    if (result == NULL) {
        PyErr_WriteUnraisable(function);
    }
    PyErr_Restore(type, value, traceback);
    return result;
}

PyObject *weft_leave_torch_compile(void) {
    if (set_compiler_callback == NULL || !weft_is_inside_other_hook()) {
        return NULL;
    }
    return call_aside(set_compiler_callback, Py_None);
}

void weft_enter_torch_compile(PyObject *callback) {
    if (callback != NULL) {
        Py_XDECREF(call_aside(set_compiler_callback, callback));
        Py_DECREF(callback);
    }
}

PyObject *weft_begin_event(ThreadSlot *slot, PyCodeObject *code) {
    if (profiler == NULL || is_on == NULL || PyDict_GetItem(profiler, is_on) != Py_True) {
        return NULL;
    }
    Context *context = slot->context; /* naming an event is none of its business */
    slot->context = NULL;
    PyObject *event = call_aside(begin_event, (PyObject *)code);
    slot->context = context;
    return event;
}

void weft_end_event(PyObject *event) {
    if (event != NULL) {
        Py_XDECREF(call_aside(end_event, event));
        Py_DECREF(event);
    }
}
