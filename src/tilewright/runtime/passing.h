/* Calls of torch's operators that come by here and are torch's: they are passed on without Python
   code. Part of launcher.c, which includes it.

   What is left of such a call's cost is torch's: it makes Python objects of the arguments on the
   way here, and reads them on the way back. */

#define KIND_BYTES 1024 /* of a key; calls of more are left to Python */

typedef struct {
  char *to, *end;
} Room;

static int note(Room *room, char tag, const void *from, size_t bytes) {
  if ((size_t)(room->end - room->to) <= bytes) return -1;
  *room->to++ = tag;
  room->to = put(room->to, from, bytes);
  return 0;
}

/* A value that is no sequence; -1 without an exception for one that says nothing here. */
static int note_value(Room *room, PyObject *x) {
  if (x == Py_None || PyBool_Check(x))
    return note(room, x == Py_None ? 'n' : x == Py_True ? 'y' : 'f', "", 0);
  if (PyLong_CheckExact(x)) {
    int overflow;
    long long whole = PyLong_AsLongLongAndOverflow(x, &overflow);
    return overflow ? -1 : note(room, 'i', &whole, sizeof(whole));
  }
  if (PyFloat_CheckExact(x)) {
    double number = PyFloat_AS_DOUBLE(x);
    return note(room, 'd', &number, sizeof(number));
  }
  return -1;
}

static int note_tensor(Room *room, const Tensor *t) {
  size_t bytes = (size_t)t->rank * 8;
  int32_t looks[3] = {t->device_type, t->device, t->rank};
  return note(room, 't', looks, sizeof(looks)) || note(room, 'a', &t->code, 4) ||
         note(room, 's', t->shape, bytes) || note(room, 'l', t->strides, bytes);
}

/* One argument, as note_value(); also of plain tensors, and of sequences of values. */
static int note_argument(Room *room, PyObject *x) {
  if (Py_TYPE(x) == torch_types.tensor || Py_TYPE(x) == torch_types.parameter) {
    Tensor t;
    if (!torch_types.look(x, &t)) return note_tensor(room, &t);
    PyErr_Clear();
    return -1;
  }
  if (!PyList_CheckExact(x) && !PyTuple_CheckExact(x)) return note_value(room, x);
  Py_ssize_t count = PySequence_Fast_GET_SIZE(x);
  int status = note(room, '(', &count, sizeof(count));
  for (Py_ssize_t i = 0; !status && i < count; i++)
    status = note_value(room, PySequence_Fast_GET_ITEM(x, i));
  return status;
}

/* 1 for a tensor in fp16 or bf16, 0 for one in another type, -1 for what is no plain tensor. */
static int is_halved(PyObject *x) {
  Tensor t;
  if (Py_TYPE(x) != torch_types.tensor && Py_TYPE(x) != torch_types.parameter) return -1;
  if (torch_types.look(x, &t)) return PyErr_Clear(), -1;
  return (t.code == 2 || t.code == 4) && t.bits == 16 && t.lanes == 1;
}

/* What passing() was given. */
enum { SWITCH, KIND, PASSED, ORIGINAL, OURS };

/* The key of a call, as a new reference: bytes in which each argument has a fixed width or its
   length in front, so that different kinds have different bytes. NULL without an exception for a
   call that Python has to look at. */
static PyObject *kind_in_c(PyObject *of, PyObject *const *args, Py_ssize_t count,
                           PyObject *names) {
  char bytes[KIND_BYTES];
  Room room = {bytes, bytes + sizeof(bytes)};
  int on = is_true(PyObject_CallNoArgs(PyTuple_GET_ITEM(of, SWITCH)));
  if (on < 0) return PyErr_Clear(), NULL;
  if (note(&room, on ? '!' : '.', "", 0)) return NULL;
  for (Py_ssize_t i = 0; i < count; i++)
    if (note_argument(&room, args[i])) return NULL;
  for (Py_ssize_t i = 0; names && i < PyTuple_GET_SIZE(names); i++) {
    Py_ssize_t length;
    const char *name = PyUnicode_AsUTF8AndSize(PyTuple_GET_ITEM(names, i), &length);
    if (!name) return PyErr_Clear(), NULL;
    if (note(&room, '=', &length, sizeof(length)) || note(&room, ':', name, (size_t)length) ||
        note_argument(&room, args[count + i]))
      return NULL;
  }
  return PyBytes_FromStringAndSize(bytes, room.to - bytes);
}

/* kind(arguments, keywords), in Python: None for a call that is torch's. NULL with an exception. */
static PyObject *kind_in_python(PyObject *of, PyObject *const *args, Py_ssize_t count,
                                PyObject *names) {
  PyObject *given = PyTuple_New(count), *words = PyDict_New(), *key = NULL;
  for (Py_ssize_t i = 0; given && i < count; i++) PyTuple_SET_ITEM(given, i, Py_NewRef(args[i]));
  int failed = !given || !words;
  for (Py_ssize_t i = 0; !failed && names && i < PyTuple_GET_SIZE(names); i++)
    failed = PyDict_SetItem(words, PyTuple_GET_ITEM(names, i), args[count + i]);
  if (!failed) key = PyObject_CallFunctionObjArgs(PyTuple_GET_ITEM(of, KIND), given, words, NULL);
  Py_XDECREF(given);
  Py_XDECREF(words);
  return key;
}

/* function(keys, *arguments, **keywords), see passing(). */
static PyObject *pass(PyObject *of, PyObject *const *args, Py_ssize_t given, PyObject *names) {
  if (given < 2) {
    PyErr_SetString(PyExc_TypeError, "dispatch keys and a tensor are expected");
    return NULL;
  }
  if (!torch_types.known) ask_torch();
  PyObject *original = PyTuple_GET_ITEM(of, ORIGINAL), *key = NULL;
  int halved = torch_types.look ? is_halved(args[1]) : -1;
  if (!halved) return PyObject_Vectorcall(original, args, (size_t)given, names);
  if (halved > 0) key = kind_in_c(of, args + 1, given - 1, names);
  if (!key && !(key = kind_in_python(of, args + 1, given - 1, names))) return NULL;
  int passed = key == Py_None ? 1 : PySet_Contains(PyTuple_GET_ITEM(of, PASSED), key);
  PyObject *made = NULL;
  if (passed > 0) made = PyObject_Vectorcall(original, args, (size_t)given, names);
  if (!passed) {
    Py_ssize_t all = given + (names ? PyTuple_GET_SIZE(names) : 0);
    PyObject *longer[all + 1];
    longer[0] = key;
    memcpy(longer + 1, args, (size_t)all * sizeof(*args));
    made = PyObject_Vectorcall(PyTuple_GET_ITEM(of, OURS), longer, (size_t)given + 1, names);
  }
  Py_DECREF(key);
  return made;
}

static PyMethodDef passed_on = {"passing", (PyCFunction)(void (*)(void))pass,
                                METH_FASTCALL | METH_KEYWORDS, NULL};

/* passing(switch, kind, passed, original, ours) -> function(keys, *arguments, **keywords), which
   calls original(keys, *arguments, **keywords) where the kind of the call is None or is in the set
   `passed`, and ours(key, keys, *arguments, **keywords) elsewhere. switch(): a flag that is part of
   a kind. kind(arguments, keywords): the key of a call that C has none for. */
static PyObject *passing(PyObject *self, PyObject *args) {
  if (PyTuple_GET_SIZE(args) != 5 || !PyAnySet_Check(PyTuple_GET_ITEM(args, PASSED))) {
    PyErr_SetString(PyExc_TypeError, "passing(switch, kind, set, original, ours)");
    return NULL;
  }
  return PyCFunction_New(&passed_on, args);
}
