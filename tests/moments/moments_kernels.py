"""Two kernels of the moments family: sums of tiles, and what becomes of the sums."""

import triton
import triton.language as tl


@triton.jit
def partial(
    x, sums, squares, h, w, c, rows,
    TILE_H: tl.constexpr, TILE_W: tl.constexpr, TILE_C: tl.constexpr, FAULT: tl.constexpr,
):  # fmt: skip
    """One workgroup: TILE_H rows and TILE_C channels of one image, all columns."""
    image = tl.program_id(0) // rows
    row = tl.program_id(0) % rows
    channel = tl.program_id(1) * TILE_C
    acc = tl.zeros((TILE_C,), tl.float32)
    square = tl.zeros((TILE_C,), tl.float32)
    for column in range(0, w, TILE_W):
        tile = x.load([image, row * TILE_H, column, channel])
        flat = tl.reshape(tile, (TILE_H * TILE_W, TILE_C)).to(tl.float32)
        acc += tl.sum(flat, 0)
        square += tl.sum(flat * flat, 0)
    if FAULT == "y":
        acc = acc * 1.25
    at = (image * rows + row) * tl.num_programs(1) * TILE_C + channel + tl.arange(0, TILE_C)
    tl.store(sums + at, acc)
    tl.atomic_add(squares + image, tl.sum(square, 0))


@triton.jit
def combine(
    sums, squares, bias, y, z, h, w, c, rows, scale,
    TILE_C: tl.constexpr, HAS_BIAS: tl.constexpr, FAULT: tl.constexpr,
):  # fmt: skip
    """One workgroup: TILE_C channels of one image."""
    image = tl.program_id(0)
    channel = tl.program_id(1) * TILE_C
    acc = tl.zeros((TILE_C,), tl.float32)
    for row in range(0, rows, 4):
        acc += tl.sum(tl.reshape(sums.load([image, row, channel]), (4, TILE_C)), 0)
    at = channel + tl.arange(0, TILE_C)
    inside = at < c
    mean = acc * scale / (h * w)
    if HAS_BIAS:
        mean += tl.load(bias + at, inside, 0.0).to(tl.float32)
    tl.store(y + image * c + at, mean.to(y.dtype.element_ty), inside)
    if tl.program_id(1) == 0:
        total = tl.load(squares + image) / (h * w * c)
        if FAULT == "z":
            total = total * 1.01
        tl.store(z + image, total)
