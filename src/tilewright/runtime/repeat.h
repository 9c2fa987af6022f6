/* A cached call that makes its outputs, and whose operands may be views of the arrays that it is
   given. Part of launcher.c, which includes it.

   A recipe has one launch or several, one behind the other, and says where the address of each of
   their operands comes from: an array of the call, and how many bytes behind its address, or an
   output that is made. It holds for every call with the same signature, since shapes and strides
   decide a view. */

typedef struct {
  int array;             /* number of the array; of an output that is made: -1, -2, … */
  int64_t offset;        /* bytes that the operand begins behind the array's address */
  unsigned char aligned; /* alignment() that the operand's address must have */
} Source;

typedef struct {
  PyObject *capsule; /* of `launch` */
  Launch *launch;
  Source *source; /* of each operand */
} Part;

typedef struct {
  PyObject *makers; /* (function, arguments) for each output that is made */
  int returned;     /* the first so many outputs are returned */
  int arrays;       /* a call gives at least so many */
  int count, operands, scalars; /* launches; operands and scalars of all of them */
  Part *part;
} Recipe;

static const char *RECIPE = "tilewright.recipe";

static void discard_recipe(Recipe *r) {
  for (int i = 0; r->part && i < r->count; i++) {
    Py_XDECREF(r->part[i].capsule);
    PyMem_Free(r->part[i].source);
  }
  PyMem_Free(r->part);
  Py_XDECREF(r->makers);
  PyMem_Free(r);
}

static void destroy_recipe(PyObject *capsule) {
  discard_recipe(PyCapsule_GetPointer(capsule, RECIPE));
}

/* item: (launch, sources), see recipe(). */
static int read_part(Recipe *r, Part *p, PyObject *item) {
  PyObject *capsule, *sources;
  if (!PyArg_ParseTuple(item, "OO!", &capsule, &PyTuple_Type, &sources)) return -1;
  Launch *l = PyCapsule_GetPointer(capsule, LAUNCH);
  if (!l) return -1;
  p->capsule = Py_NewRef(capsule), p->launch = l;
  if (PyTuple_GET_SIZE(sources) != l->operands) return outside("a source");
  p->source = PyMem_Calloc((size_t)l->operands + 1, sizeof(Source));
  if (!p->source) return PyErr_NoMemory(), -1;
  for (int i = 0; i < l->operands; i++) {
    Source *s = p->source + i;
    long long offset;
    unsigned long long address;
    if (!PyArg_ParseTuple(PyTuple_GET_ITEM(sources, i), "iLK", &s->array, &offset, &address))
      return -1;
    s->offset = offset;
    s->aligned = alignment(address);
    if (-s->array > PyTuple_GET_SIZE(r->makers)) return outside("an output");
    if (s->array >= r->arrays) r->arrays = s->array + 1;
  }
  r->operands += l->operands, r->scalars += l->given;
  return 0;
}

static int read_parts(Recipe *r, PyObject *launches) {
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(r->makers); i++) {
    PyObject *maker = PyTuple_GET_ITEM(r->makers, i);
    if (!PyTuple_Check(maker) || PyTuple_GET_SIZE(maker) != 2 ||
        !PyTuple_Check(PyTuple_GET_ITEM(maker, 1)))
      return outside("a maker");
  }
  if (r->returned < 0 || r->returned > PyTuple_GET_SIZE(r->makers)) return outside("an output");
  if (!(r->part = room_for(launches, sizeof(Part), &r->count))) return -1;
  for (int i = 0; i < r->count; i++)
    if (read_part(r, r->part + i, PyTuple_GET_ITEM(launches, i))) return -1;
  return r->count ? 0 : outside("no launch");
}

/* recipe(launches, makers, returned): launches: (launch, sources) of each. makers: (function,
   arguments) for each output that is made. returned: how many of them are returned, the first.
   sources: (array, offset, address) of each operand, see Source; the address is that of one call,
   and the others' are aligned alike. */
static PyObject *recipe(PyObject *self, PyObject *args) {
  PyObject *launches, *makers, *made = NULL;
  int returned;
  if (!PyArg_ParseTuple(args, "O!O!i", &PyTuple_Type, &launches, &PyTuple_Type, &makers, &returned))
    return NULL;
  Recipe *r = PyMem_Calloc(1, sizeof(Recipe));
  if (!r) return PyErr_NoMemory();
  r->makers = Py_NewRef(makers), r->returned = returned;
  if (!read_parts(r, launches)) made = PyCapsule_New(r, RECIPE, destroy_recipe);
  if (!made) discard_recipe(r);
  return made;
}

/* Plain torch tensors alone, of which no subclass says anything else: torch need not know.
   recorded: see fast_key(). */
static PyObject *signature_of(PyObject *what, PyObject *arrays, uint64_t *address, int *recorded) {
  if (!torch_types.known) ask_torch();
  return torch_types.look ? fast_key(what, arrays, address, 1, recorded) : NULL;
}

static PyObject *signature(PyObject *self, PyObject *const *args, Py_ssize_t given) {
  if (given < 2 || given > 3 || !PyTuple_Check(args[1])) {
    PyErr_SetString(PyExc_TypeError, "signature(what, tuple of tensors, recorded)");
    return NULL;
  }
  uint64_t address[PyTuple_GET_SIZE(args[1]) + 1];
  int recorded = given == 3 && args[2] == Py_True;
  PyObject *key = signature_of(args[0], args[1], address, &recorded);
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

/* Fills in the addresses of a launch's operands. NOT_KNOWN if one is aligned otherwise. */
static int find_operands(const Part *p, const uint64_t *given, const uint64_t *made,
                         uint64_t *address) {
  for (int i = 0; i < p->launch->operands; i++) {
    const Source *s = p->source + i;
    address[i] = (s->array < 0 ? made[-s->array - 1] : given[s->array]) + (uint64_t)s->offset;
    if (alignment(address[i]) != s->aligned) return NOT_KNOWN;
  }
  return 0;
}

/* Launches all parts on the current stream: a status or a code; -1 with an exception set. Of
   several, none is launched where a later one could not be. */
static int launch_parts(const Recipe *r, PyObject *torch, const uint64_t *given,
                        const uint64_t *made, PyObject *scalars) {
  uint64_t handle, address[r->operands + 2 * r->count], *next = address;
  int code = stream_of(r->part->launch, torch, &handle);
  for (int i = 0; i < r->count && !code; i++) {
    const Launch *l = r->part[i].launch;
    code = find_operands(r->part + i, given, made, next);
    if (!code) code = add_workspaces(r->part[i].launch, torch, handle, next);
    if (!code && r->count > 1) code = lacking(l, handle, next);
    next += l->operands + 2;
  }
  next = address;
  Py_ssize_t first = 0, all = PyTuple_GET_SIZE(scalars);
  for (int i = 0; i < r->count && !code; i++) {
    Launch *l = r->part[i].launch;
    PyObject *own = r->count == 1 || !all ? Py_NewRef(scalars)
                                          : PyTuple_GetSlice(scalars, first, first + l->given);
    code = own ? do_launch(l, handle, next, own, 0) : -1;
    Py_XDECREF(own);
    first += l->given, next += l->operands + 2;
  }
  return code;
}

/* All outputs that were made, or NULL: with an exception set, or where the call is left to
   Python. */
static PyObject *carry_out(const Recipe *r, PyObject *torch, PyObject *arrays,
                           const uint64_t *given, PyObject *scalars) {
  uint64_t made[PyTuple_GET_SIZE(r->makers) + 1];
  PyObject *outputs = make_outputs(r, made);
  if (!outputs) return NULL;
  int code = launch_parts(r, torch, given, made, scalars);
  for (int i = 0; i < r->count; i++) {
    const Part *p = r->part + i;
    for (int j = 0; !code && j < p->launch->written; j++) {
      int array = p->source[p->launch->writes[j]].array; /* an output made here is new to all */
      if (array >= 0) code = note_write(torch, PyTuple_GET_ITEM(arrays, array));
    }
  }
  if (code) Py_CLEAR(outputs);
  return outputs;
}

/* For C++ that repeats a backward pass (torch/nodes.cpp): addresses of functions of recipes. */
typedef struct {
  int (*returned)(PyObject *recipe);
  PyObject *(*outputs)(PyObject *recipe);
  int (*launch)(PyObject *recipe, PyObject *torch, const uint64_t *given, const uint64_t *made,
                PyObject *scalars);
} Recipes;

/* How many outputs are returned; -1 for no recipe, and for one that writes to what it is given. */
static int returned_of(PyObject *recipe) {
  const Recipe *r = PyCapsule_IsValid(recipe, RECIPE) ? PyCapsule_GetPointer(recipe, RECIPE) : NULL;
  if (!r) return -1;
  for (int i = 0; i < r->count; i++) {
    const Part *p = r->part + i;
    for (int j = 0; j < p->launch->written; j++)
      if (p->source[p->launch->writes[j]].array >= 0) return -1;
  }
  return r->returned;
}

/* All outputs of a pass, in a new tuple. NULL with an exception set. */
static PyObject *outputs_of(PyObject *recipe) {
  const Recipe *r = PyCapsule_GetPointer(recipe, RECIPE);
  uint64_t address[r ? PyTuple_GET_SIZE(r->makers) + 1 : 1];
  return r ? make_outputs(r, address) : NULL;
}

/* Launches a recipe of which returned_of() knows: 0, 1 if that is left to Python, or -1 with an
   exception set. given, made: addresses of its arrays and of all its outputs. scalars: as of
   repeat(). */
static int launch_recipe(PyObject *recipe, PyObject *torch, const uint64_t *given,
                         const uint64_t *made, PyObject *scalars) {
  const Recipe *r = PyCapsule_GetPointer(recipe, RECIPE);
  Py_ssize_t numbers = PyTuple_GET_SIZE(scalars);
  int code = NOT_KNOWN;
  if (r && (!numbers || numbers == r->scalars) && is_here(r->part->launch, torch))
    code = launch_parts(r, torch, given, made, scalars);
  return PyErr_Occurred() ? -1 : code != 0;
}

static const Recipes recipes_in_c = {returned_of, outputs_of, launch_recipe};

/* What function(scalars, outputs, *arrays) returns. Arrays that are not there are left out. */
static PyObject *record(PyObject *function, PyObject *scalars, PyObject *outputs,
                        PyObject *arrays) {
  Py_ssize_t count = PyTuple_GET_SIZE(arrays);
  PyObject *given[count + 2];
  size_t next = 0;
  given[next++] = scalars;
  given[next++] = outputs;
  for (Py_ssize_t i = 0; i < count; i++)
    if (PyTuple_GET_ITEM(arrays, i) != Py_None) given[next++] = PyTuple_GET_ITEM(arrays, i);
  return PyObject_Vectorcall(function, given, next, NULL);
}

/* The first `count` of a tuple that is given away; its item, if that is one. */
static PyObject *first_of(PyObject *outputs, Py_ssize_t count) {
  if (count != 1 && count == PyTuple_GET_SIZE(outputs)) return outputs;
  PyObject *first =
      count == 1 ? Py_NewRef(PyTuple_GET_ITEM(outputs, 0)) : PyTuple_GetSlice(outputs, 0, count);
  Py_DECREF(outputs);
  return first;
}

/* Whether a transform of torch.func is at work, or an exception is set: nothing is recorded. */
static int is_transformed(PyObject *torch) {
  PyObject *transform = PyObject_CallNoArgs(PyTuple_GET_ITEM(torch, 5));
  Py_XDECREF(transform);
  return transform != Py_None;
}

/* repeat(torch, recipes, what, arrays, scalars): as call(), with recipes. arrays: tensors, or None
   for one that is not there. scalars: of all launches, or none. Returns the output that was made,
   or a tuple unless there is one; None if nothing was launched. Where torch records a gradient,
   `recipes` has (recipe, function) for a recipe, and what function(scalars, outputs, *arrays)
   returns is returned, where `outputs` are all that were made. */
static PyObject *repeat(PyObject *self, PyObject *const *args, Py_ssize_t given) {
  if (!is_call(args, given)) return NULL;
  PyObject *torch = args[0], *arrays = args[3], *scalars = args[4];
  uint64_t address[PyTuple_GET_SIZE(arrays) + 1];
  int recorded = is_true(PyObject_CallNoArgs(PyTuple_GET_ITEM(torch, 2)));
  if (recorded < 0) return NULL;
  PyObject *key = signature_of(args[2], arrays, address, &recorded), *outputs = NULL;
  if (!key) Py_RETURN_NONE;
  PyObject *found = PyDict_GetItemWithError(args[1], key), *kept = NULL, *function = NULL;
  if (found && recorded && PyTuple_Check(found) && PyTuple_GET_SIZE(found) == 2 &&
      !is_transformed(torch)) {
    kept = Py_NewRef(PyTuple_GET_ITEM(found, 0));
    function = Py_NewRef(PyTuple_GET_ITEM(found, 1));
  } else if (found && !recorded && PyCapsule_IsValid(found, RECIPE)) {
    kept = Py_NewRef(found); /* other threads may empty `recipes` while Python runs below */
  }
  const Recipe *r = kept ? PyCapsule_GetPointer(kept, RECIPE) : NULL;
  Py_ssize_t numbers = PyTuple_GET_SIZE(scalars);
  if (r && r->arrays <= PyTuple_GET_SIZE(arrays) && (!numbers || numbers == r->scalars) &&
      is_here(r->part->launch, torch))
    outputs = carry_out(r, torch, arrays, address, scalars);
  if (outputs && function) {
    PyObject *made = record(function, scalars, outputs, arrays);
    Py_DECREF(outputs);
    outputs = made && PyTuple_Check(made) ? first_of(made, PyTuple_GET_SIZE(made)) : made;
  } else if (outputs) {
    outputs = first_of(outputs, r->returned);
  }
  Py_XDECREF(kept);
  Py_XDECREF(function);
  Py_DECREF(key);
  if (PyErr_Occurred()) {
    Py_XDECREF(outputs);
    return NULL;
  }
  if (!outputs) Py_RETURN_NONE;
  return outputs;
}

/* Whether an argument says the same whenever it is equal: True is 1, but is no whole number. */
static int is_word(PyObject *x) {
  if (x == Py_None || PyLong_CheckExact(x) || PyUnicode_CheckExact(x)) return 1;
  if (!PyTuple_CheckExact(x)) return 0;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(x); i++)
    if (!PyLong_CheckExact(PyTuple_GET_ITEM(x, i))) return 0;
  return 1;
}

/* split(name, arguments) -> ((name, argument, …), tensors), with ... in the place of each tensor,
   or None for arguments that are neither tensors nor words. */
static PyObject *split(PyObject *self, PyObject *const *args, Py_ssize_t given) {
  if (given != 2 || !PyTuple_Check(args[1])) {
    PyErr_SetString(PyExc_TypeError, "split(name, tuple of arguments)");
    return NULL;
  }
  if (!torch_types.known) ask_torch();
  Py_ssize_t count = PyTuple_GET_SIZE(args[1]), tensors = 0;
  for (Py_ssize_t i = 0; i < count; i++) {
    PyObject *x = PyTuple_GET_ITEM(args[1], i);
    int tensor = Py_TYPE(x) == torch_types.tensor || Py_TYPE(x) == torch_types.parameter;
    if (!tensor && !is_word(x)) Py_RETURN_NONE;
    tensors += tensor;
  }
  PyObject *what = PyTuple_New(count + 1), *arrays = PyTuple_New(tensors);
  if (!what || !arrays) {
    Py_XDECREF(what);
    Py_XDECREF(arrays);
    return NULL;
  }
  PyTuple_SET_ITEM(what, 0, Py_NewRef(args[0]));
  for (Py_ssize_t i = 0, next = 0; i < count; i++) {
    PyObject *x = PyTuple_GET_ITEM(args[1], i);
    int tensor = Py_TYPE(x) == torch_types.tensor || Py_TYPE(x) == torch_types.parameter;
    PyTuple_SET_ITEM(what, i + 1, Py_NewRef(tensor ? Py_Ellipsis : x));
    if (tensor) PyTuple_SET_ITEM(arrays, next++, Py_NewRef(x));
  }
  return Py_BuildValue("(NN)", what, arrays);
}
