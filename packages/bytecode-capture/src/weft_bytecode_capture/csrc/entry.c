/* Entries (transformed code with its guard) and resumptions. */
#include "frame_hook.h"

#include <structmember.h>

#include "weft_guards_api.h"

static WeftGuardsAPI *guards_api = NULL;

int weft_argument_slots(PyCodeObject *code) {
    return code->co_argcount + code->co_kwonlyargcount + !!(code->co_flags & CO_VARARGS) +
           !!(code->co_flags & CO_VARKEYWORDS);
}

static int find_guards_api(PyObject *guard_check, char *native) {
    *native = 0;
    if (strcmp(Py_TYPE(guard_check)->tp_name, "weft_guards._native.GuardCheck") != 0) {
        return 0;
    }
    if (guards_api == NULL) {
        WeftGuardsAPI *api = PyCapsule_Import(WEFT_GUARDS_API_CAPSULE, 0);
        if (api == NULL) {
            return -1;
        }
        if (api->version != WEFT_GUARDS_API_VERSION) {
            PyErr_Format(PyExc_ImportError,
                         "weft_guards has version %d of its C interface, version %d is needed",
                         api->version, WEFT_GUARDS_API_VERSION);
            return -1;
        }
        guards_api = api;
    }
    *native = 1;
    return 0;
}

static int entry_clear(Entry *self) {
    /* The guard and the code stay: a hook may be using them.  Cycles go through the objects. */
    PyObject *empty = PyTuple_New(0);
    if (empty == NULL) {
        PyErr_Clear();
        return 0;
    }
    Py_SETREF(self->objects, empty);
    Py_CLEAR(self->watched);
    return 0;
}

static PyObject *entry_new(PyTypeObject *type, PyObject *args, PyObject *keywords) {
    static char *names[] = {"guard_check", "code", "objects", "objects_slot", "resumes", NULL};
    PyObject *guard_check, *code, *objects;
    int slot = -1, resumes = 0;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "OO!O!|ip:Entry", names, &guard_check,
                                     &PyCode_Type, &code, &PyTuple_Type, &objects, &slot,
                                     &resumes)) {
        return NULL;
    }
    int arguments = weft_argument_slots((PyCodeObject *)code);
    if (slot != -1 && (slot < arguments || slot >= ((PyCodeObject *)code)->co_nlocals)) {
        PyErr_Format(PyExc_ValueError, "no local after the arguments has index %d", slot);
        return NULL;
    }
    char native;
    if (find_guards_api(guard_check, &native) < 0) {
        return NULL;
    }
    Entry *self = (Entry *)type->tp_alloc(type, 0);
    if (self == NULL) {
        return NULL;
    }
    self->guard_check = Py_NewRef(guard_check);
    self->code = (PyCodeObject *)Py_NewRef(code);
    self->objects = Py_NewRef(objects);
    self->objects_slot = slot;
    self->argument_slots = arguments;
    self->native_check = native;
    self->resumes = (char)resumes;
    return (PyObject *)self;
}

static PyObject *call_check(Entry *entry, _PyInterpreterFrame *frame, PyObject *closure) {
    PyObject *arguments = PyTuple_New(entry->argument_slots);
    if (arguments == NULL) {
        return NULL;
    }
    for (int i = 0; i < entry->argument_slots; i++) {
        PyTuple_SET_ITEM(arguments, i, Py_NewRef(weft_frame_local(frame, i)));
    }
    PyObject *result =
        PyObject_CallMethod(entry->guard_check, "check", "OOOO", arguments, frame->f_globals,
                            frame->f_builtins, closure == NULL ? Py_None : closure);
    Py_DECREF(arguments);
    return result;
}

/* Whether the entry may run for the frame; never leaves an exception set. */
int weft_entry_holds(Entry *entry, _PyInterpreterFrame *frame) {
    if (entry->retired) {
        return 0;
    }
    if (entry->guard_check == Py_None) {
        return 1;
    }
    PyObject *closure = weft_frame_function(frame)->func_closure;
    if (entry->native_check) {
        PyObject *check = Py_NewRef(entry->guard_check); /* it may run code that retires the entry */
        int count = entry->argument_slots;
        PyObject *room[WEFT_LOCALS_ROOM(count)];
        PyObject **locals = weft_frame_locals(frame, count, room);
        int holds = guards_api->check(check, locals, frame->f_globals, frame->f_builtins, closure);
        Py_DECREF(check);
        return holds;
    }
    PyObject *result = call_check(entry, frame, closure);
    int holds = result == NULL ? -1 : PyObject_IsTrue(result);
    Py_XDECREF(result);
    if (holds < 0) {
        PyErr_Clear(); /* a guard that raises does not hold */
        return 0;
    }
    return holds;
}

/* Entries whose guards are all checked natively are merged; others are tried one by one. */
int weft_select(PyObject *entries, PyObject **selection) {
    Py_ssize_t count = PyTuple_GET_SIZE(entries);
    *selection = NULL;
    for (Py_ssize_t i = 0; i < count; i++) {
        if (!((Entry *)PyTuple_GET_ITEM(entries, i))->native_check) {
            return 0;
        }
    }
    if (count < 2) {
        return 0;
    }
    PyObject *checks = PyTuple_New(count);
    if (checks == NULL) {
        return -1;
    }
    for (Py_ssize_t i = 0; i < count; i++) {
        Entry *entry = (Entry *)PyTuple_GET_ITEM(entries, i);
        PyTuple_SET_ITEM(checks, i, Py_NewRef(entry->guard_check));
    }
    *selection = guards_api->select(checks);
    Py_DECREF(checks);
    return *selection == NULL ? -1 : 0;
}

Py_ssize_t weft_find_selected(PyObject *selection, _PyInterpreterFrame *frame) {
    int count = weft_argument_slots(weft_frame_code(frame));
    PyObject *room[WEFT_LOCALS_ROOM(count)];
    PyObject **locals = weft_frame_locals(frame, count, room);
    return guards_api->find(selection, locals, frame->f_globals, frame->f_builtins,
                            weft_frame_function(frame)->func_closure);
}

const Py_ssize_t *weft_selection_order(PyObject *selection) {
    return guards_api->order(selection);
}

/* Takes the entry out of its context, and lets go of all that it holds but its code.  What runs it now
 * has references of its own, and what looks it up sees that it is retired, so any thread may do this at
 * any time. */
static void retire(Entry *self) {
    if (self->retired) {
        return;
    }
    self->retired = 1;
    PyObject *context = self->context == NULL ? NULL : weft_weak_target(self->context);
    if (context != NULL) {
        weft_remove_entry((Context *)context, self);
        Py_DECREF(context);
    }
    entry_clear(self);
    Py_SETREF(self->guard_check, Py_NewRef(Py_None));
}

static PyObject *entry_retire(Entry *self, PyObject *Py_UNUSED(ignored)) {
    retire(self);
    Py_RETURN_NONE;
}

/* The callback of what an entry watches; `reference` is the entry's own.  In C, since a frame of
 * Python's could be one that the hook looks at. */
static PyObject *watched_died(PyObject *reference, PyObject *Py_UNUSED(dead)) {
    PyObject *entry = weft_weak_target(reference);
    if (entry != NULL) {
        retire((Entry *)entry);
        Py_DECREF(entry);
    }
    Py_RETURN_NONE;
}

static PyMethodDef watched_died_definition = {"watched_died", watched_died, METH_O, NULL};

static PyObject *watch_all(PyObject *references, PyObject *callback, int *dead) {
    Py_ssize_t count = PyTuple_GET_SIZE(references);
    PyObject *watched = PyTuple_New(count);
    for (Py_ssize_t i = 0; watched != NULL && i < count; i++) {
        PyObject *reference = PyTuple_GET_ITEM(references, i);
        if (!PyWeakref_CheckRef(reference)) {
            PyErr_SetString(PyExc_TypeError, "watch() takes weak references");
            Py_CLEAR(watched);
            break;
        }
        PyObject *object = weft_weak_target(reference);
        *dead |= object == NULL;
        PyObject *watch =
            object == NULL ? Py_NewRef(Py_None) : PyWeakref_NewRef(object, callback);
        Py_XDECREF(object);
        if (watch == NULL) {
            Py_CLEAR(watched);
        } else {
            PyTuple_SET_ITEM(watched, i, watch);
        }
    }
    return watched;
}

static PyObject *entry_watch(Entry *self, PyObject *references) {
    PyObject *own = PyWeakref_NewRef((PyObject *)self, NULL);
    PyObject *callback = own == NULL ? NULL : PyCFunction_New(&watched_died_definition, own);
    int dead = 0;
    PyObject *watched = callback == NULL ? NULL : watch_all(references, callback, &dead);
    Py_XDECREF(own);
    Py_XDECREF(callback);
    if (watched == NULL) {
        return NULL;
    }
    Py_XSETREF(self->watched, watched);
    if (dead) {
        retire(self);
    }
    Py_RETURN_NONE;
}

static int entry_traverse(Entry *self, visitproc visit, void *arg) {
    Py_VISIT(self->watched);
    Py_VISIT(self->context);
    Py_VISIT(self->guard_check);
    Py_VISIT(self->code);
    Py_VISIT(self->objects);
    return 0;
}

static void entry_dealloc(Entry *self) {
    PyObject_GC_UnTrack(self);
    if (self->weak_references != NULL) {
        PyObject_ClearWeakRefs((PyObject *)self);
    }
    Py_XDECREF(self->watched);
    Py_XDECREF(self->context);
    Py_XDECREF(self->guard_check);
    Py_XDECREF(self->code);
    Py_XDECREF(self->objects);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static PyMemberDef entry_members[] = {
    {"guard_check", T_OBJECT, offsetof(Entry, guard_check), READONLY, NULL},
    {"code", T_OBJECT, offsetof(Entry, code), READONLY, NULL},
    {"objects", T_OBJECT, offsetof(Entry, objects), READONLY, NULL},
    {"objects_slot", T_INT, offsetof(Entry, objects_slot), READONLY, NULL},
    {"resumes", T_BOOL, offsetof(Entry, resumes), READONLY, NULL},
    {"retired", T_BOOL, offsetof(Entry, retired), READONLY, NULL},
    {"hits", T_ULONGLONG, offsetof(Entry, hits), READONLY, NULL},
    {NULL},
};

static PyMethodDef entry_methods[] = {
    {"watch", (PyCFunction)entry_watch, METH_VARARGS,
     PyDoc_STR("watch(*references): retire when an object of these weak references dies.")},
    {"retire", (PyCFunction)entry_retire, METH_NOARGS,
     PyDoc_STR("retire(): leave the context, run no more, and let go of guard and objects.")},
    {NULL},
};

PyTypeObject Entry_Type = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "weft_bytecode_capture._frame_hook.Entry",
    .tp_doc = PyDoc_STR(
        "Entry(guard_check, code, objects, objects_slot=-1, resumes=False)\n\n"
        "Transformed code that runs in place of a frame's own while `guard_check` holds (None:\n"
        "always).  Its first locals and its free variables are the original's; local number\n"
        "`objects_slot` holds the tuple `objects` when it starts."),
    .tp_basicsize = sizeof(Entry),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_new = entry_new,
    .tp_dealloc = (destructor)entry_dealloc,
    .tp_traverse = (traverseproc)entry_traverse,
    .tp_clear = (inquiry)entry_clear,
    .tp_weaklistoffset = offsetof(Entry, weak_references),
    .tp_methods = entry_methods,
    .tp_members = entry_members,
};

static PyObject *resumption_new(PyTypeObject *type, PyObject *args, PyObject *keywords) {
    Py_ssize_t count = PyTuple_GET_SIZE(args);
    if (count == 0 || keywords != NULL || !PyFunction_Check(PyTuple_GET_ITEM(args, 0))) {
        PyErr_SetString(PyExc_TypeError, "Resumption() takes a function and positional arguments");
        return NULL;
    }
    Resumption *self = (Resumption *)type->tp_alloc(type, count);
    if (self != NULL) {
        for (Py_ssize_t i = 0; i < count; i++) {
            self->items[i] = Py_NewRef(PyTuple_GET_ITEM(args, i));
        }
    }
    return (PyObject *)self;
}

static int resumption_traverse(Resumption *self, visitproc visit, void *arg) {
    for (Py_ssize_t i = 0; i < Py_SIZE(self); i++) {
        Py_VISIT(self->items[i]);
    }
    return 0;
}

static void resumption_dealloc(Resumption *self) {
    PyObject_GC_UnTrack(self);
    for (Py_ssize_t i = 0; i < Py_SIZE(self); i++) {
        Py_XDECREF(self->items[i]);
    }
    Py_TYPE(self)->tp_free((PyObject *)self);
}

PyTypeObject Resumption_Type = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "weft_bytecode_capture._frame_hook.Resumption",
    .tp_doc = PyDoc_STR("Resumption(function, *arguments)\n\n"
                        "Returned by transformed code to go on in another function."),
    .tp_basicsize = offsetof(Resumption, items),
    .tp_itemsize = sizeof(PyObject *),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_new = resumption_new,
    .tp_dealloc = (destructor)resumption_dealloc,
    .tp_traverse = (traverseproc)resumption_traverse,
};
