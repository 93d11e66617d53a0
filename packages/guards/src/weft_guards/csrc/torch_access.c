#include "torch_access.h"

#include <dlfcn.h>
#include <stdbool.h>
#include <stddef.h>

/* torch's stable C interface for ahead-of-time compiled code; a handle is the address of an
 * at::Tensor, and a nonzero result is an error. */
typedef int32_t (*ReadInt32)(void *tensor, int32_t *result);
typedef int32_t (*ReadInt64)(void *tensor, int64_t *result);
typedef int32_t (*ReadInt64s)(void *tensor, int64_t **result);
typedef int32_t (*ReadPointer)(void *tensor, void **result);

/* C++ functions, by their mangled names (Itanium ABI): the argument of a const member function is
 * the object's address. */
static struct {
    ReadInt64 dimensions;
    ReadInt64s sizes, strides;
    ReadPointer data;
    ReadInt64 storage_offset;
    size_t (*element_size)(int32_t dtype);
    ReadInt32 dtype, device_type, device_index, layout;
    bool (*requires_grad)(const void *implementation);
    bool (*grad_enabled)(void);
    bool (*inference_enabled)(void);
    bool (*autocast_enabled)(int8_t device_type);
    int8_t (*autocast_dtype)(int8_t device_type);
    bool (*autocast_cache_enabled)(void);
    int8_t (*default_dtype)(void);
    void *(*global_context)(void);
    bool (*deterministic)(const void *context);
    bool (*flash_allowed)(const void *context);
    bool (*efficient_allowed)(const void *context);
    bool (*plain_allowed)(const void *context);
    bool (*cudnn_attention_allowed)(const void *context);
    bool (*cudnn_enabled)(const void *context);
    bool (*mkldnn_enabled)(const void *context);
    int64_t (*function_modes)(void);
    int64_t (*dispatch_modes)(void);
    bool (*dispatch_key_included)(uint16_t key);
    const uintptr_t *(*saved_tensors_hooks)(void);
} torch;

static const struct {
    const char *name;
    size_t offset;
} SYMBOLS[] = {
#define SYMBOL(member, name) {name, offsetof(__typeof__(torch), member)}
    SYMBOL(dimensions, "aoti_torch_get_dim"),
    SYMBOL(sizes, "aoti_torch_get_sizes"),
    SYMBOL(strides, "aoti_torch_get_strides"),
    SYMBOL(data, "aoti_torch_get_data_ptr"),
    SYMBOL(storage_offset, "aoti_torch_get_storage_offset"),
    SYMBOL(element_size, "aoti_torch_dtype_element_size"),
    SYMBOL(dtype, "aoti_torch_get_dtype"),
    SYMBOL(device_type, "aoti_torch_get_device_type"),
    SYMBOL(device_index, "aoti_torch_get_device_index"),
    SYMBOL(layout, "aoti_torch_get_layout"),
    /* c10::TensorImpl::requires_grad() const */
    SYMBOL(requires_grad, "_ZNK3c1010TensorImpl13requires_gradEv"),
    /* c10::GradMode::is_enabled() */
    SYMBOL(grad_enabled, "_ZN3c108GradMode10is_enabledEv"),
    /* c10::InferenceMode::is_enabled() */
    SYMBOL(inference_enabled, "_ZN3c1013InferenceMode10is_enabledEv"),
    /* at::autocast::is_autocast_enabled(c10::DeviceType) */
    SYMBOL(autocast_enabled, "_ZN2at8autocast19is_autocast_enabledEN3c1010DeviceTypeE"),
    /* at::autocast::get_autocast_dtype(c10::DeviceType) */
    SYMBOL(autocast_dtype, "_ZN2at8autocast18get_autocast_dtypeEN3c1010DeviceTypeE"),
    /* at::autocast::is_autocast_cache_enabled() */
    SYMBOL(autocast_cache_enabled, "_ZN2at8autocast25is_autocast_cache_enabledEv"),
    /* c10::get_default_dtype_as_scalartype() */
    SYMBOL(default_dtype, "_ZN3c1031get_default_dtype_as_scalartypeEv"),
    /* at::globalContext() */
    SYMBOL(global_context, "_ZN2at13globalContextEv"),
    /* at::Context::deterministicAlgorithms() const */
    SYMBOL(deterministic, "_ZNK2at7Context23deterministicAlgorithmsEv"),
    /* at::Context::userEnabledFlashSDP() const, and so on */
    SYMBOL(flash_allowed, "_ZNK2at7Context19userEnabledFlashSDPEv"),
    SYMBOL(efficient_allowed, "_ZNK2at7Context26userEnabledMemEfficientSDPEv"),
    SYMBOL(plain_allowed, "_ZNK2at7Context18userEnabledMathSDPEv"),
    SYMBOL(cudnn_attention_allowed, "_ZNK2at7Context19userEnabledCuDNNSDPEv"),
    SYMBOL(cudnn_enabled, "_ZNK2at7Context16userEnabledCuDNNEv"),
    SYMBOL(mkldnn_enabled, "_ZNK2at7Context17userEnabledMkldnnEv"),
    /* at::impl::PythonTorchFunctionTLS::stack_len() */
    SYMBOL(function_modes, "_ZN2at4impl22PythonTorchFunctionTLS9stack_lenEv"),
    /* c10::impl::TorchDispatchModeTLS::stack_len() */
    SYMBOL(dispatch_modes, "_ZN3c104impl20TorchDispatchModeTLS9stack_lenEv"),
    /* c10::impl::tls_is_dispatch_key_included(c10::DispatchKey) */
    SYMBOL(dispatch_key_included, "_ZN3c104impl28tls_is_dispatch_key_includedENS_11DispatchKeyE"),
    /* at::SavedTensorDefaultHooks::get_tls_state(), a reference */
    SYMBOL(saved_tensors_hooks, "_ZN2at23SavedTensorDefaultHooks13get_tls_stateEv"),
#undef SYMBOL
};

static Py_ssize_t tensor_offset;  /* of the at::Tensor in its Python object; 0: not known */
static Py_ssize_t keys_offset;    /* of the dispatch keys in the TensorImpl; 0: not known */
static uint16_t functorch_key;    /* the dispatch key that functorch's transforms include */
static uint16_t tracer_key;       /* the dispatch key that torch.jit.trace includes */
static PyObject *dual_levels;     /* the module with the level of forward-mode gradients, a dict */
static PyObject *dual_level_name;
static PyObject *innermost_hooks; /* gives the hooks for saved tensors that count, or None */
static PyObject *faithful_hooks;  /* code of those that give back what they were given, a set */

static void *tensor_handle(PyObject *tensor)
{
    return (char *)tensor + tensor_offset;
}

static char *tensor_implementation(PyObject *tensor)
{
    return *(char **)tensor_handle(tensor);
}

static uint64_t tensor_keys(PyObject *tensor)
{
    return *(uint64_t *)(tensor_implementation(tensor) + keys_offset);
}

/* ---- expectations ---- */

static int parse_extents(PyObject *extents, int64_t *result, Py_ssize_t length)
{
    if (!PyTuple_CheckExact(extents) || PyTuple_GET_SIZE(extents) != length) {
        PyErr_SetString(PyExc_ValueError, "sizes and strides must be tuples of one length");
        return -1;
    }
    for (Py_ssize_t i = 0; i < length; i++) {
        result[i] = PyLong_AsLongLong(PyTuple_GET_ITEM(extents, i));
        if (result[i] == -1 && PyErr_Occurred()) {
            return -1;
        }
    }
    return 0;
}

TensorExpectation *tensor_expectation_parse(PyObject *description)
{
    PyTypeObject *type;
    int dtype, device_type, device_index, layout, requires_grad;
    unsigned long long key_mask, keys;
    PyObject *sizes, *strides;
    if (!tensor_offset || !keys_offset) {
        PyErr_SetString(PyExc_RuntimeError, "connect() has not succeeded");
        return NULL;
    }
    if (!PyArg_ParseTuple(description, "O!iiiiKKpO!O:tensor expectation", &PyType_Type, &type,
                          &dtype, &device_type, &device_index, &layout, &key_mask, &keys,
                          &requires_grad, &PyTuple_Type, &sizes, &strides)) {
        return NULL;
    }
    Py_ssize_t length = PyTuple_GET_SIZE(sizes);
    TensorExpectation *expected =
        PyMem_Malloc(sizeof(TensorExpectation) + 2 * length * sizeof(int64_t));
    if (expected == NULL) {
        PyErr_NoMemory();
        return NULL;
    }
    expected->type = type;
    expected->dtype = dtype;
    expected->device_type = device_type;
    expected->device_index = device_index;
    expected->layout = layout;
    expected->key_mask = key_mask;
    expected->keys = keys;
    expected->requires_grad = requires_grad;
    expected->dimensions = length;
    expected->check_strides = strides != Py_None;
    if (parse_extents(sizes, expected->extents, length) < 0
        || (strides != Py_None && parse_extents(strides, expected->extents + length, length) < 0)) {
        PyMem_Free(expected);
        return NULL;
    }
    return expected;
}

GlobalStateExpectation *global_state_expectation_parse(PyObject *description)
{
    PyObject *fields, *devices;
    if (torch.grad_enabled == NULL) {
        PyErr_SetString(PyExc_RuntimeError, "connect() has not succeeded");
        return NULL;
    }
    if (!PyArg_ParseTuple(description, "O!O!:global state", &PyTuple_Type, &fields, &PyTuple_Type,
                          &devices)) {
        return NULL;
    }
    if (PyTuple_GET_SIZE(devices) > MAX_AUTOCAST_DEVICES) {
        PyErr_SetString(PyExc_ValueError, "too many autocast devices");
        return NULL;
    }
    GlobalStateExpectation *expected = PyMem_Calloc(1, sizeof(*expected));
    if (expected == NULL) {
        PyErr_NoMemory();
        return NULL;
    }
    expected->autocast_devices = (int)PyTuple_GET_SIZE(devices);
    if (parse_extents(fields, expected->fields, GLOBAL_STATE_FIELDS) < 0) {
        PyMem_Free(expected);
        return NULL;
    }
    for (int i = 0; i < expected->autocast_devices; i++) {
        if (parse_extents(PyTuple_GET_ITEM(devices, i), expected->autocast[i], 3) < 0) {
            PyMem_Free(expected);
            return NULL;
        }
    }
    return expected;
}

/* ---- checks ---- */

static int extents_match(const int64_t *expected, const int64_t *found, int64_t length)
{
    for (int64_t i = 0; i < length; i++) {
        if (expected[i] != found[i] && expected[i] >= 0) {
            return 0;
        }
    }
    return 1;
}

int tensor_matches(const TensorExpectation *expected, PyObject *value)
{
    if (Py_TYPE(value) != expected->type
        || (tensor_keys(value) & expected->key_mask) != expected->keys) {
        return 0;
    }
    void *handle = tensor_handle(value);
    int32_t number;
    int64_t dimensions;
    int64_t *extents;
    /* The layout comes first: sizes and strides exist only for a strided one. */
    if (torch.layout(handle, &number) || number != expected->layout
        || torch.dtype(handle, &number) || number != expected->dtype
        || torch.dimensions(handle, &dimensions) || dimensions != expected->dimensions
        || torch.sizes(handle, &extents)
        || !extents_match(expected->extents, extents, dimensions)) {
        return 0;
    }
    if (expected->check_strides
        && (torch.strides(handle, &extents)
            || !extents_match(expected->extents + dimensions, extents, dimensions))) {
        return 0;
    }
    if (torch.device_type(handle, &number) || number != expected->device_type
        || torch.device_index(handle, &number) || number != expected->device_index) {
        return 0;
    }
    return torch.requires_grad(tensor_implementation(value)) == expected->requires_grad;
}

int tensor_extent(PyObject *tensor, int is_stride, int64_t dimension, int64_t *extent)
{
    void *handle = tensor_handle(tensor);
    int64_t dimensions, *extents;
    if (torch.dimensions(handle, &dimensions) || dimension >= dimensions
        || (is_stride ? torch.strides : torch.sizes)(handle, &extents)) {
        return 0;
    }
    *extent = extents[dimension];
    return 1;
}

int tensor_storage_address(PyObject *tensor, uintptr_t *address)
{
    void *handle = tensor_handle(tensor), *data;
    int32_t dtype;
    int64_t offset;
    if (torch.data(handle, &data) || torch.dtype(handle, &dtype)
        || torch.storage_offset(handle, &offset)) {
        return 0;
    }
    *address = data == NULL ? 0 : (uintptr_t)data - offset * torch.element_size(dtype);
    return 1;
}

int tensor_storage_offset(PyObject *tensor, int64_t *offset)
{
    return torch.storage_offset(tensor_handle(tensor), offset) == 0;
}

/* Whether tensors may stand for others: in a functorch transform, in a trace, or dual tensors. */
static int transform_active(void)
{
    if (torch.dispatch_key_included(functorch_key) || torch.dispatch_key_included(tracer_key)) {
        return 1;
    }
    PyObject *level = PyDict_GetItem(dual_levels, dual_level_name);
    return level == NULL || !PyLong_Check(level) || PyLong_AsLong(level) >= 0;
}

static int is_faithful(PyObject *hook)
{
    return PyFunction_Check(hook)
        && PySet_Contains(faithful_hooks, PyFunction_GET_CODE(hook)) == 1;
}

/* Whether hooks for saved tensors are set that may change what backward is given. */
static int saved_tensors_hooked(void)
{
    /* The state begins with a std::deque, which is empty where its two iterators, of four words each, begin with
     * one address.  Laid out in another way, these words differ and torch is asked. */
    const uintptr_t *state = torch.saved_tensors_hooks();
    if (state[2] == state[6]) {
        return 0;
    }
    PyObject *hooks = PyObject_CallOneArg(innermost_hooks, Py_True);
    int answer = hooks != Py_None;
    if (hooks == NULL) {
        PyErr_Clear();
    } else if (PyTuple_Check(hooks) && PyTuple_GET_SIZE(hooks) == 2) {
        answer = !is_faithful(PyTuple_GET_ITEM(hooks, 0)) && !is_faithful(PyTuple_GET_ITEM(hooks, 1));
    }
    Py_XDECREF(hooks);
    return answer;
}

/* Which kernels scaled_dot_product_attention may choose, and which libraries are on, a bit each. */
static int64_t allowed_libraries(const void *context)
{
    return torch.flash_allowed(context) | torch.efficient_allowed(context) << 1
        | torch.plain_allowed(context) << 2 | torch.cudnn_attention_allowed(context) << 3
        | torch.cudnn_enabled(context) << 4 | torch.mkldnn_enabled(context) << 5;
}

static void read_fields(int64_t *fields)
{
    const void *context = torch.global_context();
    fields[0] = torch.grad_enabled();
    fields[1] = torch.inference_enabled();
    fields[2] = torch.autocast_cache_enabled();
    fields[3] = torch.default_dtype();
    fields[4] = torch.deterministic(context);
    fields[5] = torch.function_modes();
    fields[6] = torch.dispatch_modes();
    fields[7] = transform_active();
    fields[8] = allowed_libraries(context);
    fields[9] = saved_tensors_hooked();
}

int global_state_matches(const GlobalStateExpectation *expected)
{
    int64_t fields[GLOBAL_STATE_FIELDS];
    read_fields(fields);
    for (int i = 0; i < GLOBAL_STATE_FIELDS; i++) {
        if (fields[i] != expected->fields[i]) {
            return 0;
        }
    }
    for (int i = 0; i < expected->autocast_devices; i++) {
        const int64_t *device = expected->autocast[i];
        if (torch.autocast_enabled((int8_t)device[0]) != device[1]
            || torch.autocast_dtype((int8_t)device[0]) != device[2]) {
            return 0;
        }
    }
    return 1;
}

/* ---- connecting to torch, and reading for its self-test ---- */

static void find_device_types(void *handle);

static PyObject *find_symbols(const char *library)
{
    /* Only a library that is loaded already: this never brings in a second torch. */
    void *handle = dlopen(library, RTLD_LAZY | RTLD_NOLOAD);
    if (handle == NULL) {
        return PyUnicode_FromFormat("%s is not loaded", library);
    }
    PyObject *missing = NULL;
    for (size_t i = 0; i < sizeof(SYMBOLS) / sizeof(SYMBOLS[0]); i++) {
        void *address = dlsym(handle, SYMBOLS[i].name);
        if (address == NULL) {
            missing = PyUnicode_FromFormat("%s lacks %s", library, SYMBOLS[i].name);
            break;
        }
        *(void **)((char *)&torch + SYMBOLS[i].offset) = address;
    }
    find_device_types(handle);
    dlclose(handle); /* torch itself keeps the library */
    if (missing == NULL) {
        Py_RETURN_NONE;
    }
    return missing;
}

/* The one offset in [start, end) at which `base` holds `value`; 0 when there is none or several. */
static Py_ssize_t find_word(const char *base, Py_ssize_t start, Py_ssize_t end, uint64_t value)
{
    Py_ssize_t found = 0;
    for (Py_ssize_t offset = start; offset + 8 <= end; offset += 8) {
        if (*(const uint64_t *)(base + offset) == value) {
            if (found) {
                return 0;
            }
            found = offset;
        }
    }
    return found;
}

#define IMPLEMENTATION_SIZE 192 /* a TensorImpl has at least this many bytes */

/* Each sample is (tensor, address of its TensorImpl, its dispatch keys). */
static const char *find_offsets(PyObject *samples)
{
    Py_ssize_t tensor = 0, keys = 0;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(samples); i++) {
        PyObject *sample;
        unsigned long long address, raw_keys;
        if (!PyArg_ParseTuple(PyTuple_GET_ITEM(samples, i), "OKK:sample", &sample, &address,
                              &raw_keys)) {
            return NULL;
        }
        Py_ssize_t found = find_word((char *)sample, sizeof(PyObject),
                                     Py_TYPE(sample)->tp_basicsize, address);
        if (!found || (tensor && found != tensor)) {
            return "the tensor is not at one place in its Python object";
        }
        tensor = found;
        found = find_word((char *)(uintptr_t)address, sizeof(void *), IMPLEMENTATION_SIZE, raw_keys);
        if (!found || (keys && found != keys)) {
            return "the dispatch keys are not at one place in the TensorImpl";
        }
        keys = found;
    }
    tensor_offset = tensor;
    keys_offset = keys;
    return NULL;
}

/* Device types beside the CPU, by their number in torch; filled where torch exports them. */
static struct {
    const char *device, *symbol;
    int32_t number;
} device_numbers[] = {
    {"cuda", "aoti_torch_device_type_cuda", -1},
    {"xpu", "aoti_torch_device_type_xpu", -1},
    {"mps", "aoti_torch_device_type_mps", -1},
};

static void find_device_types(void *handle)
{
    for (size_t i = 0; i < sizeof(device_numbers) / sizeof(device_numbers[0]); i++) {
        int32_t (*number)(void) = (int32_t (*)(void))dlsym(handle, device_numbers[i].symbol);
        if (number != NULL) {
            device_numbers[i].number = number();
        }
    }
}

static PyObject *device_types(PyObject *module, PyObject *unused)
{
    PyObject *result = PyDict_New();
    for (size_t i = 0; i < sizeof(device_numbers) / sizeof(device_numbers[0]); i++) {
        if (result == NULL || device_numbers[i].number < 0) {
            continue;
        }
        PyObject *number = PyLong_FromLong(device_numbers[i].number);
        if (number == NULL
            || PyDict_SetItemString(result, device_numbers[i].device, number) < 0) {
            Py_CLEAR(result);
        }
        Py_XDECREF(number);
    }
    return result;
}

static PyObject *connect(PyObject *module, PyObject *args)
{
    const char *library;
    PyObject *samples, *levels, *hooks, *faithful;
    int of_transforms, of_traces;
    if (!PyArg_ParseTuple(args, "sO!(ii)O!OO!:connect", &library, &PyTuple_Type, &samples,
                          &of_transforms, &of_traces, &PyDict_Type, &levels, &hooks, &PySet_Type,
                          &faithful)) {
        return NULL;
    }
    PyObject *name = PyUnicode_InternFromString("_current_level");
    if (name == NULL) {
        return NULL;
    }
    functorch_key = (uint16_t)of_transforms;
    tracer_key = (uint16_t)of_traces;
    Py_XSETREF(dual_level_name, name);
    Py_XSETREF(dual_levels, Py_NewRef(levels));
    Py_XSETREF(innermost_hooks, Py_NewRef(hooks));
    Py_XSETREF(faithful_hooks, Py_NewRef(faithful));
    PyObject *problem = find_symbols(library);
    if (problem != Py_None) {
        return problem;
    }
    const char *fault = find_offsets(samples);
    if (fault != NULL) {
        Py_DECREF(problem);
        return PyUnicode_FromString(fault);
    }
    if (PyErr_Occurred()) {
        Py_DECREF(problem);
        return NULL;
    }
    return problem;
}

static PyObject *extents_tuple(const int64_t *extents, int64_t length)
{
    PyObject *result = PyTuple_New(length);
    for (int64_t i = 0; result != NULL && i < length; i++) {
        PyObject *number = PyLong_FromLongLong(extents[i]);
        if (number == NULL) {
            Py_CLEAR(result);
            break;
        }
        PyTuple_SET_ITEM(result, i, number);
    }
    return result;
}

static PyObject *read_tensor(PyObject *module, PyObject *tensor)
{
    int32_t dtype, device_type, device_index, layout;
    int64_t dimensions, *sizes, *strides;
    if (!tensor_offset || !keys_offset) {
        PyErr_SetString(PyExc_RuntimeError, "connect() has not succeeded");
        return NULL;
    }
    void *handle = tensor_handle(tensor);
    if (torch.dtype(handle, &dtype) || torch.device_type(handle, &device_type)
        || torch.device_index(handle, &device_index) || torch.layout(handle, &layout)
        || torch.dimensions(handle, &dimensions) || torch.sizes(handle, &sizes)
        || torch.strides(handle, &strides)) {
        PyErr_SetString(PyExc_RuntimeError, "torch cannot read this tensor's metadata");
        return NULL;
    }
    uintptr_t address;
    if (!tensor_storage_address(tensor, &address)) {
        PyErr_SetString(PyExc_RuntimeError, "torch cannot tell where this tensor's storage is");
        return NULL;
    }
    PyObject *size = extents_tuple(sizes, dimensions);
    PyObject *stride = extents_tuple(strides, dimensions);
    if (size == NULL || stride == NULL) {
        Py_XDECREF(size);
        Py_XDECREF(stride);
        return NULL;
    }
    return Py_BuildValue("iiiiKNNNK", dtype, device_type, device_index, layout,
                         (unsigned long long)tensor_keys(tensor),
                         PyBool_FromLong(torch.requires_grad(tensor_implementation(tensor))), size,
                         stride, (unsigned long long)address);
}

static PyObject *read_global_state(PyObject *module, PyObject *device_types)
{
    int64_t fields[GLOBAL_STATE_FIELDS];
    if (torch.grad_enabled == NULL || !PyTuple_CheckExact(device_types)) {
        PyErr_SetString(PyExc_RuntimeError, "connect() has not succeeded, or not a tuple");
        return NULL;
    }
    read_fields(fields);
    Py_ssize_t count = PyTuple_GET_SIZE(device_types);
    PyObject *devices = PyTuple_New(count);
    for (Py_ssize_t i = 0; devices != NULL && i < count; i++) {
        long device = PyLong_AsLong(PyTuple_GET_ITEM(device_types, i));
        PyObject *entry = device == -1 && PyErr_Occurred()
            ? NULL
            : Py_BuildValue("lii", device, (int)torch.autocast_enabled((int8_t)device),
                            (int)torch.autocast_dtype((int8_t)device));
        if (entry == NULL) {
            Py_CLEAR(devices);
            break;
        }
        PyTuple_SET_ITEM(devices, i, entry);
    }
    if (devices == NULL) {
        return NULL;
    }
    return Py_BuildValue("NN", extents_tuple(fields, GLOBAL_STATE_FIELDS), devices);
}

PyMethodDef torch_access_methods[] = {
    {"connect", connect, METH_VARARGS,
     "connect(library, samples, (functorch_key, tracer_key), dual_levels, innermost_hooks, faithful_hooks) -> None, or a "
     "sentence saying why it failed"},
    {"device_types", device_types, METH_NOARGS, "torch's numbers of device types, by name"},
    {"read_tensor", read_tensor, METH_O,
     "(dtype, device type, device index, layout, dispatch keys, requires_grad, size, stride, "
     "storage address)"},
    {"read_global_state", read_global_state, METH_O,
     "((ten fields), ((device type, autocast enabled, autocast dtype), ...))"},
    {NULL, NULL, 0, NULL},
};
