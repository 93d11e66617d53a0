/* Launches of kernels through the CUDA driver: one call from Python, no object made but the result.

   The driver's function is handed over as an address, so this needs neither its headers nor its library. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stddef.h>
#include <structmember.h>
#include <stdint.h>
#include <string.h>

/* The driver's CUlaunchConfig. */
typedef struct {
    unsigned int grid[3];
    unsigned int block[3];
    unsigned int shared_bytes;
    void *stream;
    void *attributes;
    unsigned int attribute_count;
} LaunchConfiguration;

typedef int (*LaunchFunction)(const LaunchConfiguration *, void *kernel, void **parameters, void **extra);

typedef struct {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    LaunchFunction launch;
    void *kernel;
    PyObject *failed;   /* called with a status that isn't 0, to raise what it means */
    LaunchConfiguration configuration;
    Py_ssize_t count;   /* arguments that a call gives */
    int64_t *values;    /* one place of 8 bytes a parameter; those after `count` are null pointers */
    void **addresses;   /* of `values` */
} Launcher;

#define LEADING 3 /* stream, columns, rows */

/* launcher(stream, columns, rows, *arguments) */
static PyObject *
launcher_call(PyObject *self, PyObject *const *arguments, size_t flags, PyObject *names)
{
    Launcher *launcher = (Launcher *)self;
    Py_ssize_t given = PyVectorcall_NARGS(flags);
    if (names != NULL || given != launcher->count + LEADING) {
        PyErr_Format(PyExc_TypeError, "a launch takes %zd arguments, not %zd",
                     launcher->count + LEADING, given);
        return NULL;
    }
    /* Unsigned and signed values of 64 bits alike: addresses, sizes, the bits of doubles. */
    uint64_t leading[LEADING];
    for (Py_ssize_t k = 0; k < LEADING; k++) {
        leading[k] = PyLong_AsUnsignedLongLongMask(arguments[k]);
    }
    for (Py_ssize_t k = 0; k < launcher->count; k++) {
        launcher->values[k] = (int64_t)PyLong_AsUnsignedLongLongMask(arguments[LEADING + k]);
    }
    if (PyErr_Occurred()) {
        return NULL;
    }
    launcher->configuration.stream = (void *)(uintptr_t)leading[0];
    launcher->configuration.grid[0] = (unsigned int)leading[1];
    launcher->configuration.grid[1] = (unsigned int)leading[2];
    int status =
        launcher->launch(&launcher->configuration, launcher->kernel, launcher->addresses, NULL);
    return status ? PyObject_CallFunction(launcher->failed, "i", status) : Py_NewRef(Py_None);
}

/* Launcher(launch, kernel, threads, shared_bytes, count, nulls, failed) */
static PyObject *
launcher_new(PyTypeObject *type, PyObject *arguments, PyObject *keywords)
{
    static char *names[] = {"launch", "kernel", "threads", "shared_bytes", "count", "nulls", "failed", NULL};
    PyObject *failed;
    unsigned long long launch, kernel;
    unsigned int threads, shared_bytes;
    Py_ssize_t count, nulls;
    if (!PyArg_ParseTupleAndKeywords(arguments, keywords, "KKIInnO", names, &launch, &kernel,
                                     &threads, &shared_bytes, &count, &nulls, &failed)) {
        return NULL;
    }
    if (count < 0 || nulls < 0) {
        PyErr_SetString(PyExc_ValueError, "a kernel has no negative number of parameters");
        return NULL;
    }
    Launcher *launcher = (Launcher *)type->tp_alloc(type, 0);
    if (launcher == NULL) {
        return NULL;
    }
    size_t slots = (size_t)(count + nulls) + 1;
    launcher->values = PyMem_Calloc(slots, sizeof(int64_t));
    launcher->addresses = PyMem_Calloc(slots, sizeof(void *));
    if (launcher->values == NULL || launcher->addresses == NULL) {
        Py_DECREF(launcher);
        return PyErr_NoMemory();
    }
    for (size_t k = 0; k < slots; k++) {
        launcher->addresses[k] = &launcher->values[k];
    }
    launcher->vectorcall = launcher_call;
    launcher->failed = Py_NewRef(failed);
    launcher->launch = (LaunchFunction)(uintptr_t)launch;
    launcher->kernel = (void *)(uintptr_t)kernel;
    launcher->count = count;
    LaunchConfiguration configuration = {{1, 1, 1}, {threads, 1, 1}, shared_bytes, NULL, NULL, 0};
    launcher->configuration = configuration;
    return (PyObject *)launcher;
}

static void
launcher_dealloc(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    PyMem_Free(((Launcher *)self)->values);
    PyMem_Free(((Launcher *)self)->addresses);
    Py_XDECREF(((Launcher *)self)->failed);
    type->tp_free(self);
    Py_DECREF(type);
}

static PyMemberDef launcher_members[] = {
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(Launcher, vectorcall), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyType_Slot launcher_slots[] = {
    {Py_tp_new, launcher_new},
    {Py_tp_dealloc, launcher_dealloc},
    {Py_tp_call, PyVectorcall_Call},
    {Py_tp_members, launcher_members},
    {0, NULL},
};

static PyType_Spec launcher_spec = {
    .name = "weft_codegen_triton._launcher.Launcher",
    .basicsize = sizeof(Launcher),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = launcher_slots,
};

static int
module_exec(PyObject *module)
{
    PyObject *type = PyType_FromModuleAndSpec(module, &launcher_spec, NULL);
    if (type == NULL) {
        return -1;
    }
    int failed = PyModule_AddObjectRef(module, "Launcher", type);
    Py_DECREF(type);
    return failed;
}

static PyModuleDef_Slot module_slots[] = {
    {Py_mod_exec, module_exec},
    {0, NULL},
};

static struct PyModuleDef module_definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "_launcher",
    .m_doc = "Launches of kernels through the CUDA driver.",
    .m_slots = module_slots,
};

PyMODINIT_FUNC
PyInit__launcher(void)
{
    return PyModuleDef_Init(&module_definition);
}
