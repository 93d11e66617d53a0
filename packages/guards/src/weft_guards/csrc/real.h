/* Comparisons of floats of a call and of what is computed from them, as programs of a stack machine.
 *
 * Made from a tuple of (opcode, register, number).  The machine computes in doubles, as Python does;
 * what raises in Python (a division by zero, the root of a negative number) makes the check fail.
 */
#ifndef WEFT_GUARDS_REAL_H
#define WEFT_GUARDS_REAL_H

#include <Python.h>

/* Same numbers as `Opcode` in real_program.py, which is checked against REAL_OPCODE_COUNT. */
typedef enum {
    REAL_CONSTANT, /* number */
    REAL_VALUE,    /* register of a float */
    REAL_ADD,
    REAL_SUBTRACT,
    REAL_MULTIPLY,
    REAL_DIVIDE,
    REAL_NEGATE,
    REAL_ABSOLUTE,
    REAL_ROOT,
    REAL_LESS,
    REAL_LESS_EQUAL,
    REAL_GREATER,
    REAL_GREATER_EQUAL,
    REAL_EQUAL,
    REAL_UNEQUAL,
    REAL_IDENTICAL, /* NaN is NaN, 0.0 is not -0.0 */
    REAL_OPCODE_COUNT,
} RealOpcode;

#define REAL_STACK 32

typedef struct {
    Py_ssize_t length;
    struct {
        double number;
        Py_ssize_t source;
        unsigned char opcode;
    } instructions[];
} RealProgram;

/* NULL with an exception for a tuple that is no program: one that reads a register >= `registers`,
 * takes more from the stack than there is, or leaves other than one number. */
RealProgram *real_program_parse(PyObject *description, Py_ssize_t registers);

/* 1 and the number that the program leaves (0 or 1 of a comparison), or 0; no exception. */
int real_program_run(const RealProgram *program, PyObject *const *registers, double *result);

int doubles_identical(double first, double second);

#endif
