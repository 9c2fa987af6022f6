/* What tells one call of an operation from another: the key of its tensors, and their addresses.
   Part of launcher.c, which includes it. */

static PyObject *word_data_ptr, *word_shape, *word_stride, *word_dtype, *word_get_device;

/* Bytes that an address is a multiple of, 0 for 16 and more: plans ask for at most 16. */
static unsigned char alignment(uint64_t address) {
  unsigned char low = address & 15;
  return low & -low;
}

/* torch describes its tensors to C by DLPack's exchange protocol, from torch 2.10 on. One call of
   it takes the place of five Python calls. The two structures are those of DLPack 1. */
typedef struct {
  char *data;
  int32_t device_type, device, rank;
  uint8_t code, bits;
  uint16_t lanes;
  int64_t *shape, *strides;
  uint64_t offset;
} Tensor;

typedef struct {
  uint32_t major, minor;
  const void *previous, *allocate, *managed, *to_python;
  int (*look)(PyObject *, Tensor *);
  const void *stream;
} Exchange;

static struct {
  int known; /* whether torch was asked */
  int (*look)(PyObject *, Tensor *);
  PyTypeObject *tensor, *parameter;
  PyGetSetDef *requires_grad;
} torch_types;

static void ask_torch(void) {
  PyObject *name = PyUnicode_InternFromString("torch"), *parameter = NULL, *api = NULL;
  PyObject *torch = name ? PyImport_GetModule(name) : NULL; /* never imports it */
  PyObject *tensor = torch ? PyObject_GetAttrString(torch, "Tensor") : NULL;
  PyObject *nn = tensor ? PyObject_GetAttrString(torch, "nn") : NULL;
  if (nn) parameter = PyObject_GetAttrString(nn, "Parameter");
  if (parameter && PyType_Check(tensor) && PyType_Check(parameter)) {
    torch_types.known = 1;
    api = PyObject_GetAttrString(tensor, "__dlpack_c_exchange_api__");
    const char *called = "dlpack_exchange_api";
    Exchange *exchange =
        api && PyCapsule_IsValid(api, called) ? PyCapsule_GetPointer(api, called) : NULL;
    if (exchange && exchange->major == 1 && exchange->look) { /* torch keeps it for ever */
      torch_types.tensor = (PyTypeObject *)Py_NewRef(tensor);
      torch_types.parameter = (PyTypeObject *)Py_NewRef(parameter);
      torch_types.look = exchange->look;
      PyObject *wants = PyObject_GetAttr(tensor, word_requires_grad);
      if (wants && Py_IS_TYPE(wants, &PyGetSetDescr_Type))
        torch_types.requires_grad = ((PyGetSetDescrObject *)wants)->d_getset;
      Py_XDECREF(wants);
    }
  }
  PyErr_Clear(); /* another torch, or one that is being imported: Python is asked instead */
  Py_XDECREF(name);
  Py_XDECREF(torch);
  Py_XDECREF(tensor);
  Py_XDECREF(nn);
  Py_XDECREF(parameter);
  Py_XDECREF(api);
}

/* Whether a flag that Python returned is true; -1 on an exception. Takes the reference. */
static int is_true(PyObject *flag) {
  int yes = flag ? PyObject_IsTrue(flag) : -1;
  Py_XDECREF(flag);
  return yes;
}

/* Whether a tensor requires a gradient; -1 on an exception. */
static int requires_grad(PyObject *tensor) {
  /* The getter itself, without a look-up: a plain tensor has no other attribute of this name. */
  const PyGetSetDef *own =
      Py_TYPE(tensor) == torch_types.tensor ? torch_types.requires_grad : NULL;
  return is_true(own ? own->get(tensor, own->closure) : PyObject_GetAttr(tensor, word_requires_grad));
}

static char *put(char *to, const void *from, size_t bytes) {
  memcpy(to, from, bytes);
  return to + bytes;
}

/* Key of a call whose operands are all plain torch tensors that DLPack can describe: bytes, with
   `op` before them in a tuple if it is not a string. NULL, without an exception, for other calls.
   Each field has a fixed width or its length in front, so different calls have different bytes. A
   subclass of Tensor may say anything about itself, so it is left to slow_key(), whose keys are
   longer tuples. holes: whether None may stand for a tensor that is not there. recorded: whether a
   tensor that requires a gradient has another key; becomes whether one does; NULL for no. */
static PyObject *fast_key(PyObject *op, PyObject *tensors, uint64_t *address, int holes,
                          int *recorded) {
  Py_ssize_t count = PyTuple_GET_SIZE(tensors), length = 0;
  Tensor tensor[count + 1];
  char wants[count + 1]; /* 1 for a tensor whose gradient is recorded */
  int any = 0;
  size_t bytes = sizeof(length) + (size_t)count * sizeof(int32_t);
  for (Py_ssize_t i = 0; i < count; i++) {
    PyObject *object = PyTuple_GET_ITEM(tensors, i);
    Tensor *t = tensor + i;
    if (object == Py_None && holes) {
      t->rank = -1, address[i] = 0;
      continue;
    }
    if (Py_TYPE(object) != torch_types.tensor && Py_TYPE(object) != torch_types.parameter)
      return NULL;
    if (torch_types.look(object, t)) return PyErr_Clear(), NULL;
    address[i] = (uint64_t)(uintptr_t)t->data + t->offset;
    int yes = recorded && *recorded ? requires_grad(object) : 0;
    if (yes < 0) return PyErr_Clear(), NULL;
    any |= wants[i] = (char)yes;
    bytes += 13 + (size_t)t->rank * 16;
  }
  if (recorded) *recorded = any;
  const char *text = NULL;
  if (PyUnicode_CheckExact(op) && !(text = PyUnicode_AsUTF8AndSize(op, &length)))
    return PyErr_Clear(), NULL;
  PyObject *key = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)bytes + length);
  if (!key) return PyErr_Clear(), NULL;
  char *to = put(PyBytes_AS_STRING(key), &length, sizeof(length));
  if (length) to = put(to, text, (size_t)length);
  for (Py_ssize_t i = 0; i < count; i++) {
    const Tensor *t = tensor + i;
    to = put(to, &t->rank, sizeof(t->rank));
    if (t->rank < 0) continue;
    *to++ = (char)(alignment(address[i]) | wants[i] << 7);
    to = put(to, &t->device_type, 4);
    to = put(to, &t->device, 4);
    to = put(to, &t->code, 4); /* with bits and lanes */
    to = put(to, t->shape, (size_t)t->rank * 8);
    to = put(to, t->strides, (size_t)t->rank * 8);
  }
  if (text) return key;
  PyObject *pair = PyTuple_Pack(2, op, key);
  Py_DECREF(key);
  if (!pair) PyErr_Clear();
  return pair;
}

/* Key of a call with tensors that only Python can ask, as a new reference, and the operands'
   addresses; NULL with an exception set when an operand is not like a torch tensor. */
static PyObject *slow_key(PyObject *op, PyObject *tensors, uint64_t *address) {
  Py_ssize_t count = PyTuple_GET_SIZE(tensors);
  PyObject *key = PyTuple_New(5 * count + 1);
  if (!key) return NULL;
  for (Py_ssize_t i = 0; i < count; i++) {
    PyObject *tensor = PyTuple_GET_ITEM(tensors, i);
    PyObject *at = PyObject_CallMethodNoArgs(tensor, word_data_ptr);
    if (!at) goto failed;
    address[i] = PyLong_AsUnsignedLongLong(at);
    Py_DECREF(at);
    PyObject *parts[5] = {
        PyLong_FromLong(alignment(address[i])),
        PyObject_GetAttr(tensor, word_shape),
        PyObject_CallMethodNoArgs(tensor, word_stride),
        PyObject_GetAttr(tensor, word_dtype),
        PyObject_CallMethodNoArgs(tensor, word_get_device),
    };
    for (int j = 0; j < 5; j++) PyTuple_SET_ITEM(key, 5 * i + j + 1, parts[j]);
    if (PyErr_Occurred()) goto failed;
  }
  Py_INCREF(op);
  PyTuple_SET_ITEM(key, 0, op);
  return key;
failed:
  Py_DECREF(key);
  return NULL;
}

static PyObject *key_of(PyObject *op, PyObject *tensors, uint64_t *address) {
  if (!torch_types.known) ask_torch();
  PyObject *key = torch_types.look ? fast_key(op, tensors, address, 0, NULL) : NULL;
  return key ? key : slow_key(op, tensors, address);
}

static PyObject *describe(PyObject *self, PyObject *const *args, Py_ssize_t given) {
  if (given != 2 || !PyTuple_Check(args[1])) {
    PyErr_SetString(PyExc_TypeError, "describe(op, tuple of tensors)");
    return NULL;
  }
  Py_ssize_t count = PyTuple_GET_SIZE(args[1]);
  uint64_t address[count + 1];
  PyObject *key = key_of(args[0], args[1], address);
  PyObject *addresses = key ? PyTuple_New(count) : NULL;
  for (Py_ssize_t i = 0; addresses && i < count; i++) {
    PyObject *at = PyLong_FromUnsignedLongLong(address[i]);
    if (at) PyTuple_SET_ITEM(addresses, i, at);
    else Py_CLEAR(addresses);
  }
  if (!addresses) {
    Py_XDECREF(key);
    return NULL;
  }
  return Py_BuildValue("(NN)", key, addresses);
}
