/* XLA's side of a call, for tests: calls a handler as XLA calls it.

   call(handler, key, text, operands, results, memory, stream, device) -> None, or an error's message
   operands, results: addresses. memory: bytes of the last result.
   version(handler) -> the version of the interface that a handler says it is written for */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <string.h>

#include "xla/ffi/api/c_api.h"

#define MOST 16

struct XLA_FFI_Error {
  char message[1000];
};

struct XLA_FFI_ExecutionContext {
  void *stream;
  int device;
};

static XLA_FFI_Error *create(XLA_FFI_Error_Create_Args *args) {
  XLA_FFI_Error *made = PyMem_RawCalloc(1, sizeof(XLA_FFI_Error));
  strncpy(made->message, args->message, sizeof(made->message) - 1);
  return made;
}

static XLA_FFI_Error *stream_of(XLA_FFI_Stream_Get_Args *args) {
  args->stream = args->ctx->stream;
  return NULL;
}

static XLA_FFI_Error *device_of(XLA_FFI_DeviceOrdinal_Get_Args *args) {
  args->device_ordinal = args->ctx->device;
  return NULL;
}

static XLA_FFI_Api api = {.struct_size = XLA_FFI_Api_STRUCT_SIZE,
                          .XLA_FFI_Error_Create = create,
                          .XLA_FFI_Stream_Get = stream_of,
                          .XLA_FFI_DeviceOrdinal_Get = device_of};

static int read_buffers(PyObject *addresses, int64_t *bytes, XLA_FFI_Buffer *buffer, void **each) {
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(addresses); i++) {
    buffer[i] = (XLA_FFI_Buffer){.struct_size = XLA_FFI_Buffer_STRUCT_SIZE, .rank = 1, .dims = bytes};
    buffer[i].data = PyLong_AsVoidPtr(PyTuple_GET_ITEM(addresses, i));
    each[i] = buffer + i;
  }
  return PyErr_Occurred() ? -1 : 0;
}

static PyObject *call(PyObject *self, PyObject *given) {
  PyObject *handler, *operands, *results;
  long long key;
  const char *text;
  Py_ssize_t length;
  unsigned long long stream;
  int64_t memory;
  int device;
  if (!PyArg_ParseTuple(given, "OLs#O!O!LKi", &handler, &key, &text, &length, &PyTuple_Type,
                        &operands, &PyTuple_Type, &results, &memory, &stream, &device))
    return NULL;
  XLA_FFI_Buffer buffer[2 * MOST];
  void *args[MOST], *rets[MOST];
  if (read_buffers(operands, &memory, buffer, args) ||
      read_buffers(results, &memory, buffer + MOST, rets))
    return NULL;
  int64_t number = key;
  XLA_FFI_Scalar scalar = {XLA_FFI_DataType_S64, &number};
  XLA_FFI_ByteSpan said = {text, (size_t)length}, names[] = {{"key", 3}, {"text", 4}};
  XLA_FFI_ByteSpan *name[] = {names, names + 1};
  XLA_FFI_AttrType types[] = {XLA_FFI_AttrType_SCALAR, XLA_FFI_AttrType_STRING};
  void *attributes[] = {&scalar, &said};
  XLA_FFI_ExecutionContext context = {(void *)(uintptr_t)stream, device};
  XLA_FFI_CallFrame frame = {
      .struct_size = XLA_FFI_CallFrame_STRUCT_SIZE, .api = &api, .ctx = &context,
      .stage = XLA_FFI_ExecutionStage_EXECUTE,
      .args = {.size = PyTuple_GET_SIZE(operands), .args = args},
      .rets = {.size = PyTuple_GET_SIZE(results), .rets = rets},
      .attrs = {.size = 2, .types = types, .names = name, .attrs = attributes}};
  XLA_FFI_Handler *function = PyCapsule_GetPointer(handler, NULL);
  XLA_FFI_Error *error;
  Py_BEGIN_ALLOW_THREADS; /* as XLA calls it */
  error = function(&frame);
  Py_END_ALLOW_THREADS;
  if (!error) Py_RETURN_NONE;
  PyObject *message = PyUnicode_FromString(error->message);
  PyMem_RawFree(error);
  return message;
}

static PyObject *version(PyObject *self, PyObject *handler) {
  XLA_FFI_Metadata metadata = {.struct_size = XLA_FFI_Metadata_STRUCT_SIZE};
  XLA_FFI_Metadata_Extension extension = {
      {sizeof(XLA_FFI_Metadata_Extension), XLA_FFI_Extension_Metadata, NULL}, &metadata};
  XLA_FFI_CallFrame frame = {.struct_size = XLA_FFI_CallFrame_STRUCT_SIZE, .api = &api,
                             .extension_start = &extension.extension_base};
  XLA_FFI_Handler *function = PyCapsule_GetPointer(handler, NULL);
  if (function(&frame)) return PyErr_Format(PyExc_RuntimeError, "the handler fails");
  return Py_BuildValue("(iiI)", metadata.api_version.major_version,
                       metadata.api_version.minor_version, (unsigned)metadata.traits);
}

static PyMethodDef methods[] = {{"call", call, METH_VARARGS, ""},
                                {"version", version, METH_O, ""},
                                {NULL, NULL, 0, NULL}};

static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "frame", NULL, -1, methods,
                                    NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit_frame(void) { return PyModule_Create(&module); }
