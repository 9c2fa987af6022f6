"""CK Tile's examples 06_permute and 35_batched_transpose."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright import checks
from tilewright.declared._ck import Program, Said, driver, only
from tilewright.declared.shape._problems import permuted
from tilewright.errors import BadArgument


def _moved(shape: Sequence[int], dims: Sequence[int], dtype: str) -> dict[str, str]:
    fields = permuted(shape, dims, dtype=dtype)
    return {name: str(value) for name, value in fields.items()}


def _listed(said: Said, name: str) -> list[int]:
    return [checks.parse_whole(f"ck: -{name}", part) for part in said[name].split(",")]


def _permute(said: Said) -> dict[str, str]:
    shape, perm = _listed(said, "shape"), _listed(said, "perm")
    if sorted(perm) != [*range(len(shape))]:
        raise BadArgument(f"ck: -perm={said['perm']} is no order of {len(shape)} dimensions")
    return _moved(shape, perm, said["prec"])


def _batched_transpose(said: Said) -> dict[str, str]:
    only(said, "layouts are NCHW and NHWC", layout_in=("NCHW", "NHWC"))
    other = "NHWC" if said["layout_in"] == "NCHW" else "NCHW"
    only(said, f"{said['layout_in']} is turned into {other}", layout_out=(other,))
    n, c, h, w = (checks.parse_whole(f"ck: -{name}", said[name]) for name in "NCHW")
    matrix = (c, h * w) if other == "NHWC" else (h * w, c)
    return _moved((n, *matrix), (0, 2, 1), said["pr"])


DRIVER = driver(
    Program(
        ("tile_example_permute",), {"prec": "fp16", "shape": "2,3,4", "perm": "2,1,0"}, _permute
    ),
    Program(
        ("tile_example_batched_transpose",),
        {
            "pr": "fp16", "N": "1", "C": "32", "H": "1", "W": "32", "layout_in": "NCHW",
            "layout_out": "NHWC",
        },
        _batched_transpose,
    ),
)  # fmt: skip
