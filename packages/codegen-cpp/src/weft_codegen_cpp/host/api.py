"""The functions that a host program calls, in the order of ``Api`` in ``weft_host.h``."""

PYTHON_FUNCTIONS = """
    PyTuple_New PyTuple_SetItem PyTuple_GetItem Py_IncRef Py_DecRef PyErr_SetString PyErr_Format
    PyObject_CallObject PyObject_IsInstance PyLong_FromLongLong PyLong_AsLongLong PyFloat_FromDouble
    PyFloat_AsDouble PyErr_Occurred PyErr_NoMemory PyCapsule_GetPointer PyEval_SaveThread
    PyEval_RestoreThread
""".split()

TORCH_FUNCTIONS = """
    aoti_torch_get_data_ptr aoti_torch_get_sizes aoti_torch_get_strides aoti_torch_empty_strided
    aoti_torch_create_tensor_from_blob aoti_torch__reinterpret_tensor aoti_torch_copy_
    aoti_torch_delete_tensor_object aoti_torch_grad_mode_is_enabled aoti_torch_grad_mode_set_enabled
    aoti_torch_cpu_mm_out aoti_torch_cpu_addmm_out aoti_torch_cpu_bmm_out aoti_torch_cpu_baddbmm_out
    aoti_torch_cpu_convolution aoti_torch_cpu__scaled_dot_product_flash_attention_for_cpu
""".split()

OPTIONAL_TORCH_FUNCTIONS = """
    torch_exception_get_what_without_backtrace aoti_torch_cpu__linear_pointwise
    aoti_torch_cpu_mkldnn__convolution_pointwise _ZN2at12hasCallbacksEv aoti_record_function_start
    aoti_record_function_end
""".split()

OPENMP_FUNCTIONS = """
    GOMP_parallel omp_get_max_threads omp_get_thread_num omp_get_num_threads omp_in_parallel
""".split()
