/* Launches of kernels through the CUDA driver: one call from Python, no object made but the result.

   The driver's function is handed over as an address, so this needs neither its headers nor its library. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stddef.h>
#include <structmember.h>
#include <stdint.h>
#include <string.h>

#include "launch_graph.h"

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

/* Launch the kernel on its `values`; a new reference to None, or NULL with an exception. */
static PyObject *
launched(Launcher *launcher, uint64_t stream, uint64_t columns, uint64_t rows)
{
    launcher->configuration.stream = (void *)(uintptr_t)stream;
    launcher->configuration.grid[0] = (unsigned int)columns;
    launcher->configuration.grid[1] = (unsigned int)rows;
    int status =
        launcher->launch(&launcher->configuration, launcher->kernel, launcher->addresses, NULL);
    return status ? PyObject_CallFunction(launcher->failed, "i", status) : Py_NewRef(Py_None);
}

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
    return launched(launcher, leading[0], leading[1], leading[2]);
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

/* What a term of a launch is: a value of the call's and a number; value 0 is 0. */
typedef struct {
    int64_t value;
    int64_t more;
} Term;

typedef struct {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    PyObject *launchers; /* a tuple */
    Term *terms;         /* columns, rows and arguments of each launch in turn */
    Py_ssize_t count;    /* values that a call gives */
    int64_t *values;     /* 0, then those */
    LaunchGraph *graph;  /* NULL where launches are made one by one */
    int64_t *last;       /* what each term was when the graph's node was made or set */
    int calls;           /* up to CALLS_BEFORE_GRAPH */
} LaunchList;

#define GRID 2 /* columns, rows */

/* A program that is recorded as a whole calls its lists this often at most, but while it is recorded. */
#define CALLS_BEFORE_GRAPH 2

static int64_t
term_value(const LaunchList *list, const Term *term)
{
    return (int64_t)((uint64_t)list->values[term->value] + (uint64_t)term->more);
}

/* Bring the node of one launch up to date, or make it; whether its terms have a column and a row. */
static int
update_node(LaunchList *list, size_t position, Launcher *launcher, const Term *term, int64_t *last,
            int *status)
{
    int64_t grid[GRID] = {term_value(list, term), term_value(list, term + 1)};
    if (grid[0] == 0 || grid[1] == 0) {
        return 0;
    }
    LaunchGraph *graph = list->graph;
    int changed = graph->executable == NULL;
    for (Py_ssize_t n = 0; n < GRID + launcher->count; n++) {
        int64_t value = n < GRID ? grid[n] : term_value(list, term + n);
        changed |= value != last[n];
        last[n] = value;
        if (n >= GRID) {
            launcher->values[n - GRID] = value;
        }
    }
    if (changed) {
        const LaunchConfiguration *known = &launcher->configuration;
        KernelNode node = {.function = launcher->kernel,
                           .grid = {(unsigned int)grid[0], (unsigned int)grid[1], 1},
                           .block = {known->block[0], known->block[1], known->block[2]},
                           .shared_bytes = known->shared_bytes,
                           .parameters = launcher->addresses};
        *status = graph->executable == NULL ? launch_graph_add(graph, &node)
                                            : launch_graph_set(graph, position, &node);
    }
    return 1;
}

/* Make all launches as one graph.  1 if that was done, 0 if they are to be made one by one (where one has no
   column or row, `stream` is being recorded, or the driver refuses a node), -1 with an exception. */
static int
launch_as_graph(LaunchList *list, void *stream)
{
    LaunchGraph *graph = list->graph;
    if (graph == NULL || (list->calls < CALLS_BEFORE_GRAPH && ++list->calls)) {
        return 0;
    }
    if (!launch_graph_may_run(graph, stream)) {
        return 0;
    }
    const Term *term = list->terms;
    int64_t *last = list->last;
    int status = 0;
    for (Py_ssize_t k = 0; k < PyTuple_GET_SIZE(list->launchers) && status == 0; k++) {
        Launcher *launcher = (Launcher *)PyTuple_GET_ITEM(list->launchers, k);
        if (!update_node(list, (size_t)k, launcher, term, last, &status)) {
            if (graph->executable == NULL) {
                launch_graph_clear(graph); /* not all nodes are there */
            }
            return 0;
        }
        term += GRID + launcher->count;
        last += GRID + launcher->count;
    }
    if (status == 0 && graph->executable == NULL) {
        status = launch_graph_finish(graph);
    }
    if (status) {
        launch_graph_free(graph);
        list->graph = NULL;
        return 0;
    }
    status = graph->driver.launch(graph->executable, stream);
    if (status) {
        Launcher *first = (Launcher *)PyTuple_GET_ITEM(list->launchers, 0);
        Py_XDECREF(PyObject_CallFunction(first->failed, "i", status));
        return PyErr_Occurred() ? -1 : 1;
    }
    return 1;
}

/* launch_list(stream, *values) */
static PyObject *
launch_list_call(PyObject *self, PyObject *const *arguments, size_t flags, PyObject *names)
{
    LaunchList *list = (LaunchList *)self;
    Py_ssize_t given = PyVectorcall_NARGS(flags);
    if (names != NULL || given != list->count + 1) {
        PyErr_Format(PyExc_TypeError, "the launches take %zd arguments, not %zd", list->count + 1, given);
        return NULL;
    }
    uint64_t stream = PyLong_AsUnsignedLongLongMask(arguments[0]);
    for (Py_ssize_t k = 1; k < given; k++) {
        list->values[k] = (int64_t)PyLong_AsUnsignedLongLongMask(arguments[k]);
    }
    if (PyErr_Occurred()) {
        return NULL;
    }
    int done_as_graph = launch_as_graph(list, (void *)(uintptr_t)stream);
    if (done_as_graph) {
        return done_as_graph < 0 ? NULL : Py_NewRef(Py_None);
    }
    const Term *term = list->terms;
    for (Py_ssize_t k = 0; k < PyTuple_GET_SIZE(list->launchers); k++) {
        Launcher *launcher = (Launcher *)PyTuple_GET_ITEM(list->launchers, k);
        uint64_t grid[GRID];
        for (int axis = 0; axis < GRID; axis++, term++) {
            grid[axis] = (uint64_t)term_value(list, term);
        }
        for (Py_ssize_t n = 0; n < launcher->count; n++, term++) {
            launcher->values[n] = term_value(list, term);
        }
        if (grid[0] == 0 || grid[1] == 0) {
            continue;
        }
        PyObject *done = launched(launcher, stream, grid[0], grid[1]);
        if (done == NULL) {
            return NULL;
        }
        Py_DECREF(done);
    }
    Py_RETURN_NONE;
}

/* Whether every launcher is one and has its terms, all of values that a call gives. */
static int
launch_list_is_whole(PyTypeObject *launcher_type, PyObject *launchers, const Term *terms,
                     Py_ssize_t term_count, Py_ssize_t values)
{
    Py_ssize_t wanted = 0;
    for (Py_ssize_t k = 0; k < PyTuple_GET_SIZE(launchers); k++) {
        PyObject *launcher = PyTuple_GET_ITEM(launchers, k);
        if (!PyObject_TypeCheck(launcher, launcher_type)) {
            return 0;
        }
        wanted += GRID + ((Launcher *)launcher)->count;
    }
    for (Py_ssize_t k = 0; k < term_count; k++) {
        if (terms[k].value < 0 || terms[k].value > values) {
            return 0;
        }
    }
    return wanted == term_count;
}

/* LaunchList(launchers, terms, values, graph_functions=None): GraphFunctions as bytes */
static PyObject *
launch_list_new(PyTypeObject *type, PyObject *arguments, PyObject *keywords)
{
    static char *names[] = {"launchers", "terms", "values", "graph_functions", NULL};
    PyObject *launchers;
    const char *bytes, *functions = NULL;
    Py_ssize_t size, values, functions_size = 0;
    if (!PyArg_ParseTupleAndKeywords(arguments, keywords, "O!y#n|z#", names, &PyTuple_Type, &launchers,
                                     &bytes, &size, &values, &functions, &functions_size)) {
        return NULL;
    }
    if (functions != NULL && functions_size != (Py_ssize_t)sizeof(GraphFunctions)) {
        PyErr_SetString(PyExc_ValueError, "not the addresses of the driver's functions for graphs");
        return NULL;
    }
    LaunchList *list = (LaunchList *)type->tp_alloc(type, 0);
    if (list == NULL) {
        return NULL;
    }
    list->launchers = Py_NewRef(launchers);
    list->terms = PyMem_Malloc((size_t)size + 1);
    list->values = values < 0 ? NULL : PyMem_Calloc((size_t)values + 1, sizeof(int64_t));
    list->last = PyMem_Calloc((size_t)size / sizeof(Term) + 1, sizeof(int64_t));
    if (functions != NULL) {
        GraphFunctions driver;
        memcpy(&driver, functions, sizeof(driver));
        list->graph = launch_graph_new(&driver, (size_t)PyTuple_GET_SIZE(launchers));
    }
    if (list->terms == NULL || (values >= 0 && list->values == NULL) || list->last == NULL ||
        (functions != NULL && list->graph == NULL)) {
        Py_DECREF(list);
        return PyErr_NoMemory();
    }
    memcpy(list->terms, bytes, (size_t)size);
    PyTypeObject *launcher_type = *(PyTypeObject **)PyType_GetModuleState(type);
    Py_ssize_t terms = size / (Py_ssize_t)sizeof(Term);
    if (values < 0 || size % (Py_ssize_t)sizeof(Term) != 0 ||
        !launch_list_is_whole(launcher_type, launchers, list->terms, terms, values)) {
        Py_DECREF(list);
        PyErr_SetString(PyExc_ValueError, "launches whose terms are not those of their launchers");
        return NULL;
    }
    list->vectorcall = launch_list_call;
    list->count = values;
    return (PyObject *)list;
}

static void
launch_list_dealloc(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    PyMem_Free(((LaunchList *)self)->terms);
    PyMem_Free(((LaunchList *)self)->values);
    PyMem_Free(((LaunchList *)self)->last);
    launch_graph_free(((LaunchList *)self)->graph);
    Py_XDECREF(((LaunchList *)self)->launchers);
    type->tp_free(self);
    Py_DECREF(type);
}

static PyMemberDef launch_list_members[] = {
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(LaunchList, vectorcall), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyType_Slot launch_list_slots[] = {
    {Py_tp_new, launch_list_new},
    {Py_tp_dealloc, launch_list_dealloc},
    {Py_tp_call, PyVectorcall_Call},
    {Py_tp_members, launch_list_members},
    {0, NULL},
};

static PyType_Spec launch_list_spec = {
    .name = "weft_codegen_triton._launcher.LaunchList",
    .basicsize = sizeof(LaunchList),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = launch_list_slots,
};

/* The module's state is the type Launcher. */
static int
module_exec(PyObject *module)
{
    PyTypeObject **state = PyModule_GetState(module);
    *state = (PyTypeObject *)PyType_FromModuleAndSpec(module, &launcher_spec, NULL);
    if (*state == NULL || PyModule_AddType(module, *state) < 0) {
        return -1;
    }
    PyObject *list = PyType_FromModuleAndSpec(module, &launch_list_spec, NULL);
    if (list == NULL) {
        return -1;
    }
    int failed = PyModule_AddType(module, (PyTypeObject *)list);
    Py_DECREF(list);
    return failed;
}

static void
module_free(void *module)
{
    PyTypeObject **state = PyModule_GetState((PyObject *)module);
    if (state != NULL) {
        Py_CLEAR(*state);
    }
}

static PyModuleDef_Slot module_slots[] = {
    {Py_mod_exec, module_exec},
    {0, NULL},
};

static struct PyModuleDef module_definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "_launcher",
    .m_doc = "Launches of kernels through the CUDA driver.",
    .m_size = sizeof(PyTypeObject *),
    .m_slots = module_slots,
    .m_free = module_free,
};

PyMODINIT_FUNC
PyInit__launcher(void)
{
    return PyModuleDef_Init(&module_definition);
}
