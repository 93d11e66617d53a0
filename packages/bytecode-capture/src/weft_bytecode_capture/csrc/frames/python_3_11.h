/* CPython 3.11: whoever pushed a frame clears it, and a frame's size follows from its code's. */

static inline PyCodeObject *weft_frame_code(_PyInterpreterFrame *frame) {
    return frame->f_code;
}

static inline PyFunctionObject *weft_frame_function(_PyInterpreterFrame *frame) {
    return frame->f_func;
}

static inline PyObject *weft_frame_local(_PyInterpreterFrame *frame, int index) {
    return frame->localsplus[index];
}

static inline void weft_set_frame_local(_PyInterpreterFrame *frame, int index, PyObject *object) {
    frame->localsplus[index] = object;
}

#define WEFT_LOCALS_ROOM(count) 1

static inline PyObject **weft_frame_locals(_PyInterpreterFrame *frame, int count, PyObject **room) {
    (void)count, (void)room;
    return frame->localsplus;
}

static inline Py_ssize_t weft_frame_size(PyCodeObject *code) {
    return (Py_ssize_t)code->co_nlocalsplus + code->co_stacksize + (Py_ssize_t)FRAME_SPECIALS_SIZE;
}

static inline void weft_raise_frame_size(PyCodeObject *code, Py_ssize_t size) {
    Py_ssize_t present = weft_frame_size(code);
    if (size > present) {
        code->co_stacksize += (int)(size - present);
    }
}

static inline void weft_set_frame_code(_PyInterpreterFrame *frame, PyCodeObject *code) {
    PyCodeObject *old = frame->f_code;
    Py_INCREF(code);
    frame->f_code = code;
    frame->prev_instr = _PyCode_CODE(code) - 1;
    frame->stacktop = code->co_nlocalsplus;
    Py_DECREF(old);
}

static inline void weft_clear_finished_frame(_PyInterpreterFrame *frame) {
    if (frame->frame_obj != NULL && Py_REFCNT(frame->frame_obj) > 1) {
        return; /* a traceback or a debugger may still ask for the locals */
    }
    int count = frame->f_code->co_nlocalsplus;
    for (int i = 0; i < count; i++) {
        Py_CLEAR(frame->localsplus[i]);
    }
}
