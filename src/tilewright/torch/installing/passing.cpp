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
#include <ATen/ops/_scaled_dot_product_cudnn_attention_ops.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_ops.h>
#include <ATen/ops/addmm_ops.h>
#include <ATen/ops/baddbmm_ops.h>
#include <ATen/ops/bmm_ops.h>
#include <ATen/ops/convolution_backward_ops.h>
#include <ATen/ops/convolution_ops.h>
#include <ATen/ops/mm_ops.h>
#include <torch/csrc/Exceptions.h>
#include <torch/library.h>

#include <array>
#include <atomic>
#include <bit>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace {

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
   Each word is multiplied with others' in flight, so that a call's 40 words take some 100 cycles.
   Of two kinds with the same number, the second would be passed on unasked, and torch's result is
   right too. */
struct Kind {
  uint64_t number = at::globalContext().deterministicAlgorithms(), place = 0;
  bool told = true; /* whether all arguments say something here */

  void add(uint64_t x) {
    const auto wide = static_cast<unsigned __int128>(x ^ (place += 0x9e3779b97f4a7c15)) * 0xd6e8feb86659fd93;
    number += static_cast<uint64_t>(wide) ^ static_cast<uint64_t>(wide >> 64);
  }

  /* As runtime/passing.h has it, or kinds that are known there would be met here each time. */
  void note(const at::Tensor &x) {
    if (!x.defined()) return add('u');
    constexpr c10::DispatchKeySet odd{c10::DispatchKey::Python, c10::DispatchKey::Conjugate,
                                       c10::DispatchKey::Negative, c10::DispatchKey::ZeroTensor};
    const c10::TensorImpl *impl = x.unsafeGetTensorImpl();
    if (impl->key_set().has_any(odd) || impl->has_symbolic_sizes_strides() || x.layout() != at::kStrided) {
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
  void note(double x) { add('d'), add(std::bit_cast<uint64_t>(x)); }
  void note(std::optional<double> x) { x ? note(*x) : add('n'); }
  void note(const c10::SymInt &x) { x.is_heap_allocated() ? void(told = false) : add(x.as_int_unchecked()); }
  void note(at::OptionalSymIntArrayRef x) { x ? note(*x) : add('n'); }

  template <class List> void note_list(const List &list) {
    add('('), add(list.size());
    for (const auto &x : list) note(x);
  }
  void note(c10::SymIntArrayRef list) { note_list(list); }
  void note(const std::array<bool, 3> &list) { note_list(list); }

  void note(const at::Scalar &x) {
    if (x.isSymbolic() || x.isComplex()) told = false;
    else if (x.isBoolean()) note(x.toBool());
    else if (x.isFloatingPoint()) note(x.toDouble());
    else note(x.toLong());
  }

  void note(const c10::IValue &x) {
    if (x.isTensor()) note(x.toTensor());
    else if (x.isNone()) add('n');
    else if (x.isBool()) note(x.toBool());
    else if (x.isInt()) note(x.toInt());
    else if (x.isDouble()) note(x.toDouble());
    else told = false;
  }
};

/* Kinds that are passed on, eight to a line of the cache. Where a line is full, a kind gives way, and
   is asked about again. Thread-safe. */
class Kinds {
  static constexpr size_t LINES = 512, WIDTH = 8;
  struct alignas(64) Line {
    std::array<std::atomic<uint64_t>, WIDTH> kinds{};
  };
  std::unique_ptr<Line[]> lines{new Line[LINES]};

  /* 0 stands for none. */
  static uint64_t stated(uint64_t number) { return number ? number : 1; }
  Line &line(uint64_t number) const { return lines[number % LINES]; }

public:
  bool holds(uint64_t number) const {
    bool found = false;
    for (const auto &one : line(number).kinds)
      found |= one.load(std::memory_order_relaxed) == stated(number);
    return found;
  }

  void add(uint64_t number) {
    auto &kinds = line(number).kinds;
    for (auto &one : kinds) {
      uint64_t none = 0;
      if (one.compare_exchange_strong(none, stated(number), std::memory_order_relaxed)) return;
    }
    kinds[number / LINES % WIDTH].store(stated(number), std::memory_order_relaxed);
  }
};

/* Torch lets others call a kernel with boxed arguments alone, which are copied into memory of their
   own. Operators that models call often are called as torch calls them: by what stands in private. */
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
  Kinds kinds;

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

  bool passes(const Kind &kind) const { return kind.told && kinds.holds(kind.number); }

  /* What Python answers with ours(): if it passes all calls of this kind on from now on, so do we. */
  template <class Ours> decltype(auto) ask(const Kind &kind, Ours &&ours) {
    if (kind.told) says(clear);
    decltype(auto) made = ours();
    if (kind.told && says(passed)) kinds.add(kind.number);
    return made;
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
    if (kernel->passes(kind)) return kernel->original.callBoxed(op, keys, stack);
    kernel->ask(kind, [&] { return kernel->ours.callBoxed(op, keys, stack), nullptr; });
  }
};

template <class Schema> struct Typed;

template <class Result, class... Args> struct Typed<Result(const at::Tensor &, Args...)> {
  std::shared_ptr<Kernel> kernel;

  Result operator()(c10::DispatchKeySet keys, const at::Tensor &x, Args... args) {
    const auto call = [&](const c10::SafeKernelFunction &one) -> Result {
      return valid(one).call<Result, const at::Tensor &, Args...>(kernel->op, keys, x, args...);
    };
    if (!is_halved(x)) return call(kernel->original);
    Kind kind;
    kind.note(x), (kind.note(args), ...);
    if (kernel->passes(kind)) return call(kernel->original);
    return kernel->ask(kind, [&]() -> Result { return call(kernel->ours); });
  }
};

using Function = torch::CppFunction (*)(std::shared_ptr<Kernel>);

template <class Operator> torch::CppFunction typed(std::shared_ptr<Kernel> kernel) {
  return torch::CppFunction(Typed<typename Operator::schema>{std::move(kernel)});
}

constexpr std::pair<std::string_view, Function> TYPED[] = {
    {"mm", typed<at::_ops::mm>},
    {"mm.out", typed<at::_ops::mm_out>},
    {"addmm", typed<at::_ops::addmm>},
    {"addmm.out", typed<at::_ops::addmm_out>},
    {"bmm", typed<at::_ops::bmm>},
    {"bmm.out", typed<at::_ops::bmm_out>},
    {"baddbmm", typed<at::_ops::baddbmm>},
    {"baddbmm.out", typed<at::_ops::baddbmm_out>},
    {"convolution", typed<at::_ops::convolution>},
    {"convolution_backward", typed<at::_ops::convolution_backward>},
    {"_scaled_dot_product_flash_attention", typed<at::_ops::_scaled_dot_product_flash_attention>},
    {"_scaled_dot_product_cudnn_attention", typed<at::_ops::_scaled_dot_product_cudnn_attention>},
};

torch::CppFunction function_of(std::string_view name, std::shared_ptr<Kernel> kernel) {
  for (const auto &[known, made] : TYPED)
    if (known == name) return made(std::move(kernel));
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
