#include "real.h"

#include <math.h>
#include <string.h>

static int operands_of(int opcode)
{
    if (opcode == REAL_CONSTANT || opcode == REAL_VALUE) {
        return 0;
    }
    return opcode == REAL_NEGATE || opcode == REAL_ABSOLUTE || opcode == REAL_ROOT ? 1 : 2;
}

static int parse_instruction(RealProgram *program, Py_ssize_t i, PyObject *item,
                             Py_ssize_t registers, Py_ssize_t *depth)
{
    int opcode;
    Py_ssize_t source;
    double number;
    if (!PyArg_ParseTuple(item, "ind:instruction", &opcode, &source, &number)) {
        return -1;
    }
    if (opcode < 0 || opcode >= REAL_OPCODE_COUNT || *depth < operands_of(opcode)
        || (opcode == REAL_VALUE && (source < 0 || source >= registers))) {
        PyErr_SetString(PyExc_ValueError, "no program on floats: a bad instruction");
        return -1;
    }
    *depth += 1 - operands_of(opcode);
    if (*depth > REAL_STACK) {
        PyErr_SetString(PyExc_ValueError, "no program on floats: it needs too deep a stack");
        return -1;
    }
    program->instructions[i].opcode = (unsigned char)opcode;
    program->instructions[i].source = source;
    program->instructions[i].number = number;
    return 0;
}

RealProgram *real_program_parse(PyObject *description, Py_ssize_t registers)
{
    if (!PyTuple_Check(description)) {
        PyErr_SetString(PyExc_TypeError, "a program on floats is a tuple of instructions");
        return NULL;
    }
    Py_ssize_t length = PyTuple_GET_SIZE(description);
    RealProgram *program =
        PyMem_Calloc(1, sizeof(RealProgram) + length * sizeof(program->instructions[0]));
    if (program == NULL) {
        PyErr_NoMemory();
        return NULL;
    }
    program->length = length;
    Py_ssize_t depth = 0;
    for (Py_ssize_t i = 0; i < length; i++) {
        PyObject *item = PyTuple_GET_ITEM(description, i);
        if (parse_instruction(program, i, item, registers, &depth) < 0) {
            PyMem_Free(program);
            return NULL;
        }
    }
    if (depth != 1) {
        PyErr_SetString(PyExc_ValueError, "no program on floats: it does not leave one number");
        PyMem_Free(program);
        return NULL;
    }
    return program;
}

int doubles_identical(double first, double second)
{
    return memcmp(&first, &second, sizeof(double)) == 0 || (first != first && second != second);
}

static int apply(int opcode, double left, double right, double *result)
{
    switch (opcode) {
    case REAL_ADD:
        *result = left + right;
        return 1;
    case REAL_SUBTRACT:
        *result = left - right;
        return 1;
    case REAL_MULTIPLY:
        *result = left * right;
        return 1;
    case REAL_DIVIDE:
        *result = left / right;
        return right != 0;
    case REAL_LESS:
        *result = left < right;
        return 1;
    case REAL_LESS_EQUAL:
        *result = left <= right;
        return 1;
    case REAL_GREATER:
        *result = left > right;
        return 1;
    case REAL_GREATER_EQUAL:
        *result = left >= right;
        return 1;
    case REAL_EQUAL:
        *result = left == right;
        return 1;
    case REAL_UNEQUAL:
        *result = left != right;
        return 1;
    default: /* REAL_IDENTICAL */
        *result = doubles_identical(left, right);
        return 1;
    }
}

int real_program_run(const RealProgram *program, PyObject *const *registers, double *result)
{
    double stack[REAL_STACK];
    double *top = stack; /* the first free place */
    for (Py_ssize_t i = 0; i < program->length; i++) {
        int opcode = program->instructions[i].opcode;
        PyObject *value;
        switch (opcode) {
        case REAL_CONSTANT:
            *top++ = program->instructions[i].number;
            break;
        case REAL_VALUE:
            value = registers[program->instructions[i].source];
            if (!PyFloat_CheckExact(value)) {
                return 0;
            }
            *top++ = PyFloat_AS_DOUBLE(value);
            break;
        case REAL_NEGATE:
            top[-1] = -top[-1];
            break;
        case REAL_ABSOLUTE:
            top[-1] = fabs(top[-1]);
            break;
        case REAL_ROOT:
            if (top[-1] < 0) {
                return 0;
            }
            top[-1] = sqrt(top[-1]);
            break;
        default:
            top--;
            if (!apply(opcode, top[-1], top[0], top - 1)) {
                return 0;
            }
        }
    }
    *result = stack[0];
    return 1;
}
