/* Calls of torch's operators that come by here and are torch's, passed on in C++: torch makes no
   Python objects of their arguments. As runtime/passing.h, for installations whose C++ is compiled.

   before(operator, overload, key) -> front    remembers torch's own kernel; None if there is none
   put(front, clear, passed)                   stands before the kernel in Python that was put since
   remove(front)                               takes it out again

   A call of a kind that was passed on before goes to torch's kernel; so does one whose first tensor
   is in another dtype than fp16 and bf16. Any other goes to the kernel in Python. Before that,
   clear() is called, and behind it passed(), which says whether Python passes all calls of this
   kind on from now on. */

#include <Python.h>

#include <ATen/Context.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/csrc/Exceptions.h>
#include <torch/library.h>

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_set>

namespace {

constexpr size_t KEPT = 4096; /* kinds; beyond, all are asked about again */
const char *FRONT = "tilewright.front";

struct Locked { /* with Python's lock */
  PyGILState_STATE state = PyGILState_Ensure();
  Locked() = default;
  Locked(const Locked &) = delete;
  ~Locked() { PyGILState_Release(state); }
};

/* Whether a function of Python's says yes. */
bool says(PyObject *function) {
  Locked lock;
  PyObject *answer = PyObject_CallNoArgs(function);
  if (!answer) {
    python_error error;
    error.persist();
    throw error;
  }
  bool yes = answer == Py_True;
  Py_DECREF(answer);
  return yes;
}

void note(std::string &key, char tag, const void *from = nullptr, size_t bytes = 0) {
  key.push_back(tag);
  key.append(static_cast<const char *>(from), bytes);
}

/* As runtime/passing.h has it, or kinds that are known there would be met here each time. */
bool note_tensor(std::string &key, const at::Tensor &x) {
  if (!x.defined()) return note(key, 'u'), true;
  const c10::TensorImpl *impl = x.unsafeGetTensorImpl();
  if (impl->is_python_dispatch() || impl->has_symbolic_sizes_strides()) return false;
  if (x.layout() != at::kStrided || x.is_conj() || x.is_neg() || x._is_zerotensor()) return false;
  const uint64_t looks[] = {
      static_cast<uint64_t>(x.device().type()), static_cast<uint64_t>(x.get_device()),
      static_cast<uint64_t>(x.scalar_type()), static_cast<uint64_t>(x.dim())};
  note(key, 't', looks, sizeof(looks));
  note(key, 's', x.sizes().data(), x.sizes().size() * sizeof(int64_t));
  note(key, 'l', x.strides().data(), x.strides().size() * sizeof(int64_t));
  return true;
}

template <class List> void note_list(std::string &key, char tag, const List &list) {
  const size_t count = list.size();
  note(key, tag, &count, sizeof(count));
  for (size_t i = 0; i < count; i++) {
    const auto one = static_cast<int64_t>(list.get(i));
    note(key, ',', &one, sizeof(one));
  }
}

/* Adds an argument, each with a fixed width or its length in front; false for one that says nothing
   here. */
bool note_argument(std::string &key, const c10::IValue &x) {
  if (x.isTensor()) return note_tensor(key, x.toTensor());
  if (x.isNone()) note(key, 'n');
  else if (x.isBool()) note(key, x.toBool() ? 'y' : 'f');
  else if (x.isInt()) {
    const int64_t whole = x.toInt();
    note(key, 'i', &whole, sizeof(whole));
  } else if (x.isDouble()) {
    const double number = x.toDouble();
    note(key, 'd', &number, sizeof(number));
  } else if (x.isIntList()) note_list(key, '(', x.toIntList());
  else if (x.isBoolList()) note_list(key, '[', x.toBoolList());
  else return false;
  return true;
}

struct Kernel final : c10::OperatorKernel {
  c10::SafeKernelFunction original, ours;
  PyObject *clear, *passed;
  std::mutex lock;
  std::unordered_set<std::string> kinds;

  Kernel(c10::SafeKernelFunction original, c10::SafeKernelFunction ours, PyObject *clear,
         PyObject *passed)
      : original(std::move(original)), ours(std::move(ours)), clear(Py_NewRef(clear)),
        passed(Py_NewRef(passed)) {}
  ~Kernel() override {
    if (!Py_IsInitialized()) return;
    Locked held;
    Py_DECREF(clear);
    Py_DECREF(passed);
  }

  void operator()(const c10::OperatorHandle &op, c10::DispatchKeySet keys, torch::jit::Stack *stack) {
    const auto given = torch::jit::last(*stack, op.schema().arguments().size());
    if (given[0].isTensor() && given[0].toTensor().defined()) {
      const auto dtype = given[0].toTensor().scalar_type();
      if (dtype != at::kHalf && dtype != at::kBFloat16) return original.callBoxed(op, keys, stack);
    }
    std::string key(1, at::globalContext().deterministicAlgorithms() ? '!' : '.');
    bool known = true;
    for (const c10::IValue &x : given) known = known && note_argument(key, x);
    if (!known) return ours.callBoxed(op, keys, stack);
    {
      std::lock_guard<std::mutex> held(lock);
      known = kinds.count(key) != 0;
    }
    if (known) return original.callBoxed(op, keys, stack);
    says(clear);
    ours.callBoxed(op, keys, stack);
    if (!says(passed)) return;
    std::lock_guard<std::mutex> held(lock);
    if (kinds.size() >= KEPT) kinds.clear();
    kinds.insert(std::move(key));
  }
};

struct Front {
  c10::OperatorHandle op;
  c10::DispatchKey key;
  std::string name;
  c10::SafeKernelFunction original;
  std::optional<torch::Library> library;
};

Front *front_of(PyObject *capsule) { return static_cast<Front *>(PyCapsule_GetPointer(capsule, FRONT)); }

void discard(PyObject *capsule) { delete front_of(capsule); }

PyObject *before(PyObject *, PyObject *args) {
  HANDLE_TH_ERRORS
  const char *name, *overload, *word;
  if (!PyArg_ParseTuple(args, "sss", &name, &overload, &word)) return nullptr;
  auto op = c10::Dispatcher::singleton().findSchemaOrThrow((std::string("aten::") + name).c_str(), overload);
  const c10::DispatchKey key = c10::parseDispatchKey(word);
  if (!op.hasComputedKernelForDispatchKey(key)) Py_RETURN_NONE;
  std::string whole = *overload ? std::string(name) + "." + overload : name;
  auto *made = new Front{op, key, std::move(whole), op.getComputedKernelForDispatchKey(key), std::nullopt};
  PyObject *capsule = PyCapsule_New(made, FRONT, discard);
  if (!capsule) delete made;
  return capsule;
  END_HANDLE_TH_ERRORS
}

PyObject *put(PyObject *, PyObject *args) {
  HANDLE_TH_ERRORS
  PyObject *capsule, *clear, *passed;
  if (!PyArg_ParseTuple(args, "OOO", &capsule, &clear, &passed)) return nullptr;
  Front *front = front_of(capsule);
  if (!front) return nullptr;
  auto kernel = std::make_unique<Kernel>(
      front->original, front->op.getComputedKernelForDispatchKey(front->key), clear, passed);
  front->library.emplace(torch::Library::IMPL, "aten", front->key, __FILE__, __LINE__);
  front->library->impl(front->name.c_str(), torch::CppFunction::makeFromBoxedFunctor(std::move(kernel)));
  Py_RETURN_NONE;
  END_HANDLE_TH_ERRORS
}

PyObject *take_out(PyObject *, PyObject *capsule) {
  HANDLE_TH_ERRORS
  Front *front = front_of(capsule);
  if (!front) return nullptr;
  front->library.reset();
  Py_RETURN_NONE;
  END_HANDLE_TH_ERRORS
}

PyMethodDef methods[] = {
    {"before", before, METH_VARARGS, "Remembers torch's own kernel of an operator."},
    {"put", put, METH_VARARGS, "Stands before the kernel that was put since."},
    {"remove", take_out, METH_O, "Takes it out again."},
    {nullptr, nullptr, 0, nullptr},
};

PyModuleDef module = {PyModuleDef_HEAD_INIT, "passing", nullptr, -1, methods,
                      nullptr, nullptr, nullptr, nullptr};

} // namespace

PyMODINIT_FUNC PyInit_passing(void) { return PyModule_Create(&module); }
