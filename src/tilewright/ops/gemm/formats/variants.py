"""CK Tile Engine's variants of a GEMM: what each adds to the kernels that a document declares.

A variant is a folder there (``gemm_multi_d/configs/default_config.json``), and most documents say
no more of it than where they lie. `VARIANTS` has what each folder means; a document of another
place says ``"variant": "gemm_multi_d"``. Blocks and fields of their own, wherever they stand:

    CK Tile Engine                          here
    --------------------------------------  ----------------------------------------------------
    elementwise_ops × num_d_tensors         epilogue: add+add, mul…, one operation a tensor
    multi_abd_config: num_a_tensors,        pre_a: A's first tensor with each of the others;
      a_elementwise_op…                       pre_b, and epilogue, likewise
    group_size_k, group_size_n              scale_a 1×k and scale_b k×n, of the operands that the
                                              variant quantises
    profile × quant_config                  the same: aquant… has a_group's blocks of A, bquant…
                                              b_group's of B, rowcol and tensor an epilogue
    num_dim_g                               batching: none, strided, or (two and more) nested too

`_IGNORED` are fields of variants without a counterpart here, reported by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tilewright.errors import BadFile, nearest
from tilewright.ops.gemm.formats.axis import Axis

BLOCKS = (
    "multi_d_config", "multi_abd_config", "quant_config", "preshuffle_config", "batched_config",
    "grouped_config",
)  # fmt: skip
"""Objects of a document whose fields are a variant's."""


@dataclass(frozen=True, slots=True)
class Variant:
    """What a folder of documents means. quantised: the operands with blocks of scales, ``ab``.
    tensors: those that an element of A, of B and of C is made of. epilogue, batching, pipeline:
    axes that all its kernels have. shuffled: B is. shares: K is shared out as stream-K does."""

    quantised: str = ""
    tensors: tuple[int, int, int] = (1, 1, 0)
    epilogue: str = ""
    batching: str = ""
    pipeline: str = ""
    shuffled: bool = False
    shares: bool = False


_ROWS_AND_COLUMNS = "row_scale+col_scale"
_ONE_SCALE = "scale"

VARIANTS: dict[str, Variant] = {
    "gemm_universal": Variant(),
    "gemm_preshuffle": Variant(shuffled=True),
    "flatmm": Variant(shuffled=True),
    "gemm_streamk": Variant(shares=True),
    "gemm_multi_d": Variant(tensors=(1, 1, 2)),
    "gemm_multi_abd": Variant(tensors=(2, 2, 2)),
    "gemm_aquant": Variant(quantised="a"),
    "gemm_bquant": Variant(quantised="b"),
    "gemm_abquant": Variant(quantised="ab"),
    "gemm_rowcolquant": Variant(epilogue=_ROWS_AND_COLUMNS),
    "gemm_tensor_quant": Variant(epilogue=_ONE_SCALE),
    "gemm_quant": Variant(),
    "mx_gemm": Variant(pipeline="mx"),
    "batched_gemm": Variant(batching="strided"),
    "batched_contraction": Variant(batching="strided"),
    "contraction_multi_abd": Variant(tensors=(2, 2, 2)),
}

_OPERATIONS = {
    "MultiDAdd": "add", "MultiDMultiply": "mul", "add": "add", "mul": "mul",
    "PassThrough": "", "passthrough": "", "Relu": "relu", "Gelu": "gelu", "FastGelu": "gelu_tanh",
    "Silu": "silu",
}  # fmt: skip
_A_TENSOR = ("add", "mul")
"""Operations that take a tensor each."""

_BATCHINGS = (("none",), ("strided",), ("strided", "nested"))
"""Ways to walk no, one, and several dimensions of a batch."""

MOST_TENSORS = 12
"""Tensors that an operand can be made of: what all chains of a kernel may take together."""

_CHAINS = (
    ("pre_a", 1, "num_a_tensors", ("a_elementwise_op",)),
    ("pre_b", 1, "num_b_tensors", ("b_elementwise_op",)),
    (
        "epilogue",
        0,
        "num_d_tensors",
        ("elementwise_ops", "elementwise_op", "cde_elementwise_op"),
    ),
)
"""The axis of each chain of operations, how many tensors there are without one, and the fields that
say their number and the operation."""

_COUNTS = (
    "num_d_tensors", "num_a_tensors", "num_b_tensors", "num_dim_g", "num_dim_m", "num_dim_n",
    "num_dim_k", "group_size_k", "group_size_n",
)  # fmt: skip
_WORDS = (
    "elementwise_op", "elementwise_ops", "a_elementwise_op", "b_elementwise_op",
    "cde_elementwise_op", "profile", "a_group", "b_group",
)  # fmt: skip
_STRIDES = "scales are read by their strides, not in an order of their own"
_IGNORED: dict[str, str] = {
    "permute_n": "a shuffled B has one order here, which tilewright.shuffle makes",
    "a_preshuffle_quant": _STRIDES,
    "b_preshuffle_quant": _STRIDES,
    "structured_sparsity": "no matrix instruction for sparse operands is used",
}
FIELDS = (*_COUNTS, *_WORDS, *_IGNORED, "preshuffle")

_PROFILES = {
    "aquant": "a",
    "bquant": "b",
    "rowcol": _ROWS_AND_COLUMNS,
    "tensor": _ONE_SCALE,
}
"""What a profile of quantisation scales, by how its name begins."""


@dataclass(frozen=True, slots=True)
class Said:
    """What a document says of its variant: axes, axes that go together, and whether B is shuffled
    and K shared out."""

    axes: dict[str, list[Any]]
    linked: dict[tuple[str, ...], list[tuple[Any, ...]]]
    shuffled: bool
    shares: bool


def called(word: Any, place: str) -> Variant:
    """The variant of this name. Raises `BadFile`."""
    if not isinstance(word, str) or word not in VARIANTS:
        hint = nearest(word, VARIANTS) if isinstance(word, str) else ""
        raise BadFile(f"{place}: unknown variant {word!r}{hint}; known: {', '.join(VARIANTS)}")
    return VARIANTS[word]


def read(variant: Variant, taken: Mapping[str, Axis], notes: list[str]) -> Said:
    """What `variant` and the fields of its own, `taken` from a document, come to. Raises
    `BadFile`."""
    for name, axis in taken.items():
        _check(name, axis)
        if name in _IGNORED and any(axis.values):
            notes.append(f"{axis.place}: ignored: {_IGNORED[name]}")
    axes: dict[str, list[Any]] = {}
    linked: dict[tuple[str, ...], list[tuple[Any, ...]]] = {}
    if variant.epilogue:
        axes["epilogue"] = [variant.epilogue]
        notes.append(f"$: the variant's scales are the epilogue {variant.epilogue}")
    if variant.pipeline:
        axes["pipeline"], axes["num_stages"] = [variant.pipeline], [2]
        axes["scale_a"], axes["scale_b"] = ["1x32-e8m0"], ["32x1-e8m0"]
        notes.append(f"$: the variant's pipeline is {variant.pipeline}, with 2 stages")
    _tensors(variant, taken, axes, notes)
    _batches(variant, taken, axes, notes)
    _blocks(variant, taken, axes, notes)
    if "profile" in taken:
        _profiles(taken, axes, linked, notes)
    flag = taken.get("preshuffle")
    return Said(axes, linked, variant.shuffled or bool(flag and any(flag.values)), variant.shares)


def _check(name: str, axis: Axis) -> None:
    for value in axis.values:
        if name in _COUNTS:
            least = 0 if name in ("num_d_tensors", "num_dim_g") else 1
            if not isinstance(value, int) or isinstance(value, bool) or value < least:
                raise BadFile(f"{axis.place}: {value!r} is not a whole number from {least}")
            if name.endswith("_tensors") and value > MOST_TENSORS:
                raise BadFile(f"{axis.place}: {value} tensors, over {MOST_TENSORS}")
        elif name in _WORDS:
            if not isinstance(value, str):
                raise BadFile(f"{axis.place}: {value!r} is not a string")
        elif not isinstance(value, bool):
            raise BadFile(f"{axis.place}: {value!r} is not true or false")


def _tensors(
    variant: Variant, taken: Mapping[str, Axis], axes: dict[str, list[Any]], notes: list[str]
) -> None:
    """The chains of operations on A, B and C."""
    for usual, (axis, first, count, words) in zip(variant.tensors, _CHAINS, strict=True):
        said = next((taken[word] for word in words if word in taken), None)
        if said is None and count not in taken and usual == first:
            continue
        if axis in axes:
            place = (said or taken[count]).place
            raise BadFile(f"{place}: the variant has the epilogue {axes[axis][0]} already")
        counts = taken[count].values if count in taken else [usual or 1]
        operations = [_operation(word, said.place) for word in said.values] if said else ["add"]
        if said is None and max(counts) > first:
            notes.append(f"$: which operation {axis} is, the document leaves open: add is taken")
        chains = [
            "+".join([operation] * (n - first)) if operation in _A_TENSOR else operation
            for operation in operations
            for n in counts
        ]
        axes[axis] = list(dict.fromkeys(chains))


def _operation(word: str, place: str) -> str:
    if word not in _OPERATIONS:
        raise BadFile(
            f"{place}: unknown operation '{word}'{nearest(word, _OPERATIONS)}; known: "
            f"{', '.join(_OPERATIONS)}"
        )
    return _OPERATIONS[word]


def _batches(
    variant: Variant, taken: Mapping[str, Axis], axes: dict[str, list[Any]], notes: list[str]
) -> None:
    batchings = {variant.batching: None} if variant.batching else {}
    if "num_dim_g" in taken:
        batchings = {}
        for dimensions in taken["num_dim_g"].values:
            batchings |= dict.fromkeys(_BATCHINGS[min(dimensions, 2)])
    if batchings:
        axes["batching"] = list(batchings)
    notes.extend(
        f"{taken[name].place}: ignored: dimensions that lie one after the other are one here; a "
        "call says them in its equation"
        for name in ("num_dim_m", "num_dim_n", "num_dim_k")
        if name in taken and max(taken[name].values) > 1
    )


def _blocks(
    variant: Variant, taken: Mapping[str, Axis], axes: dict[str, list[Any]], notes: list[str]
) -> None:
    """Blocks of scales by the size of their groups."""
    deep, wide = taken.get("group_size_k"), taken.get("group_size_n")
    operands = variant.quantised
    if not operands and (deep or wide):  # no variant is said: which operands, other fields say
        operands = "".join(x for x in "ab" if f"{x}_preshuffle_quant" in taken)
        if not operands:
            place = (deep or wide).place  # type: ignore[union-attr]
            notes.append(f"{place}: ignored: it stands beside no field that says what is quantised")
            return
    if not operands:
        return
    depths = deep.values if deep else [128]
    if "a" in operands:
        axes["scale_a"] = [f"1x{k}" for k in depths]
    if "b" in operands:
        axes["scale_b"] = [f"{k}x{n}" for k in depths for n in (wide.values if wide else [1])]


def _profiles(
    taken: Mapping[str, Axis],
    axes: dict[str, list[Any]],
    linked: dict[tuple[str, ...], list[tuple[Any, ...]]],
    notes: list[str],
) -> None:
    """The pairs of scales, and the epilogues, that profiles and groups come to."""
    axis = taken["profile"]
    rows: dict[tuple[Any, ...], None] = {}
    for profile in axis.values:
        what = next((w for begins, w in _PROFILES.items() if profile.startswith(begins)), None)
        if what is None:
            raise BadFile(
                f"{axis.place}: unknown profile '{profile}'; known are those that begin with "
                f"{', '.join(_PROFILES)}"
            )
        if what in ("a", "b"):
            groups = taken.get(f"{what}_group")
            found = [_block(what, word, groups.place) for word in groups.values] if groups else []
            for block in filter(None, found or [_block(what, "1x1x128", axis.place)]):
                rows[(block, "", "") if what == "a" else ("", block, "")] = None
        else:
            rows["", "", what] = None
    if "epilogue" in axes or "scale_a" in axes or "scale_b" in axes:
        raise BadFile(f"{axis.place}: scales, or an epilogue, were given before")
    shuffled = [profile for profile in axis.values if "preshuffle" in profile]
    if shuffled:
        notes.append(f"{axis.place}: preshuffle of {', '.join(shuffled)} ignored: {_STRIDES}")
    notes.extend(
        f"{taken[groups].place}: 1x1x1 left out: a scale for each element is no block"
        for groups in ("a_group", "b_group")
        if groups in taken and "1x1x1" in taken[groups].values
    )
    linked["scale_a", "scale_b", "epilogue"] = list(rows)
    axes["pipeline"], axes["num_stages"] = ["basic"], [2]
    notes.append(
        f"{axis.place}: {', '.join(axis.values)} = basic with 2 stages, and {len(rows)} ways to "
        "scale; rows and columns, and the whole, are scaled by an epilogue"
    )


def _block(operand: str, word: str, place: str) -> str:
    """The block of A or of B that a group M×N×K is; "" for one element, which rowcol and tensor
    have."""
    parts = word.split("x")
    if len(parts) != 3 or not all(p.isascii() and p.isdigit() and 0 < len(p) < 7 for p in parts):
        raise BadFile(f"{place}: '{word}' is not a group MxNxK, as in 1x1x128")
    m, n, k = map(int, parts)
    if m == n == k == 1:
        return ""
    return f"{m}x{k}" if operand == "a" else f"{k}x{n}"
