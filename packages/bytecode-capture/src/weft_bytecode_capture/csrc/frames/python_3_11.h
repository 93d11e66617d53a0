/* CPython 3.11: whoever pushed a frame clears it, and a frame's size follows from its code's. */

#define WEFT_OWN_FUNCTION

static inline PyFunctionObject *weft_frame_function(_PyInterpreterFrame *frame) {
    return frame->f_func;
}

#define WEFT_OWN_SIZE

static inline Py_ssize_t weft_frame_size(PyCodeObject *code) {
    return (Py_ssize_t)code->co_nlocalsplus + code->co_stacksize + (Py_ssize_t)FRAME_SPECIALS_SIZE;
}

static inline void weft_raise_frame_size(PyCodeObject *code, Py_ssize_t size) {
    Py_ssize_t present = weft_frame_size(code);
    if (size > present) {
        code->co_stacksize += (int)(size - present);
    }
}

#define WEFT_OWN_END

static inline void weft_clear_finished_frame(_PyInterpreterFrame *frame) {
    if (frame->frame_obj != NULL && Py_REFCNT(frame->frame_obj) > 1) {
        return; /* a traceback or a debugger may still ask for the locals */
    }
    int count = frame->f_code->co_nlocalsplus;
    for (int i = 0; i < count; i++) {
        Py_CLEAR(frame->localsplus[i]);
    }
}
