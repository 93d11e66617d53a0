/* weft_guards._native: the types, and the C interface in a capsule. */
#include <Python.h>
#include <structmember.h>

#include "run.h"
#include "selection.h"
#include "weft_guards_api.h"

typedef struct {
    PyObject_HEAD
    PyObject *weak_references;
    Program program;
    PyObject *origin; /* what `select` takes to merge this check with others */
} GuardCheck;

static PyTypeObject GuardCheckType;

static PyObject *guard_check_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"steps", "arguments", "make_scope", "constants_equal", "keys_equal",
                            "origin", NULL};
    PyObject *steps, *arguments, *make_scope, *constants_equal, *keys_equal, *origin;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!O!OOOO:GuardCheck", names, &PyList_Type,
                                     &steps, &PyTuple_Type, &arguments, &make_scope,
                                     &constants_equal, &keys_equal, &origin)) {
        return NULL;
    }
    GuardCheck *self = (GuardCheck *)type->tp_alloc(type, 0);
    if (self == NULL) {
        return NULL;
    }
    self->program.argument_names = Py_NewRef(arguments);
    self->program.make_scope = Py_NewRef(make_scope);
    self->program.constants_equal = Py_NewRef(constants_equal);
    self->program.keys_equal = Py_NewRef(keys_equal);
    self->origin = Py_NewRef(origin);
    if (program_parse(&self->program, steps) < 0) {
        Py_DECREF(self);
        return NULL;
    }
    return (PyObject *)self;
}

static int guard_check_traverse(GuardCheck *self, visitproc visit, void *arg)
{
    Py_VISIT(self->origin);
    return program_traverse(&self->program, visit, arg);
}

static int guard_check_clear(GuardCheck *self)
{
    program_clear(&self->program);
    Py_CLEAR(self->origin);
    return 0;
}

static void guard_check_dealloc(GuardCheck *self)
{
    PyObject_GC_UnTrack(self);
    if (self->weak_references != NULL) {
        PyObject_ClearWeakRefs((PyObject *)self);
    }
    guard_check_clear(self);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static PyObject *guard_check_check(GuardCheck *self, PyObject *const *args, Py_ssize_t count)
{
    Frame frame;
    if (frame_from_arguments(&self->program, args, count, "check", &frame) < 0) {
        return NULL;
    }
    return PyBool_FromLong(program_holds(&self->program, &frame));
}

static PyMethodDef guard_check_methods[] = {
    {"check", (PyCFunction)(void (*)(void))guard_check_check, METH_FASTCALL,
     "check(arguments, globals, builtins, closure) -> bool\n\n"
     "Whether every guard holds; one that raises does not hold."},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef guard_check_members[] = {
    {"origin", T_OBJECT_EX, offsetof(GuardCheck, origin), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyTypeObject GuardCheckType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "weft_guards._native.GuardCheck",
    .tp_doc = "A compiled guard set; made by GuardSet.compile.",
    .tp_basicsize = sizeof(GuardCheck),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_new = guard_check_new,
    .tp_traverse = (traverseproc)guard_check_traverse,
    .tp_clear = (inquiry)guard_check_clear,
    .tp_dealloc = (destructor)guard_check_dealloc,
    .tp_weaklistoffset = offsetof(GuardCheck, weak_references),
    .tp_methods = guard_check_methods,
    .tp_members = guard_check_members,
};

static int api_check(PyObject *guard_check, PyObject *const *localsplus, PyObject *globals,
                     PyObject *builtins, PyObject *closure)
{
    if (!Py_IS_TYPE(guard_check, &GuardCheckType)) {
        return 0;
    }
    /* Python code run by a guard may drop the last other reference. */
    Py_INCREF(guard_check);
    Frame frame = {localsplus, globals, builtins, closure, NULL};
    int passed = program_holds(&((GuardCheck *)guard_check)->program, &frame);
    Py_DECREF(guard_check);
    return passed;
}

static PyObject *api_select(PyObject *guard_checks)
{
    PyObject *module = PyImport_ImportModule("weft_guards.compilation");
    if (module == NULL) {
        return NULL;
    }
    PyObject *selection = PyObject_CallMethod(module, "select_native", "(O)", guard_checks);
    Py_DECREF(module);
    if (selection != NULL && !Py_IS_TYPE(selection, &GuardSelection_Type)) {
        PyErr_SetString(PyExc_TypeError, "select_native() gave no GuardSelection");
        Py_CLEAR(selection);
    }
    return selection;
}

static Py_ssize_t api_find(PyObject *selection, PyObject *const *localsplus, PyObject *globals,
                           PyObject *builtins, PyObject *closure)
{
    Frame frame = {localsplus, globals, builtins, closure, NULL};
    return selection_find(selection, &frame);
}

static WeftGuardsAPI api = {WEFT_GUARDS_API_VERSION, api_check, api_select, api_find,
                            selection_order};

static struct PyModuleDef module_definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "weft_guards._native",
    .m_doc = "The native check of guard sets.",
    .m_size = -1,
    .m_methods = torch_access_methods,
};

PyMODINIT_FUNC PyInit__native(void)
{
    if (run_module_init() < 0) {
        return NULL;
    }
    PyObject *module = PyModule_Create(&module_definition);
    if (module == NULL) {
        return NULL;
    }
    PyObject *capsule = PyCapsule_New(&api, WEFT_GUARDS_API_CAPSULE, NULL);
    if (PyModule_AddType(module, &GuardCheckType) < 0
        || PyModule_AddType(module, &GuardSelection_Type) < 0
        || PyModule_AddObjectRef(module, "_C_API", capsule) < 0
        || PyModule_AddIntConstant(module, "OPERATION_COUNT", OPERATION_COUNT) < 0
        || PyModule_AddIntConstant(module, "OPCODE_COUNT", OPCODE_COUNT) < 0
        || PyModule_AddIntConstant(module, "REAL_OPCODE_COUNT", REAL_OPCODE_COUNT) < 0) {
        Py_XDECREF(capsule);
        Py_DECREF(module);
        return NULL;
    }
    Py_DECREF(capsule);
    return module;
}
