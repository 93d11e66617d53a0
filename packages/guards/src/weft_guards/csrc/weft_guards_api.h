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

#define WEFT_GUARDS_API_VERSION 2
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

    /* Several checks of one code object's frames, merged so that what they share is checked once.
     *
     * guard_checks  a tuple of weft_guards._native.GuardCheck, compiled with the same arguments and
     *               free variables.
     * A new reference, NULL with an exception.
     */
    PyObject *(*select)(PyObject *guard_checks);

    /* The index, in that tuple, of a check that holds, -1 when none does: the one found last is
     * tried first, then the others in the order in which they were found last.  Otherwise as
     * `check`.
     */
    Py_ssize_t (*find)(PyObject *selection, PyObject *const *localsplus, PyObject *globals,
                       PyObject *builtins, PyObject *closure);

    /* The indices of all checks in the order in which `find` will try them; the memory is the
     * selection's own, and stands until `find` is called again.
     */
    const Py_ssize_t *(*order)(PyObject *selection);
} WeftGuardsAPI;

#endif
