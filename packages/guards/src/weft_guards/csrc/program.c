#include "program.h"

#include <math.h>

/* ---- making and destroying ---- */

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
    step->index = -1;
    if (operation == LOAD_ITEM && PyLong_CheckExact(object)) {
        step->index = PyLong_AsSsize_t(object);
        PyErr_Clear();
    } else if (operation == CHECK_TENSOR) {
        step->tensor = tensor_expectation_parse(object);
        return step->tensor == NULL ? -1 : 0;
    } else if (operation == CHECK_GLOBAL_STATE) {
        step->state = global_state_expectation_parse(object);
        return step->state == NULL ? -1 : 0;
    } else if (operation == CHECK_RELATION) {
        step->relation = relation_parse(object, program->registers);
        return step->relation == NULL ? -1 : 0;
    } else if (operation == CHECK_REAL) {
        step->real = real_program_parse(object, program->registers);
        return step->real == NULL ? -1 : 0;
    } else if (operation == CHECK_OVERLAP) {
        step->overlap = overlap_parse(object, program->registers);
        return step->overlap == NULL ? -1 : 0;
    }
    return 0;
}

/* Every register that a step reads was loaded before it, and every slot exists. */
static int validate_step(const Program *program, const Step *step)
{
    Py_ssize_t loaded = program->registers;
    int frame_load = step->operation <= LOAD_CONSTANT || step->operation == LOAD_PYTHON
                     || step->operation == CHECK_GLOBAL_STATE
                     || step->operation == CHECK_RELATION || step->operation == CHECK_REAL
                     || step->operation == CHECK_OVERLAP;
    int valid = frame_load || (step->operand >= 0 && step->operand < loaded);
    if (step->operation == CHECK_SAME || step->operation == CHECK_DISTINCT) {
        valid = valid && step->number >= 0 && step->number < loaded;
    } else if (step->operation == LOAD_ARGUMENT) {
        valid = step->number >= 0 && step->number < PyTuple_GET_SIZE(program->argument_names);
    } else if (step->operation == LOAD_CLOSURE) {
        valid = step->number >= 0;
    } else if (step->operation == CHECK_KEYS) {
        valid = valid && PyTuple_CheckExact(step->object);
    } else if (step->operation == CHECK_WEAK) {
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
        if (parse_step(program, step, PyList_GET_ITEM(steps, i)) < 0 || validate_step(program, step) < 0) {
            return -1;
        }
        if (step->operation <= LOAD_PYTHON) {
            program->registers++;
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
        PyMem_Free(steps[i].tensor);
        PyMem_Free(steps[i].state);
        PyMem_Free(steps[i].relation);
        PyMem_Free(steps[i].real);
        PyMem_Free(steps[i].overlap);
    }
    PyMem_Free(steps);
    Py_CLEAR(program->argument_names);
    Py_CLEAR(program->make_scope);
    Py_CLEAR(program->constants_equal);
    Py_CLEAR(program->keys_equal);
}

/* ---- loads: a new reference, or NULL with or without an exception ---- */

static PyObject *scope_of(const Program *program, Frame *frame)
{
    if (frame->scope != NULL) {
        return frame->scope;
    }
    PyObject *arguments = PyDict_New();
    if (arguments == NULL) {
        return NULL;
    }
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(program->argument_names); i++) {
        PyObject *name = PyTuple_GET_ITEM(program->argument_names, i);
        if (frame->arguments[i] != NULL
            && PyDict_SetItem(arguments, name, frame->arguments[i]) < 0) {
            Py_DECREF(arguments);
            return NULL;
        }
    }
    frame->scope = PyObject_CallFunctionObjArgs(program->make_scope, arguments, frame->globals,
                                                frame->builtins,
                                                frame->closure ? frame->closure : Py_None, NULL);
    Py_DECREF(arguments);
    return frame->scope;
}

static PyObject *load_closure(const Frame *frame, Py_ssize_t index)
{
    if (frame->closure == NULL || index >= PyTuple_GET_SIZE(frame->closure)) {
        return NULL;
    }
    PyObject *cell = PyTuple_GET_ITEM(frame->closure, index);
    return PyCell_Check(cell) ? Py_XNewRef(PyCell_GET(cell)) : NULL;
}

static PyObject *load_global(const Frame *frame, PyObject *name)
{
    PyObject *value;
    if (PyDict_CheckExact(frame->globals)) {
        value = Py_XNewRef(PyDict_GetItemWithError(frame->globals, name));
    } else {
        value = PyObject_GetItem(frame->globals, name);
        if (value == NULL && PyErr_ExceptionMatches(PyExc_KeyError)) {
            PyErr_Clear();
        }
    }
    if (value != NULL || PyErr_Occurred()) {
        return value;
    }
    if (PyDict_CheckExact(frame->builtins)) {
        return Py_XNewRef(PyDict_GetItemWithError(frame->builtins, name));
    }
    return PyObject_GetItem(frame->builtins, name);
}

static PyObject *dict_string; /* "__dict__" */

/* object.__getattribute__(value, '__dict__'), with the descriptor remembered for the last type.
 * A type's version tag is unique among all types and changes with every change of the type. */
static PyObject *load_instance_dict(Step *step, PyObject *value)
{
    PyTypeObject *type = Py_TYPE(value);
    if (step->getter != NULL && step->type_version == type->tp_version_tag
        && (type->tp_flags & Py_TPFLAGS_VALID_VERSION_TAG)) {
        return step->getter->get(value, step->getter->closure);
    }
    step->getter = NULL;
    PyObject *descriptor = _PyType_Lookup(type, dict_string);
    if (descriptor == NULL || !Py_IS_TYPE(descriptor, &PyGetSetDescr_Type)
        || ((PyGetSetDescrObject *)descriptor)->d_getset->get == NULL) {
        return PyObject_GenericGetAttr(value, dict_string);
    }
    PyGetSetDef *getter = ((PyGetSetDescrObject *)descriptor)->d_getset;
    if ((type->tp_flags & Py_TPFLAGS_VALID_VERSION_TAG) && type->tp_version_tag != 0) {
        step->getter = getter;
        step->type_version = type->tp_version_tag;
    }
    return getter->get(value, getter->closure);
}

/* A dict's version is unique among all dicts of the interpreter and changes with every change of
 * its items (PEP 509), so that an item found once is the item while the version stands. */
#if PY_VERSION_HEX < 0x030D0000
static PyObject *load_dict_item(Step *step, PyObject *dictionary)
{
    uint64_t version = ((PyDictObject *)dictionary)->ma_version_tag;
    if (dictionary == step->dictionary && version == step->dictionary_version) {
        return Py_NewRef(step->item);
    }
    PyObject *item = PyDict_GetItemWithError(dictionary, step->object);
    /* Comparing keys may have run Python code that changed the dict. */
    int unchanged = version == ((PyDictObject *)dictionary)->ma_version_tag;
    step->dictionary = item != NULL && unchanged ? dictionary : NULL;
    step->dictionary_version = version;
    step->item = item;
    return Py_XNewRef(item);
}
#else
static PyObject *load_dict_item(Step *step, PyObject *dictionary)
{
    return Py_XNewRef(PyDict_GetItemWithError(dictionary, step->object));
}
#endif

static PyObject *load_item(Step *step, PyObject *container)
{
    if (PyDict_CheckExact(container)) {
        return load_dict_item(step, container);
    }
    Py_ssize_t index = step->index;
    if (index >= 0 && PyTuple_CheckExact(container)) {
        return index < PyTuple_GET_SIZE(container)
            ? Py_NewRef(PyTuple_GET_ITEM(container, index))
            : NULL;
    }
    if (index >= 0 && PyList_CheckExact(container)) {
        return index < PyList_GET_SIZE(container)
            ? Py_NewRef(PyList_GET_ITEM(container, index))
            : NULL;
    }
    return PyObject_GetItem(container, step->object);
}

static PyObject *load_dict_key(PyObject *container, Py_ssize_t index)
{
    if (PyDict_CheckExact(container)) {
        PyObject *key, *value;
        Py_ssize_t position = 0;
        if (index < 0 || index >= PyDict_GET_SIZE(container)) {
            return NULL;
        }
        while (PyDict_Next(container, &position, &key, &value)) {
            if (index-- == 0) {
                return Py_NewRef(key);
            }
        }
        return NULL;
    }
    PyObject *keys = PySequence_List(container);
    if (keys == NULL) {
        return NULL;
    }
    PyObject *key = index >= 0 && index < PyList_GET_SIZE(keys)
        ? Py_NewRef(PyList_GET_ITEM(keys, index))
        : NULL;
    Py_DECREF(keys);
    return key;
}

static PyObject *load(const Program *program, Step *step, Frame *frame, PyObject **registers)
{
    PyObject *base = step->operand >= 0 ? registers[step->operand] : NULL;
    switch (step->operation) {
    case LOAD_ARGUMENT:
        return Py_XNewRef(frame->arguments[step->number]);
    case LOAD_CLOSURE:
        return load_closure(frame, step->number);
    case LOAD_GLOBAL:
        return load_global(frame, step->object);
    case LOAD_CONSTANT:
        return Py_NewRef(step->object);
    case LOAD_ATTRIBUTE:
        return PyObject_GetAttr(base, step->object);
    case LOAD_INSTANCE_DICT:
        return load_instance_dict(step, base);
    case LOAD_ITEM:
        return load_item(step, base);
    case LOAD_DICT_KEY:
        return load_dict_key(base, step->number);
    case LOAD_TYPE:
        return Py_NewRef((PyObject *)Py_TYPE(base));
    case LOAD_CELL:
        return PyCell_Check(base) ? Py_XNewRef(PyCell_GET(base)) : NULL;
    default: { /* LOAD_PYTHON */
        PyObject *scope = scope_of(program, frame);
        return scope == NULL ? NULL : PyObject_CallOneArg(step->object, scope);
    }
    }
}

/* ---- checks: 1 passes; 0 and -1 (an exception) fail ---- */

static int truth_of(PyObject *result)
{
    if (result == NULL) {
        return -1;
    }
    int truth = PyObject_IsTrue(result);
    Py_DECREF(result);
    return truth;
}

static int call_predicate(PyObject *predicate, PyObject *first, PyObject *second)
{
    PyObject *arguments[] = {first, second};
    return truth_of(PyObject_Vectorcall(predicate, arguments, 2, NULL));
}

/* As `constants_equal` in constants.py, which decides the rarer types. */
static int constant_equals(const Program *program, PyObject *expected, PyObject *value)
{
    if (expected == value) {
        return 1;
    }
    PyTypeObject *type = Py_TYPE(expected);
    if (Py_TYPE(value) != type || type == &PyBool_Type || expected == Py_None) {
        return 0;
    }
    if (type == &PyLong_Type || type == &PyUnicode_Type || type == &PyBytes_Type) {
        return PyObject_RichCompareBool(expected, value, Py_EQ);
    }
    if (type == &PyFloat_Type) {
        return doubles_identical(PyFloat_AS_DOUBLE(expected), PyFloat_AS_DOUBLE(value));
    }
    if (type != &PyTuple_Type) {
        return call_predicate(program->constants_equal, expected, value);
    }
    Py_ssize_t length = PyTuple_GET_SIZE(expected);
    if (PyTuple_GET_SIZE(value) != length) {
        return 0;
    }
    for (Py_ssize_t i = 0; i < length; i++) {
        int equal = constant_equals(program, PyTuple_GET_ITEM(expected, i),
                                    PyTuple_GET_ITEM(value, i));
        if (equal != 1) {
            return equal;
        }
    }
    return 1;
}

static int check_length(PyObject *value, Py_ssize_t expected)
{
    Py_ssize_t length;
    if (PyList_CheckExact(value) || PyTuple_CheckExact(value)) {
        length = Py_SIZE(value);
    } else if (PyDict_CheckExact(value)) {
        length = PyDict_GET_SIZE(value);
    } else {
        length = PyObject_Size(value);
        if (length < 0) {
            return -1;
        }
    }
    return length == expected;
}

/* Exact dicts with strings for keys are compared here, others by `keys_equal` in predicates.py. */
static int check_keys(const Program *program, PyObject *value, PyObject *expected)
{
    if (!PyDict_CheckExact(value)) {
        return call_predicate(program->keys_equal, expected, value);
    }
    if (PyDict_GET_SIZE(value) != PyTuple_GET_SIZE(expected)) {
        return 0;
    }
    PyObject *key, *item;
    Py_ssize_t position = 0, index = 0;
    while (PyDict_Next(value, &position, &key, &item)) {
        PyObject *wanted = PyTuple_GET_ITEM(expected, index++);
        if (key == wanted) {
            continue;
        }
        if (!PyUnicode_CheckExact(key) || !PyUnicode_CheckExact(wanted)) {
            return call_predicate(program->keys_equal, expected, value);
        }
        int equal = PyUnicode_Compare(key, wanted);
        if (equal != 0) {
            return 0;
        }
    }
    return 1;
}

static int check_contains(PyObject *container, PyObject *key, int present)
{
    int found = PyDict_CheckExact(container) ? PyDict_Contains(container, key)
                                             : PySequence_Contains(container, key);
    return found < 0 ? -1 : found == present;
}

static int check_attribute(PyObject *value, PyObject *name, int present)
{
    PyObject *attribute = PyObject_GetAttr(value, name);
    if (attribute != NULL) {
        Py_DECREF(attribute);
        return present;
    }
    if (!PyErr_ExceptionMatches(PyExc_AttributeError)) {
        return -1;
    }
    PyErr_Clear();
    return !present;
}

static int check_real(const Step *step, PyObject *const *registers)
{
    double result;
    return real_program_run(step->real, registers, &result)
           && (step->number < 0 || (result != 0) == step->number);
}

static int check(const Program *program, const Step *step, Frame *frame, PyObject **registers)
{
    PyObject *value = step->operand >= 0 ? registers[step->operand] : NULL;
    switch (step->operation) {
    case CHECK_TYPE:
        return (PyObject *)Py_TYPE(value) == step->object;
    case CHECK_IDENTITY:
        return value == step->object;
    case CHECK_WEAK:
        /* A dead reference gives None, which no weak reference can have been made to. */
        return value != Py_None && PyWeakref_GET_OBJECT(step->object) == value;
    case CHECK_NOT_IDENTITY:
        return value != step->object;
    case CHECK_CONSTANT:
        return constant_equals(program, step->object, value);
    case CHECK_LENGTH:
        return check_length(value, step->number);
    case CHECK_KEYS:
        return check_keys(program, value, step->object);
    case CHECK_CONTAINS:
        return check_contains(value, step->object, step->number != 0);
    case CHECK_ATTRIBUTE:
        return check_attribute(value, step->object, step->number != 0);
    case CHECK_TENSOR:
        return tensor_matches(step->tensor, value);
    case CHECK_GLOBAL_STATE:
        return global_state_matches(step->state);
    case CHECK_SAME:
        return value == registers[step->number];
    case CHECK_DISTINCT:
        return value != registers[step->number];
    case CHECK_RELATION:
        return relation_holds(step->relation, registers);
    case CHECK_REAL:
        return check_real(step, registers);
    case CHECK_OVERLAP:
        return storages_are_apart(step->overlap, registers);
    case CHECK_FINITE:
        return PyFloat_CheckExact(value) && isfinite(PyFloat_AS_DOUBLE(value));
    default: { /* CHECK_PYTHON */
        PyObject *scope = scope_of(program, frame);
        return scope == NULL ? -1 : call_predicate(step->object, value, scope);
    }
    }
}

/* ---- running ---- */

#define STACK_REGISTERS 64

static int run_steps(Program *program, Frame *frame, PyObject **registers)
{
    Py_ssize_t loaded = 0;
    int passed = 1;
    for (Py_ssize_t i = 0; passed == 1 && i < program->length; i++) {
        Step *step = &program->steps[i];
        if (step->operation <= LOAD_PYTHON) {
            PyObject *value = load(program, step, frame, registers);
            if (value == NULL) {
                passed = 0;
            } else {
                registers[loaded++] = value;
            }
        } else {
            passed = check(program, step, frame, registers);
        }
    }
    if (passed != 1) {
        PyErr_Clear();
    }
    while (loaded > 0) {
        Py_DECREF(registers[--loaded]);
    }
    return passed == 1;
}

int program_run(Program *program, PyObject *const *arguments, PyObject *globals,
                PyObject *builtins, PyObject *closure)
{
    PyObject *on_stack[STACK_REGISTERS];
    PyObject **registers = on_stack;
    if (program->steps == NULL) {
        return 0; /* cleared by the collector */
    }
    if (program->registers > STACK_REGISTERS) {
        registers = PyMem_Malloc(program->registers * sizeof(PyObject *));
        if (registers == NULL) {
            return 0;
        }
    }
    Frame frame = {arguments, globals, builtins, NULL, NULL};
    if (closure != NULL && PyTuple_Check(closure)) {
        frame.closure = closure;
    }
    int passed = run_steps(program, &frame, registers);
    Py_XDECREF(frame.scope);
    if (registers != on_stack) {
        PyMem_Free(registers);
    }
    return passed;
}

int program_module_init(void)
{
    dict_string = PyUnicode_InternFromString("__dict__");
    return dict_string == NULL ? -1 : 0;
}
