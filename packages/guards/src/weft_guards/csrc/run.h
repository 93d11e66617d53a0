/* Runs the steps of a program on what a frame sees on entry. */
#ifndef WEFT_GUARDS_RUN_H
#define WEFT_GUARDS_RUN_H

#include "program.h"

typedef struct {
    PyObject *const *arguments; /* the slots, NULL for an empty one */
    PyObject *globals;
    PyObject *builtins;
    PyObject *closure; /* tuple, None or NULL */
    PyObject *scope;   /* owned; made when a step first needs it */
} Frame;

/* One run, of one set or of several one after the other. */
typedef struct {
    Program *program;
    Frame frame;
    PyObject **registers; /* by the target of the load; borrowed from `owned` */
    PyObject **owned;     /* in the order of loading */
    Py_ssize_t loaded;    /* values owned */
    int several;          /* `ran_python` is wanted */
    int ran_python;       /* a step may have run the user's code, which may have changed anything */
} Run;

int run_module_init(void); /* 0, or -1 with an exception */

/* Reads check()'s and find()'s arguments: 0, or -1 with an exception. */
int frame_from_arguments(const Program *program, PyObject *const *args, Py_ssize_t count,
                         const char *method, Frame *frame);

Run run_of(Program *program, const Frame *frame);

/* Runs steps until one fails: that step, or `end` when none does.  Steps of a section that is known
 * to pass are not run, nor are their values loaded.  Leaves no exception. */
Py_ssize_t run_steps(Run *run, Py_ssize_t start, Py_ssize_t end);

/* Drops all values loaded. */
void run_release(Run *run);

/* 1 when all steps of a program of one set pass, else 0; leaves no exception. */
int program_holds(Program *program, const Frame *frame);

#endif
