"""A small kernel that every rule lets pass, changed for one rule or another."""

from __future__ import annotations

import dataclasses

from tilewright.arch import arch
from tilewright.ops.gemm.config import GemmConfig

SM90 = arch("sm_90")
SM80 = arch("sm_80")
SM89 = arch("sm_89")
GFX942 = arch("gfx942")
GFX950 = arch("gfx950")
SPECIALISING = dataclasses.replace(SM90, features=("tma", "pdl", "warp_specialize"))
"""sm_90 with a compiler that specialises warps."""

BASE = GemmConfig(
    layout="rcr",
    dtype_a="bf16",
    dtype_b="bf16",
    dtype_c="bf16",
    dtype_acc="fp32",
    precision="ieee",
    tile_m=64,
    tile_n=64,
    tile_k=64,
    num_warps=4,
    num_stages=2,
    pipeline="basic",
    scheduler="tile",
    split_k=1,
    reduction="none",
    group_m=8,
    store="direct",
    pad_m=True,
    pad_n=True,
    pad_k=True,
    alignment=16,
    mma=(0, 0, 0),
    index_bits=32,
)


def change(**fields):
    return dataclasses.replace(BASE, **fields)


def fp8(flavour, **fields):
    types = {"dtype_a": flavour, "dtype_b": flavour, "dtype_c": "bf16"}
    return change(**types, **fields)


TMA = {"pipeline": "tma"}
GLUON = {"pipeline": "gluon_ws", "scheduler": "persistent"}
CDNA = {"pipeline": "gluon_cdna"}
FEW = {"pipeline": "small_m", "group_m": 1, "tile_m": 8}
FEW_TMA = {**FEW, "pipeline": "small_m_tma"}
SCALED = {
    "pipeline": "gluon_scaled",
    "scheduler": "persistent",
    "scale_a": "1x128",
    "scale_b": "128x128",
    "tile_k": 128,
}
