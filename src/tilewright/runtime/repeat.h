/* A cached call that makes its outputs, and whose operands may be views of the arrays that it is
   given. Part of launcher.c, which includes it.

   A recipe says where the address of each operand of a launch comes from: an array of the call, and
   how many bytes behind its address, or an output that is made. It holds for every call with the
   same signature, since shapes and strides decide a view. */

typedef struct {
  int array;             /* number of the array; of an output that is made: -1, -2, … */
  int64_t offset;        /* bytes that the operand begins behind the array's address */
  unsigned char aligned; /* alignment() that the operand's address must have */
} Source;

typedef struct {
  PyObject *capsule; /* of `launch` */
  Launch *launch;
  PyObject *makers; /* (function, arguments) for each output that is made */
  int arrays;       /* a call gives at least so many */
  Source *source;   /* of each operand */
} Recipe;

static const char *RECIPE = "tilewright.recipe";

static void discard_recipe(Recipe *r) {
  Py_XDECREF(r->capsule);
  Py_XDECREF(r->makers);
  PyMem_Free(r->source);
  PyMem_Free(r);
}

static void destroy_recipe(PyObject *capsule) {
  discard_recipe(PyCapsule_GetPointer(capsule, RECIPE));
}

static int read_sources(Recipe *r, PyObject *sources) {
  Py_ssize_t made = PyTuple_GET_SIZE(r->makers);
  if (PyTuple_GET_SIZE(sources) != r->launch->operands) return outside("a source");
  for (int i = 0; i < r->launch->operands; i++) {
    Source *s = r->source + i;
    long long offset;
    unsigned long long address;
    if (!PyArg_ParseTuple(PyTuple_GET_ITEM(sources, i), "iLK", &s->array, &offset, &address))
      return -1;
    s->offset = offset;
    s->aligned = alignment(address);
    if (-s->array > made) return outside("an output");
    if (s->array >= r->arrays) r->arrays = s->array + 1;
  }
  for (Py_ssize_t i = 0; i < made; i++) {
    PyObject *maker = PyTuple_GET_ITEM(r->makers, i);
    if (!PyTuple_Check(maker) || PyTuple_GET_SIZE(maker) != 2 ||
        !PyTuple_Check(PyTuple_GET_ITEM(maker, 1)))
      return outside("a maker");
  }
  return 0;
}

/* recipe(launch, makers, sources): makers: (function, arguments) for each output that is made.
   sources: (array, offset, address) of each operand, see Source; the address is that of one call,
   and the others' are aligned alike. */
static PyObject *recipe(PyObject *self, PyObject *args) {
  PyObject *capsule, *makers, *sources, *made = NULL;
  if (!PyArg_ParseTuple(args, "OO!O!", &capsule, &PyTuple_Type, &makers, &PyTuple_Type, &sources))
    return NULL;
  Launch *l = PyCapsule_GetPointer(capsule, LAUNCH);
  if (!l) return NULL;
  Recipe *r = PyMem_Calloc(1, sizeof(Recipe));
  if (!r) return PyErr_NoMemory();
  *r = (Recipe){Py_NewRef(capsule), l, Py_NewRef(makers), 0, NULL};
  r->source = PyMem_Calloc((size_t)l->operands + 1, sizeof(Source));
  if (!r->source) PyErr_NoMemory();
  else if (!read_sources(r, sources)) made = PyCapsule_New(r, RECIPE, destroy_recipe);
  if (!made) discard_recipe(r);
  return made;
}

/* Plain torch tensors alone, of which no subclass says anything else: torch need not know. */
static PyObject *signature_of(PyObject *what, PyObject *arrays, uint64_t *address) {
  if (!torch_types.known) ask_torch();
  return torch_types.look ? fast_key(what, arrays, address, 1) : NULL;
}

static PyObject *signature(PyObject *self, PyObject *const *args, Py_ssize_t given) {
  if (given != 2 || !PyTuple_Check(args[1])) {
    PyErr_SetString(PyExc_TypeError, "signature(what, tuple of tensors)");
    return NULL;
  }
  uint64_t address[PyTuple_GET_SIZE(args[1]) + 1];
  PyObject *key = signature_of(args[0], args[1], address);
  if (!key) Py_RETURN_NONE;
  return key;
}

/* Makes the outputs in a new tuple, and fills in their addresses. NULL with an exception set. */
static PyObject *make_outputs(const Recipe *r, uint64_t *address) {
  Py_ssize_t count = PyTuple_GET_SIZE(r->makers);
  PyObject *outputs = PyTuple_New(count);
  for (Py_ssize_t i = 0; outputs && i < count; i++) {
    PyObject *maker = PyTuple_GET_ITEM(r->makers, i);
    PyObject *output = PyObject_CallObject(PyTuple_GET_ITEM(maker, 0), PyTuple_GET_ITEM(maker, 1));
    Tensor t;
    if (output && !torch_types.look(output, &t)) {
      address[i] = (uint64_t)(uintptr_t)t.data + t.offset;
      PyTuple_SET_ITEM(outputs, i, output);
    } else {
      Py_XDECREF(output);
      Py_CLEAR(outputs);
    }
  }
  return outputs;
}

/* The outputs that were made, or NULL: with an exception set, or where the call is left to
   Python. */
static PyObject *carry_out(Recipe *r, PyObject *torch, PyObject *arrays, const uint64_t *given,
                           PyObject *scalars) {
  Launch *l = r->launch;
  uint64_t made[PyTuple_GET_SIZE(r->makers) + 1], address[l->operands + 2];
  PyObject *outputs = make_outputs(r, made);
  if (!outputs) return NULL;
  int code = 0;
  for (int i = 0; i < l->operands; i++) {
    const Source *s = r->source + i;
    address[i] = (s->array < 0 ? made[-s->array - 1] : given[s->array]) + (uint64_t)s->offset;
    if (alignment(address[i]) != s->aligned) code = NOT_KNOWN;
  }
  if (!code) code = launch_here(l, torch, address, scalars);
  for (int i = 0; !code && i < l->written; i++) {
    int array = r->source[l->writes[i]].array; /* nobody has seen an output that is made here */
    if (array >= 0) code = note_write(torch, PyTuple_GET_ITEM(arrays, array));
  }
  if (code) Py_CLEAR(outputs);
  return outputs;
}

/* repeat(torch, recipes, what, arrays, scalars): as call(), with recipes. arrays: tensors, or None
   for one that is not there. Returns the output that was made, or a tuple unless there is one; None
   if nothing was launched. */
static PyObject *repeat(PyObject *self, PyObject *const *args, Py_ssize_t given) {
  if (!is_call(args, given)) return NULL;
  PyObject *torch = args[0], *arrays = args[3], *scalars = args[4], *outputs = NULL;
  uint64_t address[PyTuple_GET_SIZE(arrays) + 1];
  PyObject *key = signature_of(args[2], arrays, address);
  if (!key) Py_RETURN_NONE;
  PyObject *found = PyDict_GetItemWithError(args[1], key);
  Py_XINCREF(found); /* other threads may empty `recipes` while Python runs below */
  Recipe *r = found ? PyCapsule_GetPointer(found, RECIPE) : NULL;
  if (r && r->arrays <= PyTuple_GET_SIZE(arrays) && suits(r->launch, scalars) &&
      !records_gradient(PyTuple_GET_ITEM(torch, 2), arrays) && is_here(r->launch, torch))
    outputs = carry_out(r, torch, arrays, address, scalars);
  Py_XDECREF(found);
  Py_DECREF(key);
  if (PyErr_Occurred()) {
    Py_XDECREF(outputs);
    return NULL;
  }
  if (!outputs) Py_RETURN_NONE;
  if (PyTuple_GET_SIZE(outputs) != 1) return outputs;
  PyObject *only = Py_NewRef(PyTuple_GET_ITEM(outputs, 0));
  Py_DECREF(outputs);
  return only;
}
