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

static PyMethodDef functions[] = {
    {"disabled", disabled, METH_O,
     PyDoc_STR("disabled(callable): the callable, run with no context.")},
    {"current_context", current_context, METH_NOARGS,
     PyDoc_STR("current_context(): the context of the compiled call that this thread is in.")},
    {"installed_depth", depth, METH_NOARGS,
     PyDoc_STR("installed_depth(): how many compiled calls run now, of all threads.")},
    {NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "weft_bytecode_capture._frame_hook",
    .m_doc = PyDoc_STR("A PEP 523 frame evaluator that runs transformed code in the frame."),
    .m_size = -1,
    .m_methods = functions,
};

PyMODINIT_FUNC PyInit__frame_hook(void) {
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
        PyModule_AddIntConstant(module, "PASS", STATUS_PASS) < 0) {
        Py_DECREF(module);
        return NULL;
    }
    return module;
}
