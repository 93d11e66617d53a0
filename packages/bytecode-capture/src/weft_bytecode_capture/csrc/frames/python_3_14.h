/* CPython 3.14: what a frame refers to is tagged; a tag says that the reference is not the frame's own. */

#include <pycore_interpframe.h>
#include <pycore_stackref.h>

#define WEFT_OWN_CODE

static inline PyCodeObject *weft_frame_code(_PyInterpreterFrame *frame) {
    return (PyCodeObject *)PyStackRef_AsPyObjectBorrow(frame->f_executable);
}

static inline void weft_set_frame_code(_PyInterpreterFrame *frame, PyCodeObject *code) {
    _PyStackRef old = frame->f_executable;
    frame->f_executable = PyStackRef_FromPyObjectNew(code);
    frame->instr_ptr = _PyCode_CODE(code);
#ifdef Py_GIL_DISABLED
    frame->tlbc_index = 0; /* the code's own: a thread that has a copy takes it at RESUME */
#endif
    frame->stackpointer = frame->localsplus + code->co_nlocalsplus;
    PyStackRef_CLOSE(old);
}

#define WEFT_OWN_FUNCTION

static inline PyFunctionObject *weft_frame_function(_PyInterpreterFrame *frame) {
    return (PyFunctionObject *)PyStackRef_AsPyObjectBorrow(frame->f_funcobj);
}

#define WEFT_OWN_SLOTS

static inline PyObject *weft_frame_local(_PyInterpreterFrame *frame, int index) {
    _PyStackRef local = frame->localsplus[index];
    return PyStackRef_IsNull(local) ? NULL : PyStackRef_AsPyObjectBorrow(local);
}

static inline void weft_set_frame_local(_PyInterpreterFrame *frame, int index, PyObject *object) {
    frame->localsplus[index] =
        object == NULL ? PyStackRef_NULL : PyStackRef_FromPyObjectSteal(object);
}

#define WEFT_LOCALS_ROOM(count) ((count) + 1)

static inline PyObject **weft_frame_locals(_PyInterpreterFrame *frame, int count, PyObject **room) {
    for (int i = 0; i < count; i++) {
        room[i] = weft_frame_local(frame, i);
    }
    return room;
}
