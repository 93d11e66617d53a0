#include "selection.h"

#include <structmember.h>

#define WORD_BITS 64

typedef struct {
    PyObject_HEAD
    Program program;
    Py_ssize_t sets;
    Py_ssize_t words;   /* of a set of steps */
    uint64_t *needs;    /* for each set, its steps as bits */
    Py_ssize_t *order;  /* the numbers of the sets, the one that held last first */
    PyObject *kept;     /* what the addresses in the program's making belong to */
} GuardSelection;

/* ---- making and destroying ---- */

static int parse_needs(GuardSelection *self, PyObject *needs)
{
    self->sets = PyTuple_GET_SIZE(needs);
    self->words = (self->program.length + WORD_BITS - 1) / WORD_BITS;
    size_t size = self->words * sizeof(uint64_t);
    self->needs = PyMem_Calloc(self->sets * self->words + 1, sizeof(uint64_t));
    self->order = PyMem_Calloc(self->sets + 1, sizeof(Py_ssize_t));
    if (self->needs == NULL || self->order == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    for (Py_ssize_t i = 0; i < self->sets; i++) {
        PyObject *bits = PyTuple_GET_ITEM(needs, i);
        if (!PyBytes_CheckExact(bits) || (size_t)PyBytes_GET_SIZE(bits) != size) {
            PyErr_SetString(PyExc_ValueError, "a set's steps are whole words of bits, as bytes");
            return -1;
        }
        memcpy(self->needs + i * self->words, PyBytes_AS_STRING(bits), size);
        self->order[i] = i;
    }
    return 0;
}

static PyObject *selection_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"steps", "needs", "arguments", "make_scope", "constants_equal",
                            "keys_equal", "kept", NULL};
    PyObject *steps, *needs, *arguments, *make_scope, *constants_equal, *keys_equal, *kept;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!O!O!OOOO:GuardSelection", names, &PyList_Type,
                                     &steps, &PyTuple_Type, &needs, &PyTuple_Type, &arguments,
                                     &make_scope, &constants_equal, &keys_equal, &kept)) {
        return NULL;
    }
    GuardSelection *self = (GuardSelection *)type->tp_alloc(type, 0);
    if (self == NULL) {
        return NULL;
    }
    self->program.argument_names = Py_NewRef(arguments);
    self->program.make_scope = Py_NewRef(make_scope);
    self->program.constants_equal = Py_NewRef(constants_equal);
    self->program.keys_equal = Py_NewRef(keys_equal);
    self->kept = Py_NewRef(kept);
    if (program_parse(&self->program, steps) < 0 || parse_needs(self, needs) < 0) {
        Py_DECREF(self);
        return NULL;
    }
    return (PyObject *)self;
}

static int selection_traverse(GuardSelection *self, visitproc visit, void *arg)
{
    Py_VISIT(self->kept);
    return program_traverse(&self->program, visit, arg);
}

static int selection_clear(GuardSelection *self)
{
    self->sets = 0;
    program_clear(&self->program);
    Py_CLEAR(self->kept);
    return 0;
}

static void selection_dealloc(GuardSelection *self)
{
    PyObject_GC_UnTrack(self);
    selection_clear(self);
    PyMem_Free(self->needs);
    PyMem_Free(self->order);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

/* ---- lookup ---- */

typedef struct {
    GuardSelection *selection;
    Run run;
    uint64_t *passed, *failed; /* steps as bits */
} Lookup;

static int has_failed(const Lookup *lookup, const uint64_t *needs)
{
    for (Py_ssize_t i = 0; i < lookup->selection->words; i++) {
        if (needs[i] & lookup->failed[i]) {
            return 1;
        }
    }
    return 0;
}

static uint64_t pending(const Lookup *lookup, const uint64_t *needs, Py_ssize_t word)
{
    return needs[word] & ~lookup->passed[word];
}

/* The first step from `position` on that is pending, or that is not, if `inverse` is all ones; the
 * number of bits when there is none. */
static Py_ssize_t next_step(const Lookup *lookup, const uint64_t *needs, Py_ssize_t position,
                            uint64_t inverse)
{
    Py_ssize_t word = position / WORD_BITS, words = lookup->selection->words;
    if (word >= words) {
        return words * WORD_BITS;
    }
    uint64_t bits = (pending(lookup, needs, word) ^ inverse) & (~0ull << position % WORD_BITS);
    while (bits == 0) {
        if (++word >= words) {
            return words * WORD_BITS;
        }
        bits = pending(lookup, needs, word) ^ inverse;
    }
    return word * WORD_BITS + __builtin_ctzll(bits);
}

static void mark_passed(Lookup *lookup, Py_ssize_t start, Py_ssize_t end)
{
    while (start < end) {
        Py_ssize_t word = start / WORD_BITS, behind = (word + 1) * WORD_BITS;
        Py_ssize_t stop = end < behind ? end : behind;
        uint64_t bits = stop - start >= WORD_BITS ? ~0ull : (1ull << (stop - start)) - 1;
        lookup->passed[word] |= bits << start % WORD_BITS;
        start = stop;
    }
}

/* Runs those of the set's steps that have not passed, by stretches; 0: one failed. */
static int set_holds(Lookup *lookup, Py_ssize_t set)
{
    Py_ssize_t bits = lookup->selection->words * WORD_BITS, end = 0;
    const uint64_t *needs = lookup->selection->needs + set * lookup->selection->words;
    if (has_failed(lookup, needs)) {
        return 0;
    }
    for (;;) {
        Py_ssize_t start = next_step(lookup, needs, end, 0);
        if (start == bits) {
            return 1;
        }
        end = next_step(lookup, needs, start, ~0ull);
        Py_ssize_t stopped = run_steps(&lookup->run, start, end);
        mark_passed(lookup, start, stopped);
        if (stopped < end) {
            lookup->failed[stopped / WORD_BITS] |= 1ull << stopped % WORD_BITS;
            return 0;
        }
    }
}

static void forget(Lookup *lookup)
{
    run_release(&lookup->run);
    lookup->run.ran_python = 0;
    memset(lookup->passed, 0, lookup->selection->words * sizeof(uint64_t));
    memset(lookup->failed, 0, lookup->selection->words * sizeof(uint64_t));
}

static void move_to_front(GuardSelection *self, Py_ssize_t set)
{
    Py_ssize_t position = 0;
    while (self->order[position] != set) { /* another thread may have changed the order */
        position++;
    }
    memmove(self->order + 1, self->order, position * sizeof(Py_ssize_t));
    self->order[0] = set;
}

static Py_ssize_t find(Lookup *lookup, const Py_ssize_t *order, Py_ssize_t count)
{
    for (Py_ssize_t i = 0; i < count; i++) {
        if (set_holds(lookup, order[i])) {
            return order[i];
        }
        if (lookup->run.ran_python) {
            forget(lookup);
        }
    }
    return -1;
}

#define STACK_WORDS 256

Py_ssize_t selection_find(PyObject *selection, const Frame *frame)
{
    GuardSelection *self = (GuardSelection *)selection;
    /* The order as it is now, two sets of steps, registers, and the values in order of loading. */
    size_t words = self->sets + 2 * self->words + 2 * self->program.registers;
    uint64_t on_stack[STACK_WORDS];
    uint64_t *memory = words <= STACK_WORDS ? on_stack : PyMem_Malloc(words * sizeof(uint64_t));
    if (memory == NULL) {
        return -1;
    }
    Lookup lookup = {.selection = self, .run = run_of(&self->program, frame)};
    Py_ssize_t sets = self->sets;
    Py_ssize_t *order = (Py_ssize_t *)memory;
    lookup.passed = memory + sets;
    lookup.failed = lookup.passed + self->words;
    lookup.run.registers = (PyObject **)(lookup.failed + self->words);
    lookup.run.owned = lookup.run.registers + self->program.registers;
    lookup.run.several = 1;
    memcpy(order, self->order, sets * sizeof(Py_ssize_t));
    forget(&lookup);
    Py_INCREF(self); /* code run by a guard may drop the last other reference */
    Py_ssize_t found = find(&lookup, order, sets);
    if (found >= 0 && self->order[0] != found) {
        move_to_front(self, found);
    }
    run_release(&lookup.run);
    Py_DECREF(self);
    if (memory != on_stack) {
        PyMem_Free(memory);
    }
    return found;
}

const Py_ssize_t *selection_order(PyObject *selection)
{
    return ((GuardSelection *)selection)->order;
}

/* ---- the type ---- */

static PyObject *selection_find_method(GuardSelection *self, PyObject *const *args,
                                       Py_ssize_t count)
{
    Frame frame;
    if (frame_from_arguments(&self->program, args, count, "find", &frame) < 0) {
        return NULL;
    }
    Py_ssize_t found = selection_find((PyObject *)self, &frame);
    if (found < 0) {
        Py_RETURN_NONE;
    }
    return PyLong_FromSsize_t(found);
}

static PyObject *selection_get_order(GuardSelection *self, void *closure)
{
    PyObject *result = PyTuple_New(self->sets);
    for (Py_ssize_t i = 0; result != NULL && i < self->sets; i++) {
        PyObject *number = PyLong_FromSsize_t(self->order[i]);
        if (number == NULL) {
            Py_CLEAR(result);
            break;
        }
        PyTuple_SET_ITEM(result, i, number);
    }
    return result;
}

static PyMethodDef selection_methods[] = {
    {"find", (PyCFunction)(void (*)(void))selection_find_method, METH_FASTCALL,
     "find(arguments, globals, builtins, closure) -> int | None\n\n"
     "The number of the first set that holds, the one found last first; None when none does."},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef selection_members[] = {
    {"order", (getter)selection_get_order, NULL, "the sets' numbers, the one found last first",
     NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

PyTypeObject GuardSelection_Type = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "weft_guards._native.GuardSelection",
    .tp_doc = "Several guard sets merged into one check; made by select.",
    .tp_basicsize = sizeof(GuardSelection),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_new = selection_new,
    .tp_traverse = (traverseproc)selection_traverse,
    .tp_clear = (inquiry)selection_clear,
    .tp_dealloc = (destructor)selection_dealloc,
    .tp_methods = selection_methods,
    .tp_getset = selection_members,
};
