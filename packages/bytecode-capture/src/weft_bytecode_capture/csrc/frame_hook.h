/* Types shared by the parts of the extension. */
#ifndef WEFT_FRAME_HOOK_H
#define WEFT_FRAME_HOOK_H

#include "frame_compat.h"

/* What a weak reference refers to, a new reference; NULL, without an exception: nothing any more. */
static inline PyObject *weft_weak_target(PyObject *reference) {
#if PY_VERSION_HEX >= 0x030D0000
    PyObject *target = NULL;
    (void)PyWeakref_GetRef(reference, &target); /* fails for other objects only */
    return target;
#else
    PyObject *target = PyWeakref_GET_OBJECT(reference);
    return target == Py_None ? NULL : Py_NewRef(target);
#endif
}

/* Transformed code for one code object, and when it may run. */
typedef struct {
    PyObject_HEAD
    PyObject *guard_check; /* None: no condition */
    PyCodeObject *code;
    PyObject *objects; /* tuple that the hook puts into slot `objects_slot` */
    PyObject *watched; /* tuple of weak references that retire the entry; NULL for none */
    PyObject *context; /* weak reference to the context that has the entry; NULL for none yet */
    PyObject *weak_references;
    int objects_slot;  /* index into localsplus, -1: the code wants none */
    int argument_slots;
    char native_check; /* guard_check is checked through the C interface of weft_guards */
    char resumes;      /* the code may return a Resumption */
    char retired;      /* its guard can't hold again: it must not run */
    unsigned long long hits;
} Entry;

/* What transformed code returns to go on in another function: the hook calls it in its place, so
 * that the finished frame is gone from the stack, its references are dropped, and a loop that
 * breaks in every turn does not nest. */
typedef struct {
    PyObject_VAR_HEAD
    PyObject *items[1]; /* the function, then its positional arguments */
} Resumption;

enum status {
    STATUS_UNSEEN = 0,
    STATUS_ENTRIES = 1, /* convert when no entry fits */
    STATUS_FROZEN = 2,  /* as it is when no entry fits */
    STATUS_SKIP = 3,    /* left to CPython */
    STATUS_DISABLE = 4, /* left to CPython with all that it calls */
    STATUS_RETRY = 5,   /* answer of the callback only: look again */
    STATUS_PASS = 6,    /* answer of the callback only: this call runs as it is */
};

typedef struct {
    PyCodeObject *code; /* owned */
    PyObject *entries;  /* tuple of Entry, replaced rather than changed; NULL for none */
    PyObject *selection; /* says which of several entries holds; NULL: they are tried in order */
    enum status status;
    unsigned int conversions;
} CodeState;

typedef struct {
    PyObject_HEAD
    PyObject *callback;
    PyObject *weak_references;
    CodeState **table; /* open addressing, linear probing; NULL is free */
    size_t mask;       /* size of the table - 1 */
    size_t used;
    unsigned long long hits;
    unsigned long long conversions;
} Context;

/* `DEFAULT` compiles what is missing; `EAGER` runs compiled callables as they were written;
 * the callback decides what the others mean for a frame that no entry fits. */
enum stance {
    STANCE_DEFAULT,
    STANCE_EAGER,
    STANCE_EAGER_ON_RECOMPILE,
    STANCE_FAIL_ON_RECOMPILE,
    STANCE_EAGER_THEN_COMPILE
};

/* What a thread is doing now. */
typedef struct {
    Context *context;    /* borrowed from the wrapper that runs; NULL: not in a compiled call */
    Resumption *pending; /* owned; being called by the trampoline, not yet seen by the hook */
    int stance;          /* enum stance: what this thread's compiled calls may do */
    int installed_depth; /* how many compiled calls this thread is in */
    int collects;        /* the collector of garbage runs, and finalizers with it */
} ThreadSlot;

extern PyTypeObject Context_Type;
extern PyTypeObject Entry_Type;
extern PyTypeObject Resumption_Type;
extern PyTypeObject Wrapper_Type;

ThreadSlot *weft_thread_slot(void);

/* stance.c: this thread's stance, else that of torch.compiler.set_stance */
int weft_stance(void);

/* context.c */
CodeState *weft_find_state(Context *context, PyCodeObject *code);
CodeState *weft_get_state(Context *context, PyCodeObject *code); /* made when missing; NULL: error */
PyObject *weft_entries_of(CodeState *state); /* new reference, the one used last first; NULL: error */
int weft_add_entry(Context *context, PyCodeObject *code, Entry *entry);
void weft_remove_entry(Context *context, Entry *entry); /* never leaves an exception set */
void weft_move_to_front(Context *context, PyCodeObject *code, PyObject *entries, Py_ssize_t index);

/* entry.c */
int weft_entry_holds(Entry *entry, _PyInterpreterFrame *frame);
int weft_select(PyObject *entries, PyObject **selection); /* 0; -1 with an exception */
Py_ssize_t weft_find_selected(PyObject *selection, _PyInterpreterFrame *frame); /* -1: none holds */
const Py_ssize_t *weft_selection_order(PyObject *selection);
int weft_argument_slots(PyCodeObject *code);

/* hook.c */
typedef struct {
    _PyFrameEvalFunction evaluator;
    _PyFrameEvalFunction previous;
} Installation;

void weft_install(Installation *saved);
void weft_remove(Installation *saved);
void weft_after_fork(void);
int weft_suspend(void);        /* take the hook out if only this call wants it */
void weft_unsuspend(int token);
int weft_installed_depth(void);
int weft_is_inside_other_hook(void); /* frames go to another's evaluator, as torch.compile's */

/* torch_beside.c */
PyObject *weft_leave_torch_compile(void); /* what to give the next; NULL: nothing to put back */
void weft_enter_torch_compile(PyObject *callback);
PyObject *weft_begin_event(ThreadSlot *slot, PyCodeObject *code); /* NULL: nobody is profiling */
void weft_end_event(PyObject *event);

/* wrapper.c */
PyObject *weft_new_wrapper(Context *context, PyObject *callable);

#endif
