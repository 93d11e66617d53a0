/* The frame evaluator: finds transformed code for a frame and runs it in the frame itself. */
#include "frame_hook.h"

static _Thread_local ThreadSlot thread_slot;

ThreadSlot *weft_thread_slot(void) {
    return &thread_slot;
}

/* Installation.  The evaluator is one per interpreter, so it is there while any thread is in a
 * compiled call; a thread without a context goes straight to the evaluator that was there before.
 * All of this is protected by the GIL. */

static int installed_depth = 0;
static _PyFrameEvalFunction previous_evaluator = _PyEval_EvalFrameDefault;

static PyObject *evaluate(PyThreadState *tstate, _PyInterpreterFrame *frame, int throwflag);

int weft_installed_depth(void) {
    return installed_depth;
}

int weft_is_inside_other_hook(void) {
    _PyFrameEvalFunction present =
        _PyInterpreterState_GetEvalFrameFunc(PyInterpreterState_Get());
    return present != evaluate && present != _PyEval_EvalFrameDefault;
}

void weft_install(Installation *saved) {
    PyInterpreterState *interpreter = PyInterpreterState_Get();
    saved->evaluator = _PyInterpreterState_GetEvalFrameFunc(interpreter);
    saved->previous = previous_evaluator;
    installed_depth++;
    thread_slot.installed_depth++;
    if (saved->evaluator != evaluate) {
        previous_evaluator = saved->evaluator;
        _PyInterpreterState_SetEvalFrameFunc(interpreter, evaluate);
    }
}

void weft_remove(Installation *saved) {
    PyInterpreterState *interpreter = PyInterpreterState_Get();
    installed_depth--;
    thread_slot.installed_depth--;
    _PyFrameEvalFunction present = _PyInterpreterState_GetEvalFrameFunc(interpreter);
    if (installed_depth == 0) {
        if (present == evaluate) {
            _PyInterpreterState_SetEvalFrameFunc(interpreter, previous_evaluator);
        }
        previous_evaluator = _PyEval_EvalFrameDefault;
    } else if (present == evaluate && saved->evaluator != evaluate &&
               saved->evaluator != _PyEval_EvalFrameDefault) {
        /* Another hook was put over an outer compiled call's and this call came inside it. */
        _PyInterpreterState_SetEvalFrameFunc(interpreter, saved->evaluator);
        previous_evaluator = saved->previous;
    }
}

/* In a forked process: compiled calls of threads that are not there never end. */
void weft_after_fork(void) {
    installed_depth = thread_slot.installed_depth;
    PyInterpreterState *interpreter = PyInterpreterState_Get();
    if (installed_depth == 0) {
        if (_PyInterpreterState_GetEvalFrameFunc(interpreter) == evaluate) {
            _PyInterpreterState_SetEvalFrameFunc(interpreter, previous_evaluator);
        }
        previous_evaluator = _PyEval_EvalFrameDefault;
    }
}

int weft_suspend(void) {
    PyInterpreterState *interpreter = PyInterpreterState_Get();
    if (installed_depth != 1 || _PyInterpreterState_GetEvalFrameFunc(interpreter) != evaluate) {
        return 0;
    }
    _PyInterpreterState_SetEvalFrameFunc(interpreter, previous_evaluator);
    return 1;
}

void weft_unsuspend(int token) {
    PyInterpreterState *interpreter = PyInterpreterState_Get();
    if (token && _PyInterpreterState_GetEvalFrameFunc(interpreter) != evaluate) {
        _PyInterpreterState_SetEvalFrameFunc(interpreter, evaluate);
    }
}

/* Running an entry. */

/* Room for the frame of `code` where the frame of the original is; 0 if the chunk has none. */
static int make_room(PyThreadState *tstate, _PyInterpreterFrame *frame, PyCodeObject *code) {
    Py_ssize_t wanted = weft_frame_size(code);
    PyObject **end = (PyObject **)frame + wanted;
    if (end <= tstate->datastack_top) {
        return 1;
    }
    if (tstate->datastack_top < (PyObject **)frame || end >= tstate->datastack_limit) {
        return 0;
    }
    tstate->datastack_top = end;
    return 1;
}

static PyObject *go_on(ThreadSlot *slot, PyObject *result) {
    while (result != NULL && Py_IS_TYPE(result, &Resumption_Type)) {
        Resumption *resumption = (Resumption *)result;
        PyObject *function = Py_NewRef(resumption->items[0]);
        slot->pending = resumption;
        result = PyObject_Vectorcall(function, resumption->items + 1,
                                     (size_t)(Py_SIZE(resumption) - 1), NULL);
        if (slot->pending == resumption) { /* the hook has not come by */
            slot->pending = NULL;
            Py_DECREF(resumption);
        }
        Py_DECREF(function);
    }
    return result;
}

static PyObject *run_entry(PyThreadState *tstate, _PyInterpreterFrame *frame, Entry *entry,
                           ThreadSlot *slot, int called_by_trampoline) {
    PyCodeObject *code = entry->code;
    int resumes = entry->resumes;
    if (!make_room(tstate, frame, code)) {
        return _PyEval_EvalFrameDefault(tstate, frame, 0);
    }
    entry->hits++;
    for (int i = entry->argument_slots; i < code->co_nlocalsplus; i++) {
        weft_set_frame_local(frame, i, NULL);
    }
    if (entry->objects_slot >= 0) {
        weft_set_frame_local(frame, entry->objects_slot, Py_NewRef(entry->objects));
    }
    PyObject *event = weft_begin_event(slot, weft_frame_code(frame));
    weft_set_frame_code(frame, code);
    PyObject *result = _PyEval_EvalFrameDefault(tstate, frame, 0);
    weft_end_event(event);
    if (!resumes || result == NULL || !Py_IS_TYPE(result, &Resumption_Type)) {
        return result;
    }
    weft_clear_finished_frame(frame);
    return called_by_trampoline ? result : go_on(slot, result);
}

static Py_ssize_t first_that_holds(Context *context, PyCodeObject *code, PyObject *entries,
                                   _PyInterpreterFrame *frame) {
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(entries); i++) {
        if (weft_entry_holds((Entry *)PyTuple_GET_ITEM(entries, i), frame)) {
            if (i > 0) {
                weft_move_to_front(context, code, entries, i);
            }
            return i;
        }
    }
    return -1;
}

/* The first entry whose guard holds; a new reference, NULL for none.  Guards may run Python code,
 * which is none of the context's business, and which may change the state. */
static Entry *find_entry(ThreadSlot *slot, PyCodeObject *code, CodeState *state,
                         _PyInterpreterFrame *frame) {
    Context *context = slot->context;
    PyObject *entries = Py_NewRef(state->entries);
    PyObject *selection = Py_XNewRef(state->selection);
    slot->context = NULL;
    Py_ssize_t found = selection != NULL ? weft_find_selected(selection, frame)
                                         : first_that_holds(context, code, entries, frame);
    slot->context = context;
    Entry *entry =
        found < 0 ? NULL : (Entry *)Py_NewRef(PyTuple_GET_ITEM(entries, found));
    Py_XDECREF(selection);
    Py_DECREF(entries);
    return entry;
}

/* Conversion. */

static PyObject *arguments_of(_PyInterpreterFrame *frame, PyCodeObject *code) {
    PyObject *arguments = PyDict_New();
    int count = weft_argument_slots(code);
    for (int i = 0; arguments != NULL && i < count; i++) {
        PyObject *name = PyTuple_GET_ITEM(code->co_localsplusnames, i);
        PyObject *value = weft_frame_local(frame, i);
        if (value != NULL && PyDict_SetItem(arguments, name, value) < 0) {
            Py_CLEAR(arguments);
        }
    }
    return arguments;
}

static PyObject *closure_of(_PyInterpreterFrame *frame, PyCodeObject *code) {
    PyObject *cells = weft_frame_function(frame)->func_closure;
    PyObject *closure = PyDict_New();
    int first = code->co_nlocalsplus - code->co_nfreevars;
    for (int i = 0; closure != NULL && i < code->co_nfreevars; i++) {
        PyObject *name = PyTuple_GET_ITEM(code->co_localsplusnames, first + i);
        if (PyDict_SetItem(closure, name, PyTuple_GET_ITEM(cells, i)) < 0) {
            Py_CLEAR(closure);
        }
    }
    return closure;
}

/* Python code of the compiler's own runs between these: not hooked, not traced. */
static int leave_program(PyThreadState *tstate, ThreadSlot *slot) {
    slot->context = NULL;
    PyThreadState_EnterTracing(tstate);
    return weft_suspend();
}

static void enter_program(PyThreadState *tstate, ThreadSlot *slot, Context *context, int token) {
    weft_unsuspend(token);
    PyThreadState_LeaveTracing(tstate);
    slot->context = context;
}

static PyObject *call_callback(PyThreadState *tstate, Context *context, PyCodeObject *code,
                               _PyInterpreterFrame *frame, ThreadSlot *slot) {
    PyObject *answer = NULL;
    PyObject *arguments = arguments_of(frame, code);
    PyObject *closure = arguments == NULL ? NULL : closure_of(frame, code);
    if (closure != NULL) {
        PyObject *stack[] = {(PyObject *)code, arguments, frame->f_globals, frame->f_builtins,
                             closure};
        context->conversions++;
        int token = leave_program(tstate, slot);
        answer = PyObject_Vectorcall(context->callback, stack, 5, NULL);
        enter_program(tstate, slot, context, token);
    }
    Py_XDECREF(arguments);
    Py_XDECREF(closure);
    return answer;
}

/* What to do after asking the callback; FAILED: an exception is set. */
enum outcome { FAILED = -1, AS_IT_IS = 0, RUN = 1, AGAIN = 2, NO_CONTEXT = 3 };

static enum outcome convert(PyThreadState *tstate, Context *context, PyCodeObject *code,
                            _PyInterpreterFrame *frame, ThreadSlot *slot, Entry **entry) {
    PyObject *answer = call_callback(tstate, context, code, frame, slot);
    if (answer == NULL) {
        if (PyErr_ExceptionMatches(PyExc_RecursionError)) {
            /* Conversion needs more depth than the program has left, which the frame itself may not. */
            PyErr_Clear();
            return AS_IT_IS;
        }
        return FAILED;
    }
    CodeState *state = weft_get_state(context, code);
    if (state == NULL) {
        Py_DECREF(answer);
        return FAILED;
    }
    state->conversions++;
    if (Py_IS_TYPE(answer, &Entry_Type)) {
        if (((Entry *)answer)->argument_slots != weft_argument_slots(code)) {
            PyErr_SetString(PyExc_ValueError, "transformed code has other arguments");
            Py_DECREF(answer);
            return FAILED;
        }
        *entry = (Entry *)answer;
        int token = leave_program(tstate, slot);
        int added = weft_add_entry(context, code, *entry);
        enter_program(tstate, slot, context, token);
        return added < 0 ? FAILED : RUN;
    }
    long status = PyLong_AsLong(answer);
    Py_DECREF(answer);
    switch (status) {
    case STATUS_RETRY:
        return AGAIN;
    case STATUS_PASS:
        return AS_IT_IS;
    case STATUS_DISABLE:
        state->status = STATUS_DISABLE;
        return NO_CONTEXT;
    case STATUS_SKIP:
    case STATUS_FROZEN:
        state->status = (enum status)status;
        return AS_IT_IS;
    default:
        if (!PyErr_Occurred()) {
            PyErr_Format(PyExc_ValueError, "not an answer of a conversion: %ld", status);
        }
        return FAILED;
    }
}

static PyObject *run_without_context(PyThreadState *tstate, _PyInterpreterFrame *frame,
                                     ThreadSlot *slot) {
    Context *context = slot->context;
    slot->context = NULL;
    int token = weft_suspend();
    PyObject *result = _PyEval_EvalFrameDefault(tstate, frame, 0);
    weft_unsuspend(token);
    slot->context = context;
    return result;
}

static int eligible(_PyInterpreterFrame *frame, PyCodeObject *code) {
    const int wanted = CO_OPTIMIZED | CO_NEWLOCALS;
    const int unwanted = CO_GENERATOR | CO_COROUTINE | CO_ASYNC_GENERATOR | CO_ITERABLE_COROUTINE;
    /* A dict of another class looks names up by its own methods, as annotationlib's does. */
    return (code->co_flags & (wanted | unwanted)) == wanted &&
           frame->owner == FRAME_OWNED_BY_THREAD && PyDict_CheckExact(frame->f_globals);
}

static PyObject *evaluate_in_context(PyThreadState *tstate, _PyInterpreterFrame *frame,
                                     ThreadSlot *slot, int called_by_trampoline) {
    Context *context = slot->context;
    PyCodeObject *code = weft_frame_code(frame);
    Entry *entry = NULL;
    for (;;) {
        CodeState *state = weft_find_state(context, code);
        enum status status = state == NULL ? STATUS_UNSEEN : state->status;
        if (status == STATUS_SKIP) {
            return previous_evaluator(tstate, frame, 0);
        }
        if (status == STATUS_DISABLE) {
            return run_without_context(tstate, frame, slot);
        }
        if (status != STATUS_UNSEEN && state->entries != NULL) {
            entry = find_entry(slot, code, state, frame);
            if (entry != NULL && entry->retired) { /* while the rest of its guard was checked */
                Py_CLEAR(entry);
                continue;
            }
            if (entry != NULL) {
                context->hits++;
                break;
            }
        }
        if (status == STATUS_FROZEN) {
            return previous_evaluator(tstate, frame, 0);
        }
        switch (convert(tstate, context, code, frame, slot, &entry)) {
        case FAILED:
            Py_XDECREF(entry);
            return _PyEval_EvalFrameDefault(tstate, frame, 1);
        case AS_IT_IS:
            return previous_evaluator(tstate, frame, 0);
        case NO_CONTEXT:
            return run_without_context(tstate, frame, slot);
        case AGAIN:
            continue;
        case RUN:
            if (entry->retired) { /* by now: as would be another one */
                Py_DECREF(entry);
                return previous_evaluator(tstate, frame, 0);
            }
            break;
        }
        break;
    }
    PyObject *result = run_entry(tstate, frame, entry, slot, called_by_trampoline);
    Py_DECREF(entry);
    return result;
}

/* Whether Python code sees the frames of this thread: it wants the calls and lines that are written.
 * That code itself, an audit hook's, a callback's of sys.monitoring and finalizers of garbage, which is
 * collected at no place of the program's, are no part of it.
 * Profilers of C (cProfile, torch's) set an object that cannot be called; they see what runs. */
static int is_watched(PyThreadState *tstate) {
    return tstate->tracing || thread_slot.collects || tstate->c_tracefunc != NULL ||
           (tstate->c_profilefunc != NULL && tstate->c_profileobj != NULL &&
            PyCallable_Check(tstate->c_profileobj));
}

static PyObject *evaluate(PyThreadState *tstate, _PyInterpreterFrame *frame, int throwflag) {
    ThreadSlot *slot = &thread_slot;
    int called_by_trampoline = 0;
    Resumption *resumption = slot->pending;
    if (resumption != NULL && !throwflag &&
        (PyObject *)weft_frame_function(frame) == resumption->items[0]) {
        /* The frame holds the arguments now; nothing else shall. */
        slot->pending = NULL;
        Py_DECREF(resumption);
        called_by_trampoline = 1;
    }
    if (slot->context == NULL || throwflag || is_watched(tstate) ||
        !eligible(frame, weft_frame_code(frame))) {
        return previous_evaluator(tstate, frame, throwflag);
    }
    return evaluate_in_context(tstate, frame, slot, called_by_trampoline);
}
