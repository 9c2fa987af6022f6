/* The host side of a launch, where Python would cost more than the launch itself.

   prepare(...) -> launch       everything about a launch except addresses, stream and scalars
   launch(launch, stream, addresses, workspaces, scalars, apart) -> code
                                a driver's status, or a code below
   launches(launch) -> count    how often it was queued
   last_used(launch) -> stamp   larger for a launch that was used later, over all launches
   keep_workspace(launch, stream, kept_zero, scratch)
                                the buffers that call() may use on this stream; two zeros: forget
                                the buffers of every stream
   write_map(launch, number, address, map)
                                the tensor map of descriptor `number` at an address
   describe(op, tensors) -> (key, addresses)
                                a key that differs for calls that differ, and the operands'
                                addresses
   call(torch, known, op, tensors, scalars) -> code
                                describe, look up in `known`, launch on torch's current stream
   recipe(launches, makers, returned) -> recipe
                                how a call's arrays become the operands of its launches
   signature(what, arrays, recorded) -> key
                                of a call that may be repeated; None for one that may not be.
                                recorded: whether torch records its gradients; False if left out
   repeat(torch, recipes, what, arrays, scalars) -> made
                                look up in `recipes`, make the outputs, launch on torch's current
                                stream; record gradients
   split(name, arguments) -> (what, arrays)
                                of a call of a function; None for one that may not be repeated
   passing(switch, kind, passed, original, ours) -> function
                                stands before an operator of torch, and passes its calls on

   launch_alone: the address of a C function, for those who launch without Python's lock
   recipes: the address of functions of recipes for C++, see repeat.h

   A launch is one or more kernels, its steps, queued one after another. It counts as one launch.

   Nothing here knows a driver: prepare() gets the driver's functions as addresses. A plain kernel is
   launched with a function like cuLaunchKernel or hipModuleLaunchKernel (they take the same
   arguments), a kernel with launch attributes with one like cuLaunchKernelEx. `matmul_step`, in
   matmul.h, is one like the former for a product that a library computes, `graph_step`, in graph.h,
   for what cuDNN computes, and `solution_step`, in solution.h, for MIOpen. launcher.py compiles this file on first use. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define MAP_BYTES 128
#define ALIGNED 64 /* bytes that the driver wants tensor maps aligned to */
#define FEWEST_MAPS 4
#define MOST_MAPS 256 /* for each descriptor; layers of a model share plans, not weights */
#define WORKSPACES_KEPT 8 /* one for each stream */
#define ON_STACK 2048 /* bytes of parameters; larger launches allocate */

#define NEEDS_MAPS -1 /* a descriptor has no map for its address yet: write_map() and again */
#define OVERLAPS -2   /* the bytes of a written operand touch another operand's: look closer */
#define NOT_KNOWN -3  /* call(): not cached, or a case that is left to Python */
#define UNSUITABLE -4 /* a scalar is missing, or is no value of its type */
#define NEEDS_HANDLE -5 /* a library that computes a step has no handle for this stream yet */

typedef int (*launch_fn)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                         unsigned, void *, void **, void **);
typedef int (*fill_fn)(uint64_t, unsigned char, size_t, void *);

/* CUlaunchAttribute and CUlaunchConfig of cuda.h, which launcher.py must not need. */
typedef struct {
  int id, pad;
  uint64_t value[8];
} Attribute;

typedef struct {
  unsigned grid[3], block[3], shared;
  void *stream;
  const Attribute *attributes;
  unsigned count;
} Config;

typedef int (*extended_fn)(const Config *, void *, void **, void **);

typedef struct {
  void *call, *function;
  unsigned grid[3], block, shared;
  int parameters, count; /* count: launch attributes */
  Attribute *attributes;
} Step;

/* Where an address stands in the parameters. `source` numbers the addresses of a call: first the
   operands, then the kept-zero buffer and the scratch buffer. `offset` is added to the address. */
typedef struct {
  int at, source;
  uint64_t offset;
} Slot;

typedef struct {
  uint64_t address; /* 0: an empty place */
  char map[MAP_BYTES];
} Map;

/* What the driver encodes in a tensor map besides the address, as cuda.py packs it: innermost
   dimension first, strides in bytes. */
typedef struct {
  int32_t type, swizzle, promotion;
  uint32_t rank; /* 0: Python encodes */
  uint64_t shape[5], strides[4];
  uint32_t block[5], steps[5];
} Tiling;

/* cuTensorMapEncodeTiled */
typedef int (*encode_fn)(void *, int, uint32_t, void *, const uint64_t *, const uint64_t *,
                         const uint32_t *, const uint32_t *, int, int, int, int);

typedef struct {
  Slot slot;
  Tiling tiling;
  Map *maps; /* open addressing; NULL until the first */
  int room, used;
} Tiled;

typedef struct {
  int at, number, type; /* type: a character of struct's formats, or '1' for i1 */
} Scalar;

typedef struct {
  uint64_t stream, kept_zero, scratch;
} Workspace;

typedef struct {
  int device, operands, steps, parameters, pointers, descriptors, scalars, given, written;
  Py_ssize_t bytes; /* of `content`, the parameters of all steps */
  char *content;
  int *offsets; /* of each parameter in `content` */
  Step *step;
  Slot *pointer;
  Tiled *descriptor;
  Scalar *scalar;
  uint64_t *sizes; /* bytes that each operand spans */
  int *writes;     /* the operands that are written */
  char *optional;  /* for each scalar given at the call: whether it has a default */
  fill_fn fill;
  encode_fn encode;
  uint64_t fill_bytes;     /* at the start of the scratch buffer, zeroed before each launch */
  int kept_zero, scratch;  /* whether the launch needs these buffers */
  uint64_t launches, used; /* changed under Python's lock */
  PyObject *kept;          /* what steps of a library point into; NULL for nothing */
  Workspace workspaces[WORKSPACES_KEPT]; /* found by stream; a collision replaces */
} Launch;

static const char *LAUNCH = "tilewright.launch";
static uint64_t uses; /* of all launches */
static PyObject *word_requires_grad, *word_arrays;

/* ---- Tensor maps ---- */

static Map *map_at(const Tiled *t, uint64_t address) {
  uint64_t mixed = address * 0x9E3779B97F4A7C15ull; /* Fibonacci hashing */
  int start = (int)(mixed >> 56) & (t->room - 1);
  for (int i = 0; i < t->room; i++) {
    Map *map = t->maps + ((start + i) & (t->room - 1));
    if (map->address == address || !map->address) return map;
  }
  return t->maps + start; /* full: replacing any entry breaks no search for another */
}

static int keep_map(Tiled *t, uint64_t address, const char *encoded) {
  if (4 * (t->used + 1) > 3 * t->room && t->room < MOST_MAPS) {
    Tiled grown = {t->slot, t->tiling, NULL, t->room ? 2 * t->room : FEWEST_MAPS, t->used};
    grown.maps = calloc((size_t)grown.room, sizeof(Map)); /* without Python's lock, too */
    if (!grown.maps) return -1;
    for (int i = 0; i < t->room; i++)
      if (t->maps[i].address) *map_at(&grown, t->maps[i].address) = t->maps[i];
    free(t->maps);
    *t = grown;
  }
  Map *map = map_at(t, address);
  t->used += !map->address;
  map->address = address;
  memcpy(map->map, encoded, MAP_BYTES);
  return 0;
}

/* The map of a descriptor, which is encoded unless it was before; NULL where that is left to
   Python. address: of the launch's operands and buffers. */
static const Map *map_of(encode_fn encode, Tiled *t, const uint64_t *address) {
  uint64_t at = address[t->slot.source] + t->slot.offset;
  Map *map = t->room ? map_at(t, at) : NULL;
  if (map && map->address == at) return map;
  char made[MAP_BYTES] __attribute__((aligned(ALIGNED)));
  const Tiling *g = &t->tiling;
  if (!encode || !g->rank ||
      encode(made, g->type, g->rank, (void *)(uintptr_t)at, g->shape, g->strides, g->block, g->steps,
             0, g->swizzle, g->promotion, 0) ||
      keep_map(t, at, made))
    return NULL;
  return map_at(t, at);
}

/* ---- Preparing ---- */

static void discard(Launch *l) {
  if (!l) return;
  Py_XDECREF(l->kept);
  for (int i = 0; l->step && i < l->steps; i++) PyMem_Free(l->step[i].attributes);
  for (int i = 0; l->descriptor && i < l->descriptors; i++) free(l->descriptor[i].maps);
  void *parts[] = {l->content, l->offsets, l->step,   l->pointer, l->descriptor,
                   l->scalar,  l->sizes,   l->writes, l->optional};
  for (size_t i = 0; i < sizeof(parts) / sizeof(*parts); i++) PyMem_Free(parts[i]);
  PyMem_Free(l);
}

static void destroy(PyObject *capsule) { discard(PyCapsule_GetPointer(capsule, LAUNCH)); }

/* Memory for one element of `size` bytes for each item of a tuple; NULL with an exception. */
static void *room_for(PyObject *tuple, size_t size, int *count) {
  *count = (int)PyTuple_GET_SIZE(tuple);
  void *room = PyMem_Calloc((size_t)*count + 1, size);
  if (!room) PyErr_NoMemory();
  return room;
}

static int outside(const char *what) {
  PyErr_Format(PyExc_ValueError, "%s lies outside the parameters or the operands", what);
  return -1;
}

static int check_slot(const Launch *l, int width, const Slot *slot) {
  if (slot->at < 0 || slot->at + width > l->bytes || slot->source < 0 ||
      slot->source >= l->operands + 2)
    return outside("a pointer or descriptor");
  return 0;
}

static int read_slot(const Launch *l, PyObject *item, Slot *slot) {
  unsigned long long offset;
  if (!PyArg_ParseTuple(item, "iiK", &slot->at, &slot->source, &offset)) return -1;
  slot->offset = offset;
  return check_slot(l, 8, slot);
}

static int read_tiled(const Launch *l, PyObject *item, Tiled *tiled) {
  unsigned long long offset;
  Py_buffer tiling;
  Slot *slot = &tiled->slot;
  if (!PyArg_ParseTuple(item, "iiKy*", &slot->at, &slot->source, &offset, &tiling)) return -1;
  slot->offset = offset;
  int known = tiling.len == sizeof(Tiling);
  if (known) memcpy(&tiled->tiling, tiling.buf, sizeof(Tiling));
  int wrong = tiling.len && (!known || tiled->tiling.rank > 5);
  PyBuffer_Release(&tiling);
  return wrong ? outside("a tiling") : check_slot(l, MAP_BYTES, slot);
}

/* (call, function, attributes, grid, block, shared, offsets of its parameters) */
static int read_step(Launch *l, PyObject *item, Step *step) {
  unsigned long long call, function;
  Py_buffer attributes;
  PyObject *offsets;
  if (!PyArg_ParseTuple(item, "KKy*(III)IIO!", &call, &function, &attributes, &step->grid[0],
                        &step->grid[1], &step->grid[2], &step->block, &step->shared, &PyTuple_Type,
                        &offsets))
    return -1;
  step->call = (void *)(uintptr_t)call;
  step->function = (void *)(uintptr_t)function;
  step->count = (int)(attributes.len / (Py_ssize_t)sizeof(Attribute));
  step->parameters = (int)PyTuple_GET_SIZE(offsets);
  if (step->count) {
    step->attributes = PyMem_Malloc((size_t)attributes.len);
    if (step->attributes) memcpy(step->attributes, attributes.buf, (size_t)attributes.len);
    else PyErr_NoMemory();
  }
  PyBuffer_Release(&attributes);
  int first = l->parameters;
  l->parameters += step->parameters;
  int *all = PyMem_Realloc(l->offsets, sizeof(int) * (size_t)(l->parameters + 1));
  if (!all) return PyErr_NoMemory(), -1;
  l->offsets = all;
  for (int i = first; i < l->parameters; i++) {
    l->offsets[i] = (int)PyLong_AsLong(PyTuple_GET_ITEM(offsets, i - first));
    if (l->offsets[i] < 0 || l->offsets[i] >= l->bytes) return outside("a parameter");
  }
  return PyErr_Occurred() ? -1 : 0;
}

static int read_scalar(const Launch *l, PyObject *item, Scalar *scalar) {
  if (!PyArg_ParseTuple(item, "iiC", &scalar->at, &scalar->number, &scalar->type)) return -1;
  int width = strchr("dqQ", scalar->type) ? 8 : 4; /* at most */
  if (scalar->at < 0 || scalar->at + width > l->bytes || scalar->number < 0 ||
      scalar->number >= l->given)
    return outside("a scalar");
  return 0;
}

static int read_all(Launch *l, PyObject *operands, PyObject *optional, PyObject *steps,
                    PyObject *pointers, PyObject *descriptors, PyObject *scalars) {
  if (!(l->sizes = room_for(operands, sizeof(uint64_t), &l->operands)) ||
      !(l->writes = room_for(operands, sizeof(int), &l->written)) ||
      !(l->optional = room_for(optional, 1, &l->given)) ||
      !(l->step = room_for(steps, sizeof(Step), &l->steps)) ||
      !(l->pointer = room_for(pointers, sizeof(Slot), &l->pointers)) ||
      !(l->descriptor = room_for(descriptors, sizeof(Tiled), &l->descriptors)) ||
      !(l->scalar = room_for(scalars, sizeof(Scalar), &l->scalars)))
    return -1;
  l->written = 0;
  for (int i = 0; i < l->operands; i++) {
    unsigned long long bytes;
    int written;
    if (!PyArg_ParseTuple(PyTuple_GET_ITEM(operands, i), "Kp", &bytes, &written)) return -1;
    l->sizes[i] = bytes;
    if (written) l->writes[l->written++] = i;
  }
  for (int i = 0; i < l->given; i++) l->optional[i] = PyTuple_GET_ITEM(optional, i) == Py_True;
  for (int i = 0; i < l->steps; i++)
    if (read_step(l, PyTuple_GET_ITEM(steps, i), l->step + i)) return -1;
  for (int i = 0; i < l->pointers; i++)
    if (read_slot(l, PyTuple_GET_ITEM(pointers, i), l->pointer + i)) return -1;
  for (int i = 0; i < l->descriptors; i++)
    if (read_tiled(l, PyTuple_GET_ITEM(descriptors, i), l->descriptor + i)) return -1;
  for (int i = 0; i < l->scalars; i++)
    if (read_scalar(l, PyTuple_GET_ITEM(scalars, i), l->scalar + i)) return -1;
  return 0;
}

/* prepare(device, operands, optional, content, steps, pointers, descriptors, scalars,
           fill, fill_bytes, encode, kept_zero, scratch, kept)
   operands: (bytes, written) of each, in the order of a call's addresses.
   optional: for each scalar given at the call, whether it has a default (which is in `content`).
   content: the parameters of all steps. steps: see read_step(). pointers: (offset in `content`,
   source, offset to add to its address); see Slot. descriptors: the same, and a Tiling or b"".
   scalars: (offset in `content`, number among the given, type). fill: the driver's function that
   sets `fill_bytes` bytes to zero. encode: its function that makes tensor maps, or 0.
   kept_zero, scratch: whether the launch needs these buffers. kept: is kept alive. */
static PyObject *prepare(PyObject *self, PyObject *args) {
  unsigned long long fill, fill_bytes, encode;
  Py_buffer content;
  PyObject *operands, *optional, *steps, *pointers, *descriptors, *scalars, *kept, *capsule = NULL;
  int device, kept_zero, scratch;
  if (!PyArg_ParseTuple(args, "iO!O!y*O!O!O!O!KKKppO", &device, &PyTuple_Type, &operands,
                        &PyTuple_Type, &optional, &content, &PyTuple_Type, &steps, &PyTuple_Type,
                        &pointers, &PyTuple_Type, &descriptors, &PyTuple_Type, &scalars, &fill,
                        &fill_bytes, &encode, &kept_zero, &scratch, &kept))
    return NULL;
  Launch *l = PyMem_Calloc(1, sizeof(Launch));
  if (!l || !(l->content = PyMem_Malloc((size_t)content.len + 1))) {
    PyErr_NoMemory();
  } else {
    memcpy(l->content, content.buf, (size_t)content.len);
    l->bytes = content.len, l->device = device;
    l->kept_zero = kept_zero, l->scratch = scratch;
    l->kept = Py_NewRef(kept);
    l->fill = (fill_fn)(uintptr_t)fill, l->fill_bytes = fill_bytes;
    l->encode = (encode_fn)(uintptr_t)encode;
    if (!read_all(l, operands, optional, steps, pointers, descriptors, scalars))
      capsule = PyCapsule_New(l, LAUNCH, destroy);
  }
  PyBuffer_Release(&content);
  if (!capsule) discard(l);
  return capsule;
}

/* ---- Launching ---- */

/* Writes a scalar as the parameter it is. -1, without an exception, if it is no value of its
   type. */
static int write_scalar(int type, PyObject *value, char *to) {
  if (type == 'f' || type == 'd') {
    double wide = PyFloat_AsDouble(value);
    float narrow = (float)wide;
    if (wide == -1.0 && PyErr_Occurred()) return PyErr_Clear(), -1;
    if (type == 'd') memcpy(to, &wide, 8);
    else if (isfinite(wide) && !isfinite(narrow)) return -1;
    else memcpy(to, &narrow, 4);
    return 0;
  }
  PyObject *whole = PyNumber_Index(value);
  if (!whole) return PyErr_Clear(), -1;
  uint64_t bits;
  int64_t low = 0, high = 0, number = 0;
  size_t width = 8;
  if (type == 'Q') {
    bits = PyLong_AsUnsignedLongLong(whole);
  } else {
    number = PyLong_AsLongLong(whole);
    bits = (uint64_t)number;
  }
  Py_DECREF(whole);
  if (PyErr_Occurred()) return PyErr_Clear(), -1;
  switch (type) {
  case '1': width = 1, high = 1; break;
  case 'b': width = 1, low = INT8_MIN, high = INT8_MAX; break;
  case 'B': width = 1, high = UINT8_MAX; break;
  case 'h': width = 2, low = INT16_MIN, high = INT16_MAX; break;
  case 'H': width = 2, high = UINT16_MAX; break;
  case 'i': width = 4, low = INT32_MIN, high = INT32_MAX; break;
  case 'I': width = 4, high = UINT32_MAX; break;
  case 'q':
  case 'Q': break;
  default: return -1;
  }
  if (width < 8 && (number < low || number > high)) return -1;
  memcpy(to, &bits, width); /* little-endian, as every host of a GPU here */
  return 0;
}

#include "matmul.h"
#include "graph.h"
#include "solution.h"

/* Whether a step is computed by a library that has no handle for this stream yet. */
static int lacks_handle(const Step *s, void *stream) {
  const Handles *handles = s->call == (void *)matmul_step     ? ((Matmul *)s->function)->handles
                           : s->call == (void *)solution_step ? ((Solution *)s->function)->handles
                                                              : NULL;
  return handles && !handle_on(handles, stream);
}

static int launch_step(const Step *s, void *stream, void **parameters) {
  if (!s->count)
    return ((launch_fn)s->call)(s->function, s->grid[0], s->grid[1], s->grid[2], s->block, 1, 1,
                                s->shared, stream, parameters, NULL);
  Config config = {{s->grid[0], s->grid[1], s->grid[2]}, {s->block, 1, 1}, s->shared, stream,
                   s->attributes, (unsigned)s->count};
  return ((extended_fn)s->call)(&config, s->function, parameters, NULL);
}

static int overlaps(const Launch *l, const uint64_t *address) {
  for (int j = 0; j < l->written; j++) {
    int w = l->writes[j];
    uint64_t out = address[w], end = out + l->sizes[w];
    for (int i = 0; i < l->operands; i++)
      if (i != w && address[i] < end && out < address[i] + l->sizes[i]) return 1;
  }
  return 0;
}

/* The code of what a launch on this stream still lacks of Python; 0 for nothing. */
static int lacking(const Launch *l, uint64_t stream, const uint64_t *address) {
  for (int i = 0; i < l->descriptors; i++)
    if (!map_of(l->encode, l->descriptor + i, address)) return NEEDS_MAPS;
  for (int i = 0; i < l->steps; i++)
    if (lacks_handle(l->step + i, (void *)(uintptr_t)stream)) return NEEDS_HANDLE;
  return overlaps(l, address) ? OVERLAPS : 0;
}

/* A copy of a launch's parameters, so that several threads may launch the same plan. */
typedef struct {
  char small[ON_STACK] __attribute__((aligned(ALIGNED)));
  void *few[ON_STACK / 16], *large;
  char *content;
  void **parameters;
} Copy;

/* Makes the copy; its `large` is to be freed. -1 without memory. */
static int copy_content(const Launch *l, Copy *c) {
  c->content = c->small, c->parameters = c->few, c->large = NULL;
  if (l->bytes > ON_STACK || l->parameters > ON_STACK / 16) {
    size_t bytes = ((size_t)l->bytes + 7) / 8 * 8;
    c->large = malloc(bytes + ALIGNED + sizeof(void *) * (size_t)l->parameters);
    if (!c->large) return -1;
    c->content = (char *)(((uintptr_t)c->large + ALIGNED - 1) / ALIGNED * ALIGNED);
    c->parameters = (void **)(c->content + bytes);
  }
  memcpy(c->content, l->content, (size_t)l->bytes);
  return 0;
}

/* Fills in addresses and tensor maps: 0, or the code of what is lacking, before any step is
   queued. */
static int fill_in(Launch *l, const uint64_t *address, void *queue, Copy *c) {
  for (int i = 0; i < l->pointers; i++) {
    const Slot *s = l->pointer + i;
    uint64_t at = address[s->source] + s->offset;
    memcpy(c->content + s->at, &at, 8);
  }
  for (int i = 0; i < l->descriptors; i++) {
    Tiled *t = l->descriptor + i;
    const Map *map = map_of(l->encode, t, address);
    if (!map) return NEEDS_MAPS;
    memcpy(c->content + t->slot.at, map->map, MAP_BYTES);
  }
  for (int i = 0; i < l->steps; i++)
    if (lacks_handle(l->step + i, queue)) return NEEDS_HANDLE;
  for (int i = 0; i < l->parameters; i++) c->parameters[i] = c->content + l->offsets[i];
  return 0;
}

static int queue_steps(const Launch *l, const uint64_t *address, void *queue, void **next) {
  int status = l->fill_bytes ? l->fill(address[l->operands + 1], 0, l->fill_bytes, queue) : 0;
  for (int i = 0; i < l->steps && !status; next += l->step[i++].parameters)
    status = launch_step(l->step + i, queue, next);
  return status;
}

/* address: the operands', then those of the kept-zero and the scratch buffer. `scalars` has as many
   items as the launch is given, or none: all have their defaults. -1 with an exception set, or a
   code. */
static int do_launch(Launch *l, uint64_t stream, const uint64_t *address, PyObject *scalars,
                     int apart) {
  if (!apart && overlaps(l, address)) return OVERLAPS;
  Copy copy;
  if (copy_content(l, &copy)) return PyErr_NoMemory(), -1;
  int status = 0;
  for (int i = 0; i < l->scalars && !status; i++) {
    const Scalar *s = l->scalar + i;
    PyObject *value =
        PyTuple_GET_SIZE(scalars) ? PyTuple_GET_ITEM(scalars, s->number) : Py_None;
    if (value != Py_None ? write_scalar(s->type, value, copy.content + s->at)
                         : !l->optional[s->number])
      status = UNSUITABLE;
  }
  void *queue = (void *)(uintptr_t)stream;
  if (!status) status = fill_in(l, address, queue, &copy);
  if (!status) {
    l->used = ++uses;
    Py_BEGIN_ALLOW_THREADS;
    status = queue_steps(l, address, queue, copy.parameters);
    Py_END_ALLOW_THREADS;
    l->launches += !status;
  }
  free(copy.large);
  return status;
}

/* As do_launch() of a launch to which no scalars are given, without Python's lock: the caller keeps
   other threads from this launch meanwhile, and written operands apart from all others. */
static int launch_alone(Launch *l, uint64_t stream, const uint64_t *address) {
  Copy copy;
  if (copy_content(l, &copy)) return NEEDS_MAPS; /* as a tensor map without memory: Python says */
  void *queue = (void *)(uintptr_t)stream;
  int status = fill_in(l, address, queue, &copy);
  if (!status) {
    status = queue_steps(l, address, queue, copy.parameters);
    l->launches += !status;
  }
  free(copy.large);
  return status;
}

static int read_addresses(PyObject *tuple, uint64_t *address) {
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(tuple); i++)
    address[i] = PyLong_AsUnsignedLongLong(PyTuple_GET_ITEM(tuple, i));
  return PyErr_Occurred() ? -1 : 0;
}

/* launch(launch, stream, addresses, workspaces, scalars, apart): `workspaces` are the addresses of
   the kept-zero and the scratch buffer; `apart` when the caller knows that no written operand
   shares an element with another. */
static PyObject *launch(PyObject *self, PyObject *const *args, Py_ssize_t count) {
  if (count != 6 || !PyTuple_Check(args[2]) || !PyTuple_Check(args[3]) ||
      !PyTuple_Check(args[4]) || PyTuple_GET_SIZE(args[3]) != 2) {
    PyErr_SetString(PyExc_TypeError,
                    "launch(launch, stream, addresses, workspaces, scalars, apart)");
    return NULL;
  }
  Launch *l = PyCapsule_GetPointer(args[0], LAUNCH);
  uint64_t stream = PyLong_AsUnsignedLongLong(args[1]);
  if (PyErr_Occurred()) return NULL;
  if (PyTuple_GET_SIZE(args[2]) != l->operands || PyTuple_GET_SIZE(args[4]) != l->given)
    return PyErr_Format(PyExc_TypeError,
                        "this launch takes %d addresses and %d scalars, and was given %zd and %zd",
                        l->operands, l->given, PyTuple_GET_SIZE(args[2]),
                        PyTuple_GET_SIZE(args[4]));
  uint64_t address[l->operands + 2];
  if (read_addresses(args[2], address) || read_addresses(args[3], address + l->operands))
    return NULL;
  if ((l->kept_zero && !address[l->operands]) || (l->scratch && !address[l->operands + 1])) {
    PyErr_SetString(PyExc_TypeError, "this launch has temporaries, and no buffer was given for them");
    return NULL;
  }
  int code = do_launch(l, stream, address, args[4], args[5] == Py_True);
  return PyErr_Occurred() ? NULL : PyLong_FromLong(code);
}

static PyObject *launches(PyObject *self, PyObject *capsule) {
  Launch *l = PyCapsule_GetPointer(capsule, LAUNCH);
  return l ? PyLong_FromUnsignedLongLong(l->launches) : NULL;
}

static PyObject *last_used(PyObject *self, PyObject *capsule) {
  Launch *l = PyCapsule_GetPointer(capsule, LAUNCH);
  return l ? PyLong_FromUnsignedLongLong(l->used) : NULL;
}

static Workspace *workspace_of(Launch *l, uint64_t stream) {
  return l->workspaces + (stream >> 8) % WORKSPACES_KEPT; /* handles are addresses */
}

static PyObject *keep_workspace(PyObject *self, PyObject *args) {
  PyObject *capsule;
  unsigned long long stream, kept_zero, scratch;
  if (!PyArg_ParseTuple(args, "OKKK", &capsule, &stream, &kept_zero, &scratch)) return NULL;
  Launch *l = PyCapsule_GetPointer(capsule, LAUNCH);
  if (!l) return NULL;
  if (!kept_zero && !scratch) memset(l->workspaces, 0, sizeof(l->workspaces));
  else *workspace_of(l, stream) = (Workspace){stream, kept_zero, scratch};
  Py_RETURN_NONE;
}

static PyObject *write_map(PyObject *self, PyObject *args) {
  PyObject *capsule;
  int number;
  unsigned long long address;
  Py_buffer map;
  if (!PyArg_ParseTuple(args, "OiKy*", &capsule, &number, &address, &map)) return NULL;
  Launch *l = PyCapsule_GetPointer(capsule, LAUNCH);
  if (l) {
    if (number < 0 || number >= l->descriptors || map.len != MAP_BYTES || !address)
      PyErr_SetString(PyExc_ValueError, "no such descriptor, no tensor map, or no address");
    else if (keep_map(l->descriptor + number, address, map.buf)) PyErr_NoMemory();
  }
  PyBuffer_Release(&map);
  if (PyErr_Occurred()) return NULL;
  Py_RETURN_NONE;
}

#include "describe.h"

/* ---- A call ---- */

/* 1 if torch records gradients and an operand asks for one, 0 if not, -1 on an exception. */
static int records_gradient(PyObject *grad_enabled, PyObject *tensors) {
  int yes = is_true(PyObject_CallNoArgs(grad_enabled));
  if (yes <= 0) return yes;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(tensors); i++)
    if ((yes = requires_grad(PyTuple_GET_ITEM(tensors, i)))) return yes;
  return 0;
}

/* Whether the device of `l` is torch's current one; 0 too with an exception set. */
static int is_here(const Launch *l, PyObject *torch) {
  PyObject *current_device = PyTuple_GET_ITEM(torch, 1);
  if (current_device == Py_None) return 1; /* there is no other */
  PyObject *device = PyObject_CallNoArgs(current_device);
  int here = device && PyLong_AsLong(device) == l->device;
  Py_XDECREF(device);
  return here;
}

/* Whether a call may give these scalars: all of them, or none. */
static int suits(const Launch *l, PyObject *scalars) {
  return !PyTuple_GET_SIZE(scalars) || PyTuple_GET_SIZE(scalars) == l->given;
}

/* torch's current stream on the device of `l`. -1 with an exception set. */
static int stream_of(const Launch *l, PyObject *torch, uint64_t *handle) {
  PyObject *number = PyLong_FromLong(l->device);
  PyObject *stream = number ? PyObject_CallOneArg(PyTuple_GET_ITEM(torch, 0), number) : NULL;
  Py_XDECREF(number);
  if (!stream) return -1;
  *handle = PyLong_AsUnsignedLongLong(stream);
  Py_DECREF(stream);
  return PyErr_Occurred() ? -1 : 0;
}

/* Fills in the addresses of the buffers that `l` needs, behind those of its operands. NOT_KNOWN if
   none are kept for it, as on a stream that a graph captures; -1 with an exception set. */
static int add_workspaces(Launch *l, PyObject *torch, uint64_t handle, uint64_t *address) {
  Workspace kept = {0, 0, 0};
  if (l->kept_zero || l->scratch) {
    kept = *workspace_of(l, handle); /* others may change it while torch is asked */
    if (kept.stream != handle || !(kept.kept_zero | kept.scratch)) return NOT_KNOWN;
    int captured = is_true(PyObject_CallNoArgs(PyTuple_GET_ITEM(torch, 3)));
    if (captured) return captured < 0 ? -1 : NOT_KNOWN; /* a graph has buffers of its own */
  }
  address[l->operands] = kept.kept_zero;
  address[l->operands + 1] = kept.scratch;
  return 0;
}

/* Launches `l` on the current stream of its device, which is the current one: the driver's status
   or a code; -1 with an exception set. */
static int launch_here(Launch *l, PyObject *torch, uint64_t *address, PyObject *scalars) {
  uint64_t handle;
  int code = stream_of(l, torch, &handle);
  if (!code) code = add_workspaces(l, torch, handle, address);
  return code ? code : do_launch(l, handle, address, scalars, 0);
}

/* Tells torch that a launch wrote `array`, a tensor or `Pointers` to tensors: a graph that saved it
   must not use it. -1 with an exception set. */
static int note_write(PyObject *torch, PyObject *array) {
  int plain = Py_TYPE(array) == torch_types.tensor || !PyObject_HasAttr(array, word_arrays);
  PyObject *tensors = plain ? PyTuple_Pack(1, array) : PyObject_GetAttr(array, word_arrays);
  PyObject *done = tensors ? PyObject_CallOneArg(PyTuple_GET_ITEM(torch, 4), tensors) : NULL;
  Py_XDECREF(tensors);
  Py_XDECREF(done);
  return done ? 0 : -1;
}

/* Whether the arguments are those of call() and repeat(); if not, an exception is set. */
static int is_call(PyObject *const *args, Py_ssize_t given) {
  if (given == 5 && PyTuple_Check(args[0]) && PyTuple_GET_SIZE(args[0]) == 6 &&
      PyDict_Check(args[1]) && PyTuple_Check(args[3]) && PyTuple_Check(args[4]))
    return 1;
  PyErr_SetString(PyExc_TypeError, "(torch, a dict, what, tuple of tensors, tuple of scalars)");
  return 0;
}

/* call((current_stream, current_device or None, grad_enabled, capturing, written, transform),
   known, op, tensors, scalars): the path of every call but the first of its kind. `known` maps describe()'s
   keys to launches. written(tensors) counts a write to each in torch's version counters.
   transform() is None outside of torch.func. */
static PyObject *call(PyObject *self, PyObject *const *args, Py_ssize_t given) {
  if (!is_call(args, given)) return NULL;
  PyObject *torch = args[0], *tensors = args[3], *scalars = args[4];
  uint64_t address[PyTuple_GET_SIZE(tensors) + 2];
  PyObject *key = key_of(args[2], tensors, address);
  if (!key) {
    if (!PyErr_ExceptionMatches(PyExc_AttributeError)) return NULL;
    PyErr_Clear(); /* not torch's tensors: Python sorts it out */
    return PyLong_FromLong(NOT_KNOWN);
  }
  int code = NOT_KNOWN;
  PyObject *found = PyDict_GetItemWithError(args[1], key);
  Py_XINCREF(found); /* other threads may empty `known` while Python runs below */
  Launch *l = found ? PyCapsule_GetPointer(found, LAUNCH) : NULL;
  if (l && l->operands == PyTuple_GET_SIZE(tensors) && suits(l, scalars) &&
      !records_gradient(PyTuple_GET_ITEM(torch, 2), tensors) && is_here(l, torch))
    code = launch_here(l, torch, address, scalars);
  for (int i = 0; !code && i < l->written; i++)
    code = note_write(torch, PyTuple_GET_ITEM(tensors, l->writes[i]));
  if (code == UNSUITABLE) code = NOT_KNOWN; /* Python says which scalar */
  Py_XDECREF(found);
  Py_DECREF(key);
  return PyErr_Occurred() ? NULL : PyLong_FromLong(code);
}

#include "repeat.h"
#include "passing.h"

static PyMethodDef methods[] = {
    {"prepare", prepare, METH_VARARGS, "A launch, packed."},
    {"launch", (PyCFunction)(void (*)(void))launch, METH_FASTCALL, "Launch it."},
    {"launches", launches, METH_O, "How often it was launched."},
    {"last_used", last_used, METH_O, "When it was launched last, as a count of all launches."},
    {"keep_workspace", keep_workspace, METH_VARARGS, "The buffers call() may use on a stream."},
    {"write_map", write_map, METH_VARARGS, "Set a descriptor's tensor map."},
    {"describe", (PyCFunction)(void (*)(void))describe, METH_FASTCALL,
     "A call's key and the addresses of its operands."},
    {"call", (PyCFunction)(void (*)(void))call, METH_FASTCALL, "A cached call, whole."},
    {"recipe", recipe, METH_VARARGS, "How arrays become operands of a launch."},
    {"signature", (PyCFunction)(void (*)(void))signature, METH_FASTCALL,
     "The key of a call that may be repeated."},
    {"repeat", (PyCFunction)(void (*)(void))repeat, METH_FASTCALL,
     "A cached call that makes its outputs, whole."},
    {"split", (PyCFunction)(void (*)(void))split, METH_FASTCALL,
     "The tensors of a function's arguments, and everything else."},
    {"passing", passing, METH_VARARGS, "Stands before an operator of torch."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "launcher", NULL, -1, methods,
                                    NULL, NULL, NULL, NULL};

static int add_address(PyObject *made, const char *name, void *function) {
  PyObject *address = PyLong_FromVoidPtr(function);
  int status = address ? PyModule_AddObjectRef(made, name, address) : -1;
  Py_XDECREF(address);
  return status;
}

PyMODINIT_FUNC PyInit_launcher(void) {
  word_data_ptr = PyUnicode_InternFromString("data_ptr");
  word_shape = PyUnicode_InternFromString("shape");
  word_stride = PyUnicode_InternFromString("stride");
  word_dtype = PyUnicode_InternFromString("dtype");
  word_get_device = PyUnicode_InternFromString("get_device");
  word_requires_grad = PyUnicode_InternFromString("requires_grad");
  word_arrays = PyUnicode_InternFromString("arrays");
  PyObject *made = PyModule_Create(&module);
  if (made && (add_address(made, "matmul_step", (void *)matmul_step) ||
               add_address(made, "graph_step", (void *)graph_step) ||
               add_address(made, "launch_alone", (void *)launch_alone) ||
               add_address(made, "solution_step", (void *)solution_step) ||
               add_address(made, "recipes", (void *)&recipes_in_c)))
    Py_CLEAR(made);
  return made;
}
