/* Calls of torch's operators that come by here, in C++: torch makes no Python objects of their
   arguments. Those that are torch's are passed on, and those that a kernel here served before are
   served alike. As runtime/passing.h, for installations whose C++ is compiled.

   before(operator, overload, key) -> front    remembers torch's own kernel; None if there is none
   put(front, clear, learn, count, launcher)   stands before the kernel in Python that was put since
   remove(front)                               takes it out again
   tell(front)                                 tells count() of all calls that were served

   A call of a kind that was passed on before goes to torch's kernel; so does one whose first tensor
   is in another dtype than fp16 and bf16. Any other goes to the kernel in Python. Before that,
   clear() is called, and behind it learn(), which says what becomes of calls of this kind:
       True                                       Python passes all of them on
       (mark, recipe, torch, token)               they may be served by this recipe until mark.forgotten;
                                                  count(token, number) is told of calls that were
       anything else                              Python is asked again
   launcher: the address of the launcher's `Recipes`. */

#include "../../runtime/with_torch.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/_scaled_dot_product_cudnn_attention_ops.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_ops.h>
#include <ATen/ops/addmm_ops.h>
#include <ATen/ops/baddbmm_ops.h>
#include <ATen/ops/bmm_ops.h>
#include <ATen/ops/convolution_backward_ops.h>
#include <ATen/ops/convolution_ops.h>
#include <ATen/ops/mm_ops.h>
#include <torch/library.h>

#include <array>
#include <atomic>
#include <bit>
#include <cstring>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <unordered_map>
#include <utility>

namespace {

const char *FRONT = "tilewright.front";

/* What runs at each call stands together, once, and apart from what runs at few: between two calls torch
   takes caches of instructions and of pages for itself, and each line and page of ours is fetched anew. */
#define AT_EACH_CALL __attribute__((hot, noinline))
#define AT_FEW_CALLS __attribute__((cold, noinline))

constexpr size_t SERVED = 4096; /* kinds that are served; beyond, all are asked about again */

/* What tells kinds of calls apart: words, and a number that they make. Of two kinds with the same
   number, the second would be passed on unasked, and torch's result is right too; what is served is
   held to the words. */
class Kind {
  std::array<uint64_t, 128> words;
  size_t count = 0;

public:
  bool told = true; /* whether all arguments say something here, and have room */

  Kind() { add(at::globalContext().deterministicAlgorithms()); }

  void add(uint64_t x) {
    if (count < words.size()) words[count++] = x;
    else told = false;
  }

  AT_EACH_CALL uint64_t number() const {
    uint64_t sum = count, place = 0;
    for (size_t i = 0; i < count; i++) {
      const auto wide =
          static_cast<unsigned __int128>(words[i] ^ (place += 0x9e3779b97f4a7c15)) * 0xd6e8feb86659fd93;
      sum += static_cast<uint64_t>(wide) ^ static_cast<uint64_t>(wide >> 64);
    }
    return sum;
  }

  std::vector<uint64_t> kept() const { return {words.begin(), words.begin() + count}; }
  bool is(const std::vector<uint64_t> &others) const {
    return others.size() == count && !std::memcmp(others.data(), words.data(), count * sizeof(uint64_t));
  }

  /* As runtime/passing.h has it, or kinds that are known there would be met here each time. */
  AT_EACH_CALL void note(const at::Tensor &x) {
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

  template <class List> AT_EACH_CALL void note_list(const List &list) {
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

/* Kinds that are passed on, eight to a line of the cache. Where a line is full, a kind gives way.
   Thread-safe. */
template <size_t LINES> class Kinds {
  static constexpr size_t WIDTH = 8;
  struct alignas(64) Line {
    std::array<std::atomic<uint64_t>, WIDTH> kinds{};
  };
  std::array<Line, LINES> lines;

  /* 0 stands for none. */
  static uint64_t stated(uint64_t number) { return number ? number : 1; }
  const Line &line(uint64_t number) const { return lines[number % LINES]; }

public:
  bool holds(uint64_t number) const {
    bool found = false;
    for (const auto &one : line(number).kinds)
      found |= one.load(std::memory_order_relaxed) == stated(number);
    return found;
  }

  void add(uint64_t number) {
    auto &kinds = lines[number % LINES].kinds;
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

/* How calls of a kind are served. */
struct Served {
  std::vector<uint64_t> kind;
  PyObject *mark, *recipe, *torch, *token;
  std::vector<Look> made;
  std::atomic<uint64_t> calls{0}; /* of which count() was not told */

  Served(std::vector<uint64_t> kind, PyObject *mark, PyObject *recipe, PyObject *torch, PyObject *token)
      : kind(std::move(kind)), mark(Py_NewRef(mark)), recipe(Py_NewRef(recipe)), torch(Py_NewRef(torch)),
        token(Py_NewRef(token)) {}
  Served(const Served &) = delete;
  ~Served() {
    if (!Py_IsInitialized()) return;
    Locked lock;
    for (PyObject *one : {mark, recipe, torch, token}) Py_DECREF(one);
  }
};

using Serving = std::shared_ptr<Served>;

/* Whose the calls of an operator are. What is read at each call is in one page. */
struct alignas(4096) Kernel {
  c10::OperatorHandle op;
  c10::SafeKernelFunction original, ours;
  Kinds<32> near;  /* kinds that were passed on lately */
  Kinds<512> kinds; /* that are passed on; where one gives way, it is asked about again */
  PyObject *clear, *learn, *count;
  const Recipes *launcher;
  std::mutex lock;
  std::unordered_map<uint64_t, Serving> served;

  Kernel(c10::OperatorHandle op, c10::SafeKernelFunction original, c10::SafeKernelFunction ours,
         PyObject *clear, PyObject *learn, PyObject *count, const Recipes *launcher)
      : op(op), original(std::move(original)), ours(std::move(ours)), clear(Py_NewRef(clear)),
        learn(Py_NewRef(learn)), count(Py_NewRef(count)), launcher(launcher) {}
  Kernel(const Kernel &) = delete;
  ~Kernel() {
    if (!Py_IsInitialized()) return;
    Locked held;
    for (PyObject *one : {clear, learn, count}) Py_DECREF(one);
  }

  bool passes(const Kind &kind, uint64_t number) {
    if (!kind.told) return false;
    return near.holds(number) || passed_before(number);
  }

  AT_FEW_CALLS bool passed_before(uint64_t number) {
    const bool found = kinds.holds(number);
    if (found) near.add(number);
    return found;
  }

  Serving serving(const Kind &kind, uint64_t number) {
    std::lock_guard<std::mutex> held(lock);
    const auto found = served.find(number);
    return found == served.end() || !kind.is(found->second->kind) ? nullptr : found->second;
  }

  /* The first output of a call on tensors at these addresses, launched as one before; undefined if
     that is left to Python. */
  __attribute__((noinline)) Tensor serve(const Serving &one, uint64_t number, const std::vector<uint64_t> &from) {
    if (!makes_plain()) return {};
    std::vector<uint64_t> at;
    std::vector<Tensor> outputs;
    for (const Look &like : one->made) {
      outputs.push_back(like.made());
      at.push_back(address_of(outputs.back()));
    }
    Locked held;
    if (is_forgotten(one->mark)) return forget(number), Tensor();
    Reference scalars(PyTuple_New(0));
    if (!scalars.to) raise();
    const int code = launcher->launch(one->recipe, one->torch, from.data(), at.data(), scalars.to);
    if (code < 0) raise();
    if (code) return {};
    one->calls++;
    return std::move(outputs.front());
  }

  /* With Python's lock, as are the next three. */
  void forget(uint64_t number) {
    Serving gone;
    {
      std::lock_guard<std::mutex> held(lock);
      const auto found = served.find(number);
      if (found == served.end()) return;
      gone = std::move(found->second);
      served.erase(found);
    }
    tell_of(*gone);
  }

  void tell_of(Served &one) {
    const uint64_t calls = one.calls.exchange(0);
    if (!calls) return;
    Reference done(PyObject_CallFunction(count, "OK", one.token, static_cast<unsigned long long>(calls)));
    if (!done.to) raise();
  }

  void tell() {
    std::vector<Serving> every;
    {
      std::lock_guard<std::mutex> held(lock);
      for (const auto &[number, one] : served) every.push_back(one);
    }
    for (const Serving &one : every) tell_of(*one);
  }

  /* may_serve: whether calls return one output that is made, and nothing else. */
  void follow(PyObject *answer, const Kind &kind, uint64_t number, bool may_serve) {
    if (answer == Py_True) return kinds.add(number);
    if (!may_serve || !PyTuple_Check(answer)) return;
    PyObject *mark, *recipe, *torch, *token;
    if (!PyArg_ParseTuple(answer, "OOOO", &mark, &recipe, &torch, &token)) raise();
    if (launcher->returned(recipe) != 1) return;
    auto one = std::make_shared<Served>(kind.kept(), mark, recipe, torch, token);
    one->made = looks_of_outputs(launcher, recipe);
    forget(number);
    if (served.size() >= SERVED) { /* Python's lock keeps others from adding more */
      tell();
      std::unordered_map<uint64_t, Serving> gone;
      std::lock_guard<std::mutex> held(lock);
      served.swap(gone);
    }
    std::lock_guard<std::mutex> held(lock);
    served[number] = std::move(one);
  }

  /* What Python answers with ours(), and what is learnt of it. */
  template <class Ours> AT_FEW_CALLS decltype(auto) ask(const Kind &kind, uint64_t number, bool may_serve, Ours &&ours) {
    if (kind.told) {
      Locked held;
      Reference done(PyObject_CallNoArgs(clear));
      if (!done.to) raise();
    }
    decltype(auto) made = ours();
    if (kind.told) {
      Locked held;
      Reference answer(PyObject_CallNoArgs(learn));
      if (!answer.to) raise();
      follow(answer.to, kind, number, may_serve);
    }
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
    const uint64_t number = kind.number();
    if (kernel->passes(kind, number)) return kernel->original.callBoxed(op, keys, stack);
    kernel->ask(kind, number, false, [&] { return kernel->ours.callBoxed(op, keys, stack), nullptr; });
  }
};

void note_address(std::vector<uint64_t> &addresses, const Tensor &x) {
  if (x.defined()) addresses.push_back(address_of(x));
}
void note_address(std::vector<uint64_t> &addresses, const std::optional<Tensor> &x) {
  if (x) note_address(addresses, *x);
}
template <class Other> void note_address(std::vector<uint64_t> &, const Other &) {}

template <class Schema> struct Typed;

template <class Result, class... Args> struct Typed<Result(const at::Tensor &, Args...)> {
  std::shared_ptr<Kernel> kernel;

  __attribute__((noinline)) Result otherwise(const Kind &kind, uint64_t number, c10::DispatchKeySet keys,
                                             const at::Tensor &x, Args... args) {
    constexpr bool may_serve = std::is_same_v<Result, Tensor>;
    if constexpr (may_serve) {
      if (const Serving one = kind.told ? kernel->serving(kind, number) : nullptr) {
        std::vector<uint64_t> from;
        note_address(from, x), (note_address(from, args), ...);
        if (Tensor made = kernel->serve(one, number, from); made.defined()) return made;
      }
    }
    return kernel->ask(kind, number, may_serve, [&]() -> Result {
      return valid(kernel->ours).call<Result, const at::Tensor &, Args...>(kernel->op, keys, x, args...);
    });
  }

  __attribute__((hot)) Result operator()(c10::DispatchKeySet keys, const at::Tensor &x, Args... args) {
    const auto call = [&](const c10::SafeKernelFunction &one) -> Result {
      return valid(one).template call<Result, const at::Tensor &, Args...>(kernel->op, keys, x, args...);
    };
    if (!is_halved(x)) return call(kernel->original);
    Kind kind;
    kind.note(x), (kind.note(args), ...);
    const uint64_t number = kind.number();
    if (kernel->passes(kind, number)) return call(kernel->original);
    return otherwise(kind, number, keys, x, args...);
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
  std::shared_ptr<Kernel> kernel;
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
  auto *made = new Front{op, key, std::move(whole), op.getComputedKernelForDispatchKey(key), nullptr,
                         std::nullopt};
  PyObject *capsule = PyCapsule_New(made, FRONT, discard);
  if (!capsule) delete made;
  return capsule;
  END_HANDLE_TH_ERRORS
}

PyObject *put(PyObject *, PyObject *args) {
  HANDLE_TH_ERRORS
  PyObject *capsule, *clear, *learn, *count;
  unsigned long long launcher;
  if (!PyArg_ParseTuple(args, "OOOOK", &capsule, &clear, &learn, &count, &launcher)) return nullptr;
  Front *front = front_of(capsule);
  if (!front) return nullptr;
  front->kernel = std::make_shared<Kernel>(
      front->op, front->original, front->op.getComputedKernelForDispatchKey(front->key), clear, learn, count,
      reinterpret_cast<const Recipes *>(static_cast<uintptr_t>(launcher)));
  front->library.emplace(torch::Library::IMPL, "aten", front->key, __FILE__, __LINE__);
  front->library->impl(front->name.c_str(), function_of(front->name, front->kernel));
  Py_RETURN_NONE;
  END_HANDLE_TH_ERRORS
}

PyObject *take_out(PyObject *, PyObject *capsule) {
  HANDLE_TH_ERRORS
  Front *front = front_of(capsule);
  if (!front) return nullptr;
  front->library.reset();
  if (front->kernel) front->kernel->tell();
  front->kernel.reset();
  Py_RETURN_NONE;
  END_HANDLE_TH_ERRORS
}

PyObject *tell(PyObject *, PyObject *capsule) {
  HANDLE_TH_ERRORS
  Front *front = front_of(capsule);
  if (!front) return nullptr;
  if (front->kernel) front->kernel->tell();
  Py_RETURN_NONE;
  END_HANDLE_TH_ERRORS
}

PyMethodDef methods[] = {
    {"before", before, METH_VARARGS, "Remembers torch's own kernel of an operator."},
    {"put", put, METH_VARARGS, "Stands before the kernel that was put since."},
    {"remove", take_out, METH_O, "Takes it out again."},
    {"tell", tell, METH_O, "Tells of the calls that were served."},
    {nullptr, nullptr, 0, nullptr},
};

PyModuleDef module = {PyModuleDef_HEAD_INIT, "passing", nullptr, -1, methods,
                      nullptr, nullptr, nullptr, nullptr};

} // namespace

PyMODINIT_FUNC PyInit_passing(void) { return know_words() ? PyModule_Create(&module) : nullptr; }
