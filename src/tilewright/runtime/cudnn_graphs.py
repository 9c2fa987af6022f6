"""What cuDNN computes in a step, as the operations of its backend API (cudnn_graph.h of version 9,
whose numbers are those here).

Tensors that a call gives are numbered from 1, in the order of the step's arguments; those between
operations come behind them. A number that a call gives is a tensor of one element in memory of the
host.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from tilewright.ops.library_attention import Attention, Gradients
from tilewright.ops.library_convolution import Convolution
from tilewright.ops.library_engine import Tensor

# cudnnBackendAttributeType_t
DTYPE, BOOL, INT64, FLOAT, MODE, POINTWISE, DESCRIPTOR, REDUCTION = 1, 2, 3, 4, 7, 14, 15, 18

# cudnnDataType_t
_DTYPES = {"fp32": 0, "fp16": 2, "int32": 4, "bf16": 9, "bool": 11, "e4m3fn": 12, "e5m2": 13}

# cudnnBackendDescriptorType_t
_CONVOLUTION, _POINTWISE, _POINTWISE_STEP, _TENSOR = 1, 0, 13, 17
_MATMUL, _MATMUL_STEP, _REDUCTION, _REDUCTION_STEP, _RESHAPE_STEP = 18, 19, 21, 22, 31

# cudnnPointwiseMode_t
_ADD, _MULTIPLY, _DIVIDE, _SUBTRACT, _EXP, _LOG, _SAME = 0, 1, 6, 9, 13, 15, 21
_AT_LEAST, _INDEX, _SELECT = 303, 501, 601

# cudnnReduceTensorOp_t
_SUM, _MAXIMUM, _LARGEST = 0, 3, 4

_CONVOLUTIONS: dict[str, tuple[int, int, tuple[int, int, int]]] = {
    "y": (10, 700, (704, 703, 705)),
    "x": (12, 706, (710, 709, 711)),
    "w": (11, 712, (716, 715, 717)),
}
"""By what is made: the operation's descriptor, the first of its attributes (alpha, beta, the
convolution follow each other), and those of x, w and y."""

MOST = 20
"""Tensors that a call may give; as in graph.h."""

_ALONE = 4
"""Bytes that a tensor of 32-bit elements is aligned to at least."""

Made = Callable[..., int]
"""Makes a descriptor, finished: of its type, and of attributes (number, type, values)."""


class Graph:
    """Operations, as descriptors.

    made: see `Made`. alignment: bytes that the addresses of tensors are multiples of.
    given: how many tensors a call gives. values: which of them are numbers, a bit for each;
    positive: which of these must be above 0.
    """

    def __init__(self, made: Made, alignment: int) -> None:
        self.made, self._alignment = made, alignment
        self.operations: list[int] = []
        self.given = self.values = self.positive = 0
        self._virtual = MOST
        self._tensors: dict[int, Tensor] = {}

    def tensor(self, tensor: Tensor, alignment: int = 0) -> int:
        """A tensor that a call gives. alignment: 0 for the usual one."""
        self.given += 1
        return self._tensor(self.given, tensor, alignment or self._alignment)

    def number(self, dtype: str, positive: bool = False) -> int:
        """A number that a call gives. positive: it must be above 0."""
        self.values |= 1 << self.given
        self.positive |= positive << self.given
        self.given += 1
        return self._tensor(self.given, _one(dtype), _ALONE, (908, BOOL, (True,)))

    def between(self, shape: Sequence[int], dtype: str = "fp32") -> int:
        """A contiguous tensor between operations, which lies in no memory."""
        return self._between(_dense(dtype, shape))

    def _between(self, tensor: Tensor) -> int:
        self._virtual += 1
        return self._tensor(self._virtual, tensor, 16, (907, BOOL, (True,)))

    def _tensor(self, uid: int, tensor: Tensor, alignment: int, *more: Any) -> int:
        made = self.made(
            _TENSOR,
            (900, INT64, (alignment,)),
            (901, DTYPE, (_DTYPES[tensor.dtype],)),
            (902, INT64, tensor.shape),
            (903, INT64, tensor.strides),
            (906, INT64, (uid,)),
            *more,
        )
        self._tensors[made] = tensor
        return made

    def shape(self, tensor: int) -> tuple[int, ...]:
        """A tensor's."""
        return self._tensors[tensor].shape

    def dtype(self, tensor: int) -> str:
        """A tensor's."""
        return self._tensors[tensor].dtype

    def add(self, kind: int, *attributes: Any) -> None:
        """An operation."""
        self.operations.append(self.made(kind, *attributes))

    def matmul(self, a: int, b: int, product: int) -> None:
        """Products of matrices, summed in fp32."""
        how = self.made(_MATMUL, (1500, DTYPE, (_DTYPES["fp32"],)))
        self.add(_MATMUL_STEP, *_described((1520, a), (1521, b), (1522, product), (1523, how)))

    def pointwise(
        self, mode: int, x: int, *others: int, into: int = 0, dtype: str = "fp32", axis: int = -1
    ) -> int:
        """An operation on each element of `x`; returns its result.

        others: the second operand, and the third, which says where to take the first. into: the
        result, if it is no tensor between operations. dtype: of the result; integers and booleans
        are computed as such. axis: of `_INDEX`, which dimension's.
        """
        into = into or self.between(self.shape(x), dtype)
        computed = dtype if dtype in ("int32", "bool") and mode != _INDEX else "fp32"
        along = ((9, INT64, (axis,)),) if mode == _INDEX else ()
        of = (0, POINTWISE, (mode,)), (1, DTYPE, (_DTYPES[computed],)), *along
        how = self.made(_POINTWISE, *of)
        operands = zip((752, 758), others, strict=False)
        self.add(_POINTWISE_STEP, *_described((750, how), (751, x), (753, into), *operands))
        return into

    def reduce(self, operator: int, x: int, into: int = 0) -> int:
        """A reduction, in fp32; returns its result.

        into: the result, whose dimensions say what is reduced; else it is the last one, into a
        tensor between operations.
        """
        into = into or self.between((*self.shape(x)[:-1], 1))
        how = self.made(
            _REDUCTION, (1600, REDUCTION, (operator,)), (1601, DTYPE, (_DTYPES["fp32"],))
        )
        self.add(_REDUCTION_STEP, *_described((1610, x), (1611, into), (1612, how)))
        return into

    def transposed(self, x: int, dtype: str) -> int:
        """Each matrix of `x`, transposed, as it lies."""
        into = self._between(replace(_transposed(self._tensors[x]), dtype=dtype))
        self.add(_RESHAPE_STEP, *_described((2200, x), (2201, into)))
        return into


def _described(*pairs: tuple[int, int]) -> list[tuple[int, int, tuple[int]]]:
    """Attributes that are descriptors."""
    return [(number, DESCRIPTOR, (one,)) for number, one in pairs]


def graph_of(made: Made, asked: Convolution | Attention) -> Graph:
    """What computes what is asked."""
    graph = Graph(made, asked.alignment)
    if isinstance(asked, Convolution):
        _convolution(graph, asked)
    elif asked.gradients is None:
        _attention(graph, asked)
    else:
        _gradients(graph, asked, asked.gradients)
    return graph


def _convolution(graph: Graph, asked: Convolution) -> None:
    """One operation. A call gives x, w and y."""
    kind, first, places = _CONVOLUTIONS[asked.made]
    tensors = [graph.tensor(one) for one in (asked.x, asked.w, asked.y)]
    convolution = graph.made(
        _CONVOLUTION,
        (100, DTYPE, (_DTYPES["fp32"],)),  # of the sums
        (101, MODE, (1,)),  # cross-correlation: filters as torch has them
        (102, INT64, asked.dilation),
        (103, INT64, asked.stride),
        (104, INT64, asked.pad),
        (105, INT64, asked.pad),
        (106, INT64, (len(asked.stride),)),
    )
    graph.add(
        kind,
        (first, FLOAT, (1.0,)),
        (first + 1, FLOAT, (0.0,)),
        *_described((first + 2, convolution), *zip(places, tensors, strict=True)),
    )


def _attention(graph: Graph, asked: Attention) -> None:
    """The operations that the library's engines for attention look for, in their order, which also
    end in the logarithms where nobody wants them.

    A call gives q, k, v, o; lse, if it is wanted; the scale; in fp8 what `_scales` returns; under a
    mask the score of hidden keys; under a diagonal from the bottom right the numbers of keys and of
    queries.
    """
    a = asked
    q, k, v, o = map(graph.tensor, (a.q, _transposed(a.k), a.v, a.o))
    lse = graph.tensor(a.lse, _ALONE) if a.lse else graph.between((*a.q.shape[:3], 1))
    products = graph.between((*a.q.shape[:3], a.k.shape[2]))
    graph.matmul(q, k, products)
    scores = graph.pointwise(_MULTIPLY, products, _scale(graph))
    scales = _scales(graph, a) if a.in_fp8 else []
    for of_operand in scales[:2]:
        scores = graph.pointwise(_MULTIPLY, scores, of_operand)
    if a.diagonal:
        scores = _masked(graph, scores, a.diagonal == "bottom_right")
    most = graph.reduce(_MAXIMUM, scores)
    weights = graph.pointwise(_EXP, graph.pointwise(_SUBTRACT, scores, most))
    sums = graph.reduce(_SUM, weights)
    graph.pointwise(_ADD, most, graph.pointwise(_LOG, sums), into=lse)
    shares = graph.pointwise(_DIVIDE, weights, sums, dtype="fp32" if scales else a.v.dtype)
    if scales:
        _scaled_values(graph, shares, v, o, scales[2:])
    else:
        graph.matmul(shares, v, o)


def _scales(graph: Graph, asked: Attention) -> list[int]:
    """In fp8: the scales of Q, K and V; and the factors of weights before they are rounded, of
    products with values, and of O."""
    operands = [
        graph.tensor(_one("fp32"), _ALONE) if asked.scaled else graph.number("fp32") for _ in "qkv"
    ]
    return [*operands, *(graph.number("fp32") for _ in range(3))]


def _scaled_values(graph: Graph, shares: int, v: int, o: int, scales: Sequence[int]) -> None:
    """The second product in fp8. The library's engines look for all of these operations, and for
    O's largest magnitude before its factor, which nobody wants. Engine 2 of cuDNN 9.19 takes any
    operation for that factor's product, a division too."""
    of_v, raised, lowered, of_o = scales
    values = graph.between(graph.shape(o))
    dtype = graph.dtype(v)
    graph.matmul(graph.pointwise(_MULTIPLY, shares, raised, dtype=dtype), v, values)
    values = graph.pointwise(_MULTIPLY, graph.pointwise(_MULTIPLY, values, lowered), of_v)
    graph.pointwise(_MULTIPLY, values, of_o, into=o)
    graph.reduce(_LARGEST, values, graph.between((1,) * 4))


def _gradients(graph: Graph, asked: Attention, of: Gradients) -> None:
    """The operations that the library's engines for gradients look for, in their order.

    A call gives q, k, v, o, do, lse, dq, dk, dv; memory for delta, the sum of o · do of each row; 1
    and the scale; what `_attention` is given under a mask; and memory for dq in fp32.
    """
    a, dtype = asked, asked.q.dtype
    assert a.lse is not None
    q, k, v = map(graph.tensor, (a.q, _transposed(a.k), _transposed(a.v)))
    o, do = map(graph.tensor, (a.o, of.do))
    lse = graph.tensor(a.lse, _ALONE)
    dq, dk, dv = map(graph.tensor, (of.dq, of.dk, of.dv))
    rows, pairs = a.lse.shape, (*a.q.shape[:3], a.k.shape[2])
    delta = graph.tensor(_dense("fp32", rows))
    one, scale = graph.number("fp32"), _scale(graph)
    graph.pointwise(
        _MULTIPLY, graph.reduce(_SUM, graph.pointwise(_MULTIPLY, do, o)), one, into=delta
    )
    products = graph.between(pairs)
    graph.matmul(q, k, products)
    scores = graph.pointwise(_SUBTRACT, graph.pointwise(_MULTIPLY, products, scale), lse)
    if a.diagonal:
        scores = _masked(graph, scores, a.diagonal == "bottom_right")
    shares = graph.pointwise(_EXP, scores)
    _summed(graph, graph.transposed(shares, dtype), do, dv, a)
    weighed = graph.between(pairs)
    graph.matmul(do, v, weighed)
    weighed = graph.pointwise(_SUBTRACT, weighed, delta)
    of_scores = graph.pointwise(_MULTIPLY, graph.pointwise(_MULTIPLY, weighed, shares), scale)
    _summed(graph, graph.transposed(of_scores, dtype), q, dk, a)
    sums = graph.tensor(_dense("fp32", a.q.shape))
    graph.matmul(of_scores, graph.transposed(k, dtype), sums)
    graph.pointwise(_SAME, sums, into=dq)


def _summed(graph: Graph, weights: int, rows: int, into: int, a: Attention) -> None:
    """Products with a head's rows, added up over the heads that share keys."""
    if a.q.shape[1] == a.k.shape[1]:
        graph.matmul(weights, rows, into)
        return
    each = graph.between((*a.q.shape[:2], *graph.shape(into)[2:]), a.q.dtype)
    graph.matmul(weights, rows, each)
    graph.reduce(_SUM, each, into)


def _one(dtype: str) -> Tensor:
    """A tensor of one element."""
    return Tensor(dtype, (1,) * 4, (1,) * 4)


def _scale(graph: Graph) -> int:
    """The softmax's scale. The library takes the largest product for the largest score: under a
    scale of 0 or less, engine 2 of cuDNN 9.19 computes NaN on an H200."""
    return graph.number("fp32", positive=True)


def _masked(graph: Graph, scores: int, bottom_right: bool) -> int:
    """Scores, of keys at most as far as their query; another number of the others."""
    hidden = graph.number("fp32")
    query = graph.pointwise(_INDEX, scores, dtype="int32", axis=2)
    key = graph.pointwise(_INDEX, scores, dtype="int32", axis=3)
    if bottom_right:
        query = graph.pointwise(_ADD, query, graph.number("int32"), dtype="int32")
        query = graph.pointwise(_SUBTRACT, query, graph.number("int32"), dtype="int32")
    seen = graph.pointwise(_AT_LEAST, query, key, dtype="bool")
    return graph.pointwise(_SELECT, scores, hidden, seen)


def _transposed(k: Tensor) -> Tensor:
    """Each matrix of a tensor, transposed."""
    (*outer, rows, columns), (*apart, row, column) = k.shape, k.strides
    return replace(k, shape=(*outer, columns, rows), strides=(*apart, column, row))


def _dense(dtype: str, shape: Sequence[int]) -> Tensor:
    """A contiguous tensor."""
    strides = [1]
    for size in reversed(shape[1:]):
        strides.insert(0, strides[0] * size)
    return Tensor(dtype, tuple(shape), tuple(strides))
