"""The rival of `fused_moe` in Triton's interpreter, which needs a process of its own: prints the
largest error of each layer beside the rms. In fp16, as the interpreter takes bf16 for integers; its
casts to fp8 cut off."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path

os.environ["TRITON_INTERPRET"] = "1"
sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))

import torch

import moe_layers
import rivals_moe as rival

torch.set_num_threads(1)
SIZES = {
    "halves": moe_layers.Model(64, 48, 6, 2),
    "clamped": moe_layers.Model(80, 48, 6, 2, clamped=True),  # sums are no whole blocks
    "fp8": moe_layers.Model(1280, 128, 5, 3),
}
BLOCK = rival.Block(16, 64, 64, 4, 3, 2)


def layers():
    """Of each layer, its error: with few slots, and with as many as take three launches."""
    for name, size in SIZES.items():
        moe_layers.MODELS[name] = size
        cell = moe_layers.Cell("fp8" if name == "fp8" else "bf16", name, 1, 11, "skewed")
        given = moe_layers.operands(cell, "cpu")
        if name != "fp8":
            halves = [one.half() for one in (given.x, given.w1, given.w2)]
            given = moe_layers.Operands(*halves, None)
        clamp = tuple(moe_layers.CLAMP.values()) if size.clamped else None
        layer = rival.Layer(given.w1, given.w2, size.k, clamp, given.scales, BLOCK, BLOCK)
        if name != "fp8":
            wider = replace(BLOCK, n=128, k=32)
            layer = replace(layer, second=wider)
        weights, ids = moe_layers.routings(cell, "cpu")[0]
        wanted = moe_layers.exact(cell, given, weights, ids)
        for few in (1024, 4) if name == "halves" else (1024,):
            rival.FEW = few
            yield f"{name} {few}", moe_layers.far(layer(given.x, weights, ids), wanted)


def sums():
    """Sums by atomics, of rows in another order and of one that is nowhere."""
    rows, weights = torch.randn(12, 40).half(), torch.rand(4, 3)
    places = torch.randperm(12).view(4, 3).to(torch.int32)
    places[1, 2] = -1
    wanted = (rows[places.long()].double() * weights[..., None] * (places >= 0)[..., None]).sum(1)
    yield "sums", moe_layers.far(rival.added_in_any_order(rows, places, weights), wanted)


if __name__ == "__main__":
    torch.manual_seed(0)
    for name, far in (*layers(), *sums()):
        print(f"{name}: {far:.4f}")
