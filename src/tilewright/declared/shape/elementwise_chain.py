"""A chain of operations on elements, with up to three operands that are broadcast.

    y = fₖ(… f₂(f₁(x, operands), operands) …), in one pass

The operations are the words of GEMM's epilogues (`tilewright.ops.epilogues`), those of the user's
own among them, and further ones, such as ``div``. The operands are theirs, in order:
``mul+add+gelu`` is gelu(x · a + b).
`elementwise` broadcasts as torch does and states it in four dimensions (CK's ``elementwise``).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from tilewright import dtypes, parameters
from tilewright.custom import Declaration, Gradient, In, Out, declare, kernel
from tilewright.custom.declaration import Array
from tilewright.declared import _views
from tilewright.declared._arrays import clipped, functions
from tilewright.declared._quotients import divisors
from tilewright.declared.shape import _forms, _problems, _slopes, _tiles, _windows, _words
from tilewright.dtypes import DTYPES
from tilewright.errors import BadArgument, shown
from tilewright.tolerance import Tolerance, tolerance

DIMENSIONS = 4
SIZES = tuple(f"n{i}" for i in range(DIMENSIONS))
WHOLE = (1 << DIMENSIONS) - 1
NAMES = ("x", "a", "b", "c")
OTHERS = NAMES[1:]
LANES = 132 * 2048
"""Of an H200 (its data sheet)."""
FEW_BYTES = 16
"""Of each lane, as `_tiles.LANE_BYTES`, where not all lanes get twice as many. Of three such chains
an H200 took 0.87, 0.97 and 0.98 of the time (benchmarks/results/operations_few_h200.json)."""
VECTOR = 16
"""Most bytes that a lane moves at once."""
MOST_BITS = 16
"""Bits of operands that are whole numbers: fp32 holds all of them."""


def sizes(problem: Any) -> tuple[int, ...]:
    return tuple(getattr(problem, name) for name in SIZES)


def there(said: Any) -> list[str]:
    """The operands that a problem or a config has."""
    return ["x", *(name for name in OTHERS if getattr(said, f"has_{name}"))]


def over(said: Any, name: str) -> list[int]:
    """The dimensions that an operand has."""
    bits = getattr(said, f"{name}_over")
    return [i for i in range(DIMENSIONS) if bits >> (DIMENSIONS - 1 - i) & 1]


def shape(name: str) -> tuple[str, ...]:
    """An operand's shape, as arithmetic on the sizes and on the bits of ``NAME_over``."""
    bits = range(DIMENSIONS - 1, -1, -1)
    return tuple(f"(n{3 - i} - 1) * ({name}_over // {1 << i} % 2) + 1" for i in bits)


def shape_of(problem: Any, name: str) -> tuple[int, ...]:
    has = over(problem, name)
    return tuple(n if i in has else 1 for i, n in enumerate(sizes(problem)))


def strides(name: str) -> tuple[str, ...]:
    return tuple(f"{name}_s{i}" for i in range(DIMENSIONS))


def drawn(name: str, problem: Any, rng: Any) -> Any:
    """Values that are made up for an operand, as its operation takes them."""
    made = rng.standard_normal(shape_of(problem, name))
    kinds = [taken.values for taken in _words.takes(problem.chain)]
    place = OTHERS.index(name)
    kind = kinds[place] if place < len(kinds) else "normal"
    if kind == "scale":
        return abs(made) + 0.5
    return {"below": -abs(made), "above": abs(made)}.get(kind, made)


def operand(name: str) -> Array:
    if name == "x":
        return In(*shape(name), strides=strides(name))

    def values(problem: Any, rng: Any) -> Any:
        return drawn(name, problem, rng)

    return In(
        *shape(name), dtype=f"{name}_dtype", optional=True, values=values, strides=strides(name)
    )


def near(said: Any) -> list[str]:
    """The operands that have the last dimension."""
    return [name for name in there(said) if DIMENSIONS - 1 in over(said, name)]


def apart(said: Any) -> tuple[str, ...]:
    """The sizes and strides that decide how many elements of rows lie together."""
    last = DIMENSIONS - 1
    found = [f"n{last}"]
    for name in near(said):
        found += [f"{name}_s{i}" for i in over(said, name) if i != last]
    return tuple(found)


def alike(problem: Any) -> int:
    """The bits of operands that lie as y does: 1, 2, 4, 8 for x, a, b, c."""
    n, found = sizes(problem), 0
    long = [i for i in range(DIMENSIONS) if n[i] > 1]
    for name in there(problem):
        has = over(problem, name)
        walks = (getattr(problem, f"{name}_s{i}") == math.prod(n[i + 1 :]) for i in long)
        found |= (all(i in has for i in long) and all(walks)) << NAMES.index(name)
    return found


def counted(problem: Any, unit: bool) -> int:
    """`alike` where rows are too odd for vectors, and elements are counted over the ends of rows;
    0 elsewhere. Where all operands are alike this serves wherever vectors are short; else of up to
    4 bytes: an H200 took 31.8 µs to multiply 90 × 2166 rows of 86 in fp16 by a number of each line
    in tiles of rows, and compiled torch 19."""
    lie = alike(problem)
    wide = [name for name in there(problem) if over(problem, name)]
    far = [
        sum(n * getattr(problem, f"{name}_s{i}") for i, n in enumerate(shape_of(problem, name)))
        for name in wide
    ]
    most = max([rows(problem, None) * problem.n3, *far])
    if not unit or not lie or most > _tiles.MOST_ROWS:
        return 0
    together = math.gcd(_tiles.MOST_AT_ONCE, *(getattr(problem, name) for name in apart(problem)))
    whole = all(lie >> NAMES.index(name) & 1 for name in wide)
    short = together * DTYPES[problem.dtype].bytes < (VECTOR if whole else VECTOR // 2)
    return lie if short else 0


def form(problem: Any) -> dict[str, Any]:
    """UNIT and ALIKE of the kernels for a problem."""
    last = DIMENSIONS - 1
    unit = all(getattr(problem, f"{name}_s{last}") == 1 for name in near(problem))
    return {"UNIT": unit, "ALIKE": counted(problem, unit)}


def multiples(said: Any) -> tuple[str, ...]:
    """The sizes and strides that decide how many elements of rows a lane moves at once."""
    return apart(said) if said.UNIT and not said.ALIKE else ()


def pairs(problem: Any) -> set[tuple[int, int]]:
    if problem.once(form)["ALIKE"]:
        return {(1, tile) for tile in _tiles.TILES}
    return _tiles.of_rows(rows(problem, None), problem.n3)


def narrows(problem: Any) -> dict[str, tuple[Any, ...]]:
    return _tiles.narrowed(problem.once(form), problem.once(pairs))


def supports(problem: Any, config: Any) -> bool | str:
    (count,) = programs(problem, config)
    return _tiles.fits(config, problem.once(form), problem.once(pairs), count)


def rows(problem: Any, config: Any) -> int:
    return math.prod(sizes(problem)[:-1])


def count(problem: Any, config: Any) -> int:
    return math.prod(sizes(problem))


def programs(problem: Any, config: Any) -> tuple[int]:
    if config.ALIKE:
        return (_tiles.programs((count(problem, config),), (config.COLUMNS,)),)
    of = (rows(problem, config), problem.n3)
    return (_tiles.programs(of, (config.ROWS, config.COLUMNS)),)


def prefers(problem: Any, config: Any) -> float:
    every = count(problem, config) * DTYPES[problem.dtype].bytes
    usual = _tiles.LANE_BYTES if every >= LANES * _tiles.LANE_BYTES else FEW_BYTES
    tile = config.ROWS * config.COLUMNS
    return _tiles.far(tile, config.num_warps, problem.dtype, usual=usual)


def refuses(problem: Any) -> str:
    chain = _words.parse(problem.chain)
    if halving := next((one.name for one in chain if one.halves), ""):
        return f"{halving} makes one column of two, which is no operation on elements"
    wanted, given = sum(len(one.takes) for one in chain), len(there(problem)) - 1
    if wanted != given or there(problem)[1:] != [*OTHERS[:given]]:
        return f"'{problem.chain}' takes {wanted} operands besides x, not {given}"
    for name in there(problem):
        if getattr(problem, f"{name}_over") not in range(WHOLE + 1):
            return f"{name}_over = {getattr(problem, f'{name}_over')} are no {DIMENSIONS} bits"
        kind = DTYPES[problem.dtype if name == "x" else getattr(problem, f"{name}_dtype")]
        if kind.bits < 8 or kind.name == "e8m0" or (kind.kind == "int" and kind.bits > MOST_BITS):
            return f"{name} is {kind.name}, which fp32 arithmetic does not hold"
    made = DTYPES[problem.out_dtype]
    if made.bits < 8 or made.name == "e8m0" or (made.kind == "int" and made.name != "int8"):
        return f"results are not stored as {made.name}"
    if rows(problem, None) > _tiles.MOST_ROWS:
        return f"over {_tiles.MOST_ROWS} rows"
    return ""


def reference(x: Any, a: Any, b: Any, c: Any, problem: Any) -> Any:
    left = iter((a, b, c))
    for one in _words.parse(problem.chain):
        x = one.reference(x, *(next(left) for _ in one.takes))
    return clipped(functions(x).broadcast_to(x, sizes(problem)), problem.out_dtype)


def tolerances(problem: Any, config: Any) -> Mapping[str, Tolerance]:
    amplified = max(1.0, math.prod(one.amplifies for one in _words.parse(problem.chain)))
    return {"y": tolerance("fp32", problem.out_dtype, 1, amplified=amplified)}


def gradients(problem: Any) -> Sequence[Gradient] | str:
    chain = _words.parse(problem.chain)
    if lacking := next((one.name for one in chain if one.gradient is None), ""):
        return f"the operation {lacking} has no gradient"
    if DTYPES[problem.out_dtype].bits < 16:
        return "values that are rounded to 8 bits have none"
    given = there(problem)
    made = (to for one in chain if one.gradient for to in one.gradient.to_operands)
    has = {"x": True, **{name: to is not None for name, to in zip(OTHERS, made, strict=False)}}
    return tuple(
        Gradient(name, partial(_slopes.slope, problem.chain, name), (*given, "grad y"))
        for name in given
        if has[name]
    )


# --- the function -------------------------------------------------------------------------------

Operation = Callable[..., Any]


def _broadcast(shapes: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    """The shape that arrays have together, as torch broadcasts them. Raises `BadArgument`."""
    rank = max(map(len, shapes))
    found = []
    for each in zip(*((1,) * (rank - len(one)) + one for one in shapes), strict=True):
        wide = [n for n in each if n != 1] or [1]
        if any(n != wide[0] for n in wide):
            raise BadArgument(f"shapes {', '.join(map(str, shapes))} do not broadcast")
        found.append(wide[0])
    return tuple(found)


def _array(name: str, one: Any, x: Any) -> Any:
    """An operand, of which a number becomes an array beside `x`. Raises `BadArgument`."""
    if type(one) not in (int, float):
        return one
    try:
        parameters.pack("fp32", one)
    except BadArgument as error:
        raise BadArgument(f"{name} = {shown(one)} is too large for fp32") from error
    f = functions(x)
    beside = {"device": x.device} if hasattr(x, "new_full") else {}
    return f.full((), float(one), dtype=f.float32, **beside)


def _elementwise(run: Operation) -> Operation:
    def elementwise(x: Any, *others: Any, chain: str, out_dtype: Any = None) -> Any:
        """y = the operations of `chain`, one after another, of x and of further operands, each
        broadcast as torch does. y has x's type unless `out_dtype` says another, and lies in memory
        as x does if x has its shape.

        chain: words of GEMM's epilogues and of chains, as ``mul+add+gelu`` or ``div+tanh``.
        others: the operands that the words take, in order; at most three. A number stands for an
            array of it in fp32.
        """
        if len(others) > len(OTHERS):
            raise BadArgument(f"elementwise takes {len(OTHERS)} operands besides x")
        _views.shape_of("x", x)
        made = (_array(name, one, x) for name, one in zip(OTHERS, others, strict=False))
        arrays = dict(zip(NAMES, (x, *made), strict=False))
        shapes = [_views.shape_of(name, one) for name, one in arrays.items()]
        whole = _broadcast(shapes)
        rank = len(whole)
        order = tuple(range(rank))
        if shapes[0] == whole and 0 not in _views.strides(x):
            order = _forms.by_memory(x)
        ready, apart = [], []
        for one, own in zip(arrays.values(), shapes, strict=True):
            same = _views.permuted(one.reshape((1,) * (rank - len(own)) + own), order)
            walked = zip(_views.strides(same), same.shape, strict=True)
            strides = tuple(s if n != 1 else 0 for s, n in walked)
            ready.append(same[tuple(slice(0, 1) if s == 0 else slice(None) for s in strides)])
            apart.append(strides)
        turned = tuple(whole[d] for d in order)
        if 0 in whole:  # no operand is broadcast into nothing
            ready = [one.reshape((-1,))[:0] for one in ready]
        few, *steps = _forms.canonical(turned, *apart, most=DIMENSIONS)
        said: dict[str, Any] = dict(zip(SIZES, few, strict=True))
        given: list[Any] = []
        for name, one, strides in zip(arrays, ready, steps, strict=True):
            has = [n != 1 and s != 0 for n, s in zip(few, strides, strict=True)]
            said[f"{name}_over"] = sum(1 << (DIMENSIONS - 1 - i) for i, h in enumerate(has) if h)
            given.append(one.reshape(tuple(n if h else 1 for n, h in zip(few, has, strict=True))))
        if out_dtype is not None:
            said["out_dtype"] = dtypes.named(out_dtype)
        more = dict(zip(OTHERS, given[1:], strict=False))
        y = run(given[0], chain=chain, **said, **more).reshape(turned)
        return _views.permuted(y, _forms.inverse(order))

    return elementwise


declare(
    Declaration(
        name="elementwise_chain",
        module=__name__,
        operands={
            **{name: operand(name) for name in NAMES},
            "y": Out(*SIZES, dtype="out_dtype"),
        },
        dtypes={"out_dtype": "dtype", **{f"{name}_dtype": "dtype" for name in OTHERS}},
        options={"chain": "", **{f"{name}_over": WHOLE for name in NAMES}},
        numbers=dict.fromkeys(SIZES, 1),
        axes={
            "UNIT": (True, False),
            "ALIKE": tuple(range(1 << len(NAMES))),
            "ROWS": tuple(1 << i for i in range(14)),
            "COLUMNS": tuple(1 << i for i in range(14)),
            "num_warps": (4, 8),
            "num_stages": (1,),
        },
        parts=(
            kernel(
                "main",
                f"{__package__}.kernels.elementwise_chain:elementwise_chain",
                programs,
                lambda config: not config.ALIKE,
            ),
            kernel(
                "runs",
                f"{__package__}.kernels.elementwise_runs:elementwise_runs",
                programs,
                lambda config: config.ALIKE,
            ),
        ),
        values={
            "rows": rows,
            "count": count,
            **divisors(
                across=lambda problem, config: -(-problem.n3 // config.COLUMNS),
                **{name: _windows.field(name) for name in SIZES[1:]},
            ),
        },
        constants={
            "CHAIN": lambda c: tuple(one.function for one in _words.parse(c.chain)),
            "TAKES": lambda c: _words.kinds(c.chain),
        },
        multiples=multiples,
        supports=supports,
        narrows=narrows,
        prefers=prefers,
        refuses=refuses,
        reference=reference,
        tolerances=tolerances,
        gradients=gradients,
        functions={"elementwise": _elementwise},
        problems=_problems.CHAINS,
    )
)
