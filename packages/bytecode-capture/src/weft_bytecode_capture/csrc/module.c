/* The module weft_bytecode_capture._frame_hook. */
#include "frame_hook.h"

static PyObject *disabled(PyObject *Py_UNUSED(module), PyObject *callable) {
    return weft_new_wrapper(NULL, callable);
}

static PyObject *current_context(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(ignored)) {
    Context *context = weft_thread_slot()->context;
    return Py_NewRef(context == NULL ? Py_None : (PyObject *)context);
}

static PyObject *depth(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(ignored)) {
    return PyLong_FromLong(weft_installed_depth());
}

static PyObject *after_fork(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(ignored)) {
    weft_after_fork();
    Py_RETURN_NONE;
}

static PyObject *bound(PyObject *Py_UNUSED(module), PyObject *const *arguments, Py_ssize_t count) {
    if (count == 2) {
        return PyMethod_New(arguments[1], arguments[0]);
    }
    if (count != 1) {
        PyErr_SetString(PyExc_TypeError, "bound() takes a function, or a receiver and a function");
        return NULL;
    }
    return Py_NewRef(arguments[0]);
}

static PyObject *stance(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(ignored)) {
    return PyLong_FromLong(weft_stance());
}

static PyObject *set_stance(PyObject *Py_UNUSED(module), PyObject *number) {
    long wanted = PyLong_AsLong(number);
    if (wanted == -1 && PyErr_Occurred()) {
        return NULL;
    }
    if (wanted < STANCE_DEFAULT || wanted > STANCE_EAGER_THEN_COMPILE) {
        PyErr_Format(PyExc_ValueError, "no stance has the number %ld", wanted);
        return NULL;
    }
    ThreadSlot *slot = weft_thread_slot();
    long before = slot->stance;
    slot->stance = (int)wanted;
    return PyLong_FromLong(before);
}

/* One of gc.callbacks: "start" or "stop", and what is collected. */
static PyObject *collection(PyObject *Py_UNUSED(module), PyObject *const *arguments,
                            Py_ssize_t count) {
    if (count != 2 || !PyUnicode_Check(arguments[0])) {
        PyErr_SetString(PyExc_TypeError, "collection() takes a phase and a dict");
        return NULL;
    }
    weft_thread_slot()->collects = PyUnicode_CompareWithASCIIString(arguments[0], "start") == 0;
    Py_RETURN_NONE;
}

/* Have the collector tell when it runs.  -1: an exception is set. */
static int hear_collector(PyObject *module) {
    PyObject *collector = PyImport_ImportModule("gc");
    PyObject *callbacks =
        collector == NULL ? NULL : PyObject_GetAttrString(collector, "callbacks");
    PyObject *function = callbacks == NULL ? NULL : PyObject_GetAttrString(module, "collection");
    int result = function == NULL ? -1 : PyList_Append(callbacks, function);
    Py_XDECREF(function);
    Py_XDECREF(callbacks);
    Py_XDECREF(collector);
    return result;
}

static PyMethodDef functions[] = {
    {"collection", (PyCFunction)(void (*)(void))collection, METH_FASTCALL,
     PyDoc_STR("collection(phase, information): a callback of the collector, which is given it.")},
    {"disabled", disabled, METH_O,
     PyDoc_STR("disabled(callable): the callable, run with no context.")},
    {"current_context", current_context, METH_NOARGS,
     PyDoc_STR("current_context(): the context of the compiled call that this thread is in.")},
    {"installed_depth", depth, METH_NOARGS,
     PyDoc_STR("installed_depth(): how many compiled calls run now, of all threads.")},
    {"after_fork", after_fork, METH_NOARGS,
     PyDoc_STR("after_fork(): forget the compiled calls of other threads, in a forked process.")},
    {"bound", (PyCFunction)(void (*)(void))bound, METH_FASTCALL,
     PyDoc_STR("bound([receiver,] function): the function, bound to its receiver if it has one.\n\n"
               "Called with what the interpreter leaves of a method on the stack.")},
    {"stance", stance, METH_NOARGS, PyDoc_STR("stance(): this thread's stance, else torch's, a number.")},
    {"set_stance", set_stance, METH_O,
     PyDoc_STR("set_stance(number): set this thread's stance; gives the one before.")},
    {NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "weft_bytecode_capture._frame_hook",
    .m_doc = PyDoc_STR("A PEP 523 frame evaluator that runs transformed code in the frame."),
    .m_size = -1,
    .m_methods = functions,
};

/* A free-threaded build takes the lock when it loads a module that does not say it can do without, as this
 * one, and keeps it: what is here counts on it.  0: it was told not to, and an exception is set. */
static int has_lock(void) {
#ifdef Py_GIL_DISABLED
    PyObject *is_enabled = PySys_GetObject("_is_gil_enabled"); /* borrowed */
    PyObject *enabled = is_enabled == NULL ? NULL : PyObject_CallNoArgs(is_enabled);
    int found = enabled == Py_True;
    Py_XDECREF(enabled);
    if (!found) {
        PyErr_SetString(PyExc_ImportError,
                        "weft_bytecode_capture needs the global interpreter lock, which a free-threaded "
                        "CPython takes by itself, but for PYTHON_GIL=0 and -X gil=0");
    }
    return found;
#else
    return 1;
#endif
}

PyMODINIT_FUNC PyInit__frame_hook(void) {
    if (!has_lock()) {
        return NULL;
    }
    PyObject *module = PyModule_Create(&definition);
    if (module == NULL) {
        return NULL;
    }
    if (PyModule_AddType(module, &Context_Type) < 0 || PyModule_AddType(module, &Entry_Type) < 0 ||
        PyModule_AddType(module, &Resumption_Type) < 0 ||
        PyModule_AddType(module, &Wrapper_Type) < 0 ||
        PyModule_AddIntConstant(module, "UNSEEN", STATUS_UNSEEN) < 0 ||
        PyModule_AddIntConstant(module, "ENTRIES", STATUS_ENTRIES) < 0 ||
        PyModule_AddIntConstant(module, "FROZEN", STATUS_FROZEN) < 0 ||
        PyModule_AddIntConstant(module, "SKIP", STATUS_SKIP) < 0 ||
        PyModule_AddIntConstant(module, "DISABLE", STATUS_DISABLE) < 0 ||
        PyModule_AddIntConstant(module, "RETRY", STATUS_RETRY) < 0 ||
        PyModule_AddIntConstant(module, "PASS", STATUS_PASS) < 0 ||
        PyModule_AddIntConstant(module, "STANCE_DEFAULT", STANCE_DEFAULT) < 0 ||
        PyModule_AddIntConstant(module, "STANCE_EAGER", STANCE_EAGER) < 0 ||
        PyModule_AddIntConstant(module, "STANCE_EAGER_ON_RECOMPILE", STANCE_EAGER_ON_RECOMPILE) <
            0 ||
        PyModule_AddIntConstant(module, "STANCE_FAIL_ON_RECOMPILE", STANCE_FAIL_ON_RECOMPILE) <
            0 ||
        PyModule_AddIntConstant(module, "STANCE_EAGER_THEN_COMPILE", STANCE_EAGER_THEN_COMPILE) <
            0 ||
        hear_collector(module) < 0) {
        Py_DECREF(module);
        return NULL;
    }
    return module;
}
