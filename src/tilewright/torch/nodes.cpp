/* A call whose gradients torch records, as a node of torch's graph, in C++: what `_Recorded` of
   gradients.py does in Python, for calls that the dispatcher repeats.

   recording(call, inputs, saved, returned, places, carry_out, learn, launcher) -> function
       function(scalars, outputs, *arrays) -> the outputs that are returned, with a history.
       inputs: how many arrays a call has. saved: places, among arrays and then outputs, of what the
       backward pass reads. returned: places of the outputs that are returned. places: of each
       gradient that a repeated backward pass makes, the array that it is of.
       carry_out(call, scalars, saved, arrived) -> a gradient for each array, or None.
       learn(call, scalars, saved, arrived) -> (mark, recipe, torch, scalars of its launches) by which
       a pass on such tensors may be repeated, or None. It holds until mark.forgotten.
       launcher: the address of the launcher's `Recipes`.

   A backward pass like the last one that was learnt queues its launches without Python code. Any
   other, and one of which a graph is asked for, is carried_out. nodes.py compiles this file, with
   torch's own headers, and calls are recorded in Python until it is there. */

#include "../runtime/with_torch.h"

#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/autograd/saved_variable.h>

#include <memory>
#include <mutex>
#include <type_traits>
#include <utility>
#include <vector>

using torch::autograd::Node;
using torch::autograd::SavedVariable;
using torch::autograd::variable_list;

namespace {

constexpr int TRIES = 16; /* how often a pass is learnt: of passes that all differ, none is repeated */

/* The scalars of a call, a tuple, which calls share that have the same. */
struct Scalars {
  PyObject *tuple;
  explicit Scalars(PyObject *tuple) : tuple(Py_NewRef(tuple)) {}
  Scalars(const Scalars &) = delete;
  ~Scalars() {
    if (!Py_IsInitialized()) return;
    Locked lock;
    Py_DECREF(tuple);
  }
  bool are(PyObject *others) const {
    int same = others == tuple ? 1 : PyObject_RichCompareBool(others, tuple, Py_EQ);
    if (same < 0) raise();
    return same;
  }
};

/* torch's switches for deterministic kernels: off, on, or on with a warning. */
int determinism() {
  const at::Context &context = at::globalContext();
  return context.deterministicAlgorithms() ? 1 + context.deterministicAlgorithmsWarnOnly() : 0;
}

std::vector<size_t> numbers(PyObject *tuple) {
  std::vector<size_t> found;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(tuple); i++)
    found.push_back(PyLong_AsSize_t(PyTuple_GET_ITEM(tuple, i)));
  if (PyErr_Occurred()) raise();
  return found;
}

PyObject *wrapped(const Tensor *tensors, size_t count) {
  PyObject *made = PyTuple_New(static_cast<Py_ssize_t>(count));
  if (!made) raise();
  for (size_t i = 0; i < count; i++)
    PyTuple_SET_ITEM(made, static_cast<Py_ssize_t>(i), THPVariable_Wrap(tensors[i]));
  return made;
}

/* A backward pass that was learnt. */
struct Pass {
  PyObject *mark, *recipe, *torch, *passed;
  std::shared_ptr<Scalars> scalars; /* of its call */
  int deterministic = determinism();
  std::vector<Look> looks, made; /* of what it reads, and of what it makes */

  Pass(PyObject *mark, PyObject *recipe, PyObject *torch, PyObject *passed,
       std::shared_ptr<Scalars> scalars, const std::vector<Tensor> &arrays)
      : mark(Py_NewRef(mark)), recipe(Py_NewRef(recipe)), torch(Py_NewRef(torch)),
        passed(Py_NewRef(passed)), scalars(std::move(scalars)), looks(arrays.begin(), arrays.end()) {}
  Pass(const Pass &) = delete;
  ~Pass() {
    if (!Py_IsInitialized()) return;
    Locked lock;
    for (PyObject *one : {mark, recipe, torch, passed}) Py_DECREF(one);
  }
};

/* How calls that look alike are recorded, and the last backward pass that was learnt. */
struct Way {
  PyObject *call, *carry_out, *learn;
  const Recipes *launcher;
  size_t inputs = 0;
  std::vector<size_t> saved, returned, places;

  std::shared_ptr<Scalars> given; /* of the last call that was recorded */
  std::shared_ptr<const Pass> learnt;
  int tries = 0;

  Way(PyObject *call, PyObject *carry_out, PyObject *learn, const Recipes *launcher)
      : call(Py_NewRef(call)), carry_out(Py_NewRef(carry_out)), learn(Py_NewRef(learn)),
        launcher(launcher) {}
  Way(const Way &) = delete;
  ~Way() {
    if (!Py_IsInitialized()) return;
    Locked lock;
    for (PyObject *one : {call, carry_out, learn}) Py_DECREF(one);
  }

  /* Of a call that is being recorded. */
  const std::shared_ptr<Scalars> &share(PyObject *scalars) {
    if (!given || !given->are(scalars)) given = std::make_shared<Scalars>(scalars);
    return given;
  }

  /* Whether a pass on these was queued as one before. */
  bool repeat(const std::shared_ptr<Scalars> &scalars, const std::vector<Tensor> &arrays,
              variable_list &gradients) const {
    const std::shared_ptr<const Pass> pass = learnt; /* others may learn another while Python runs */
    if (!pass || pass->deterministic != determinism() || !makes_plain()) return false;
    if (scalars != pass->scalars && !pass->scalars->are(scalars->tuple)) return false;
    for (size_t i = 0; i < arrays.size(); i++)
      if (!pass->looks[i].is_of(arrays[i])) return false;
    if (is_forgotten(pass->mark)) return false;
    std::vector<uint64_t> from, at;
    std::vector<Tensor> outputs;
    for (const Tensor &x : arrays) from.push_back(address_of(x));
    for (const Look &like : pass->made) {
      outputs.push_back(like.made());
      at.push_back(address_of(outputs.back()));
    }
    int code = launcher->launch(pass->recipe, pass->torch, from.data(), at.data(), pass->passed);
    if (code < 0) raise();
    if (code) return false;
    for (size_t i = 0; i < places.size(); i++) gradients[places[i]] = std::move(outputs[i]);
    return true;
  }

  void remember(PyObject *found, const std::shared_ptr<Scalars> &scalars,
                const std::vector<Tensor> &arrays) {
    if (found == Py_None) return; /* its kernels may still be being built */
    tries++;
    PyObject *mark, *recipe, *torch, *passed;
    if (!PyArg_ParseTuple(found, "OOOO!", &mark, &recipe, &torch, &PyTuple_Type, &passed)) raise();
    if (launcher->returned(recipe) != static_cast<int>(places.size())) return;
    auto pass = std::make_shared<Pass>(mark, recipe, torch, passed, scalars, arrays);
    pass->made = looks_of_outputs(launcher, recipe);
    learnt = std::move(pass);
  }

  variable_list by_python(const std::shared_ptr<Scalars> &scalars, const std::vector<Tensor> &arrays) {
    const size_t read = saved.size();
    Reference kept(wrapped(arrays.data(), read));
    Reference arrived(wrapped(arrays.data() + read, arrays.size() - read));
    Reference made(PyObject_CallFunctionObjArgs(carry_out, call, scalars->tuple, kept.to, arrived.to, nullptr));
    Reference found(made.to ? PySequence_Tuple(made.to) : nullptr);
    if (!found.to) raise();
    variable_list gradients(inputs);
    for (size_t i = 0; i < inputs; i++) {
      PyObject *one = PyTuple_GET_ITEM(found.to, static_cast<Py_ssize_t>(i));
      if (one != Py_None) gradients[i] = THPVariable_Unpack(one);
    }
    if (at::GradMode::is_enabled() || tries >= TRIES) return gradients;
    Reference how(PyObject_CallFunctionObjArgs(learn, call, scalars->tuple, kept.to, arrived.to, nullptr));
    if (!how.to) raise();
    remember(how.to, scalars, arrays);
    return gradients;
  }
};

struct Recorded final : Node {
  std::shared_ptr<Way> way;
  std::shared_ptr<Scalars> scalars;
  std::vector<SavedVariable> saved;

  explicit Recorded(std::shared_ptr<Way> way) : way(std::move(way)) {}

  std::string name() const override { return "_RecordedBackward"; }

  void release_variables() override {
    std::lock_guard<std::mutex> lock(mutex_);
    for (SavedVariable &one : saved) one.reset_data();
  }

  variable_list apply(variable_list &&arrived) override {
    std::vector<Tensor> arrays;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      for (const SavedVariable &one : saved) arrays.push_back(one.unpack(getptr()));
    }
    for (size_t i = 0; i < arrived.size(); i++)
      arrays.push_back(arrived[i].defined() ? std::move(arrived[i]) : input_metadata(i).zeros_like());
    Locked lock;
    variable_list gradients(way->inputs);
    if (!at::GradMode::is_enabled() && way->repeat(scalars, arrays, gradients)) return gradients;
    return way->by_python(scalars, arrays);
  }
};

using NodePointer = decltype(torch::autograd::Edge::function);

/* std::shared_ptr in torch 2.11, an intrusive pointer in 2.13. */
template <class Pointer, class Made> Pointer node_of(const std::shared_ptr<Way> &way) {
  if constexpr (std::is_same_v<Pointer, std::shared_ptr<Node>>)
    return Pointer(new Made(way), [](auto *node) { deleteNode(node); });
  else return c10::make_intrusive<Made>(way);
}

const char *WAY = "tilewright.way";

/* function(scalars, outputs, *arrays), see recording(). */
PyObject *record(PyObject *self, PyObject *const *args, Py_ssize_t count) {
  HANDLE_TH_ERRORS
  auto *held = static_cast<std::shared_ptr<Way> *>(PyCapsule_GetPointer(self, WAY));
  if (!held) return nullptr;
  Way &way = **held;
  if (count != static_cast<Py_ssize_t>(way.inputs) + 2 || !PyTuple_Check(args[0]) ||
      !PyTuple_Check(args[1])) {
    PyErr_SetString(PyExc_TypeError, "(tuple of scalars, tuple of outputs, tensors)");
    return nullptr;
  }
  PyObject *outputs = args[1];
  auto output = [&](size_t place) -> const Tensor & {
    TORCH_CHECK(static_cast<Py_ssize_t>(place) < PyTuple_GET_SIZE(outputs), "there is no such output");
    return THPVariable_Unpack(PyTuple_GET_ITEM(outputs, static_cast<Py_ssize_t>(place)));
  };
  NodePointer node = node_of<NodePointer, Recorded>(*held);
  auto *own = static_cast<Recorded *>(node.get());
  own->scalars = way.share(args[0]);
  torch::autograd::edge_list edges;
  edges.reserve(way.inputs);
  for (size_t i = 0; i < way.inputs; i++)
    edges.push_back(torch::autograd::impl::gradient_edge(THPVariable_Unpack(args[i + 2])));
  own->set_next_edges(std::move(edges));
  for (size_t place : way.returned) torch::autograd::set_history(output(place), node);
  own->saved.reserve(way.saved.size());
  for (size_t place : way.saved) {
    if (place < way.inputs) own->saved.emplace_back(THPVariable_Unpack(args[place + 2]), false);
    else own->saved.emplace_back(output(place - way.inputs), true);
  }
  const auto number = static_cast<Py_ssize_t>(way.returned.size());
  auto object = [&](Py_ssize_t i) {
    return Py_NewRef(PyTuple_GET_ITEM(outputs, static_cast<Py_ssize_t>(way.returned[i])));
  };
  if (number == 1) return object(0);
  PyObject *made = PyTuple_New(number);
  for (Py_ssize_t i = 0; made && i < number; i++) PyTuple_SET_ITEM(made, i, object(i));
  return made;
  END_HANDLE_TH_ERRORS
}

PyMethodDef recorded_call = {"recorded", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(record)),
                             METH_FASTCALL, nullptr};

void discard(PyObject *capsule) {
  delete static_cast<std::shared_ptr<Way> *>(PyCapsule_GetPointer(capsule, WAY));
}

PyObject *recording(PyObject *, PyObject *args) {
  HANDLE_TH_ERRORS
  PyObject *call, *saved, *returned, *places, *carry_out, *learn;
  Py_ssize_t inputs;
  unsigned long long launcher;
  if (!PyArg_ParseTuple(args, "OnO!O!O!OOK", &call, &inputs, &PyTuple_Type, &saved, &PyTuple_Type,
                        &returned, &PyTuple_Type, &places, &carry_out, &learn, &launcher))
    return nullptr;
  auto way = std::make_shared<Way>(call, carry_out, learn,
                                   reinterpret_cast<const Recipes *>(static_cast<uintptr_t>(launcher)));
  way->inputs = static_cast<size_t>(inputs);
  way->saved = numbers(saved), way->returned = numbers(returned), way->places = numbers(places);
  auto *held = new std::shared_ptr<Way>(std::move(way));
  Reference capsule(PyCapsule_New(held, WAY, discard));
  if (!capsule.to) {
    delete held;
    return nullptr;
  }
  return PyCFunction_New(&recorded_call, capsule.to);
  END_HANDLE_TH_ERRORS
}

PyMethodDef methods[] = {
    {"recording", recording, METH_VARARGS, "How calls that look alike are recorded."},
    {nullptr, nullptr, 0, nullptr},
};

PyModuleDef module = {PyModuleDef_HEAD_INIT, "nodes", nullptr, -1, methods,
                      nullptr, nullptr, nullptr, nullptr};

} // namespace

PyMODINIT_FUNC PyInit_nodes(void) { return know_words() ? PyModule_Create(&module) : nullptr; }
