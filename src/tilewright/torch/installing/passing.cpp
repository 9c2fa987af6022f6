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
#include <ATen/ops/convolution_backward_ops.h>
#include <ATen/ops/convolution_ops.h>
#include <torch/csrc/Exceptions.h>
#include <torch/library.h>

#include <bit>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_set>
#include <utility>

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

/* What tells kinds of calls apart, as one number: it is made without memory of its own, at each call.
   Of two kinds with the same number, the second would be passed on unasked, and torch's result is
   right too. */
struct Kind {
  uint64_t number = at::globalContext().deterministicAlgorithms();
  bool told = true; /* whether all arguments say something here */

  void add(uint64_t x) {
    number = (number ^ x) * 0x9e3779b97f4a7c15;
    number ^= number >> 32;
  }

  /* As runtime/passing.h has it, or kinds that are known there would be met here each time. */
  void note(const at::Tensor &x) {
    if (!x.defined()) return add('u');
    const c10::TensorImpl *impl = x.unsafeGetTensorImpl();
    if (impl->is_python_dispatch() || impl->has_symbolic_sizes_strides() || x.layout() != at::kStrided ||
        x.is_conj() || x.is_neg() || x._is_zerotensor()) {
      told = false;
      return;
    }
    add('t' | static_cast<uint64_t>(x.dim()) << 8 | static_cast<uint64_t>(x.scalar_type()) << 16 |
        static_cast<uint64_t>(x.device().type()) << 24 |
        static_cast<uint64_t>(static_cast<uint8_t>(x.get_device())) << 32);
    for (const int64_t size : x.sizes()) add(size);
    for (const int64_t stride : x.strides()) add(stride);
  }

  void note(const std::optional<at::Tensor> &x) { x ? note(*x) : add('n'); }
  void note(bool x) { add(x ? 'y' : 'f'); }
  void note(int64_t x) { add('i'), add(x); }
  void note(const c10::SymInt &x) { x.is_heap_allocated() ? void(told = false) : note(x.as_int_unchecked()); }
  void note(at::OptionalSymIntArrayRef x) { x ? note(*x) : add('n'); }

  template <class List> void note_list(const List &list) {
    add('('), add(list.size());
    for (const auto &x : list) note(x);
  }
  void note(c10::SymIntArrayRef list) { note_list(list); }
  void note(const std::array<bool, 3> &list) { note_list(list); }

  void note(const c10::IValue &x) {
    if (x.isTensor()) note(x.toTensor());
    else if (x.isNone()) add('n');
    else if (x.isBool()) note(x.toBool());
    else if (x.isInt()) note(x.toInt());
    else if (x.isDouble()) add('d'), add(std::bit_cast<uint64_t>(x.toDouble()));
    else told = false;
  }
};

/* Torch lets others call a kernel with boxed arguments alone, which are copied into memory of their
   own. Those of convolutions have many numbers, so they are called as torch calls them: by what
   stands in private. */
template <auto kernel, auto token> struct Within {
  friend const c10::KernelFunction &valid(const c10::SafeKernelFunction &x) {
    TORCH_CHECK((x.*token)->isValid(), "a kernel that calls are passed on to was removed: ", x.debug());
    return x.*kernel;
  }
};
const c10::KernelFunction &valid(const c10::SafeKernelFunction &);
template struct Within<&c10::SafeKernelFunction::kernel_, &c10::SafeKernelFunction::token_>;

bool is_halved(const at::Tensor &x) {
  return !x.defined() || x.scalar_type() == at::kHalf || x.scalar_type() == at::kBFloat16;
}

/* Whose a call is: torch's, or one that Python answers. */
struct Kernel {
  c10::OperatorHandle op;
  c10::SafeKernelFunction original, ours;
  PyObject *clear, *passed;
  std::mutex lock;
  std::unordered_set<uint64_t> kinds;

  Kernel(c10::OperatorHandle op, c10::SafeKernelFunction original, c10::SafeKernelFunction ours,
         PyObject *clear, PyObject *passed)
      : op(op), original(std::move(original)), ours(std::move(ours)), clear(Py_NewRef(clear)),
        passed(Py_NewRef(passed)) {}
  Kernel(const Kernel &) = delete;
  ~Kernel() {
    if (!Py_IsInitialized()) return;
    Locked held;
    Py_DECREF(clear);
    Py_DECREF(passed);
  }

  /* Who answers a call of this kind, and whether Python is asked about the kind for the first time:
     then learn() follows the answer. */
  std::pair<const c10::SafeKernelFunction &, bool> whose(const Kind &kind) {
    if (!kind.told) return {ours, false};
    {
      std::lock_guard<std::mutex> held(lock);
      if (kinds.count(kind.number)) return {original, false};
    }
    says(clear);
    return {ours, true};
  }

  void learn(const Kind &kind) {
    if (!says(passed)) return;
    std::lock_guard<std::mutex> held(lock);
    if (kinds.size() >= KEPT) kinds.clear();
    kinds.insert(kind.number);
  }
};

struct Boxed final : c10::OperatorKernel {
  std::shared_ptr<Kernel> kernel;
  explicit Boxed(std::shared_ptr<Kernel> kernel) : kernel(std::move(kernel)) {}

  void operator()(const c10::OperatorHandle &op, c10::DispatchKeySet keys, torch::jit::Stack *stack) {
    const auto given = torch::jit::last(*stack, op.schema().arguments().size());
    if (given[0].isTensor() && !is_halved(given[0].toTensor()))
      return kernel->original.callBoxed(op, keys, stack);
    Kind kind;
    for (const c10::IValue &x : given) kind.note(x);
    const auto [answers, first] = kernel->whose(kind);
    answers.callBoxed(op, keys, stack);
    if (first) kernel->learn(kind);
  }
};

template <class Schema> struct Typed;

template <class Result, class... Args> struct Typed<Result(const at::Tensor &, Args...)> {
  std::shared_ptr<Kernel> kernel;

  Result operator()(c10::DispatchKeySet keys, const at::Tensor &x, Args... args) {
    const auto call = [&](const c10::SafeKernelFunction &one) {
      return valid(one).call<Result, const at::Tensor &, Args...>(kernel->op, keys, x, args...);
    };
    if (!is_halved(x)) return call(kernel->original);
    Kind kind;
    kind.note(x), (kind.note(args), ...);
    const auto [answers, first] = kernel->whose(kind);
    if (!first) return call(answers);
    Result made = call(answers);
    kernel->learn(kind);
    return made;
  }
};

torch::CppFunction function_of(const std::string &name, std::shared_ptr<Kernel> kernel) {
  if (name == "convolution")
    return torch::CppFunction(Typed<at::_ops::convolution::schema>{std::move(kernel)});
  if (name == "convolution_backward")
    return torch::CppFunction(Typed<at::_ops::convolution_backward::schema>{std::move(kernel)});
  return torch::CppFunction::makeFromBoxedFunctor(std::make_unique<Boxed>(std::move(kernel)));
}

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
  auto kernel = std::make_shared<Kernel>(
      front->op, front->original, front->op.getComputedKernelForDispatchKey(front->key), clear, passed);
  front->library.emplace(torch::Library::IMPL, "aten", front->key, __FILE__, __LINE__);
  front->library->impl(front->name.c_str(), function_of(front->name, std::move(kernel)));
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
