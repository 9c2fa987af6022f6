"""benchdnn's attributes as an epilogue and as scales: what happens to sums before they are stored.

    --attr-scales=src:common:2+wei:per_oc     scale+col_scale
    --attr-scales=wei:per_ocic:f16:128x1      scale_b=128x1-fp16
    --bia-dt=f32                              bias
    --attr-post-ops=relu+add:f32:per_oc       relu+bias
    --attr-post-ops=sum                       add: the result's old values are the matrix
    --attr-scales=dst:common:2                scale, as the last operation

A vector or a scalar has the dtype that ours have, whatever the line says; a scale divides there
where the line's multiplies, for the caller gives the value. ``--attr-fpmath`` lets fp32 be
multiplied as tf32; its other modes allow what need not be done. Masks are bits of dimensions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tilewright import checks
from tilewright.errors import BadArgument, shown
from tilewright.ops.gemm.formats import benchdnn

_WITHOUT = {
    "attr-zero-points": "zero points have no counterpart here",
    "attr-precomputed-reductions": "sums for zero points have no counterpart here",
    "attr-dropout": "dropout has no counterpart here",
    "attr-rounding-mode": "results are rounded to nearest even here",
    "encoding": "sparse operands have no counterpart here",
    "match": "an expression that picks problems is not evaluated; leave out --match",
}
"""Options without a counterpart, and why."""

_SIMPLE = {"gelu_erf": "gelu", "gelu_tanh": "gelu_tanh"}
"""Its functions without parameters, and our operations."""


@dataclass(frozen=True, slots=True)
class Dims:
    """The dimensions that masks are about.

    sizes: of the result. column: the bit of its channels or columns. row: that of its rows, 0 for
    none. weights: the bits of the weights that have a value for each column. arrays, of_weights:
    masks by name, of source and destination, and of weights; post-operations have `POLICIES`.
    """

    sizes: tuple[int, ...]
    column: int
    row: int
    weights: int
    arrays: Mapping[str, int]
    of_weights: Mapping[str, int]

    def same(self, mask: int, other: int) -> bool:
        """Whether two masks of the result say the same: dimensions of size 1 do not matter."""
        real = sum(1 << at for at, size in enumerate(self.sizes) if size > 1)
        return mask & real == other & real

    @property
    def all(self) -> int:
        """Every dimension."""
        return (1 << len(self.sizes)) - 1


POLICIES = {
    "common": 0, "host_scalar": 0, "per_dim_0": 1, "per_dim_1": 2, "per_oc": 2, "per_dim_01": 3,
    "per_ocic": 3, "per_dim_2": 4, "per_dim_3": 8,
}  # fmt: skip
"""Masks by name. ``per_tensor`` is every dimension."""


@dataclass(frozen=True, slots=True)
class Attributes:
    """What a line says: our words for it.

    old: whether the epilogue's matrix is the result's old values.
    """

    words: dict[str, str]
    old: bool = False


def read(
    options: dict[str, str], dims: Dims, bias: int | None, dtype_a: str, dtype_c: str
) -> Attributes:
    """The words of the options, which are removed from `options`. Raises `BadArgument`.

    bias: the mask of the bias, None without one.
    """
    for name, why in _WITHOUT.items():
        if options.pop(name, "") not in ("", "environment"):
            raise BadArgument(f"onednn: --{name}: {why}")
    words: dict[str, str] = {}
    before, after = _scales(options.pop("attr-scales", ""), dims, words)
    chain = list(before)
    if bias is not None:
        chain.append(_binary("add", bias, dims, "--bia-dt"))
    posts, old = _posts(options.pop("attr-post-ops", ""), dims, dtype_c)
    chain += [*posts, *after]
    if chain:
        words["epilogue"] = "+".join(chain)
    mode = options.pop("attr-fpmath", "").partition(":")[0]
    if mode not in ("", "strict", "bf16", "f16", "tf32", "any"):
        raise BadArgument(f"onednn: --attr-fpmath={shown(mode)} is no mode")
    if mode == "tf32" and dtype_a == "fp32":
        words["precision"] = "tf32"
    return Attributes(words, old)


def _mask(text: str, dims: Dims, policies: Mapping[str, int]) -> int:
    if text.isdecimal():
        return checks.parse_whole("onednn: a mask", text, 0, dims.all)
    if text == "per_tensor":
        return dims.all
    if text not in policies:
        raise BadArgument(f"onednn: {shown(text)} is no mask with a counterpart here")
    return policies[text]


def _scales(text: str, dims: Dims, words: dict[str, str]) -> tuple[list[str], list[str]]:
    """Operations before and behind all others; scales of blocks are added to `words`."""
    before: list[str] = []
    after: list[str] = []
    for each in text.split("+") if text else ():
        arg, _, rest = each.partition(":")
        policy, *more = rest.split(":")
        if arg not in ("src", "src0", "wei", "dst"):
            raise BadArgument(f"onednn: scales of {shown(arg)} have no counterpart here")
        mask = _mask(policy, dims, dims.of_weights if arg == "wei" else dims.arrays)
        chain = after if arg == "dst" else before
        if mask and len(more) > 1:
            if arg == "dst":
                raise BadArgument("onednn: scales that are made for the result have no counterpart")
            words[f"scale_{'b' if arg == 'wei' else 'a'}"] = _block(more)
        elif not mask:
            chain += ["scale"] if "scale" not in chain else []  # one scalar is both scales' product
        elif mask == (dims.weights if arg == "wei" else dims.column) and not arg.startswith("src"):
            chain.append("col_scale")
        elif mask == dims.row and arg != "wei":
            chain.append("row_scale")
        else:
            raise BadArgument(f"onednn: scales {shown(each)} have no counterpart here")
    return before, after


def _block(more: Sequence[str]) -> str:
    """A block of scales, of each matrix of a batch, as `tilewright.blocks` writes it."""
    dtype = benchdnn.scale_dtype(more[0])
    sizes = benchdnn.by(more[1], "a block of scales")
    if len(sizes) != 2:
        raise BadArgument(f"onednn: a block of scales is ROWSxCOLUMNS, not {shown(more[1])}")
    return f"{sizes[0]}x{sizes[1]}" + (f"-{dtype}" if dtype != "fp32" else "")


def _posts(text: str, dims: Dims, dtype_c: str) -> tuple[list[str], bool]:
    """Post-operations, and whether a matrix among them is the result's old values."""
    chain: list[str] = []
    old = False
    for each in text.split("+") if text else ():
        name, *more = each.split(":")
        name = name.removeprefix("eltwise_").removeprefix("binary_")
        if name in ("add", "mul"):
            kind = benchdnn.scale_dtype(more[0] if more else "")
            mask = _mask(more[1] if len(more) > 1 else "common", dims, POLICIES)
            operation = _binary(name, mask, dims, each)
            if operation == name and (kind != dtype_c or len(more) > 2):
                raise BadArgument(
                    f"onednn: {shown(each)}: a matrix has the result's dtype and layout here"
                )
            chain.append(operation)
        elif name == "sum":
            if _numbers(more[:2], each, (1.0, 0.0)) != (1.0, 0.0) or len(more) > 3:
                raise BadArgument(f"onednn: {shown(each)}: old values are added as they are here")
            if more[2:] and benchdnn.scale_dtype(more[2]) != dtype_c:
                raise BadArgument(f"onednn: {shown(each)}: old values are {dtype_c} here")
            chain.append("add")
            old = True
        else:
            chain.append(_eltwise(name, more, each))
    if chain.count("add") + chain.count("mul") > 1 and old:
        raise BadArgument("onednn: the result's old values and another matrix have one layout here")
    return chain, old


def _binary(name: str, mask: int, dims: Dims, said: str) -> str:
    """Our operation for adding or multiplying an array with this mask."""
    if dims.same(mask, dims.column):
        return "bias" if name == "add" else "col_scale"
    if dims.same(mask, dims.all):
        return name
    if name == "mul" and dims.same(mask, 0):
        return "scale"
    if name == "mul" and dims.row and dims.same(mask, dims.row):
        return "row_scale"
    raise BadArgument(f"onednn: {shown(said)}: an operand of mask {mask} has no counterpart here")


def _eltwise(name: str, more: Sequence[str], said: str) -> str:
    """Our operation for a function of each value."""
    found = ""
    if name in (*_SIMPLE, "relu", "swish", "clip", "clip_v2", "linear"):
        alpha, beta, scale = _numbers(more, said, (0.0, 0.0, 1.0))
        if scale == 1.0:
            found = {
                **_SIMPLE,
                "relu": "relu" if alpha == 0.0 else "",
                "swish": "silu" if alpha == 1.0 else "",
                "clip": "clamp",
                "clip_v2": "clamp",
                "linear": "scale" if beta == 0.0 else "",
            }[name]
    if not found:
        raise BadArgument(
            f"onednn: {shown(said)} is no operation of an epilogue here; an operation of your own "
            "is one entry (ops.epilogues.register)"
        )
    return found


def _numbers(texts: Sequence[str], said: str, usual: tuple[float, ...]) -> tuple[float, ...]:
    if len(texts) > len(usual):
        raise BadArgument(f"onednn: {shown(said)} has {len(texts)} parameters, over {len(usual)}")
    try:
        return (*map(float, texts), *usual[len(texts) :])
    except ValueError:
        raise BadArgument(f"onednn: {shown(said)} has a parameter that is no number") from None
