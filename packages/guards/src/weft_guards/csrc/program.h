/* The compiled form of a guard set: a straight line of steps.
 *
 * A step either loads the value of one source into the next free register, from the frame or from
 * an earlier register, or checks one predicate on a register.  Each shared prefix of paths is one
 * load.  The first check that fails ends the run.
 */
#ifndef WEFT_GUARDS_PROGRAM_H
#define WEFT_GUARDS_PROGRAM_H

#include <Python.h>

#include "overlap.h"
#include "real.h"
#include "relation.h"
#include "torch_access.h"

/* Same numbers as `Operation` in compilation.py, which is checked against OPERATION_COUNT. */
typedef enum {
    LOAD_ARGUMENT,      /* number: slot */
    LOAD_CLOSURE,       /* number: index of the cell; loads its contents */
    LOAD_GLOBAL,        /* object: name; a missing one is looked up in the builtins */
    LOAD_CONSTANT,      /* object */
    LOAD_ATTRIBUTE,     /* operand, object: name */
    LOAD_INSTANCE_DICT, /* operand */
    LOAD_ITEM,          /* operand, object: key */
    LOAD_DICT_KEY,      /* operand, number: position */
    LOAD_TYPE,          /* operand */
    LOAD_CELL,          /* operand */
    LOAD_PYTHON,        /* object: called with the scope */
    CHECK_TYPE,         /* operand, object */
    CHECK_IDENTITY,     /* operand, object */
    CHECK_WEAK,         /* operand, object: weak reference */
    CHECK_NOT_IDENTITY, /* operand, object */
    CHECK_CONSTANT,     /* operand, object */
    CHECK_LENGTH,       /* operand, number */
    CHECK_KEYS,         /* operand, object: tuple */
    CHECK_CONTAINS,     /* operand, number: present, object: key */
    CHECK_ATTRIBUTE,    /* operand, number: present, object: name */
    CHECK_TENSOR,       /* operand, object: see torch_access.h */
    CHECK_GLOBAL_STATE, /* object: see torch_access.h */
    CHECK_SAME,         /* operand, number: the other register */
    CHECK_DISTINCT,     /* operand, number: the other register */
    CHECK_RELATION,     /* object: see relation.h */
    CHECK_REAL,         /* number: the comparison's outcome, -1 for any; object: see real.h */
    CHECK_FINITE,       /* operand */
    CHECK_OVERLAP,      /* object: see overlap.h */
    CHECK_PYTHON,       /* operand, object: called with the value and the scope */
    OPERATION_COUNT,
} Operation;

typedef struct {
    unsigned char operation;
    int operand;         /* the register read, -1 for none */
    Py_ssize_t number;   /* see the operation */
    PyObject *object;    /* owned, may be NULL */
    Py_ssize_t index;    /* LOAD_ITEM: the key as an index, -1 when it is none */
    unsigned int type_version;  /* LOAD_INSTANCE_DICT: the type for which `getter` was found */
    PyGetSetDef *getter;        /* borrowed from that type while its version stands */
    PyObject *dictionary;       /* LOAD_ITEM: the dict that was read last; only compared */
    uint64_t dictionary_version; /* of that dict then */
    PyObject *item;             /* borrowed from that dict while its version stands */
    TensorExpectation *tensor;  /* owned, CHECK_TENSOR */
    GlobalStateExpectation *state; /* owned, CHECK_GLOBAL_STATE */
    Relation *relation;            /* owned, CHECK_RELATION */
    RealProgram *real;             /* owned, CHECK_REAL */
    OverlapExpectation *overlap;   /* owned, CHECK_OVERLAP */
} Step;

typedef struct {
    Step *steps;
    Py_ssize_t length;
    Py_ssize_t registers;
    PyObject *argument_names; /* tuple of str */
    PyObject *make_scope;     /* called with arguments, globals, builtins and closure */
    PyObject *constants_equal;
    PyObject *keys_equal;
} Program;

typedef struct {
    PyObject *const *arguments;
    PyObject *globals;
    PyObject *builtins;
    PyObject *closure; /* tuple or NULL */
    PyObject *scope;   /* owned; made when a step first needs it */
} Frame;

/* Each 0, or -1 with an exception. */
int program_module_init(void);
int program_parse(Program *program, PyObject *steps);
int program_traverse(Program *program, visitproc visit, void *arg);
void program_clear(Program *program);

/* 1 when all checks pass, else 0; leaves no exception. */
int program_run(Program *program, PyObject *const *arguments, PyObject *globals,
                PyObject *builtins, PyObject *closure);

#endif
