#include "run.h"

#include <math.h>

#include "python_free.h"

/* ---- loads: a new reference, or NULL with or without an exception ---- */

static PyObject *scope_of(Run *run)
{
    const Program *program = run->program;
    Frame *frame = &run->frame;
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
static PyObject *load_instance_dict(Run *run, Step *step, PyObject *value)
{
    PyTypeObject *type = Py_TYPE(value);
    PyGetSetDef *getter = step->descriptor.getter;
    if (getter != NULL && step->descriptor.type_version == type->tp_version_tag
        && (type->tp_flags & Py_TPFLAGS_VALID_VERSION_TAG)) {
        return getter->get(value, getter->closure);
    }
    step->descriptor.getter = NULL;
    PyObject *descriptor = _PyType_Lookup(type, dict_string);
    if (descriptor == NULL || !Py_IS_TYPE(descriptor, &PyGetSetDescr_Type)
        || ((PyGetSetDescrObject *)descriptor)->d_getset->get == NULL) {
        run->ran_python = 1; /* a descriptor of the user's */
        return PyObject_GenericGetAttr(value, dict_string);
    }
    getter = ((PyGetSetDescrObject *)descriptor)->d_getset;
    if ((type->tp_flags & Py_TPFLAGS_VALID_VERSION_TAG) && type->tp_version_tag != 0) {
        step->descriptor.getter = getter;
        step->descriptor.type_version = type->tp_version_tag;
    }
    return getter->get(value, getter->closure);
}

/* What a weak reference refers to, a new reference; NULL without an exception where that has died. */
static PyObject *referent(PyObject *reference)
{
#if PY_VERSION_HEX >= 0x030D0000
    PyObject *target = NULL;
    (void)PyWeakref_GetRef(reference, &target); /* fails for other objects only */
    return target;
#else
    PyObject *target = PyWeakref_GET_OBJECT(reference);
    return target == Py_None ? NULL : Py_NewRef(target);
#endif
}

/* A dict's version is unique among all dicts of the interpreter and changes with every change of
 * its items (PEP 509), so that an item found once is the item while the version stands. */
#if PY_VERSION_HEX < 0x030D0000
static PyObject *load_dict_item(Step *step, PyObject *dictionary, PyObject *key)
{
    uint64_t version = ((PyDictObject *)dictionary)->ma_version_tag;
    if (dictionary == step->found.dictionary && version == step->found.version) {
        return Py_NewRef(step->found.item);
    }
    PyObject *item = PyDict_GetItemWithError(dictionary, key);
    /* Comparing keys may have run Python code that changed the dict. */
    int unchanged = version == ((PyDictObject *)dictionary)->ma_version_tag;
    step->found.dictionary = item != NULL && unchanged ? dictionary : NULL;
    step->found.version = version;
    step->found.item = item;
    return Py_XNewRef(item);
}
#else
static PyObject *load_dict_item(Step *step, PyObject *dictionary, PyObject *key)
{
    return Py_XNewRef(PyDict_GetItemWithError(dictionary, key));
}
#endif

static PyObject *load_item(Run *run, Step *step, PyObject *container)
{
    if (step->number == WEAK_KEY) {
        PyObject *key = referent(step->object);
        if (key == NULL) {
            return NULL;
        }
        run->ran_python |= !PyDict_CheckExact(container);
        PyObject *item = PyDict_CheckExact(container) ? load_dict_item(step, container, key)
                                                      : PyObject_GetItem(container, key);
        Py_DECREF(key);
        return item;
    }
    if (PyDict_CheckExact(container)) {
        return load_dict_item(step, container, step->object);
    }
    Py_ssize_t index = step->number;
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
    run->ran_python = 1;
    return PyObject_GetItem(container, step->object);
}

static PyObject *load_dict_key(Run *run, PyObject *container, Py_ssize_t index)
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
    run->ran_python = 1;
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

/* Only where several sets are checked does it matter, and then it costs what the lookup costs. */
static void note_attribute(Run *run, PyObject *value, PyObject *name)
{
    if (run->several && !attribute_is_python_free(value, name)) {
        run->ran_python = 1;
    }
}

static PyObject *load(Run *run, Step *step)
{
    const Frame *frame = &run->frame;
    PyObject *const *registers = run->registers;
    PyObject *base = step->operand >= 0 ? registers[step->operand] : NULL;
    switch (step->operation) {
    case LOAD_ARGUMENT:
        return Py_XNewRef(frame->arguments[step->number]);
    case LOAD_CLOSURE:
        return load_closure(frame, step->number);
    case LOAD_GLOBAL:
        return load_global(frame, step->object);
    case LOAD_CONSTANT:
        return step->number ? referent(step->object) : Py_NewRef(step->object);
    case LOAD_ATTRIBUTE:
        note_attribute(run, base, step->object);
        return PyObject_GetAttr(base, step->object);
    case LOAD_INSTANCE_DICT:
        return load_instance_dict(run, step, base);
    case LOAD_ITEM:
        return load_item(run, step, base);
    case LOAD_DICT_KEY:
        return load_dict_key(run, base, step->number);
    case LOAD_TYPE:
        return Py_NewRef((PyObject *)Py_TYPE(base));
    case LOAD_CELL:
        return PyCell_Check(base) ? Py_XNewRef(PyCell_GET(base)) : NULL;
    default: { /* LOAD_PYTHON */
        PyObject *scope = scope_of(run);
        run->ran_python = 1;
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

static int check_length(Run *run, PyObject *value, Py_ssize_t expected)
{
    Py_ssize_t length;
    if (PyList_CheckExact(value) || PyTuple_CheckExact(value)) {
        length = Py_SIZE(value);
    } else if (PyDict_CheckExact(value)) {
        length = PyDict_GET_SIZE(value);
    } else {
        run->ran_python |= (Py_TYPE(value)->tp_flags & Py_TPFLAGS_HEAPTYPE) != 0;
        length = PyObject_Size(value);
        if (length < 0) {
            return -1;
        }
    }
    return length == expected;
}

static int refers_to(PyObject *reference, PyObject *value)
{
    PyObject *target = referent(reference);
    Py_XDECREF(target);
    return target != NULL && target == value;
}

/* Exact dicts whose keys are strings, or known by reference, are compared here, others by `keys_equal` in predicates/containers.py. */
static int check_keys(Run *run, PyObject *value, PyObject *expected, int has_weak)
{
    const Program *program = run->program;
    if (!PyDict_CheckExact(value)) {
        run->ran_python = 1;
        return call_predicate(program->keys_equal, expected, value);
    }
    if (PyDict_GET_SIZE(value) != PyTuple_GET_SIZE(expected)) {
        return 0;
    }
    PyObject *key, *item;
    Py_ssize_t position = 0, index = 0;
    while (PyDict_Next(value, &position, &key, &item)) {
        PyObject *wanted = PyTuple_GET_ITEM(expected, index++);
        if (key == wanted || (has_weak && PyWeakref_CheckRef(wanted)
                              && !PyWeakref_CheckRefExact(wanted) && refers_to(wanted, key))) {
            continue;
        }
        if (!PyUnicode_CheckExact(key) || !PyUnicode_CheckExact(wanted)) {
            run->ran_python = 1;
            return call_predicate(program->keys_equal, expected, value);
        }
        int equal = PyUnicode_Compare(key, wanted);
        if (equal != 0) {
            return 0;
        }
    }
    return 1;
}

static int check_contains(Run *run, PyObject *container, const Step *step)
{
    int present = (int)step->number & 1;
    PyObject *key = step->number & 2 ? referent(step->object) : Py_NewRef(step->object);
    if (key == NULL) {
        return 0;
    }
    run->ran_python |= (Py_TYPE(container)->tp_flags & Py_TPFLAGS_HEAPTYPE) != 0;
    int found = PyDict_CheckExact(container) ? PyDict_Contains(container, key)
                                             : PySequence_Contains(container, key);
    Py_DECREF(key);
    return found < 0 ? -1 : found == present;
}

static int check_attribute(Run *run, PyObject *value, PyObject *name, int present)
{
    if (class_lacks(value, name)) {
        return !present;
    }
    note_attribute(run, value, name);
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

static int check(Run *run, const Step *step)
{
    PyObject *const *registers = run->registers;
    PyObject *value = step->operand >= 0 ? registers[step->operand] : NULL;
    switch (step->operation) {
    case CHECK_TYPE:
        return (PyObject *)Py_TYPE(value) == step->object;
    case CHECK_IDENTITY:
        return value == step->object;
    case CHECK_WEAK:
        return refers_to(step->object, value);
    case CHECK_NOT_IDENTITY:
        return value != step->object;
    case CHECK_CONSTANT:
        return constant_equals(run->program, step->object, value);
    case CHECK_LENGTH:
        return check_length(run, value, step->number);
    case CHECK_KEYS:
        return check_keys(run, value, step->object, step->number != 0);
    case CHECK_CONTAINS:
        return check_contains(run, value, step);
    case CHECK_ATTRIBUTE:
        return check_attribute(run, value, step->object, step->number != 0);
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
    case CHECK_SHARED:
        return storage_is_shared(step->shared, registers);
    case CHECK_FINITE:
        return PyFloat_CheckExact(value) && isfinite(PyFloat_AS_DOUBLE(value));
    default: { /* CHECK_PYTHON */
        PyObject *scope = scope_of(run);
        run->ran_python = 1;
        return scope == NULL ? -1 : call_predicate(step->object, value, scope);
    }
    }
}

/* ---- running ---- */

/* A section is what the values of one dict decide that cannot change by themselves: that an item is
 * some object or equals some constant, that a key is there.  An exact dict's version (PEP 509) is
 * unique and changes whenever an item does, so for the dict and version for which a section has
 * passed it passes again.  Of items that are containers the lengths may have changed: these are at
 * the section's end, and are looked at each time. */
#if PY_VERSION_HEX < 0x030D0000
static Py_ssize_t builtin_length(PyObject *container)
{
    if (PyDict_CheckExact(container) || Py_IS_TYPE(container, &PyODict_Type)) {
        return PyDict_GET_SIZE(container);
    }
    return PyList_CheckExact(container) || PyTuple_CheckExact(container) ? Py_SIZE(container) : -1;
}

static int section_stands(const Run *run, const Step *section)
{
    PyObject *dictionary = run->registers[section->operand];
    if (dictionary != section->found.dictionary || !PyDict_CheckExact(dictionary)) {
        return 0;
    }
    uint64_t version = ((PyDictObject *)dictionary)->ma_version_tag;
    if (version != section->found.version) {
        return 0;
    }
    const Step *last = section + section->number;
    for (const Step *load = last - 2 * section->target + 1; load < last; load += 2) {
        if (load->found.dictionary != dictionary || load->found.version != version
            || builtin_length(load->found.item) != load[1].number) {
            return 0;
        }
    }
    return 1;
}

/* As run_steps, for a section and its steps. */
static Py_ssize_t run_section(Run *run, Py_ssize_t start)
{
    Step *section = &run->program->steps[start];
    PyObject *dictionary = run->registers[section->operand];
    Py_ssize_t end = start + 1 + section->number;
    uint64_t version =
        PyDict_CheckExact(dictionary) ? ((PyDictObject *)dictionary)->ma_version_tag : 0;
    Py_ssize_t stopped = run_steps(run, start + 1, end);
    if (stopped == end && PyDict_CheckExact(dictionary)
        && version == ((PyDictObject *)dictionary)->ma_version_tag) {
        section->found.dictionary = dictionary;
        section->found.version = version;
    }
    return stopped;
}
#else
static int section_stands(const Run *run, const Step *section)
{
    return 0;
}

static Py_ssize_t run_section(Run *run, Py_ssize_t start)
{
    return run_steps(run, start + 1, start + 1 + run->program->steps[start].number);
}
#endif

Py_ssize_t run_steps(Run *run, Py_ssize_t start, Py_ssize_t end)
{
    Step *steps = run->program->steps;
    int passed = 1;
    for (Py_ssize_t i = start; i < end; i++) {
        if (steps[i].operation == CHECK_SECTION) {
            Py_ssize_t last = i + steps[i].number;
            if (last < end) { /* else some of it has passed already */
                Py_ssize_t stopped = section_stands(run, &steps[i]) ? last + 1 : run_section(run, i);
                if (stopped <= last) {
                    return stopped;
                }
                i = last;
            }
            continue;
        }
        if (steps[i].operation <= LOAD_PYTHON) {
            PyObject *value = load(run, &steps[i]);
            if (value != NULL) {
                run->registers[steps[i].target] = run->owned[run->loaded++] = value;
            }
            passed = value != NULL;
        } else {
            passed = check(run, &steps[i]);
        }
        if (passed != 1) {
            PyErr_Clear();
            return i;
        }
    }
    return end;
}

void run_release(Run *run)
{
    while (run->loaded > 0) {
        Py_DECREF(run->owned[--run->loaded]);
    }
    Py_CLEAR(run->frame.scope);
}

Run run_of(Program *program, const Frame *frame)
{
    Run run = {.program = program, .frame = *frame};
    if (frame->closure != NULL && !PyTuple_Check(frame->closure)) {
        run.frame.closure = NULL;
    }
    return run;
}

/* A model has hundreds; asking malloc for as much would have it tidy up each time. */
#define STACK_REGISTERS 1024

int program_holds(Program *program, const Frame *frame)
{
    PyObject *on_stack[2 * STACK_REGISTERS];
    Run run = run_of(program, frame);
    if (program->steps == NULL) {
        return 0; /* cleared by the collector */
    }
    run.registers = on_stack;
    if (program->registers > STACK_REGISTERS) {
        run.registers = PyMem_Malloc(2 * program->registers * sizeof(PyObject *));
        if (run.registers == NULL) {
            return 0;
        }
    }
    run.owned = run.registers + program->registers;
    int holds = run_steps(&run, 0, program->length) == program->length;
    run_release(&run);
    if (run.registers != on_stack) {
        PyMem_Free(run.registers);
    }
    return holds;
}

int frame_from_arguments(const Program *program, PyObject *const *args, Py_ssize_t count,
                         const char *method, Frame *frame)
{
    if (count != 4) {
        PyErr_Format(PyExc_TypeError, "%s() takes 4 arguments, %zd given", method, count);
        return -1;
    }
    if (!PyTuple_Check(args[0]) || !PyDict_Check(args[1])
        || !(args[3] == Py_None || PyTuple_Check(args[3]))) {
        PyErr_Format(PyExc_TypeError,
                     "%s() takes the arguments as a tuple, the globals as a dict, the builtins, "
                     "and the closure as a tuple or None",
                     method);
        return -1;
    }
    Py_ssize_t expected =
        program->argument_names == NULL ? 0 : PyTuple_GET_SIZE(program->argument_names);
    if (PyTuple_GET_SIZE(args[0]) != expected) {
        PyErr_Format(PyExc_ValueError, "%s() expects %zd arguments in the tuple, %zd given", method,
                     expected, PyTuple_GET_SIZE(args[0]));
        return -1;
    }
    *frame = (Frame){((PyTupleObject *)args[0])->ob_item, args[1], args[2], args[3], NULL};
    return 0;
}

int run_module_init(void)
{
    dict_string = PyUnicode_InternFromString("__dict__");
    return dict_string == NULL ? -1 : 0;
}
