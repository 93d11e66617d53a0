/* Several guard sets of one frame, merged into one program: which of them holds.
 *
 * A step that several sets need is in the program once.  A lookup runs it at most once: what has
 * passed is not run again for the next set, and a set that needs a step that has failed is passed
 * over.  The set that held last is tried first.
 *
 * Where a step may have run code of the user's and its set has failed, all that was found is
 * forgotten before the next set, since that code may have changed anything: the answer is the one
 * of checking each set by itself.
 */
#ifndef WEFT_GUARDS_SELECTION_H
#define WEFT_GUARDS_SELECTION_H

#include "run.h"

extern PyTypeObject GuardSelection_Type;

/* The number of the first set that holds, -1 when none does; never leaves an exception. */
Py_ssize_t selection_find(PyObject *selection, const Frame *frame);

/* The numbers of the sets, the one that held last first; valid until Python code runs. */
const Py_ssize_t *selection_order(PyObject *selection);

#endif
