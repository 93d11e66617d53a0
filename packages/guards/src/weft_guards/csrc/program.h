/* The compiled form of a guard set, or of several: a straight line of steps.
 *
 * A step either loads the value of one source into the next free register, from the frame or from
 * an earlier register, or checks one predicate on a register.  Each shared prefix of paths is one
 * load.  run.h runs them.
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
    LOAD_CONSTANT,      /* object; number: whether it is a weak reference to what is loaded */
    LOAD_ATTRIBUTE,     /* operand, object: name */
    LOAD_INSTANCE_DICT, /* operand */
    LOAD_ITEM,          /* operand, object: key; number: whether it is a weak reference to the key */
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
    CHECK_KEYS,         /* operand, object: tuple; number: whether references of a class in it are to keys */
    CHECK_CONTAINS,     /* operand, number: present, and 2 where the key is behind a reference; object: key */
    CHECK_ATTRIBUTE,    /* operand, number: present, object: name */
    CHECK_TENSOR,       /* operand, object: see torch_access.h */
    CHECK_GLOBAL_STATE, /* object: see torch_access.h */
    CHECK_SAME,         /* operand, number: the other register */
    CHECK_DISTINCT,     /* operand, number: the other register */
    CHECK_RELATION,     /* object: see relation.h */
    CHECK_REAL,         /* number: the comparison's outcome, -1 for any; object: see real.h */
    CHECK_FINITE,       /* operand */
    CHECK_OVERLAP,      /* object: see overlap.h */
    CHECK_SHARED,       /* object: see overlap.h */
    CHECK_SECTION,      /* operand, number: steps that follow and are its; object: how many pairs of a
                           LOAD_ITEM and a CHECK_LENGTH are at their end (see run.c) */
    CHECK_PYTHON,       /* operand, object: called with the value and the scope */
    OPERATION_COUNT,
} Operation;

#define WEAK_KEY (-2)

typedef struct {
    unsigned char operation;
    int operand;       /* the register read, -1 for none */
    int target;        /* of a load: the register written; CHECK_SECTION: its pairs */
    Py_ssize_t number; /* see the operation; LOAD_ITEM: the key as an index, -1 when it is none, or WEAK_KEY */
    PyObject *object;  /* owned, may be NULL */
    union {            /* by the operation; kept small, for a model's steps to stay in the caches */
        struct { /* LOAD_ITEM: what was found last, `item` borrowed while the version stands;
                    CHECK_SECTION: for which all of it has passed */
            PyObject *dictionary; /* only compared */
            uint64_t version;
            PyObject *item;
        } found;
        struct { /* LOAD_INSTANCE_DICT: the descriptor, borrowed while the type's version stands */
            PyGetSetDef *getter;
            unsigned int type_version;
        } descriptor;
        void *parsed; /* owned, one of: */
        TensorExpectation *tensor;
        GlobalStateExpectation *state;
        Relation *relation;
        RealProgram *real;
        OverlapExpectation *overlap;
        SharedExpectation *shared;
    };
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

/* Each 0, or -1 with an exception. */
int program_parse(Program *program, PyObject *steps);
int program_traverse(Program *program, visitproc visit, void *arg);
void program_clear(Program *program);

#endif
