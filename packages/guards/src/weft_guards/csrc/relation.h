/* Relations between integers of a call, as programs of a stack machine.
 *
 * Made from a tuple of (opcode, first, second); what the operands mean is said beside the opcodes.
 * The machine computes in 64 bits; a number that does not fit, a division by zero and an overflow
 * make the relation fail.
 */
#ifndef WEFT_GUARDS_RELATION_H
#define WEFT_GUARDS_RELATION_H

#include <Python.h>
#include <stdint.h>

/* Same numbers as `Opcode` in relation_program.py, which is checked against OPCODE_COUNT. */
typedef enum {
    PUSH_CONSTANT, /* first: the number */
    PUSH_SIZE,     /* first: register of a tensor that a guard has found to be a plain one with
                      that many dimensions, second: dimension */
    PUSH_STRIDE,   /* as PUSH_SIZE */
    PUSH_VALUE,    /* first: register of an int */
    ADD,
    MULTIPLY,
    FLOOR_DIVIDE,
    MODULO,
    MINIMUM,
    MAXIMUM,
    EQUAL,
    UNEQUAL,
    LESS,
    LESS_EQUAL,
    AND,
    OR,
    NOT,
    OPCODE_COUNT,
} Opcode;

#define RELATION_STACK 32

typedef struct {
    Py_ssize_t length;
    struct {
        int64_t first;
        int32_t second;
        unsigned char opcode;
    } instructions[];
} Relation;

/* NULL with an exception for a tuple that is no program: one that reads a register >= `registers`,
 * takes more from the stack than there is, or leaves other than one number. */
Relation *relation_parse(PyObject *description, Py_ssize_t registers);

/* 1 or 0; no exception, no Python code. */
int relation_holds(const Relation *relation, PyObject *const *registers);

#endif
