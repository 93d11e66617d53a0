/* What a pushed frame looks like differs between the versions of CPython: one header for each says what is
 * its own, `common.h` what is not.  Together they define:
 *   weft_frame_code(frame), weft_frame_function(frame)   borrowed references
 *   weft_frame_local(frame, i)                           borrowed; NULL: unbound
 *   weft_set_frame_local(frame, i, object)               takes the reference; the slot held nothing of its own
 *   weft_frame_locals(frame, count, room)                the first locals as objects, borrowed; in `room`,
 *                                                        of WEFT_LOCALS_ROOM(count), where they are not such
 *   weft_frame_size(code)                                slots of the thread's data stack
 *   weft_raise_frame_size(code, size)                    let future frames of the code have that many
 *   weft_set_frame_code(frame, code)                     a frame that has not run runs this code
 *   weft_clear_finished_frame(frame)                     after its evaluation: drop its locals, if it has them
 *
 * Checked on 3.11.7, 3.12.1, 3.13.0, 3.14.10, 3.14.7 without the lock in its build, and 3.15.2; frames of 3.15 are
 * as those of 3.14.
 */
#ifndef WEFT_FRAME_COMPAT_H
#define WEFT_FRAME_COMPAT_H

#define PY_SSIZE_T_CLEAN
#define Py_BUILD_CORE 1
#include <Python.h>

#include <frameobject.h>
#include <pycore_code.h>
#include <pycore_frame.h>
#include <pycore_pystate.h>

#if PY_VERSION_HEX < 0x030B0000 || PY_VERSION_HEX >= 0x03100000
#error "weft_bytecode_capture supports CPython 3.11 to 3.15"
#elif PY_VERSION_HEX < 0x030C0000
#include "frames/python_3_11.h"
#elif PY_VERSION_HEX < 0x030D0000
#include "frames/python_3_12.h"
#elif PY_VERSION_HEX < 0x030E0000
#include "frames/python_3_13.h"
#else
#include "frames/python_3_14.h"
#endif
#include "frames/common.h"

#endif
