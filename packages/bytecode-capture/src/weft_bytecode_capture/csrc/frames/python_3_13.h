/* CPython 3.13: a frame has an `f_executable`, and points to the instruction that comes next. */

#define WEFT_OWN_CODE

static inline PyCodeObject *weft_frame_code(_PyInterpreterFrame *frame) {
    return (PyCodeObject *)frame->f_executable;
}

static inline void weft_set_frame_code(_PyInterpreterFrame *frame, PyCodeObject *code) {
    PyObject *old = frame->f_executable;
    frame->f_executable = Py_NewRef(code);
    frame->instr_ptr = _PyCode_CODE(code);
    frame->stacktop = code->co_nlocalsplus;
    Py_DECREF(old);
}
