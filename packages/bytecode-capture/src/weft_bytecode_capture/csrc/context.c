/* A context: the compiled code of one weft.compile call, by code object. */
#include "frame_hook.h"

#include <structmember.h>

static size_t slot_of(Context *self, PyCodeObject *code) {
    size_t hash = (size_t)code >> 4;
    hash ^= hash >> 9;
    return hash & self->mask;
}

static void free_state(CodeState *state) {
    Py_XDECREF(state->entries);
    Py_XDECREF(state->selection);
    Py_DECREF(state->code);
    PyMem_Free(state);
}

CodeState *weft_find_state(Context *self, PyCodeObject *code) {
    if (self->table == NULL) {
        return NULL;
    }
    for (size_t i = slot_of(self, code);; i = (i + 1) & self->mask) {
        CodeState *state = self->table[i];
        if (state == NULL || state->code == code) {
            return state;
        }
    }
}

static void insert(Context *self, CodeState *state) {
    size_t i = slot_of(self, state->code);
    while (self->table[i] != NULL) {
        i = (i + 1) & self->mask;
    }
    self->table[i] = state;
    self->used++;
}

/* A larger table.  States of code that nothing else refers to are dropped on the way, so that
 * functions made anew in every call do not pile up. */
static int grow(Context *self) {
    CodeState **old = self->table;
    size_t old_size = old == NULL ? 0 : self->mask + 1;
    size_t alive = 0;
    for (size_t i = 0; i < old_size; i++) {
        if (old[i] != NULL && Py_REFCNT(old[i]->code) > 1) {
            alive++;
        }
    }
    size_t size = 16;
    while (size < alive * 4) {
        size *= 2;
    }
    CodeState **table = PyMem_Calloc(size, sizeof(CodeState *));
    CodeState **dropped = PyMem_Calloc(old_size + 1, sizeof(CodeState *));
    if (table == NULL || dropped == NULL) {
        PyMem_Free(table);
        PyMem_Free(dropped);
        PyErr_NoMemory();
        return -1;
    }
    self->table = table;
    self->mask = size - 1;
    self->used = 0;
    size_t drop_count = 0;
    for (size_t i = 0; i < old_size; i++) {
        if (old[i] == NULL) {
            continue;
        }
        if (Py_REFCNT(old[i]->code) > 1) {
            insert(self, old[i]);
        } else {
            dropped[drop_count++] = old[i];
        }
    }
    PyMem_Free(old);
    for (size_t i = 0; i < drop_count; i++) { /* last: destructors may run any code */
        free_state(dropped[i]);
    }
    PyMem_Free(dropped);
    return 0;
}

CodeState *weft_get_state(Context *self, PyCodeObject *code) {
    CodeState *state = weft_find_state(self, code);
    if (state != NULL) {
        return state;
    }
    if (self->table == NULL || (self->used + 1) * 2 > self->mask + 1) {
        if (grow(self) < 0) {
            return NULL;
        }
        state = weft_find_state(self, code); /* a destructor may have come here */
        if (state != NULL) {
            return state;
        }
    }
    state = PyMem_Calloc(1, sizeof(CodeState));
    if (state == NULL) {
        PyErr_NoMemory();
        return NULL;
    }
    state->code = (PyCodeObject *)Py_NewRef(code);
    insert(self, state);
    return state;
}

PyObject *weft_entries_of(CodeState *state) {
    PyObject *entries = state->entries;
    if (entries == NULL || state->selection == NULL) {
        return entries == NULL ? PyTuple_New(0) : Py_NewRef(entries);
    }
    PyObject *selection = Py_NewRef(state->selection);
    Py_INCREF(entries);
    PyObject *ordered = PyTuple_New(PyTuple_GET_SIZE(entries)); /* may collect garbage, and retire */
    const Py_ssize_t *order = weft_selection_order(selection);
    for (Py_ssize_t i = 0; ordered != NULL && i < PyTuple_GET_SIZE(entries); i++) {
        PyTuple_SET_ITEM(ordered, i, Py_NewRef(PyTuple_GET_ITEM(entries, order[i])));
    }
    Py_DECREF(entries);
    Py_DECREF(selection);
    return ordered;
}

/* The entry before the others, as it was wanted last. */
static PyObject *with_entry(CodeState *state, Entry *entry) {
    PyObject *others = weft_entries_of(state);
    if (others == NULL) {
        return NULL;
    }
    Py_ssize_t count = PyTuple_GET_SIZE(others);
    PyObject *entries = PyTuple_New(count + 1);
    if (entries != NULL) {
        PyTuple_SET_ITEM(entries, 0, Py_NewRef(entry));
        for (Py_ssize_t i = 0; i < count; i++) {
            PyTuple_SET_ITEM(entries, i + 1, Py_NewRef(PyTuple_GET_ITEM(others, i)));
        }
    }
    Py_DECREF(others);
    return entries;
}

/* Merging guards runs Python code, so that another thread may change the code's state meanwhile:
 * then all is done again. */
int weft_add_entry(Context *self, PyCodeObject *code, Entry *entry) {
    Py_XSETREF(entry->context, PyWeakref_NewRef((PyObject *)self, NULL));
    if (entry->context == NULL) {
        return -1;
    }
    for (;;) {
        CodeState *state = weft_get_state(self, code);
        PyObject *old = state == NULL ? NULL : Py_XNewRef(state->entries);
        PyObject *entries = state == NULL ? NULL : with_entry(state, entry);
        PyObject *selection = NULL;
        if (entries == NULL || weft_select(entries, &selection) < 0) {
            Py_XDECREF(old);
            Py_XDECREF(entries);
            return -1;
        }
        state = weft_get_state(self, code);
        if (state != NULL && state->entries == old) {
            weft_raise_frame_size(state->code, weft_frame_size(entry->code));
            PyObject *old_selection = state->selection;
            state->entries = entries;
            state->selection = selection;
            state->status = STATUS_ENTRIES;
            Py_XDECREF(old); /* the state's */
            Py_XDECREF(old);
            Py_XDECREF(old_selection);
            if (entry->retired) { /* before it was here */
                weft_remove_entry(self, entry);
            }
            return 0;
        }
        Py_XDECREF(old);
        Py_DECREF(entries);
        Py_XDECREF(selection);
        if (state == NULL) {
            return -1;
        }
    }
}

static CodeState *state_with(Context *self, Entry *entry) {
    for (size_t i = 0; self->table != NULL && i <= self->mask; i++) {
        PyObject *entries = self->table[i] == NULL ? NULL : self->table[i]->entries;
        for (Py_ssize_t j = 0; entries != NULL && j < PyTuple_GET_SIZE(entries); j++) {
            if (PyTuple_GET_ITEM(entries, j) == (PyObject *)entry) {
                return self->table[i];
            }
        }
    }
    return NULL;
}

static PyObject *without_entry(PyObject *entries, Entry *entry) {
    Py_ssize_t count = PyTuple_GET_SIZE(entries);
    PyObject *others = PyTuple_New(count - 1);
    for (Py_ssize_t i = 0, j = 0; others != NULL && i < count; i++) {
        PyObject *other = PyTuple_GET_ITEM(entries, i);
        if (other != (PyObject *)entry) {
            PyTuple_SET_ITEM(others, j++, Py_NewRef(other));
        }
    }
    return others;
}

/* The others are tried one by one until another entry is added: merging guards runs Python code, which
 * can't be done wherever an object may die. */
void weft_remove_entry(Context *self, Entry *entry) {
    for (;;) {
        CodeState *state = state_with(self, entry);
        if (state == NULL) {
            return;
        }
        PyObject *old = Py_NewRef(state->entries);
        PyObject *ordered = weft_entries_of(state);
        PyObject *others = ordered == NULL ? NULL : without_entry(ordered, entry);
        Py_XDECREF(ordered);
        if (others == NULL) {
            PyErr_Clear(); /* no memory: its guard never holds again */
            Py_DECREF(old);
            return;
        }
        state = state_with(self, entry); /* making tuples may have collected garbage */
        if (state != NULL && state->entries == old) {
            PyObject *selection = state->selection;
            state->entries = others;
            state->selection = NULL;
            if (state->status == STATUS_FROZEN) {
                state->status = STATUS_ENTRIES; /* there is room for another */
            }
            Py_DECREF(old); /* the state's */
            Py_DECREF(old);
            Py_XDECREF(selection);
            return;
        }
        Py_DECREF(old);
        Py_DECREF(others);
    }
}

void weft_move_to_front(Context *self, PyCodeObject *code, PyObject *entries, Py_ssize_t index) {
    Py_ssize_t count = PyTuple_GET_SIZE(entries);
    PyObject *moved = PyTuple_New(count);
    if (moved == NULL) {
        PyErr_Clear(); /* the order only saves time */
        return;
    }
    PyTuple_SET_ITEM(moved, 0, Py_NewRef(PyTuple_GET_ITEM(entries, index)));
    for (Py_ssize_t i = 0, j = 1; i < count; i++) {
        if (i != index) {
            PyTuple_SET_ITEM(moved, j++, Py_NewRef(PyTuple_GET_ITEM(entries, i)));
        }
    }
    CodeState *state = weft_find_state(self, code);
    if (state == NULL || state->entries != entries) { /* changed while a guard ran Python code */
        Py_DECREF(moved);
        return;
    }
    Py_SETREF(state->entries, moved);
}

static PyObject *context_new(PyTypeObject *type, PyObject *args, PyObject *keywords) {
    static char *names[] = {"callback", NULL};
    PyObject *callback;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "O:Context", names, &callback)) {
        return NULL;
    }
    if (!PyCallable_Check(callback)) {
        PyErr_SetString(PyExc_TypeError, "Context() takes a callable");
        return NULL;
    }
    Context *self = (Context *)type->tp_alloc(type, 0);
    if (self != NULL) {
        self->callback = Py_NewRef(callback);
    }
    return (PyObject *)self;
}

static int context_traverse(Context *self, visitproc visit, void *arg) {
    Py_VISIT(self->callback);
    for (size_t i = 0; self->table != NULL && i <= self->mask; i++) {
        if (self->table[i] != NULL) {
            Py_VISIT(self->table[i]->entries);
            Py_VISIT(self->table[i]->selection);
            Py_VISIT(self->table[i]->code);
        }
    }
    return 0;
}

static void drop_states(Context *self) {
    CodeState **table = self->table;
    size_t mask = self->mask;
    self->table = NULL;
    self->mask = 0;
    self->used = 0;
    for (size_t i = 0; table != NULL && i <= mask; i++) {
        if (table[i] != NULL) {
            free_state(table[i]);
        }
    }
    PyMem_Free(table);
}

static int context_clear(Context *self) {
    drop_states(self);
    Py_CLEAR(self->callback);
    return 0;
}

static void context_dealloc(Context *self) {
    PyObject_GC_UnTrack(self);
    if (self->weak_references != NULL) {
        PyObject_ClearWeakRefs((PyObject *)self);
    }
    context_clear(self);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static int check_code(PyObject *code) {
    if (!PyCode_Check(code)) {
        PyErr_Format(PyExc_TypeError, "a code object is needed, not %s", Py_TYPE(code)->tp_name);
        return -1;
    }
    return 0;
}

static PyObject *context_entries(Context *self, PyObject *code) {
    if (check_code(code) < 0) {
        return NULL;
    }
    CodeState *state = weft_find_state(self, (PyCodeObject *)code);
    return state == NULL ? PyTuple_New(0) : weft_entries_of(state);
}

static PyObject *context_status(Context *self, PyObject *code) {
    if (check_code(code) < 0) {
        return NULL;
    }
    CodeState *state = weft_find_state(self, (PyCodeObject *)code);
    return PyLong_FromLong(state == NULL ? STATUS_UNSEEN : state->status);
}

static PyObject *context_set_status(Context *self, PyObject *args) {
    PyObject *code;
    int status;
    if (!PyArg_ParseTuple(args, "O!i:set_status", &PyCode_Type, &code, &status)) {
        return NULL;
    }
    if (status < STATUS_UNSEEN || status > STATUS_DISABLE) {
        PyErr_Format(PyExc_ValueError, "no status of code objects: %d", status);
        return NULL;
    }
    CodeState *state = weft_get_state(self, (PyCodeObject *)code);
    if (state == NULL) {
        return NULL;
    }
    state->status = (enum status)status;
    Py_RETURN_NONE;
}

static PyObject *context_codes(Context *self, PyObject *Py_UNUSED(ignored)) {
    PyObject *codes = PyList_New(0);
    for (size_t i = 0; codes != NULL && self->table != NULL && i <= self->mask; i++) {
        if (self->table[i] != NULL && PyList_Append(codes, (PyObject *)self->table[i]->code) < 0) {
            Py_CLEAR(codes);
        }
    }
    return codes;
}

static PyObject *context_counts(Context *self, PyObject *Py_UNUSED(ignored)) {
    Py_ssize_t entries = 0;
    for (size_t i = 0; self->table != NULL && i <= self->mask; i++) {
        if (self->table[i] != NULL && self->table[i]->entries != NULL) {
            entries += PyTuple_GET_SIZE(self->table[i]->entries);
        }
    }
    return Py_BuildValue("{s:n,s:n,s:K,s:K}", "codes", (Py_ssize_t)self->used, "entries", entries,
                         "conversions", self->conversions, "hits", self->hits);
}

static PyObject *context_forget(Context *self, PyObject *Py_UNUSED(ignored)) {
    drop_states(self);
    Py_RETURN_NONE;
}

static PyObject *context_wrap(Context *self, PyObject *callable) {
    return weft_new_wrapper(self, callable);
}

static PyMethodDef context_methods[] = {
    {"wrap", (PyCFunction)context_wrap, METH_O,
     PyDoc_STR("wrap(callable): the callable, run with its frames given to this context.")},
    {"entries", (PyCFunction)context_entries, METH_O,
     PyDoc_STR("entries(code): the code object's entries, the one used last first.")},
    {"status", (PyCFunction)context_status, METH_O,
     PyDoc_STR("status(code): one of UNSEEN, ENTRIES, FROZEN, SKIP, DISABLE.")},
    {"set_status", (PyCFunction)context_set_status, METH_VARARGS,
     PyDoc_STR("set_status(code, status): decide what happens to frames of the code object.")},
    {"codes", (PyCFunction)context_codes, METH_NOARGS,
     PyDoc_STR("codes(): the code objects seen.")},
    {"counts", (PyCFunction)context_counts, METH_NOARGS,
     PyDoc_STR("counts(): numbers of codes, entries, conversions and hits.")},
    {"clear", (PyCFunction)context_forget, METH_NOARGS,
     PyDoc_STR("clear(): forget all code objects; those that run now end undisturbed.")},
    {NULL},
};

static PyMemberDef context_members[] = {
    {"callback", T_OBJECT, offsetof(Context, callback), READONLY, NULL},
    {NULL},
};

PyTypeObject Context_Type = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "weft_bytecode_capture._frame_hook.Context",
    .tp_doc = PyDoc_STR(
        "Context(callback)\n\n"
        "Compiled code by code object.  A frame that no entry fits is given to\n"
        "callback(code, arguments, globals, builtins, closure), whose answer is an Entry or one of\n"
        "SKIP, DISABLE, FROZEN (no more entries), PASS (this call as it is), RETRY (look again)."),
    .tp_basicsize = sizeof(Context),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_new = context_new,
    .tp_dealloc = (destructor)context_dealloc,
    .tp_traverse = (traverseproc)context_traverse,
    .tp_clear = (inquiry)context_clear,
    .tp_weaklistoffset = offsetof(Context, weak_references),
    .tp_methods = context_methods,
    .tp_members = context_members,
};
