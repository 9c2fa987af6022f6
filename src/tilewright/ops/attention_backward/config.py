"""`AttentionBackwardConfig`: the kernels that compute attention's gradients, and their name.

    attention_backward_bf16_bf16_d128x128_causal_128x64_w8_s2_basic_al16_g-dq-dk-dv
                        Q     O    |        |     |   |  |  |    |    |   +- what is computed
        head dims, of V too -------+      mask    |   |  |  |    |    +- bytes of alignment
                    rows that a workgroup owns ---+   |  |  |    +- pipeline
                             rows of a step ----------+  |  +- stages
                                                   warps +

Other words follow only where they are said: ``ordered`` behind the alignment; ``dlse``, and the
features (``f-softcap-alibi``), last. An engine of the vendor's library (`library`) has the
library's words behind the mask.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from typing import Any, ClassVar

from tilewright import checks
from tilewright.dtypes import DTYPES
from tilewright.errors import BadArgument, UnknownName, nearest, shown
from tilewright.ops.attention import features
from tilewright.ops.attention.config import ALIGNMENTS, VENDOR
from tilewright.ops.attention.mask import MASKS
from tilewright.ops.attention_backward.problem import GRADIENTS
from tilewright.ops.library import CUDNN
from tilewright.ops.library_engine import PATTERN, said
from tilewright.ops.names import choice, number, read


@dataclass(frozen=True, slots=True)
class AttentionBackwardConfig:
    """How to compute the gradients. The signature is the fields up to `mask`, `grads`, `dlse` and
    `features`; the others are the algorithm.

    dtype: of Q, K, V and their gradients. dtype_o: of O and dO.
    head_dim, head_dim_v, grads, dlse, features: as in `AttentionBackwardProblem`.
    mask: the kind of mask (`mask.MASKS`).
    tile_rows: rows that a workgroup owns: keys for dK and dV, queries for dQ and the bias.
    step_rows: rows that pass by at a time: queries for dK and dV, keys for the others.
    pipeline: the kernels; each has a record in `pipelines`, but `VENDOR`.
    num_warps: warps (waves) of a workgroup. num_stages: steps in shared memory at once.
    alignment: bytes that addresses and strides are multiples of.
    ordered: whether workgroups that add to the same sums do so in one order, which repeats.
    library_engine: of pipeline `VENDOR`, the library, its engine and the workspace
        (`library_engine.said`); ``""`` of the others. Rows, warps and stages are 0.
    """

    family: ClassVar[str] = "attention_backward"
    scheduler: ClassVar[str] = "tile"

    dtype: str
    dtype_o: str
    head_dim: int
    head_dim_v: int
    mask: str
    tile_rows: int
    step_rows: int
    num_warps: int
    num_stages: int
    pipeline: str = "basic"
    alignment: int = 16
    grads: str = "dq+dk+dv"
    dlse: bool = False
    features: str = ""
    ordered: bool = False
    library_engine: str = ""

    @property
    def library(self) -> str:
        """The library that computes it (`ops.library.library_of`); ``""`` where kernels are built
        here."""
        return said(self.library_engine).library if self.library_engine else ""

    @property
    def dtype_kv(self) -> str:
        """The dtype of K and V."""
        return self.dtype

    @property
    def words(self) -> frozenset[str]:
        """Its features, and what it computes and reads besides, as a set."""
        found = features.split(self.features) | set(self.grads.split("+"))
        flags = {"dlse": self.dlse, "ordered": self.ordered}
        return found | {word for word, said in flags.items() if said}

    @property
    def name(self) -> str:
        """The kernels' name; `parse` is its exact inverse."""
        name = (
            f"attention_backward_{self.dtype}_{self.dtype_o}_d{self.head_dim}x{self.head_dim_v}"
            f"_{self.mask}"
        )
        if self.library_engine:
            name += f"_{VENDOR}_{self.library_engine}"
        else:
            name += (
                f"_{self.tile_rows}x{self.step_rows}_w{self.num_warps}_s{self.num_stages}"
                f"_{self.pipeline}_al{self.alignment}"
            )
        name += "_ordered" * self.ordered + f"_g-{self.grads.replace('+', '-')}"
        name += "_dlse" * self.dlse
        return name + (f"_f-{self.features.replace('+', '-')}" if self.features else "")


def of_engine(
    dtype: str, head_dim: int, head_dim_v: int, mask: str, words: str
) -> AttentionBackwardConfig:
    """The config of an engine of a library. words: see `AttentionBackwardConfig.library_engine`."""
    return AttentionBackwardConfig(
        dtype, dtype, head_dim, head_dim_v, mask, 0, 0, 0, 0, VENDOR, library_engine=words
    )


def check(config: AttentionBackwardConfig, pipelines: tuple[str, ...]) -> AttentionBackwardConfig:
    """`config` itself, if every field is one that a name can say. Raises `BadArgument`."""
    c = config
    if c.library_engine or c.pipeline == VENDOR:
        return _check_engine(c)
    for field, known in (
        ("dtype", DTYPES),
        ("dtype_o", DTYPES),
        ("mask", MASKS),
        ("alignment", ALIGNMENTS),
        ("pipeline", pipelines),
    ):
        if (value := getattr(c, field)) not in known:
            listed = ", ".join(map(str, known))
            raise BadArgument(f"{field} = {value!r} is not one of {listed}")
    for field in ("head_dim", "head_dim_v", "tile_rows", "step_rows", "num_warps", "num_stages"):
        checks.whole(field, getattr(c, field), 1)
    said = c.grads.split("+")
    for word in said:
        if word not in GRADIENTS:
            raise BadArgument(f"grads: '{word}' is no gradient{nearest(word, GRADIENTS)}")
    if [word for word in GRADIENTS if word in said] != said:
        raise BadArgument(f"grads = '{c.grads}' must be in order: {'+'.join(GRADIENTS)}")
    for field in ("dlse", "ordered"):
        if type(value := getattr(c, field)) is not bool:
            raise BadArgument(f"{field} = {value!r} is not true or false")
    features.split(c.features)
    return config


def _check_engine(c: AttentionBackwardConfig) -> AttentionBackwardConfig:
    said(c.library_engine, CUDNN)
    known = of_engine(c.dtype, c.head_dim, c.head_dim_v, c.mask, c.library_engine)
    for field in fields(c):
        if (value := getattr(c, field.name)) != (of := getattr(known, field.name)):
            raise BadArgument(f"{field.name} = {value!r}: an engine of a library has {of!r}")
    return c


_SIGNATURE = (
    f"attention_backward_{choice('dtype', tuple(DTYPES))}_{choice('dtype_o', tuple(DTYPES))}"
    f"_d{number('head_dim')}x{number('head_dim_v')}_{choice('mask', MASKS)}"
)
_ENGINE = re.compile(f"{_SIGNATURE}_{VENDOR}_{PATTERN}_g-dq-dk-dv", re.ASCII)
_PATTERN = re.compile(
    f"{_SIGNATURE}_{number('tile_rows')}x{number('step_rows')}_w{number('num_warps')}_s{number('num_stages')}"
    f"_(?P<pipeline>[a-z0-9_]+?)_al{choice('alignment', ALIGNMENTS)}(?:_(?P<ordered>ordered))?"
    "_g-(?P<grads>[a-z-]+)(?:_(?P<dlse>dlse))?(?:_f-(?P<features>[a-z0-9-]+))?",
    re.ASCII,
)
_COUNTS = (
    "head_dim", "head_dim_v", "tile_rows", "step_rows", "num_warps", "num_stages", "alignment",
)  # fmt: skip


def parse(name: str, pipelines: tuple[str, ...]) -> AttentionBackwardConfig:
    """The config whose name this is. Raises `UnknownName` for a name that does not parse and for
    one whose fields contradict each other."""
    if of := _ENGINE.fullmatch(name):
        dims = int(of["head_dim"]), int(of["head_dim_v"])
        engine = of_engine(of["dtype"], *dims, of["mask"], of["engine"])
        return read(name, "an engine of the vendor's library", lambda: check(engine, pipelines))
    match = _PATTERN.fullmatch(name)
    if match is None:
        raise UnknownName(
            f"{shown(name, 300)} is not the name of kernels of attention_backward; one looks like "
            "attention_backward_bf16_bf16_d128x128_causal_128x64_w8_s2_basic_al16_g-dq-dk-dv"
        )
    said = match.groupdict()
    found: dict[str, Any] = {one: said[one] for one in ("dtype", "dtype_o", "mask", "pipeline")}
    found |= {field: int(said[field]) for field in _COUNTS}
    found |= {one: (said[one] or "").replace("-", "+") for one in ("grads", "features")}
    found |= {flag: said[flag] is not None for flag in ("dlse", "ordered")}

    def made() -> AttentionBackwardConfig:
        return check(AttentionBackwardConfig(**found), pipelines)

    return read(name, "kernels of attention_backward", made)
