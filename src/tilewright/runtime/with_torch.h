/* What C++ that is compiled with torch's headers shares: torch/nodes.cpp and
   torch/installing/passing.cpp, which repeat calls by the launcher's recipes. */

#pragma once

#include <Python.h>

#include <ATen/Context.h>
#include <ATen/ops/empty_strided.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/python_variable.h>

#include <vector>

using at::Tensor;

namespace {

PyObject *word_forgotten;

/* Before all else. */
bool know_words() { return (word_forgotten = PyUnicode_InternFromString("forgotten")); }

[[noreturn]] void raise() { /* the exception that Python has set */
  python_error error;
  error.persist();
  throw error;
}

struct Locked { /* with Python's lock */
  PyGILState_STATE state = PyGILState_Ensure();
  Locked() = default;
  Locked(const Locked &) = delete;
  ~Locked() { PyGILState_Release(state); }
};

struct Reference { /* that is given up with Python's lock held */
  PyObject *to;
  explicit Reference(PyObject *owned = nullptr) : to(owned) {}
  Reference(const Reference &) = delete;
  ~Reference() { Py_XDECREF(to); }
};

/* See repeat.h. */
struct Recipes {
  int (*returned)(PyObject *recipe);
  PyObject *(*outputs)(PyObject *recipe);
  int (*launch)(PyObject *recipe, PyObject *torch, const uint64_t *given, const uint64_t *made,
                PyObject *scalars);
};

/* How a tensor lies, and that it is no more than memory: its keys tell of subclasses and the like. */
struct Look {
  c10::DispatchKeySet keys;
  at::TensorOptions options;
  std::vector<int64_t> sizes, strides;
  explicit Look(const Tensor &x)
      : keys(x.key_set()), options(x.options()), sizes(x.sizes().vec()), strides(x.strides().vec()) {}
  bool is_of(const Tensor &x) const {
    return x.key_set() == keys && x.scalar_type() == options.dtype() && x.device() == options.device() &&
           x.sizes().equals(sizes) && x.strides().equals(strides);
  }
  Tensor made() const { return at::empty_strided(sizes, strides, options); }
};

/* Whether tensors that are made here are plain memory: no mode of Python and no transform makes them. */
bool makes_plain() {
  const c10::DispatchKeySet at_work = c10::impl::tls_local_dispatch_key_set().included_;
  return !at_work.has(c10::DispatchKey::Python) &&
         !at_work.has(c10::DispatchKey::FuncTorchDynamicLayerFrontMode);
}

uint64_t address_of(const Tensor &x) {
  return static_cast<uint64_t>(reinterpret_cast<uintptr_t>(x.const_data_ptr()));
}

/* Whether others took the place of the launches of a mark (`Mark`). */
bool is_forgotten(PyObject *mark) {
  Reference forgotten(PyObject_GetAttr(mark, word_forgotten));
  if (!forgotten.to) raise();
  return forgotten.to != Py_False;
}

/* Of all outputs of a recipe. */
std::vector<Look> looks_of_outputs(const Recipes *launcher, PyObject *recipe) {
  Reference outputs(launcher->outputs(recipe));
  if (!outputs.to) raise();
  std::vector<Look> made;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(outputs.to); i++)
    made.emplace_back(THPVariable_Unpack(PyTuple_GET_ITEM(outputs.to, i)));
  return made;
}

} // namespace
