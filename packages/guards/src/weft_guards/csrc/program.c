#include "program.h"

/* What the step's object describes, in the form in which it is checked. */
static int parse_expectation(const Program *program, Step *step, PyObject *object)
{
    switch (step->operation) {
    case LOAD_ITEM:
        if (step->number != 0) {
            step->number = PyWeakref_CheckRef(object) ? WEAK_KEY : -1;
            return 0;
        }
        step->number = PyLong_CheckExact(object) ? PyLong_AsSsize_t(object) : -1;
        PyErr_Clear();
        return 0;
    case CHECK_SECTION:
        step->target = (int)PyLong_AsLong(object);
        return PyErr_Occurred() ? -1 : 0;
    case CHECK_TENSOR:
        step->tensor = tensor_expectation_parse(object);
        break;
    case CHECK_GLOBAL_STATE:
        step->state = global_state_expectation_parse(object);
        break;
    case CHECK_RELATION:
        step->relation = relation_parse(object, program->registers);
        break;
    case CHECK_REAL:
        step->real = real_program_parse(object, program->registers);
        break;
    case CHECK_OVERLAP:
        step->overlap = overlap_parse(object, program->registers);
        break;
    case CHECK_SHARED:
        step->shared = shared_parse(object, program->registers);
        break;
    default:
        return 0;
    }
    return step->parsed == NULL ? -1 : 0;
}

static int parse_step(const Program *program, Step *step, PyObject *description)
{
    int operation;
    PyObject *object;
    if (!PyArg_ParseTuple(description, "iinO:step", &operation, &step->operand, &step->number,
                          &object)) {
        return -1;
    }
    if (operation < 0 || operation >= OPERATION_COUNT) {
        PyErr_Format(PyExc_ValueError, "no operation has the number %d", operation);
        return -1;
    }
    step->operation = (unsigned char)operation;
    step->object = Py_NewRef(object);
    return parse_expectation(program, step, object);
}

/* Whether the step's object is one of the descriptions that are parsed. */
static int has_expectation(const Step *step)
{
    switch (step->operation) {
    case CHECK_TENSOR:
    case CHECK_GLOBAL_STATE:
    case CHECK_RELATION:
    case CHECK_REAL:
    case CHECK_OVERLAP:
    case CHECK_SHARED:
        return 1;
    default:
        return 0;
    }
}

/* Every register that a step reads was loaded before it, and every slot exists. */
static int validate_step(const Program *program, const Step *step, Py_ssize_t end)
{
    Py_ssize_t loaded = program->registers;
    int frame_load = step->operation <= LOAD_CONSTANT || step->operation == LOAD_PYTHON
                     || (has_expectation(step) && step->operation != CHECK_TENSOR);
    int valid = frame_load || (step->operand >= 0 && step->operand < loaded);
    if (step->operation == CHECK_SAME || step->operation == CHECK_DISTINCT) {
        valid = valid && step->number >= 0 && step->number < loaded;
    } else if (step->operation == LOAD_ARGUMENT) {
        valid = step->number >= 0 && step->number < PyTuple_GET_SIZE(program->argument_names);
    } else if (step->operation == LOAD_CLOSURE) {
        valid = step->number >= 0;
    } else if (step->operation == CHECK_SECTION) {
        valid = valid && step->number < end - (step - program->steps)
             && step->target >= 0 && 2 * step->target <= step->number;
    } else if (step->operation == CHECK_KEYS) {
        valid = valid && PyTuple_CheckExact(step->object);
    } else if (step->operation == CHECK_WEAK
               || (step->operation == LOAD_CONSTANT && step->number != 0)
               || (step->operation == CHECK_CONTAINS && step->number & 2)) {
        valid = valid && PyWeakref_CheckRef(step->object);
    } else if (step->operation == LOAD_ATTRIBUTE || step->operation == CHECK_ATTRIBUTE
               || step->operation == LOAD_GLOBAL) {
        valid = valid && PyUnicode_Check(step->object);
    }
    if (!valid) {
        PyErr_Format(PyExc_ValueError, "the step of operation %d has a bad operand",
                     step->operation);
        return -1;
    }
    return 0;
}

int program_parse(Program *program, PyObject *steps)
{
    Py_ssize_t length = PyList_GET_SIZE(steps);
    program->steps = PyMem_Calloc(length ? length : 1, sizeof(Step));
    if (program->steps == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    for (Py_ssize_t i = 0; i < length; i++) {
        program->length = i + 1; /* so that clearing frees a half-made step */
        Step *step = &program->steps[i];
        if (parse_step(program, step, PyList_GET_ITEM(steps, i)) < 0 || validate_step(program, step, length) < 0) {
            return -1;
        }
        if (step->operation <= LOAD_PYTHON) {
            step->target = (int)program->registers++;
        }
    }
    return 0;
}

int program_traverse(Program *program, visitproc visit, void *arg)
{
    for (Py_ssize_t i = 0; i < program->length; i++) {
        Py_VISIT(program->steps[i].object);
    }
    Py_VISIT(program->argument_names);
    Py_VISIT(program->make_scope);
    Py_VISIT(program->constants_equal);
    Py_VISIT(program->keys_equal);
    return 0;
}

void program_clear(Program *program)
{
    Step *steps = program->steps;
    Py_ssize_t length = program->length;
    program->steps = NULL;
    program->length = 0;
    for (Py_ssize_t i = 0; i < length; i++) {
        Py_CLEAR(steps[i].object);
        if (has_expectation(&steps[i])) {
            PyMem_Free(steps[i].parsed);
        }
    }
    PyMem_Free(steps);
    Py_CLEAR(program->argument_names);
    Py_CLEAR(program->make_scope);
    Py_CLEAR(program->constants_equal);
    Py_CLEAR(program->keys_equal);
}
