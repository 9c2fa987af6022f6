"""Epilogues: operations on the sums of a product or a convolution, in fp32, before they are stored.

An epilogue is a chain of operations, joined by ``+`` and applied in order: ``"bias+gelu"``,
``"row_scale+col_scale"``, ``"scale+bias+silu+add"``. `OPERATIONS` is the one table of them; their
device functions are in `ops/device/epilogue.py`. An operation of your own is one more entry:

    # my_kernels.py, importable (the compiler's process imports it too)
    @triton.jit
    def squared_relu(acc):
        return tl.where(acc > 0, acc * acc, 0.0)

    register(Operation("squared_relu", "my_kernels:squared_relu", "max(x, 0)²",
                       lambda x: x.clip(0) ** 2, amplifies=4))

A device function takes the fp32 tile and then its operands, fp32 too and shaped to broadcast
against it (a vector over N is 1 × N, one over M is M × 1, a scalar is a scalar).
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from tilewright.dtypes import DTYPES
from tilewright.errors import BadArgument, nearest
from tilewright.ops import derivatives
from tilewright.ops.derivatives import Derivative

KINDS = {
    "n": "vector over C's columns",
    "m": "vector over C's rows",
    "d": "matrix of C's shape",
    "s": "scalar on the device",
}
"""The kinds of operands that an operation can have, by the kernels' letter for the kind."""

MAX_OPERANDS = 12
"""Most operands of all operations of a GEMM together. The launcher has no limit; more is a slip."""
_MOST_EACH = 2


@dataclass(frozen=True, slots=True)
class Takes:
    """An operand of an operation.

    kind: a letter of `KINDS`.
    dtype: ``""`` for C's own dtype (bf16 if C is 8-bit).
    values: the size of random values: ``normal``, ``scale`` (positive and moderate), ``below`` or
    ``above`` (about as far from 0 as a usual sum).
    """

    name: str
    kind: str
    dtype: str = ""
    values: str = "normal"


@dataclass(frozen=True, slots=True)
class Operation:
    """One step of an epilogue.

    name: lower-case letters, digits and underscores.
    function: ``"module:function"``, a Triton function of the tile and the operands.
    doc: one line.
    reference: the same on float64 arrays, NumPy or torch.
    takes: its operands, at most 2.
    amplifies: the factor by which an error can grow, relative to the rms of the values.
    halves: gated pairs: two columns become one.
    gradient: the derivative; without it, a GEMM with this operation has no gradients.
    """

    name: str
    function: str
    doc: str
    reference: Callable[..., Any]
    takes: tuple[Takes, ...] = ()
    amplifies: float = 1.0
    halves: bool = False
    gradient: Derivative | None = None

    @property
    def scales(self) -> bool:
        """Whether the operation only multiplies by scales. An 8-bit C needs such an operation
        last."""
        return bool(self.takes) and all(t.values == "scale" for t in self.takes)


# --- references: float64, NumPy or torch ------------------------------------------------------


def _exp(x: Any) -> Any:
    if hasattr(x, "exp"):
        return x.exp()
    import numpy as np

    with np.errstate(over="ignore"):
        return np.exp(x)


def erf(x: Any) -> Any:
    if hasattr(x, "erf"):
        return x.erf()
    import numpy as np

    return np.vectorize(math.erf, otypes=[np.float64])(x)


def _sigmoid(x: Any) -> Any:
    return x.sigmoid() if hasattr(x, "sigmoid") else 1.0 / (1.0 + _exp(-x))


def _silu(x: Any) -> Any:
    return x * _sigmoid(x)


def _gelu_tanh(x: Any) -> Any:
    inner = math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)
    return x * _sigmoid(2.0 * inner)


def _gelu(x: Any) -> Any:
    return 0.5 * x * (1.0 + erf(x / math.sqrt(2)))


def _halves(x: Any) -> tuple[Any, Any]:
    """Gates and ups."""
    return x[..., 0::2], x[..., 1::2]


def _gated(activation: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def reference(x: Any) -> Any:
        gate, up = _halves(x)
        return activation(gate) * up

    return reference


def _clamped_swiglu(plus: float) -> Callable[[Any, Any, Any], Any]:
    def reference(x: Any, limit: Any, alpha: Any) -> Any:
        gate, up = _halves(x)
        gate = gate.clip(None, limit)
        return gate / (1.0 + _exp(-alpha * gate)) * (up.clip(-limit, limit) + plus)

    return reference


# --- the table --------------------------------------------------------------------------------

_OWN = "tilewright.ops.device.epilogue:"
_GATES = "tilewright.ops.device.gates:"

OPERATIONS: dict[str, Operation] = {
    o.name: o
    for o in (
        Operation(
            "bias",
            _OWN + "plus",
            "adds a value to each column",
            lambda x, bias: x + bias,
            (Takes("bias", "n"),),
            gradient=derivatives.ADDED,
        ),
        Operation(
            "row_scale",
            _OWN + "times",
            "multiplies each row by its scale",
            lambda x, scale: x * scale,
            (Takes("row_scale", "m", "fp32", "scale"),),
            amplifies=2,
            gradient=derivatives.MULTIPLIED,
        ),
        Operation(
            "col_scale",
            _OWN + "times",
            "multiplies each column by its scale",
            lambda x, scale: x * scale,
            (Takes("col_scale", "n", "fp32", "scale"),),
            amplifies=2,
            gradient=derivatives.MULTIPLIED,
        ),
        Operation(
            "scale",
            _OWN + "times",
            "multiplies all by one scale",
            lambda x, scale: x * scale,
            (Takes("scale", "s", "fp32", "scale"),),
            gradient=derivatives.MULTIPLIED,
        ),
        Operation(
            "relu",
            _OWN + "relu",
            "max(x, 0)",
            lambda x: x.clip(0),
            amplifies=2,
            gradient=derivatives.RELU,
        ),
        Operation(
            "gelu",
            _OWN + "gelu",
            "x·Φ(x), by the error function",
            _gelu,
            amplifies=3,
            gradient=derivatives.GELU,
        ),
        Operation(
            "gelu_tanh",
            _OWN + "gelu_tanh",
            "its approximation by tanh",
            _gelu_tanh,
            amplifies=3,
            gradient=derivatives.GELU_TANH,
        ),
        Operation(
            "silu",
            _OWN + "silu",
            "x / (1 + exp(-x))",
            _silu,
            amplifies=3,
            gradient=derivatives.SILU,
        ),
        Operation(
            "add",
            _OWN + "plus",
            "adds a matrix (a residual)",
            lambda x, other: x + other,
            (Takes("add", "d"),),
            gradient=derivatives.ADDED,
        ),
        Operation(
            "mul",
            _OWN + "times",
            "multiplies by a matrix, element by element",
            lambda x, other: x * other,
            (Takes("mul", "d"),),
            amplifies=8,
            gradient=derivatives.MULTIPLIED,
        ),
        Operation(
            "clamp",
            _OWN + "clamp",
            "to between two values; NaN stays",
            lambda x, low, high: x.clip(low, high),
            (Takes("low", "s", "fp32", "below"), Takes("high", "s", "fp32", "above")),
            amplifies=4,
            gradient=derivatives.CLAMP,
        ),
        Operation(
            "swiglu",
            _OWN + "swiglu",
            "silu(gate)·up; B's columns are gate, up, gate, up…, C has half as many",
            _gated(_silu),
            amplifies=16,
            halves=True,
            gradient=derivatives.SWIGLU,
        ),
        *(
            Operation(
                name,
                _GATES + name,
                f"as swiglu, with {doc}",
                _gated(f),
                amplifies=16,
                halves=True,
                gradient=gradient,
            )
            for name, doc, f, gradient in (
                ("geglu", "gelu(gate)", _gelu, derivatives.GEGLU),
                ("geglu_tanh", "gelu_tanh(gate)", _gelu_tanh, derivatives.GEGLU_TANH),
                ("reglu", "max(gate, 0)", lambda x: x.clip(0), derivatives.REGLU),
                ("glu", "σ(gate)", lambda x: 1.0 / (1.0 + _exp(-x)), derivatives.GLU),
            )
        ),
        *(
            Operation(
                name,
                _GATES + name,
                f"as swiglu: a·σ(alpha·a)·{b}, a = min(gate, limit), b = up within ±limit",
                _clamped_swiglu(plus),
                (Takes("limit", "s", "fp32", "above"), Takes("alpha", "s", "fp32", "scale")),
                amplifies=16,
                halves=True,
                gradient=derivatives.clamped_swiglu(plus),
            )
            for name, b, plus in (
                ("clamped_swiglu", "b", 0.0),
                ("clamped_swiglu_plus", "(b + 1)", 1.0),
            )
        ),
    )
}
"""Every operation, by name."""

OWN = frozenset(OPERATIONS)
"""Those of the package, whose references compute tensors of any floating dtype."""

_NAME = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*")


def register(operation: Operation) -> None:
    """Add an operation of your own. Its name becomes part of kernel names. Registering the same
    operation again changes nothing. Raises `BadArgument` for an operation that no kernel could
    use."""
    o = operation
    module, colon, function = o.function.partition(":")
    if not _NAME.fullmatch(o.name):
        raise BadArgument(f"'{o.name}' is no name for an operation: letters, digits, single _")
    if not (module and colon and function):
        raise BadArgument(f"function '{o.function}' of {o.name} is not 'module:function'")
    if module == "__main__":
        raise BadArgument(
            f"the function of {o.name} is in the script itself, which the compiler's process does "
            "not run; put it in a module"
        )
    if len(o.takes) > _MOST_EACH:
        raise BadArgument(f"{o.name} takes {len(o.takes)} operands, over {_MOST_EACH}")
    for t in o.takes:
        if t.kind not in KINDS:
            raise BadArgument(f"{o.name}: kind '{t.kind}' is not one of {', '.join(KINDS)}")
    known = OPERATIONS.get(o.name)
    if known is not None and known != o:
        raise BadArgument(f"there is another operation called {o.name}: {known.doc}")
    OPERATIONS[o.name] = o


def parse(epilogue: str) -> tuple[Operation, ...]:
    """The chain's operations. Raises `BadArgument` for an unknown operation or an impossible
    order."""
    if not isinstance(epilogue, str):
        raise BadArgument(f"an epilogue is words joined by +, not {epilogue!r}")
    return _parsed(epilogue)


@lru_cache(maxsize=1024)
def _parsed(epilogue: str) -> tuple[Operation, ...]:
    chain = []
    for name in epilogue.split("+") if epilogue else ():
        if name not in OPERATIONS:
            raise BadArgument(
                f"unknown operation '{name}' in epilogue '{epilogue}'{nearest(name, OPERATIONS)}; "
                f"known: {', '.join(OPERATIONS)}"
            )
        chain.append(OPERATIONS[name])
    halving = [i for i, o in enumerate(chain) if o.halves]
    if len(halving) > 1:
        raise BadArgument(f"epilogue '{epilogue}' halves the columns more than once")
    if halving and any(t.kind == "d" for o in chain[: halving[0]] for t in o.takes):
        raise BadArgument(
            f"epilogue '{epilogue}': a matrix has C's shape, so it comes after "
            f"{chain[halving[0]].name}"
        )
    count = sum(len(o.takes) for o in chain)
    if count > MAX_OPERANDS:
        raise BadArgument(f"epilogue '{epilogue}' takes {count} operands, over {MAX_OPERANDS}")
    return tuple(chain)


@lru_cache(maxsize=1024)
def takes(epilogue: str) -> tuple[Takes, ...]:
    """The chain's operands, in order."""
    return tuple(t for o in parse(epilogue) for t in o.takes)


def kinds(epilogue: str) -> str:
    """What the operations of a chain take, as kernels read it: ``"n,,ss"``."""
    return ",".join("".join(t.kind for t in o.takes) for o in parse(epilogue))


def operand_names(*chains: str, after: Iterable[str] = ()) -> tuple[tuple[str, ...], ...]:
    """The names of the operands of each chain. If an operation occurs twice, or a name is one of
    `after`, its operands' names are numbered: ``add``, ``add_2``."""
    seen = Counter(after)
    named = []
    for chain in chains:
        found = []
        for taken in takes(chain):
            seen[taken.name] += 1
            count = seen[taken.name]
            found.append(taken.name if count == 1 else f"{taken.name}_{count}")
        named.append(tuple(found))
    return tuple(named)


@lru_cache(maxsize=1024)
def chain_names(epilogue: str) -> tuple[str, ...]:
    """The names of an epilogue's operands."""
    return operand_names(epilogue)[0]


def chain_lowered(*chains: str) -> frozenset[str]:
    """Names of the operands of chains that have the dtype of the matrices: all but scales and
    bounds."""
    return frozenset(
        name
        for chain, named in zip(chains, operand_names(*chains), strict=True)
        for name, taken in zip(named, takes(chain), strict=True)
        if not taken.dtype
    )


@lru_cache(maxsize=1024)
def fold(epilogue: str) -> int:
    """Columns of A·B for each column of C: 1, or 2."""
    return 2 if any(o.halves for o in parse(epilogue)) else 1


def columns(epilogue: str, n: int) -> tuple[int, ...]:
    """For each operand of the chain, the number of columns that the chain has there, starting from
    `n`."""
    found: list[int] = []
    for o in parse(epilogue):
        found += [n] * len(o.takes)
        n //= 2 if o.halves else 1
    return tuple(found)


@lru_cache(maxsize=1024)
def before_fold(epilogue: str) -> bool:
    """Whether an operand of the chain has an element for each column that is halved later."""
    chain = parse(epilogue)
    last = max((i for i, o in enumerate(chain) if o.halves), default=0)
    return any(t.kind in "nd" for o in chain[:last] for t in o.takes)


@lru_cache(maxsize=1024)
def has_matrix(epilogue: str) -> bool:
    """Whether an operand of the chain is a matrix."""
    return any(t.kind == "d" for t in takes(epilogue))


def every_operand() -> Iterator[Takes]:
    """The operands of all operations that there are."""
    for one in OPERATIONS.values():
        yield from one.takes


def operand_dtype(given: Takes, dtype_c: str) -> str:
    """The dtype of an operand if C is `dtype_c`."""
    return given.dtype or ("bf16" if DTYPES[dtype_c].bits == 8 else dtype_c)


def amplification(epilogue: str) -> float:
    """The factor by which the chain can raise an error relative to the result's rms, for
    `tolerance`."""
    chain = parse(epilogue)
    return math.prod(o.amplifies for o in chain) if chain else 0.0


def reference(epilogue: str, product: Any, operands: Sequence[Any]) -> Any:
    """The chain applied to a float64 product, with the caller's operands in float64."""
    left = iter(operands)
    shapes = {"n": (1, -1), "m": (-1, 1), "s": ()}
    for o in parse(epilogue):
        given = []
        for t in o.takes:
            x = next(left)
            given.append(x if t.kind == "d" else x.reshape(shapes[t.kind]))
        product = o.reference(product, *given)
    return product
