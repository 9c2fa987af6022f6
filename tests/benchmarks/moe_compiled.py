"""The rival's products compiled for Hopper without a GPU: prints how many kernels were compiled
ahead, and how many there are after calls. A process of its own: Triton's driver is replaced."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))

import torch
from triton.backends.compiler import GPUTarget
from triton.runtime import driver

import rivals_moe as rival
import rivals_moe_kernels as kernels


class NoGpu:
    def get_current_device(self):
        return 0

    def get_current_target(self):
        return GPUTarget("cuda", 90, 32)

    def get_current_stream(self, device=None):
        return 0

    def get_active_torch_device(self):
        return torch.device("cpu")


class Compiled:
    """A kernel that is compiled where it is called, and not launched."""

    def __init__(self, kernel):
        self.kernel = kernel

    def __getitem__(self, grid):
        return lambda *given, **words: self.kernel.run(*given, grid=grid, warmup=True, **words)


def count(kernel):
    return sum(len(found[0]) for found in kernel.device_caches.values())


def calls(block, eight):
    """Both products of layers of several sizes."""
    int32 = {"dtype": torch.int32}
    made = torch.zeros(160, **int32), torch.zeros(10, **int32), torch.zeros(1, **int32)
    for tokens, k in ((1, 8), (16, 2), (48, 4)):
        kind = torch.float8_e4m3fn if eight else torch.bfloat16
        rows, w = torch.zeros(tokens, 256).to(kind), torch.zeros(4, 512, 256).to(kind)
        scales = (torch.zeros(tokens, 2), torch.zeros(4, 4, 2)) if eight else (None, None)
        weights = torch.zeros(tokens, k)
        for per_row, weighted in ((k, False), (1, True)):
            rival.multiplied(
                (rows, scales[0]), w, scales[1], weights, made, block, per_row, weighted
            )


if __name__ == "__main__":
    driver.set_active(NoGpu())
    product = kernels.product
    for eight in (False, True):
        some = rival.blocks(16, 256, eight)[:2]
        rival.built([rival.Build(replace(one, band=1), True, eight) for one in some], None)
        ahead = count(product)
        kernels.product = Compiled(product)
        for one in some:
            calls(replace(one, band=8), eight)
        kernels.product = product
        print(ahead, count(product))
