/* All that differs between the versions of CPython: what a pushed frame looks like.
 *
 * Checked on 3.11.7 and 3.12.1.
 */
#ifndef WEFT_FRAME_COMPAT_H
#define WEFT_FRAME_COMPAT_H

#define PY_SSIZE_T_CLEAN
#define Py_BUILD_CORE 1
#include <Python.h>

#if PY_VERSION_HEX < 0x030B0000 || PY_VERSION_HEX >= 0x030D0000
#error "weft_bytecode_capture supports CPython 3.11 and 3.12"
#endif

#include <frameobject.h>
#include <pycore_code.h>
#include <pycore_frame.h>
#include <pycore_pystate.h>

/* Inline functions of the internal headers refer to these in unused paths. */

static inline PyCodeObject *weft_frame_code(_PyInterpreterFrame *frame) {
    return frame->f_code;
}

static inline PyFunctionObject *weft_frame_function(_PyInterpreterFrame *frame) {
#if PY_VERSION_HEX >= 0x030C0000
    return (PyFunctionObject *)frame->f_funcobj;
#else
    return frame->f_func;
#endif
}

/* Slots of the thread's data stack that a frame of this code takes. */
static inline Py_ssize_t weft_frame_size(PyCodeObject *code) {
#if PY_VERSION_HEX >= 0x030C0000
    return code->co_framesize;
#else
    return (Py_ssize_t)code->co_nlocalsplus + code->co_stacksize + (Py_ssize_t)FRAME_SPECIALS_SIZE;
#endif
}

/* Let future frames of `code` have at least `size` slots. */
static inline void weft_raise_frame_size(PyCodeObject *code, Py_ssize_t size) {
    Py_ssize_t present = weft_frame_size(code);
    if (size <= present) {
        return;
    }
#if PY_VERSION_HEX >= 0x030C0000
    code->co_framesize = (int)size;
#else
    code->co_stacksize += (int)(size - present);
#endif
}

/* Make a pushed frame that has not run anything run `code` from its beginning. */
static inline void weft_set_frame_code(_PyInterpreterFrame *frame, PyCodeObject *code) {
    PyCodeObject *old = frame->f_code;
    Py_INCREF(code);
    frame->f_code = code;
    frame->prev_instr = _PyCode_CODE(code) - 1;
    frame->stacktop = code->co_nlocalsplus;
    Py_DECREF(old);
}

/* After its evaluation: whether the frame still holds its locals, and the caller may drop them.
 *
 * 3.12 has cleared and popped a frame by then; 3.11 leaves that to the function that pushed it. */
static inline void weft_clear_finished_frame(_PyInterpreterFrame *frame) {
#if PY_VERSION_HEX < 0x030C0000
    if (frame->frame_obj != NULL && Py_REFCNT(frame->frame_obj) > 1) {
        return; /* a traceback or a debugger may still ask for the locals */
    }
    int count = frame->f_code->co_nlocalsplus;
    for (int i = 0; i < count; i++) {
        Py_CLEAR(frame->localsplus[i]);
    }
#else
    (void)frame;
#endif
}

#endif
