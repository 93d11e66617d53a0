/* The stance that counts: the thread's own, else the one that a program gave torch.
 *
 * `torch.compiler.set_stance` replaces an object in a module of torch's compiler, which is loaded by then and
 * never by us.  The object is looked into only where it is another than in the call before. */
#include "frame_hook.h"

#include <string.h>

static int number_of(PyObject *object) {
    static const struct {
        const char *name;
        int number;
    } known[] = {
        {"force_eager", STANCE_EAGER},
        {"eager_on_recompile", STANCE_EAGER_ON_RECOMPILE},
        {"fail_on_recompile", STANCE_FAIL_ON_RECOMPILE},
        {"eager_then_compile", STANCE_EAGER_THEN_COMPILE},
        {"aot_eager_then_compile", STANCE_EAGER_THEN_COMPILE},
    };
    PyObject *name = PyObject_GetAttrString(object, "stance");
    const char *text = name != NULL && PyUnicode_Check(name) ? PyUnicode_AsUTF8(name) : NULL;
    int number = STANCE_DEFAULT;
    for (size_t k = 0; text != NULL && k < sizeof(known) / sizeof(known[0]); k++) {
        if (strcmp(text, known[k].name) == 0) {
            number = known[k].number;
        }
    }
    Py_XDECREF(name);
    PyErr_Clear();
    return number;
}

static int stance_of_torch(void) {
    static PyObject *module_name, *variable, *dictionary, *seen;
    static int number = STANCE_DEFAULT;
    if (dictionary == NULL) {
        if (module_name == NULL) {
            variable = PyUnicode_InternFromString("_stance");
            module_name = PyUnicode_InternFromString("torch._dynamo.eval_frame");
        }
        PyObject *modules = PyImport_GetModuleDict();
        PyObject *module = module_name == NULL ? NULL : PyDict_GetItem(modules, module_name);
        if (module == NULL || !PyModule_Check(module)) {
            return STANCE_DEFAULT;
        }
        dictionary = Py_NewRef(PyModule_GetDict(module));
    }
    PyObject *object = variable == NULL ? NULL : PyDict_GetItem(dictionary, variable);
    if (object != NULL && object != seen) {
        PyObject *before = seen;
        seen = Py_NewRef(object);
        number = number_of(object);
        Py_XDECREF(before);
    }
    return number;
}

int weft_stance(void) {
    int own = weft_thread_slot()->stance;
    return own != STANCE_DEFAULT ? own : stance_of_torch();
}
