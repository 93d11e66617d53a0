/* torch beside compiled code: its own compiler stays out of compiled calls, its profiler sees them. */
#include "frame_hook.h"

/* What `_torch/beside.py` has: torch's set_eval_frame, the dictionary of torch.autograd.profiler, what begins an
 * event of it for a code object, and what ends that. */
static PyObject *set_compiler_callback, *profiler, *begin_event, *end_event;
static PyObject *is_on; /* the name of a flag in the dictionary */

/* 0: the module is not loaded yet, nothing is known. */
static int connected(void) {
    static const struct {
        const char *name;
        PyObject **object;
    } wanted[] = {
        {"set_eval_frame", &set_compiler_callback},
        {"PROFILER", &profiler},
        {"begin_event", &begin_event},
        {"end_event", &end_event},
    };
    if (is_on != NULL) {
        return 1;
    }
    PyObject *modules = PyImport_GetModuleDict();
    PyObject *module = PyDict_GetItemString(modules, "weft_bytecode_capture._torch.beside");
    for (size_t k = 0; module != NULL && k < sizeof(wanted) / sizeof(wanted[0]); k++) {
        Py_XSETREF(*wanted[k].object, PyObject_GetAttrString(module, wanted[k].name));
        if (*wanted[k].object == NULL) {
            PyErr_Clear(); /* it is being imported */
            return 0;
        }
    }
    is_on = module == NULL ? NULL : PyUnicode_InternFromString("_is_profiler_enabled");
    return is_on != NULL;
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
    if (!weft_is_inside_other_hook() || !connected()) {
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
    if (!connected() || PyDict_GetItem(profiler, is_on) != Py_True) {
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
