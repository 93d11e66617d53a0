#include "relation.h"

#include "torch_access.h"

/* ---- parsing ---- */

static int stack_effect(int opcode)
{
    if (opcode <= PUSH_VALUE) {
        return 1;
    }
    return opcode == NOT ? 0 : -1;
}

static int valid_instruction(int opcode, long long first, int second, Py_ssize_t registers)
{
    if (opcode < 0 || opcode >= OPCODE_COUNT || second < 0) {
        return 0;
    }
    if (opcode >= PUSH_SIZE && opcode <= PUSH_VALUE) {
        return first >= 0 && first < registers;
    }
    return 1;
}

Relation *relation_parse(PyObject *description, Py_ssize_t registers)
{
    if (!PyTuple_CheckExact(description)) {
        PyErr_SetString(PyExc_TypeError, "a relation is a tuple of instructions");
        return NULL;
    }
    Py_ssize_t length = PyTuple_GET_SIZE(description), depth = 0;
    Relation *relation =
        PyMem_Malloc(sizeof(Relation) + length * sizeof(relation->instructions[0]));
    if (relation == NULL) {
        PyErr_NoMemory();
        return NULL;
    }
    relation->length = length;
    for (Py_ssize_t i = 0; i < length; i++) {
        int opcode, second;
        long long first;
        if (!PyArg_ParseTuple(PyTuple_GET_ITEM(description, i), "iLi:instruction", &opcode, &first,
                              &second)) {
            PyMem_Free(relation);
            return NULL;
        }
        int needed = opcode > PUSH_VALUE ? (opcode == NOT ? 1 : 2) : 0;
        if (!valid_instruction(opcode, first, second, registers) || depth < needed
            || (depth += stack_effect(opcode)) > RELATION_STACK) {
            PyErr_Format(PyExc_ValueError, "instruction %zd of a relation is not valid", i);
            PyMem_Free(relation);
            return NULL;
        }
        relation->instructions[i].opcode = (unsigned char)opcode;
        relation->instructions[i].first = first;
        relation->instructions[i].second = second;
    }
    if (depth != 1) {
        PyErr_SetString(PyExc_ValueError, "a relation must leave one number");
        PyMem_Free(relation);
        return NULL;
    }
    return relation;
}

/* ---- running ---- */

static int read_int(PyObject *value, int64_t *number)
{
    int overflow;
    if (!PyLong_CheckExact(value)) {
        return 0;
    }
    *number = PyLong_AsLongLongAndOverflow(value, &overflow);
    return overflow == 0;
}

/* Python's // and %, which round towards minus infinity; the divisor is not 0, and not -1 for the
 * smallest number. */
static int64_t floor_divide(int64_t left, int64_t right)
{
    int64_t quotient = left / right;
    return quotient - (left % right != 0 && (left < 0) != (right < 0));
}

static int combine(int opcode, int64_t left, int64_t right, int64_t *result)
{
    switch (opcode) {
    case ADD:
        return !__builtin_add_overflow(left, right, result);
    case MULTIPLY:
        return !__builtin_mul_overflow(left, right, result);
    case FLOOR_DIVIDE:
    case MODULO:
        if (right == 0 || (right == -1 && left == INT64_MIN)) {
            return 0;
        }
        *result = floor_divide(left, right);
        if (opcode == MODULO) {
            *result = left - *result * right;
        }
        return 1;
    case MINIMUM:
        *result = left < right ? left : right;
        return 1;
    case MAXIMUM:
        *result = left > right ? left : right;
        return 1;
    case EQUAL:
        *result = left == right;
        return 1;
    case UNEQUAL:
        *result = left != right;
        return 1;
    case LESS:
        *result = left < right;
        return 1;
    case LESS_EQUAL:
        *result = left <= right;
        return 1;
    case AND:
        *result = left && right;
        return 1;
    default: /* OR */
        *result = left || right;
        return 1;
    }
}

int relation_holds(const Relation *relation, PyObject *const *registers)
{
    int64_t stack[RELATION_STACK];
    int64_t *top = stack; /* the first free place */
    for (Py_ssize_t i = 0; i < relation->length; i++) {
        int opcode = relation->instructions[i].opcode;
        int64_t first = relation->instructions[i].first;
        int32_t second = relation->instructions[i].second;
        switch (opcode) {
        case PUSH_CONSTANT:
            *top++ = first;
            break;
        case PUSH_SIZE:
            if (!tensor_extent(registers[first], 0, second, top++)) {
                return 0;
            }
            break;
        case PUSH_STRIDE:
            if (!tensor_extent(registers[first], 1, second, top++)) {
                return 0;
            }
            break;
        case PUSH_VALUE:
            if (!read_int(registers[first], top++)) {
                return 0;
            }
            break;
        case NOT:
            top[-1] = !top[-1];
            break;
        default:
            top--;
            if (!combine(opcode, top[-1], top[0], top - 1)) {
                return 0;
            }
        }
    }
    return stack[0] != 0;
}
