/* What frames of most versions have in common.
 *
 * A version's header that has something of its own defines it, and the macro that leaves it out here.
 */

#ifndef WEFT_OWN_CODE

static inline PyCodeObject *weft_frame_code(_PyInterpreterFrame *frame) {
    return frame->f_code;
}

static inline void weft_set_frame_code(_PyInterpreterFrame *frame, PyCodeObject *code) {
    PyCodeObject *old = frame->f_code;
    Py_INCREF(code);
    frame->f_code = code;
    frame->prev_instr = _PyCode_CODE(code) - 1;
    frame->stacktop = code->co_nlocalsplus;
    Py_DECREF(old);
}

#endif
#ifndef WEFT_OWN_FUNCTION

static inline PyFunctionObject *weft_frame_function(_PyInterpreterFrame *frame) {
    return (PyFunctionObject *)frame->f_funcobj;
}

#endif
#ifndef WEFT_OWN_SLOTS

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

#endif
#ifndef WEFT_OWN_SIZE

static inline Py_ssize_t weft_frame_size(PyCodeObject *code) {
    return code->co_framesize;
}

static inline void weft_raise_frame_size(PyCodeObject *code, Py_ssize_t size) {
    if (size > code->co_framesize) {
        code->co_framesize = (int)size;
    }
}

#endif
#ifndef WEFT_OWN_END

static inline void weft_clear_finished_frame(_PyInterpreterFrame *frame) {
    (void)frame;
}

#endif
