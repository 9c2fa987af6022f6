"""Documents in CK Tile Engine's form, and what is read from them."""

from __future__ import annotations

from tilewright.arch import arch
from tilewright.ops.gemm.formats.tile_engine import read_sweep

GFX942 = arch("gfx942")
SM90 = arch("sm_90")
FP16 = {"dtype": "fp16", "layout": "rcr"}


def values(*listed):
    return {"values": list(listed)}


def steps(low, high, step, *exclude):
    found = {"min": low, "max": high, "step": step}
    return {**found, "exclude": list(exclude)} if exclude else found


def document(**changes):
    """A small sweep as CK Tile Engine publishes them; `changes` replaces or adds fields of
    tile_config (if they are about tiles or warps), of trait_config otherwise."""
    made = {
        "tile_config": {
            "tile_m": values(128),
            "tile_n": values(64, 128),
            "tile_k": values(64),
            "warp_m": values(2),
            "warp_n": values(2),
            "warp_k": values(1),
            "warp_tile_m": values(32),
            "warp_tile_n": values(32),
            "warp_tile_k": values(16),
        },
        "trait_config": {
            "pipeline": values("compv3"),
            "scheduler": values("intrawave"),
            "epilogue": values("cshuffle"),
            "pad_m": values(False),
            "pad_n": values(False),
            "pad_k": values(False),
            "persistent": values(False),
        },
    }
    for name, axis in changes.items():
        block = "tile_config" if name.startswith(("tile", "warp")) else "trait_config"
        if axis is None:
            del made[block][name]
        else:
            made[block][name] = axis
    return made


def read(doc, this=GFX942, signature=FP16):
    return read_sweep(doc, this, signature)


def expand(doc, this=GFX942, signature=FP16):
    return read(doc, this, signature)[0].expand(this)


def seen(expansion, *fields):
    return {tuple(getattr(c, f) for f in fields) for c in expansion.configs}


def noted(notes, *words):
    return any(all(word in note for word in words) for note in notes)
