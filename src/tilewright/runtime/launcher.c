/* The host side of a launch, where Python would cost more than the launch itself.

   prepare(...) -> launch                            all of a launch but addresses and stream
   launch(launch, stream, addresses, apart) -> code  a driver's status, or a code below
   launches(launch) -> count                         how often it was handed to the driver
   keep_workspace(launch, stream, address)           what call() may give it on this stream; an
                                                     address of 0: nothing on any
   write_map(launch, number, address, map)           the tensor map of an operand at an address
   describe(op, tensors) -> (key, addresses)         what tells one call from another, and where
                                                     its operands lie
   call(torch, known, op, tensors) -> code           describe, look up in `known`, launch on
                                                     torch's current stream

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

#define MAPS_KEPT 256 /* for each descriptor; layers of a model share plans, not weights */
#define WORKSPACES_KEPT 8 /* one for each stream */

#define NEEDS_MAPS -1 /* a descriptor's operand is at an address not met: write_map() and again */
#define OVERLAPS -2   /* the last operand's bytes lie among another's: look closer */
#define NOT_KNOWN -3  /* call(): not cached, or a case that is left to Python */

typedef int (*launch_fn)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                         unsigned, void *, void **, void **);

typedef struct {
  int offset, operand;
} Slot;

typedef struct {
  uint64_t address;
  char map[MAP_BYTES];
} Map;

typedef struct {
  uint64_t stream, address;
} Workspace;

typedef struct {
  launch_fn call;
  void *function;
  unsigned grid[3], block, shared;
  int bytes, parameters, pointers, descriptors, operands, device, scratch;
  int offsets[MAX_PARAMETERS];
  Slot pointer[MAX_PARAMETERS], descriptor[MAX_OPERANDS];
  Map *maps; /* MAPS_KEPT for each descriptor, found by address; a collision replaces */
  uint64_t sizes[MAX_OPERANDS];
  uint64_t launches; /* counted under Python's lock */
  Workspace workspaces[WORKSPACES_KEPT]; /* found by stream; a collision replaces */
  char buffer[MAX_BYTES];
} Launch;

static const char *LAUNCH = "tilewright.launch";
static PyObject *word_data_ptr, *word_shape, *word_stride, *word_dtype, *word_get_device,
    *word_requires_grad;

static void destroy(PyObject *capsule) {
  Launch *l = PyCapsule_GetPointer(capsule, LAUNCH);
  PyMem_Free(l->maps);
  PyMem_Free(l);
}

static Map *map_at(Launch *l, int number, uint64_t address) {
  uint64_t mixed = address * 0x9E3779B97F4A7C15ull; /* Fibonacci hashing */
  return l->maps + number * MAPS_KEPT + (mixed >> 56) % MAPS_KEPT;
}

static Workspace *workspace_of(Launch *l, uint64_t stream) {
  return l->workspaces + (stream >> 8) % WORKSPACES_KEPT; /* handles are addresses */
}

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
    if (slots[i].offset < 0 || slots[i].offset + 8 > bytes || slots[i].operand >= MAX_OPERANDS) {
      PyErr_SetString(PyExc_ValueError, "a pointer or descriptor lies outside the parameters");
      return -1;
    }
  }
  return (int)count;
}

/* prepare(call, function, device, (gx, gy, gz), block, shared, buffer, offsets, pointers,
           descriptors, sizes): `offsets` of the parameters in `buffer`; (offset, operand) of
   pointers, operand -1 being the workspace, and of descriptors; bytes each operand spans. */
static PyObject *prepare(PyObject *self, PyObject *args) {
  unsigned long long call, function;
  unsigned gx, gy, gz, block, shared;
  Py_buffer buffer;
  PyObject *offsets, *pointers, *descriptors, *sizes;
  int device;
  if (!PyArg_ParseTuple(args, "KKi(III)IIy*O!O!O!O!", &call, &function, &device, &gx, &gy, &gz,
                        &block, &shared, &buffer, &PyTuple_Type, &offsets, &PyTuple_Type,
                        &pointers, &PyTuple_Type, &descriptors, &PyTuple_Type, &sizes))
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
  l->block = block, l->shared = shared, l->device = device;
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
  for (int i = 0; i < l->pointers; i++) l->scratch |= l->pointer[i].operand < 0;
  l->descriptors = read_slots(descriptors, l->descriptor, MAX_OPERANDS, l->bytes - MAP_BYTES + 8);
  if (l->descriptors < 0) goto done;
  l->maps = PyMem_Calloc((size_t)l->descriptors * MAPS_KEPT + 1, sizeof(Map));
  if (!l->maps) {
    PyErr_NoMemory();
    goto done;
  }
  capsule = PyCapsule_New(l, LAUNCH, destroy);
done:
  if (!capsule && l) {
    PyMem_Free(l->maps);
    PyMem_Free(l);
  }
  PyBuffer_Release(&buffer);
  return capsule;
}

/* The addresses are the operands', and the workspace's last if the launch has one. -1 with an
   exception set when they are not addresses. */
static int do_launch(Launch *l, uint64_t stream, PyObject *addresses, int apart) {
  uint64_t address[MAX_OPERANDS];
  int given = (int)PyTuple_GET_SIZE(addresses);
  if (given < l->operands || given > MAX_OPERANDS) {
    PyErr_SetString(PyExc_TypeError, "a launch needs the address of every operand");
    return -1;
  }
  for (int i = 0; i < given; i++)
    address[i] = PyLong_AsUnsignedLongLong(PyTuple_GET_ITEM(addresses, i));
  if (PyErr_Occurred()) return -1;

  int last = l->operands - 1;
  uint64_t out = address[last], out_end = out + l->sizes[last];
  for (int i = 0; !apart && i < last; i++)
    if (address[i] < out_end && out < address[i] + l->sizes[i]) return OVERLAPS;

  /* A copy of the parameters of our own, so that other threads may launch the same plan. */
  char buffer[MAX_BYTES] __attribute__((aligned(64)));
  void *parameters[MAX_PARAMETERS];
  memcpy(buffer, l->buffer, (size_t)l->bytes);
  for (int i = 0; i < l->pointers; i++) {
    int operand = l->pointer[i].operand;
    memcpy(buffer + l->pointer[i].offset, &address[operand < 0 ? given - 1 : operand], 8);
  }
  for (int i = 0; i < l->descriptors; i++) {
    uint64_t at = address[l->descriptor[i].operand];
    Map *map = map_at(l, i, at);
    if (map->address != at) return NEEDS_MAPS;
    memcpy(buffer + l->descriptor[i].offset, map->map, MAP_BYTES);
  }
  for (int i = 0; i < l->parameters; i++) parameters[i] = buffer + l->offsets[i];
  l->launches++;
  int status;
  Py_BEGIN_ALLOW_THREADS;
  status = l->call(l->function, l->grid[0], l->grid[1], l->grid[2], l->block, 1, 1, l->shared,
                   (void *)(uintptr_t)stream, parameters, NULL);
  Py_END_ALLOW_THREADS;
  return status;
}

/* launch(launch, stream, addresses, apart): `apart` when the caller knows that the output shares
   no element with an operand. */
static PyObject *launch(PyObject *self, PyObject *const *args, Py_ssize_t count) {
  if (count != 4 || !PyTuple_Check(args[2])) {
    PyErr_SetString(PyExc_TypeError, "launch(launch, stream, addresses, apart)");
    return NULL;
  }
  Launch *l = PyCapsule_GetPointer(args[0], LAUNCH);
  uint64_t stream = PyLong_AsUnsignedLongLong(args[1]);
  if (PyErr_Occurred()) return NULL;
  int code = do_launch(l, stream, args[2], args[3] == Py_True);
  return PyErr_Occurred() ? NULL : PyLong_FromLong(code);
}

static PyObject *launches(PyObject *self, PyObject *capsule) {
  Launch *l = PyCapsule_GetPointer(capsule, LAUNCH);
  return l ? PyLong_FromUnsignedLongLong(l->launches) : NULL;
}

static PyObject *keep_workspace(PyObject *self, PyObject *args) {
  PyObject *capsule;
  unsigned long long stream, address;
  if (!PyArg_ParseTuple(args, "OKK", &capsule, &stream, &address)) return NULL;
  Launch *l = PyCapsule_GetPointer(capsule, LAUNCH);
  if (!l) return NULL;
  if (!address) memset(l->workspaces, 0, sizeof(l->workspaces));
  else *workspace_of(l, stream) = (Workspace){stream, address};
  Py_RETURN_NONE;
}

static PyObject *write_map(PyObject *self, PyObject *args) {
  PyObject *capsule;
  int number;
  unsigned long long address;
  Py_buffer map;
  if (!PyArg_ParseTuple(args, "OiKy*", &capsule, &number, &address, &map)) return NULL;
  Launch *l = PyCapsule_GetPointer(capsule, LAUNCH);
  int fits = l && number >= 0 && number < l->descriptors && map.len == MAP_BYTES;
  if (fits) {
    Map *slot = map_at(l, number, address);
    memcpy(slot->map, map.buf, MAP_BYTES);
    slot->address = address;
  } else if (l) {
    PyErr_SetString(PyExc_ValueError, "no such descriptor, or not a tensor map");
  }
  PyBuffer_Release(&map);
  if (!fits) return NULL;
  Py_RETURN_NONE;
}

/* Key and addresses of a call, as new references; NULL with an exception set when one of the
   operands is not like a torch tensor. */
static PyObject *look_at(PyObject *op, PyObject *tensors, PyObject **addresses) {
  Py_ssize_t count = PyTuple_GET_SIZE(tensors);
  PyObject *key = PyTuple_New(4 * count + 2);
  *addresses = PyTuple_New(count);
  if (!key || !*addresses) goto failed;
  unsigned long long low = 0;
  for (Py_ssize_t i = 0; i < count; i++) {
    PyObject *tensor = PyTuple_GET_ITEM(tensors, i);
    PyObject *address = PyObject_CallMethodNoArgs(tensor, word_data_ptr);
    if (!address) goto failed;
    PyTuple_SET_ITEM(*addresses, i, address);
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
  Py_INCREF(op);
  PyTuple_SET_ITEM(key, 0, op);
  PyTuple_SET_ITEM(key, 1, PyLong_FromUnsignedLongLong(low & 15));
  return key;
failed:
  Py_XDECREF(key);
  Py_CLEAR(*addresses);
  return NULL;
}

static PyObject *describe(PyObject *self, PyObject *const *args, Py_ssize_t given) {
  if (given != 2 || !PyTuple_Check(args[1])) {
    PyErr_SetString(PyExc_TypeError, "describe(op, tuple of tensors)");
    return NULL;
  }
  PyObject *addresses, *key = look_at(args[0], args[1], &addresses);
  return key ? Py_BuildValue("(NN)", key, addresses) : NULL;
}

/* 1 if an operand asks for a gradient that torch is recording, 0 if none, -1 on an exception. */
static int records_gradient(PyObject *grad_enabled, PyObject *tensors) {
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(tensors); i++) {
    PyObject *wants = PyObject_GetAttr(PyTuple_GET_ITEM(tensors, i), word_requires_grad);
    if (!wants) return -1;
    int yes = wants == Py_True;
    Py_DECREF(wants);
    if (yes) {
      PyObject *enabled = PyObject_CallNoArgs(grad_enabled);
      if (!enabled) return -1;
      yes = PyObject_IsTrue(enabled);
      Py_DECREF(enabled);
      return yes;
    }
  }
  return 0;
}

/* `addresses` and, where the launch has a workspace, that of its stream; NULL without an exception
   if none is kept, or if a graph captures the stream, which has a workspace of its own. Takes the
   reference. */
static PyObject *with_workspace(Launch *l, uint64_t stream, PyObject *capturing,
                                PyObject *addresses) {
  if (!l->scratch) return addresses;
  Workspace kept = *workspace_of(l, stream); /* others may run while torch is asked */
  Py_ssize_t count = PyTuple_GET_SIZE(addresses);
  PyObject *more = NULL, *captured = NULL;
  if (kept.address && kept.stream == stream && (captured = PyObject_CallNoArgs(capturing)) &&
      !PyObject_IsTrue(captured) && (more = PyTuple_New(count + 1))) {
    for (Py_ssize_t i = 0; i < count; i++)
      PyTuple_SET_ITEM(more, i, Py_NewRef(PyTuple_GET_ITEM(addresses, i)));
    PyObject *address = PyLong_FromUnsignedLongLong(kept.address);
    if (address) PyTuple_SET_ITEM(more, count, address);
    else Py_CLEAR(more);
  }
  Py_XDECREF(captured);
  Py_DECREF(addresses);
  return more;
}

/* call((current_stream, current_device or None, grad_enabled, capturing), known, op, tensors): the
   path of every call but the first of its kind. `known` maps describe()'s keys to launches. */
static PyObject *call(PyObject *self, PyObject *const *args, Py_ssize_t given) {
  if (given != 4 || !PyTuple_Check(args[0]) || PyTuple_GET_SIZE(args[0]) != 4 ||
      !PyDict_Check(args[1]) || !PyTuple_Check(args[3])) {
    PyErr_SetString(PyExc_TypeError, "call(torch, known, op, tuple of tensors)");
    return NULL;
  }
  PyObject *current_stream = PyTuple_GET_ITEM(args[0], 0);
  PyObject *current_device = PyTuple_GET_ITEM(args[0], 1);
  PyObject *addresses, *key = look_at(args[2], args[3], &addresses);
  if (!key) {
    if (!PyErr_ExceptionMatches(PyExc_AttributeError)) return NULL;
    PyErr_Clear(); /* not torch's tensors: Python sorts it out */
    return PyLong_FromLong(NOT_KNOWN);
  }
  int code = NOT_KNOWN;
  PyObject *found = PyDict_GetItemWithError(args[1], key);
  Py_XINCREF(found); /* other threads may empty `known` while Python runs below */
  Launch *l = found ? PyCapsule_GetPointer(found, LAUNCH) : NULL;
  if (l && !records_gradient(PyTuple_GET_ITEM(args[0], 2), args[3]) && !PyErr_Occurred()) {
    int here = 1;
    if (current_device != Py_None) {
      PyObject *device = PyObject_CallNoArgs(current_device);
      here = device && PyLong_AsLong(device) == l->device;
      Py_XDECREF(device);
    }
    if (here) {
      PyObject *number = PyLong_FromLong(l->device);
      PyObject *stream = number ? PyObject_CallOneArg(current_stream, number) : NULL;
      if (stream) {
        uint64_t handle = PyLong_AsUnsignedLongLong(stream);
        addresses = with_workspace(l, handle, PyTuple_GET_ITEM(args[0], 3), addresses);
        if (addresses) code = do_launch(l, handle, addresses, 0);
      }
      Py_XDECREF(stream);
      Py_XDECREF(number);
    }
  }
  Py_XDECREF(found);
  Py_DECREF(key);
  Py_XDECREF(addresses);
  return PyErr_Occurred() ? NULL : PyLong_FromLong(code);
}

static PyMethodDef methods[] = {
    {"prepare", prepare, METH_VARARGS, "A launch, packed."},
    {"launch", (PyCFunction)(void (*)(void))launch, METH_FASTCALL, "Launch it."},
    {"launches", launches, METH_O, "How often it was launched."},
    {"keep_workspace", keep_workspace, METH_VARARGS, "What call() may give it on a stream."},
    {"write_map", write_map, METH_VARARGS, "Set a descriptor's tensor map."},
    {"describe", (PyCFunction)(void (*)(void))describe, METH_FASTCALL,
     "What tells one call from another."},
    {"call", (PyCFunction)(void (*)(void))call, METH_FASTCALL, "A cached call, whole."},
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
  word_requires_grad = PyUnicode_InternFromString("requires_grad");
  return PyModule_Create(&module);
}
