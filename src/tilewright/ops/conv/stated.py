"""A problem in words, from the problem: those of a command line, and a line for people."""

from __future__ import annotations

from typing import Any

from tilewright.ops.conv import geometry
from tilewright.ops.products import outputs

COUNTS = ("n", "c", "k")
SIZES = ("spatial", "filter", "stride", "pad", "pad_after", "dilation")
TYPES = ("dtype", "dtype_out")
NAMES = ("direction", "precision", "epilogue")
STRIDES = ("x_strides", "w_strides", "y_strides")
LAYOUT_OF = {f"{name[0]}_layout": name for name in STRIDES}
"""The word for the layout of one array, and the field that it fills."""
LAYOUTS = ("channels_last", "channels_first")

DEFAULTS = {"direction": "forward", "precision": "ieee", "epilogue": "", "alignment": 16}
"""Words that have one default."""


def by(sizes: Any) -> str:
    """``3x3``."""
    return "x".join(map(str, sizes))


def first_strides(p: Any) -> dict[str, tuple[int, ...]]:
    """The strides of x, w and y if all are channels-first."""
    return {f"{name}_strides": geometry.channels_first(p.shape_of(name)) for name in "xwy"}


def words_of(p: Any) -> dict[str, str]:
    """The words that state the problem `p` (`words.parse`), without those that say a default."""
    said = {name: str(getattr(p, name)) for name in COUNTS}
    said |= {"spatial": by(p.spatial), "filter": by(p.filter)}
    if p.groups != 1:
        said["groups"] = str(p.groups)
    usual = {"stride": 1, "pad": 0, "dilation": 1}
    for name, value in usual.items():
        if any(one != value for one in getattr(p, name)):
            said[name] = by(getattr(p, name))
    if p.pad_after != p.pad:
        said["pad_after"] = by(p.pad_after)
    said["dtype"] = p.dtype
    if p.dtype_out != outputs(p.dtype, p.epilogue)[0]:
        said["dtype_out"] = p.dtype_out
    for name, default in DEFAULTS.items():
        if getattr(p, name) != default:
            said[name] = str(getattr(p, name))
    strides = {name: getattr(p, name) for name in STRIDES}
    if any(strides.values()) and strides == _kept(p, first_strides(p)):
        said["layout"] = LAYOUTS[1]
    else:
        said |= {name: ",".join(map(str, s)) for name, s in strides.items() if s}
    return said


def _kept(p: Any, strides: dict[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
    """Strides as a problem keeps them: () where they are those of channels-last."""
    found = {}
    for name, given in strides.items():
        shape = p.shape_of(name[0])
        found[name] = (
            () if given == geometry.channels_last(shape[0], shape[1], shape[2:]) else given
        )
    return found


def in_short(p: Any) -> str:
    """One line for people: ``conv n8 c640 k640 32x32 filter 3x3 bf16 pad 1x1 data``."""
    said = words_of(p)
    shown = [f"conv n{p.n} c{p.c} k{p.k} {by(p.spatial)} filter {by(p.filter)}"]
    shown.append(p.dtype + (f"→{p.dtype_out}" if "dtype_out" in said else ""))
    for word in (*COUNTS, "spatial", "filter", *TYPES):
        said.pop(word, None)
    if "direction" in said:
        shown.append(said.pop("direction"))
    for word, text in said.items():
        if word in ("precision", "epilogue", "layout"):
            shown.append(text)
        else:
            shown.append(f"{word} {text}")
    return " ".join(shown)
