"""`MergeStatesConfig`: the kernels that merge states of attention, and their name.

    merge_states_bf16_stack_4x128_s16_w4_al16
                  |    |     tile  |  |   +- bytes of alignment
               dtype  form         |  +- warps
                                   +- states at a time

``masked`` follows where a mask says which rows are merged.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, ClassVar

from tilewright import checks
from tilewright.errors import BadArgument, UnknownName, shown
from tilewright.ops.merge_states.problem import DTYPES_OF, FORMS

ALIGNMENTS = (1, 2, 4, 8, 16)


@dataclass(frozen=True, slots=True)
class MergeStatesConfig:
    """How to merge states. The signature is dtype, form and masked.

    dtype, form, masked: as in `MergeStatesProblem`.
    tile_m: rows of a workgroup. tile_n: columns that it has room for, head_dim or more.
    states: that it loads at a time; 1 where there is one stack of one.
    num_warps: warps (waves) of a workgroup.
    alignment: bytes that addresses and strides of O are multiples of.
    """

    family: ClassVar[str] = "merge_states"
    pipeline: ClassVar[str] = "basic"

    dtype: str
    form: str
    masked: bool
    tile_m: int
    tile_n: int
    states: int
    num_warps: int
    alignment: int = 16

    @property
    def name(self) -> str:
        """The kernel's name; `parse` is its exact inverse."""
        name = (
            f"merge_states_{self.dtype}_{self.form}_{self.tile_m}x{self.tile_n}_s{self.states}"
            f"_w{self.num_warps}_al{self.alignment}"
        )
        return name + "_masked" * self.masked


_COUNTS = ("tile_m", "tile_n", "states", "num_warps")
_KNOWN: dict[str, tuple[Any, ...]] = {
    "dtype": DTYPES_OF,
    "form": FORMS,
    "masked": (False, True),
    "alignment": ALIGNMENTS,
}


def check(config: MergeStatesConfig) -> MergeStatesConfig:
    """`config` itself, if every field is one that a name can say. Raises `BadArgument`."""
    for field, known in _KNOWN.items():
        value = getattr(config, field)
        if value not in known or type(value) is not type(known[0]):
            raise BadArgument(f"{field} = {value!r} is not one of {', '.join(map(str, known))}")
    for field in _COUNTS:
        checks.whole(field, getattr(config, field), 1)
    return config


_PATTERN = re.compile(
    rf"merge_states_(?P<dtype>{'|'.join(DTYPES_OF)})_(?P<form>{'|'.join(FORMS)})"
    r"_(?P<tile_m>[1-9]\d{0,9})x(?P<tile_n>[1-9]\d{0,9})_s(?P<states>[1-9]\d{0,9})"
    r"_w(?P<num_warps>[1-9]\d{0,9})_al(?P<alignment>16|8|4|2|1)(?P<masked>_masked)?",
    re.ASCII,
)


def parse(name: str) -> MergeStatesConfig:
    """The config whose name this is. Raises `UnknownName`."""
    match = _PATTERN.fullmatch(name)
    if match is None:
        raise UnknownName(
            f"{shown(name, 300)} is not the name of a kernel of merge_states; one looks like "
            "merge_states_bf16_stack_4x128_s16_w4_al16"
        )
    said = match.groupdict()
    counts = {field: int(said[field]) for field in (*_COUNTS, "alignment")}
    return MergeStatesConfig(
        dtype=said["dtype"], form=said["form"], masked=said["masked"] is not None, **counts
    )
