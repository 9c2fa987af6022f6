/* The host side of a launch, where Python would cost more than the launch itself.

   describe(op, tensors) -> (key, addresses)         what tells one call from another, and where
                                                     its operands lie
   prepare(...) -> launch                            all of a launch but addresses and stream
   launch(launch, stream, addresses, apart) -> code  a driver's status, or one of the two below
   write_map(launch, number, address, map)           a tensor map for an operand's new address

   Nothing here knows a driver: the launch function (cuLaunchKernel, hipModuleLaunchKernel; they
   take the same arguments) is given to prepare() as an address. Compiled on first use by
   launcher.py. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <string.h>

#define MAX_OPERANDS 16
#define MAX_PARAMETERS 64
#define MAX_BYTES 4096 /* of kernel parameters, the limit of every architecture here */
#define MAP_BYTES 128

#define NEEDS_MAPS -1 /* an operand of a descriptor moved: write_map() it and call again */
#define OVERLAPS -2   /* the last operand's bytes lie among another's: look closer */

typedef int (*launch_fn)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                         unsigned, void *, void **, void **);

typedef struct {
  int offset, operand;
  uint64_t address; /* descriptors only: what the map now describes */
} Slot;

typedef struct {
  launch_fn call;
  void *function;
  unsigned grid[3], block, shared;
  int bytes, parameters, pointers, maps, operands;
  int offsets[MAX_PARAMETERS];
  Slot pointer[MAX_PARAMETERS], map[MAX_OPERANDS];
  uint64_t sizes[MAX_OPERANDS];
  char buffer[MAX_BYTES];
} Launch;

static const char *LAUNCH = "tilewright.launch";
static PyObject *word_data_ptr, *word_shape, *word_stride, *word_dtype, *word_get_device;

static void destroy(PyObject *capsule) { PyMem_Free(PyCapsule_GetPointer(capsule, LAUNCH)); }

static int read_slots(PyObject *pairs, Slot *slots, int most, int bytes) {
  Py_ssize_t count = PyTuple_Size(pairs);
  if (count < 0) return -1;
  if (count > most) {
    PyErr_SetString(PyExc_ValueError, "too many pointers or descriptors for one launch");
    return -1;
  }
  for (Py_ssize_t i = 0; i < count; i++) {
    if (!PyArg_ParseTuple(PyTuple_GET_ITEM(pairs, i), "ii", &slots[i].offset, &slots[i].operand))
      return -1;
    slots[i].address = 0;
    if (slots[i].offset < 0 || slots[i].offset + 8 > bytes || slots[i].operand >= MAX_OPERANDS) {
      PyErr_SetString(PyExc_ValueError, "a pointer or descriptor lies outside the parameters");
      return -1;
    }
  }
  return (int)count;
}

/* prepare(call, function, (gx, gy, gz), block, shared, buffer, offsets, pointers, maps, sizes) */
static PyObject *prepare(PyObject *self, PyObject *args) {
  unsigned long long call, function;
  unsigned gx, gy, gz, block, shared;
  Py_buffer buffer;
  PyObject *offsets, *pointers, *maps, *sizes;
  if (!PyArg_ParseTuple(args, "KK(III)IIy*O!O!O!O!", &call, &function, &gx, &gy, &gz, &block,
                        &shared, &buffer, &PyTuple_Type, &offsets, &PyTuple_Type, &pointers,
                        &PyTuple_Type, &maps, &PyTuple_Type, &sizes))
    return NULL;
  PyObject *capsule = NULL;
  Launch *l = PyMem_Calloc(1, sizeof(Launch));
  if (!l) {
    PyErr_NoMemory();
    goto done;
  }
  l->call = (launch_fn)(uintptr_t)call;
  l->function = (void *)(uintptr_t)function;
  l->grid[0] = gx, l->grid[1] = gy, l->grid[2] = gz;
  l->block = block, l->shared = shared;
  if (buffer.len > MAX_BYTES || PyTuple_GET_SIZE(offsets) > MAX_PARAMETERS ||
      PyTuple_GET_SIZE(sizes) > MAX_OPERANDS) {
    PyErr_SetString(PyExc_ValueError, "too many parameters or operands for one launch");
    goto done;
  }
  l->bytes = (int)buffer.len;
  memcpy(l->buffer, buffer.buf, (size_t)buffer.len);
  l->parameters = (int)PyTuple_GET_SIZE(offsets);
  for (int i = 0; i < l->parameters; i++)
    l->offsets[i] = (int)PyLong_AsLong(PyTuple_GET_ITEM(offsets, i));
  l->operands = (int)PyTuple_GET_SIZE(sizes);
  for (int i = 0; i < l->operands; i++)
    l->sizes[i] = PyLong_AsUnsignedLongLong(PyTuple_GET_ITEM(sizes, i));
  if (PyErr_Occurred()) goto done;
  if ((l->pointers = read_slots(pointers, l->pointer, MAX_PARAMETERS, l->bytes)) < 0) goto done;
  if ((l->maps = read_slots(maps, l->map, MAX_OPERANDS, l->bytes - MAP_BYTES + 8)) < 0) goto done;
  capsule = PyCapsule_New(l, LAUNCH, destroy);
done:
  if (!capsule) PyMem_Free(l);
  PyBuffer_Release(&buffer);
  return capsule;
}

/* launch(launch, stream, addresses, apart): the operands' addresses, the workspace's last if there
   is one; `apart` when the caller knows that the output shares no element with an operand. */
static PyObject *launch(PyObject *self, PyObject *const *args, Py_ssize_t count) {
  if (count != 4 || !PyTuple_Check(args[2])) {
    PyErr_SetString(PyExc_TypeError, "launch(launch, stream, addresses, apart)");
    return NULL;
  }
  Launch *l = PyCapsule_GetPointer(args[0], LAUNCH);
  if (!l) return NULL;
  void *stream = (void *)(uintptr_t)PyLong_AsUnsignedLongLong(args[1]);
  uint64_t address[MAX_OPERANDS + 1];
  int given = (int)PyTuple_GET_SIZE(args[2]);
  if (given < l->operands || given > MAX_OPERANDS) {
    PyErr_SetString(PyExc_TypeError, "launch() needs the address of every operand");
    return NULL;
  }
  for (int i = 0; i < given; i++)
    address[i] = PyLong_AsUnsignedLongLong(PyTuple_GET_ITEM(args[2], i));
  if (PyErr_Occurred()) return NULL;

  int last = l->operands - 1;
  uint64_t out = address[last], out_end = out + l->sizes[last];
  for (int i = 0; args[3] != Py_True && i < last; i++)
    if (address[i] < out_end && out < address[i] + l->sizes[i]) return PyLong_FromLong(OVERLAPS);
  for (int i = 0; i < l->maps; i++)
    if (l->map[i].address != address[l->map[i].operand]) return PyLong_FromLong(NEEDS_MAPS);

  /* A copy of the parameters of our own, so that other threads may launch the same plan. */
  char buffer[MAX_BYTES] __attribute__((aligned(64)));
  void *parameters[MAX_PARAMETERS];
  memcpy(buffer, l->buffer, (size_t)l->bytes);
  for (int i = 0; i < l->pointers; i++) {
    int operand = l->pointer[i].operand;
    memcpy(buffer + l->pointer[i].offset, &address[operand < 0 ? given - 1 : operand], 8);
  }
  for (int i = 0; i < l->parameters; i++) parameters[i] = buffer + l->offsets[i];
  int status;
  Py_BEGIN_ALLOW_THREADS;
  status = l->call(l->function, l->grid[0], l->grid[1], l->grid[2], l->block, 1, 1, l->shared,
                   stream, parameters, NULL);
  Py_END_ALLOW_THREADS;
  return PyLong_FromLong(status);
}

static PyObject *write_map(PyObject *self, PyObject *args) {
  PyObject *capsule;
  int number;
  unsigned long long address;
  Py_buffer map;
  if (!PyArg_ParseTuple(args, "OiKy*", &capsule, &number, &address, &map)) return NULL;
  Launch *l = PyCapsule_GetPointer(capsule, LAUNCH);
  int fits = l && number >= 0 && number < l->maps && map.len == MAP_BYTES;
  if (fits) {
    memcpy(l->buffer + l->map[number].offset, map.buf, MAP_BYTES);
    l->map[number].address = address;
  } else if (l) {
    PyErr_SetString(PyExc_ValueError, "no such descriptor, or not a tensor map");
  }
  PyBuffer_Release(&map);
  if (!fits) return NULL;
  Py_RETURN_NONE;
}

/* describe(op, tensors): torch tensors only; anything else raises AttributeError. */
static PyObject *describe(PyObject *self, PyObject *const *args, Py_ssize_t given) {
  if (given != 2 || !PyTuple_Check(args[1])) {
    PyErr_SetString(PyExc_TypeError, "describe(op, tuple of tensors)");
    return NULL;
  }
  Py_ssize_t count = PyTuple_GET_SIZE(args[1]);
  PyObject *key = PyTuple_New(4 * count + 2), *addresses = PyTuple_New(count);
  if (!key || !addresses) goto failed;
  unsigned long long low = 0;
  for (Py_ssize_t i = 0; i < count; i++) {
    PyObject *tensor = PyTuple_GET_ITEM(args[1], i);
    PyObject *address = PyObject_CallMethodNoArgs(tensor, word_data_ptr);
    if (!address) goto failed;
    PyTuple_SET_ITEM(addresses, i, address);
    low |= PyLong_AsUnsignedLongLong(address);
    PyObject *parts[4] = {
        PyObject_GetAttr(tensor, word_shape),
        PyObject_CallMethodNoArgs(tensor, word_stride),
        PyObject_GetAttr(tensor, word_dtype),
        PyObject_CallMethodNoArgs(tensor, word_get_device),
    };
    for (int j = 0; j < 4; j++) PyTuple_SET_ITEM(key, 4 * i + j + 2, parts[j]);
    if (PyErr_Occurred()) goto failed;
  }
  Py_INCREF(args[0]);
  PyTuple_SET_ITEM(key, 0, args[0]);
  PyTuple_SET_ITEM(key, 1, PyLong_FromUnsignedLongLong(low & 15));
  return Py_BuildValue("(NN)", key, addresses);
failed:
  Py_XDECREF(key);
  Py_XDECREF(addresses);
  return NULL;
}

static PyMethodDef methods[] = {
    {"prepare", prepare, METH_VARARGS, "A launch, packed."},
    {"launch", (PyCFunction)(void (*)(void))launch, METH_FASTCALL, "Launch it."},
    {"write_map", write_map, METH_VARARGS, "Set a descriptor's tensor map."},
    {"describe", (PyCFunction)(void (*)(void))describe, METH_FASTCALL,
     "What tells one call from another."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "launcher", NULL, -1, methods,
                                    NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit_launcher(void) {
  word_data_ptr = PyUnicode_InternFromString("data_ptr");
  word_shape = PyUnicode_InternFromString("shape");
  word_stride = PyUnicode_InternFromString("stride");
  word_dtype = PyUnicode_InternFromString("dtype");
  word_get_device = PyUnicode_InternFromString("get_device");
  return PyModule_Create(&module);
}
