"""CK Tile's examples 05_reduce (its sum) and 36_pooling."""

from __future__ import annotations

from tilewright import checks
from tilewright.declared._ck import Program, Said, driver
from tilewright.errors import BadArgument

_AXES = {"d": ("D", "Z", "z"), "h": ("H", "Y", "y"), "w": ("W", "X", "x")}
"""For each dimension its letter in names of sizes, of windows, and of what is said of them."""


def _reduce(said: Said) -> dict[str, str]:
    one = dict.fromkeys(("far", "middle", "inner"), "1")
    return {"outer": said["m"], "near": said["n"], **one, "dtype": said["prec"], "sum": "1"}


def _pool(said: Said) -> dict[str, str]:
    """The largest of windows with their places, in fp16, as the example has it."""
    found = {"images": said["N"], "channels": said["C"], "dtype": "fp16", "index": "1"}
    for axis, name in zip(_AXES, ("depth", "height", "width"), strict=True):
        size, window, of = _AXES[axis]
        before, behind = (
            checks.parse_whole(f"ck: -{side}P{of}", said[f"{side}P{of}"])
            for side in ("Left", "Right")
        )
        if behind < before:
            raise BadArgument(
                f"ck: -RightP{of}={behind} has no counterpart: padding behind an image is as much "
                f"as before it ({before}), or more"
            )
        found |= {
            name: said[size],
            f"kernel_{axis}": said[window],
            f"stride_{axis}": said[f"S{of}"],
            f"dilation_{axis}": said[f"D{of}"],
            f"pad_{axis}": str(before),
            f"over_{axis}": str(behind - before),
        }
    return found


REDUCE = driver(
    Program(("tile_example_reduce",), {"m": "3328", "n": "4096", "prec": "fp16"}, _reduce)
)
POOL = driver(
    Program(
        ("tile_example_pool3d",),
        {
            "N": "2", "D": "30", "H": "30", "W": "30", "C": "32",
            **dict.fromkeys(("Z", "Y", "X", "Sz", "Sy", "Sx"), "2"),
            **dict.fromkeys(("Dz", "Dy", "Dx"), "1"),
            **dict.fromkeys([f"{side}P{of}" for side in ("Left", "Right") for of in "zyx"], "1"),
        },
        _pool,
    )
)  # fmt: skip
