/* The C interface of weft_guards, for other extensions.
 *
 * It is reached without linking:
 *
 *     WeftGuardsAPI *api = PyCapsule_Import("weft_guards._native._C_API", 0);
 *     if (api == NULL) ...
 *     if (api->version != WEFT_GUARDS_API_VERSION) ...   a layout that the caller does not know
 *
 * A package that uses it copies this file.  Any change of the layout or of the meaning of a member
 * raises the version.
 */
#ifndef WEFT_GUARDS_API_H
#define WEFT_GUARDS_API_H

#include <Python.h>

#define WEFT_GUARDS_API_VERSION 1
#define WEFT_GUARDS_API_CAPSULE "weft_guards._native._C_API"

typedef struct {
    int version;

    /* Whether every guard holds: 1, or 0 when one fails or raises.  Never sets an exception; must
     * not be called with one set.  The GIL is held; arbitrary Python code may run.
     *
     * guard_check  a weft_guards._native.GuardCheck; for anything else the answer is 0.
     * localsplus   the frame's slots on entry, in the order of the `arguments` that the set was
     *              compiled with, at least as many; borrowed.  A NULL slot fails the guards that
     *              read it.  The slot of an argument that is also a cell variable holds the raw
     *              value, as it does before the frame's first instruction.
     * globals, builtins   the frame's; borrowed, never NULL.
     * closure      the function's tuple of cells, in the order of co_freevars; borrowed; NULL or
     *              None when the function has no free variables.
     */
    int (*check)(PyObject *guard_check, PyObject *const *localsplus, PyObject *globals,
                 PyObject *builtins, PyObject *closure);
} WeftGuardsAPI;

#endif
