/* Callables that set a thread's context for the extent of their calls. */
#include "frame_hook.h"

#include <structmember.h>

typedef struct {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    PyObject *callable;
    Context *context; /* NULL: calls run with no context */
    PyObject *dictionary;
    PyObject *weak_references;
} Wrapper;

static PyObject *call_in_context(Wrapper *self, PyObject *const *args, size_t count,
                                 PyObject *keyword_names) {
    ThreadSlot *slot = weft_thread_slot();
    Context *outer = slot->context;
    Context *context = (Context *)Py_NewRef(self->context);
    PyObject *callable = Py_NewRef(self->callable);
    Installation saved;
    PyObject *torch_callback = weft_leave_torch_compile();
    slot->context = context;
    weft_install(&saved);
    PyObject *result = PyObject_Vectorcall(callable, args, count, keyword_names);
    weft_remove(&saved);
    slot->context = outer;
    weft_enter_torch_compile(torch_callback);
    Py_DECREF(callable);
    Py_DECREF(context);
    return result;
}

static PyObject *call_without_context(Wrapper *self, PyObject *const *args, size_t count,
                                      PyObject *keyword_names) {
    ThreadSlot *slot = weft_thread_slot();
    Context *outer = slot->context;
    if (outer == NULL) {
        return PyObject_Vectorcall(self->callable, args, count, keyword_names);
    }
    PyObject *callable = Py_NewRef(self->callable);
    slot->context = NULL;
    int token = weft_suspend();
    PyObject *result = PyObject_Vectorcall(callable, args, count, keyword_names);
    weft_unsuspend(token);
    slot->context = outer;
    Py_DECREF(callable);
    return result;
}

static PyObject *wrapper_vectorcall(PyObject *self, PyObject *const *args, size_t count,
                                    PyObject *keyword_names) {
    Wrapper *wrapper = (Wrapper *)self;
    if (wrapper->context != NULL && weft_stance() != STANCE_EAGER) {
        return call_in_context(wrapper, args, count, keyword_names);
    }
    return call_without_context(wrapper, args, count, keyword_names);
}

PyObject *weft_new_wrapper(Context *context, PyObject *callable) {
    if (!PyCallable_Check(callable)) {
        PyErr_Format(PyExc_TypeError, "a callable is needed, not %s", Py_TYPE(callable)->tp_name);
        return NULL;
    }
    Wrapper *self = (Wrapper *)Wrapper_Type.tp_alloc(&Wrapper_Type, 0);
    if (self != NULL) {
        self->vectorcall = wrapper_vectorcall;
        self->callable = Py_NewRef(callable);
        self->context = (Context *)Py_XNewRef((PyObject *)context);
    }
    return (PyObject *)self;
}

static int wrapper_traverse(Wrapper *self, visitproc visit, void *arg) {
    Py_VISIT(self->callable);
    Py_VISIT(self->context);
    Py_VISIT(self->dictionary);
    return 0;
}

static int wrapper_clear(Wrapper *self) {
    /* callable and context stay valid for a call under way; the dictionary breaks cycles through
     * attributes, the context's own tp_clear those through compiled code. */
    Py_CLEAR(self->dictionary);
    return 0;
}

static void wrapper_dealloc(Wrapper *self) {
    PyObject_GC_UnTrack(self);
    if (self->weak_references != NULL) {
        PyObject_ClearWeakRefs((PyObject *)self);
    }
    Py_XDECREF(self->callable);
    Py_XDECREF(self->context);
    Py_XDECREF(self->dictionary);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

/* In a class body a wrapped function is a method, as the function itself is. */
static PyObject *wrapper_get(PyObject *self, PyObject *instance, PyObject *Py_UNUSED(owner)) {
    if (instance == NULL || instance == Py_None) {
        return Py_NewRef(self);
    }
    return PyMethod_New(self, instance);
}

static PyObject *wrapper_repr(Wrapper *self) {
    return PyUnicode_FromFormat("<%s %R>", self->context == NULL ? "uncompiled" : "compiled",
                                self->callable);
}

/* Copying and pickling, as of functions: a copy is the object itself, a pickle is its name. */
static PyObject *wrapper_copy(PyObject *self, PyObject *Py_UNUSED(memo)) {
    return Py_NewRef(self);
}

static PyObject *wrapper_reduce(PyObject *self, PyObject *Py_UNUSED(ignored)) {
    return PyObject_GetAttrString(self, "__qualname__");
}

static PyMethodDef wrapper_methods[] = {
    {"__copy__", wrapper_copy, METH_NOARGS, NULL},
    {"__deepcopy__", wrapper_copy, METH_O, NULL},
    {"__reduce__", wrapper_reduce, METH_NOARGS, NULL},
    {NULL},
};

static PyMemberDef wrapper_members[] = {
    {"callable", T_OBJECT, offsetof(Wrapper, callable), READONLY, NULL},
    {"context", T_OBJECT, offsetof(Wrapper, context), READONLY, NULL},
    {"__dictoffset__", T_PYSSIZET, offsetof(Wrapper, dictionary), READONLY, NULL},
    {NULL},
};

static PyGetSetDef wrapper_properties[] = {
    {"__dict__", PyObject_GenericGetDict, PyObject_GenericSetDict, NULL, NULL},
    {NULL},
};

PyTypeObject Wrapper_Type = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "weft_bytecode_capture._frame_hook.Wrapper",
    .tp_doc = PyDoc_STR("A callable whose calls set or clear the thread's context."),
    .tp_basicsize = sizeof(Wrapper),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL,
    .tp_vectorcall_offset = offsetof(Wrapper, vectorcall),
    .tp_call = PyVectorcall_Call,
    .tp_dealloc = (destructor)wrapper_dealloc,
    .tp_traverse = (traverseproc)wrapper_traverse,
    .tp_clear = (inquiry)wrapper_clear,
    .tp_weaklistoffset = offsetof(Wrapper, weak_references),
    .tp_dictoffset = offsetof(Wrapper, dictionary),
    .tp_descr_get = wrapper_get,
    .tp_repr = (reprfunc)wrapper_repr,
    .tp_methods = wrapper_methods,
    .tp_members = wrapper_members,
    .tp_getset = wrapper_properties,
};
