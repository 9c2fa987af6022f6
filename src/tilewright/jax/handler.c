/* What XLA calls for a call of Tilewright: handlers of its foreign function interface for GPUs, and
   one for the CPU.

   on_cuda, on_rocm, on_cpu     addresses of the handlers
   serve(resolve, run)          Python's side of them, below
   keep(key, device, resolved)  what a call with this key launches on a device, as `resolve` returns
                                it; the first for a key and a device stays
   forget()                     has every call resolved anew

   A call has two attributes: `text`, which says all of it, and `key`, a digest of that. Its results
   are the call's outputs; on a GPU one more, the last, is the memory of temporaries, as bytes.

   resolve(text, device) -> (launch, launch_alone, exchange, scratch, again), or a text that says
                            why not. launch: the launcher's record. launch_alone: the address of
                            the launcher's function. exchange: that of the driver's function that
                            sets what captures forbid the thread, if the launch may do such things
                            when it is first queued, else 0. scratch: bytes of the temporaries.
   again(stream, addresses) -> None, or a text: launches with what the launcher leaves to Python
   run(text, addresses) -> None, or a text: computes the call on the CPU

   XLA may record what a call queues on CUDA's streams into a graph of its own, once for the buffers
   that it is replayed with: then no call arrives here until it has others. A launch allocates
   nothing and waits for nothing, and what is loaded for its first is allowed within a capture.

   A known call on a GPU takes no lock of Python. jax/foreign.py compiles this file on first use. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "xla/ffi/api/c_api.h"

#define ALIGNED 16       /* bytes: plans ask for no more of operands */
#define TEMPORARIES 256  /* bytes that temporaries are aligned to */
#define MOST_OPERANDS 64
#define BUCKETS 1024
#define RELAXED 2 /* captures forbid the thread nothing, in CUDA and in HIP */

typedef int (*alone_fn)(void *, uint64_t, const uint64_t *);
typedef int (*exchange_fn)(int *);

typedef struct Known {
  struct Known *next;
  int64_t key;
  int device;
  void *launch;
  alone_fn alone;
  exchange_fn exchange; /* or NULL */
  size_t scratch;
  PyObject *resolved, *again; /* kept for ever, as executables are not known to end */
  pthread_mutex_t use;        /* always taken before Python's lock */
} Known;

static Known *buckets[BUCKETS];
static pthread_mutex_t table = PTHREAD_MUTEX_INITIALIZER;
static PyObject *resolve_call, *run_call;

/* ---- What XLA passes ---- */

static XLA_FFI_Error *failed(const XLA_FFI_CallFrame *f, const char *why) {
  XLA_FFI_Error_Create_Args args = {.struct_size = XLA_FFI_Error_Create_Args_STRUCT_SIZE,
                                    .message = why,
                                    .errc = XLA_FFI_Error_Code_INTERNAL};
  return f->api->XLA_FFI_Error_Create(&args);
}

/* Whether XLA only asks which version of the interface this is written for, and what a handler
   allows. */
static int asked(const XLA_FFI_CallFrame *f, XLA_FFI_Handler_Traits traits) {
  /* JAX 0.11 renamed the type of this pointer. */
  __typeof__(f->extension_start) first = f->extension_start;
  if (!first || first->type != XLA_FFI_Extension_Metadata) return 0;
  XLA_FFI_Metadata *metadata = ((XLA_FFI_Metadata_Extension *)first)->metadata;
  metadata->api_version.struct_size = XLA_FFI_Api_Version_STRUCT_SIZE;
  metadata->api_version.major_version = XLA_FFI_API_MAJOR;
  metadata->api_version.minor_version = XLA_FFI_API_MINOR;
  metadata->traits = traits;
  return 1;
}

typedef struct {
  int64_t key;
  const char *text;
  size_t length;
  int count;
  uint64_t address[MOST_OPERANDS + 1]; /* of operands, then of results */
} Passed;

/* NULL, or what is wrong with the call. */
static const char *read_frame(const XLA_FFI_CallFrame *f, Passed *p) {
  p->text = NULL;
  int keyed = 0;
  for (int64_t i = 0; i < f->attrs.size; i++) {
    const XLA_FFI_ByteSpan *name = f->attrs.names[i];
    if (name->len == 3 && !memcmp(name->ptr, "key", 3) &&
        f->attrs.types[i] == XLA_FFI_AttrType_SCALAR) {
      const XLA_FFI_Scalar *scalar = f->attrs.attrs[i];
      if (scalar->dtype != XLA_FFI_DataType_S64) return "the key is no int64";
      memcpy(&p->key, scalar->value, 8), keyed = 1;
    } else if (name->len == 4 && !memcmp(name->ptr, "text", 4) &&
               f->attrs.types[i] == XLA_FFI_AttrType_STRING) {
      const XLA_FFI_ByteSpan *text = f->attrs.attrs[i];
      p->text = text->ptr, p->length = text->len;
    }
  }
  if (!keyed || !p->text) return "a call of Tilewright has the attributes key and text";
  if (f->args.size + f->rets.size > MOST_OPERANDS) return "a call has too many operands";
  p->count = 0;
  for (int64_t i = 0; i < f->args.size; i++)
    p->address[p->count++] = (uint64_t)(uintptr_t)((XLA_FFI_Buffer *)f->args.args[i])->data;
  for (int64_t i = 0; i < f->rets.size; i++)
    p->address[p->count++] = (uint64_t)(uintptr_t)((XLA_FFI_Buffer *)f->rets.rets[i])->data;
  return NULL;
}

/* ---- Python's side ---- */

static PyObject *address_tuple(const uint64_t *address, int count) {
  PyObject *made = PyTuple_New(count);
  for (int i = 0; made && i < count; i++) {
    PyObject *one = PyLong_FromUnsignedLongLong(address[i]);
    if (one) PyTuple_SET_ITEM(made, i, one);
    else Py_CLEAR(made);
  }
  return made;
}

/* The error that Python's answer says: a text, or nothing where it raised. Takes the reference. */
static XLA_FFI_Error *error_of(const XLA_FFI_CallFrame *f, PyObject *answer) {
  const char *why = answer && PyUnicode_Check(answer) ? PyUnicode_AsUTF8(answer) : NULL;
  XLA_FFI_Error *made = failed(f, why ? why : "Tilewright was interrupted");
  PyErr_Clear();
  Py_XDECREF(answer);
  return made;
}

/* As error_of() unless Python answered None. */
static XLA_FFI_Error *done(const XLA_FFI_CallFrame *f, PyObject *answer) {
  if (answer != Py_None) return error_of(f, answer);
  Py_DECREF(answer);
  return NULL;
}

static Known *find(int64_t key, int device) {
  pthread_mutex_lock(&table);
  Known *k = buckets[(uint64_t)key % BUCKETS];
  while (k && (k->key != key || k->device != device)) k = k->next;
  pthread_mutex_unlock(&table);
  return k;
}

/* With Python's lock. NULL with an exception set. Two threads may add one at once: both stay, and the
   later is found. */
static Known *add(int64_t key, int device, PyObject *resolved) {
  PyObject *launch, *again;
  unsigned long long alone, exchange, scratch;
  Known *k = calloc(1, sizeof(Known));
  if (!k) return (Known *)PyErr_NoMemory();
  if (!PyArg_ParseTuple(resolved, "OKKKO", &launch, &alone, &exchange, &scratch, &again) ||
      !(k->launch = PyCapsule_GetPointer(launch, "tilewright.launch"))) {
    free(k);
    return NULL;
  }
  k->key = key, k->device = device;
  k->alone = (alone_fn)(uintptr_t)alone, k->scratch = scratch;
  k->exchange = (exchange_fn)(uintptr_t)exchange;
  k->resolved = Py_NewRef(resolved), k->again = Py_NewRef(again);
  pthread_mutex_init(&k->use, NULL);
  pthread_mutex_lock(&table);
  Known **first = &buckets[(uint64_t)key % BUCKETS];
  k->next = *first, *first = k;
  pthread_mutex_unlock(&table);
  return k;
}

static Known *ask(const XLA_FFI_CallFrame *f, const Passed *p, int device, XLA_FFI_Error **error) {
  PyGILState_STATE lock = PyGILState_Ensure();
  Known *k = NULL;
  PyObject *found =
      PyObject_CallFunction(resolve_call, "s#i", p->text, (Py_ssize_t)p->length, device);
  if (found && PyTuple_Check(found)) k = add(p->key, device, found);
  if (k) Py_DECREF(found);
  else *error = error_of(f, found);
  PyGILState_Release(lock);
  return k;
}

static XLA_FFI_Error *again(const XLA_FFI_CallFrame *f, const Known *k, uint64_t stream,
                            const uint64_t *address, int count) {
  PyGILState_STATE lock = PyGILState_Ensure();
  PyObject *addresses = address_tuple(address, count), *answer = NULL;
  if (addresses) answer = PyObject_CallFunction(k->again, "KO", stream, addresses);
  XLA_FFI_Error *error = done(f, answer);
  Py_XDECREF(addresses);
  PyGILState_Release(lock);
  return error;
}

/* ---- The handlers ---- */

static XLA_FFI_Error *on_gpu(XLA_FFI_CallFrame *f) {
  Passed p;
  const char *wrong = read_frame(f, &p);
  if (wrong) return failed(f, wrong);
  XLA_FFI_DeviceOrdinal_Get_Args device = {
      .struct_size = XLA_FFI_DeviceOrdinal_Get_Args_STRUCT_SIZE, .ctx = f->ctx};
  XLA_FFI_Stream_Get_Args stream = {.struct_size = XLA_FFI_Stream_Get_Args_STRUCT_SIZE,
                                    .ctx = f->ctx};
  XLA_FFI_Error *error = f->api->XLA_FFI_DeviceOrdinal_Get(&device);
  if (!error) error = f->api->XLA_FFI_Stream_Get(&stream);
  if (error) return error;
  Known *k = find(p.key, device.device_ordinal);
  if (!k && !(k = ask(f, &p, device.device_ordinal, &error))) return error;

  if (!f->rets.size) return failed(f, "a call on a GPU has memory for temporaries");
  const XLA_FFI_Buffer *memory = f->rets.rets[f->rets.size - 1];
  int operands = p.count - 1;
  uint64_t begin = p.address[operands];
  uint64_t scratch = (begin + TEMPORARIES - 1) / TEMPORARIES * TEMPORARIES;
  if (k->scratch && begin + (uint64_t)memory->dims[0] < scratch + k->scratch)
    return failed(f, "a call has too little memory for temporaries");
  for (int i = 0; i < operands; i++)
    if (p.address[i] % ALIGNED) return failed(f, "an operand is not aligned to 16 bytes");
  p.address[operands] = 0; /* no buffer is kept zero */
  p.address[operands + 1] = k->scratch ? scratch : 0;

  uint64_t handle = (uint64_t)(uintptr_t)stream.stream;
  int mode = RELAXED;
  pthread_mutex_lock(&k->use);
  if (k->exchange) k->exchange(&mode);
  int left = k->alone(k->launch, handle, p.address);
  if (k->exchange) k->exchange(&mode);
  if (left) error = again(f, k, handle, p.address, operands + 2);
  pthread_mutex_unlock(&k->use);
  return error;
}

static XLA_FFI_Error *on_cuda(XLA_FFI_CallFrame *f) {
  return asked(f, XLA_FFI_HANDLER_TRAITS_COMMAND_BUFFER_COMPATIBLE) ? NULL : on_gpu(f);
}

/* Solvers of MIOpen may not be captured. */
static XLA_FFI_Error *on_rocm(XLA_FFI_CallFrame *f) { return asked(f, 0) ? NULL : on_gpu(f); }

static XLA_FFI_Error *on_cpu(XLA_FFI_CallFrame *f) {
  if (asked(f, 0)) return NULL;
  Passed p;
  const char *wrong = read_frame(f, &p);
  if (wrong) return failed(f, wrong);
  PyGILState_STATE lock = PyGILState_Ensure();
  PyObject *addresses = address_tuple(p.address, p.count), *answer = NULL;
  if (addresses)
    answer = PyObject_CallFunction(run_call, "s#O", p.text, (Py_ssize_t)p.length, addresses);
  XLA_FFI_Error *error = done(f, answer);
  Py_XDECREF(addresses);
  PyGILState_Release(lock);
  return error;
}

/* ---- The module ---- */

static PyObject *serve(PyObject *self, PyObject *args) {
  PyObject *resolve, *run;
  if (!PyArg_ParseTuple(args, "OO", &resolve, &run)) return NULL;
  Py_XSETREF(resolve_call, Py_NewRef(resolve));
  Py_XSETREF(run_call, Py_NewRef(run));
  Py_RETURN_NONE;
}

static PyObject *keep(PyObject *self, PyObject *args) {
  long long key;
  int device;
  PyObject *resolved;
  if (!PyArg_ParseTuple(args, "LiO!", &key, &device, &PyTuple_Type, &resolved)) return NULL;
  if (!find(key, device) && !add(key, device, resolved)) return NULL;
  Py_RETURN_NONE;
}

/* What is forgotten stays in memory: another thread may be launching it. */
static PyObject *forget(PyObject *self, PyObject *none) {
  pthread_mutex_lock(&table);
  memset(buckets, 0, sizeof(buckets));
  pthread_mutex_unlock(&table);
  Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"serve", serve, METH_VARARGS, "Python's side of the handlers."},
    {"keep", keep, METH_VARARGS, "What a call launches on a device."},
    {"forget", forget, METH_NOARGS, "Have every call resolved anew."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "handler", NULL, -1, methods,
                                    NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit_handler(void) {
  PyObject *made = PyModule_Create(&module);
  const struct { const char *name; XLA_FFI_Handler *handler; } handlers[] = {
      {"on_cuda", on_cuda}, {"on_rocm", on_rocm}, {"on_cpu", on_cpu}};
  for (size_t i = 0; made && i < sizeof(handlers) / sizeof(*handlers); i++) {
    PyObject *one = PyCapsule_New((void *)handlers[i].handler, NULL, NULL);
    if (!one || PyModule_AddObjectRef(made, handlers[i].name, one)) Py_CLEAR(made);
    Py_XDECREF(one);
  }
  return made;
}
