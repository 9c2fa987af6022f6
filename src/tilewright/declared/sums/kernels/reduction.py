"""Reductions: several results of the same elements, in one read.

Idea. A workgroup makes KEPT results. It reads tiles of KEPT by BLOCK elements one after another,
and each lane keeps running results of the elements that it reads: a tile of them in registers. At
the end they are put together along BLOCK. Of columns whose sums alone are asked for, a lane adds up
what it has of a tile at once, so that it keeps one vector of them. Where there are too few results
to fill the GPU, SPLIT workgroups share the elements of each, and a second kernel puts their partial
results together: in a fixed order, so that results repeat.

Data. Sums are in fp32, of whole numbers in int64. Where neighbours in memory belong to one result,
lanes are spread along BLOCK; where they belong to different ones (COLUMNS), along KEPT.

What limits it: memory, since each element is read once. Few instructions may stand before the first
load, so nothing is divided by 1. Along KEPT a lane has neighbours in memory, as many as its loads
are wide; if the lanes of all warps fit there, nothing moves between lanes.

Timed on an H200 (2026-11-30, in graphs; µs), in two runs. The first was before places were counted
instead of divided, before tiles were chosen by `_tiles.pace`, and where rows that are in 2s, 4s or
8s were read element by element; the second before parts were even. In a third the first case took
9.9, as a copy did, and the last 31.3. Counts: docs/notes/declared-rows.md.

    case                                        first   compiled   second   compiled
    sum of 4096 rows of 4096, bf16              11.8    10.6       12.6     9.8
    sum of 12990 rows of 63, bf16               4.3     2.9        2.5      3.1
    mean along 200704 of 256 columns, bf16      33.5    29.5       30.4     27.5
    norm of 20398718, fp16                      17.1    14.6       13.7     14.8
    mean along 35 of 9 x 264726, fp16           119.9   43.7       46.1     43.1
    argmax of 256 rows of 128256, bf16          29.8    42.8       30.9     38.9
"""

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait


@triton.constexpr_function
def running(dtype):
    """The type in which the largest and the smallest are followed."""
    if dtype.is_floating():
        return tl.float32
    return tl.int64 if dtype.primitive_bitwidth == 64 else tl.int32


@triton.constexpr_function
def worst(dtype, LEAST):
    """The value that every other replaces."""
    if dtype.is_floating():
        return float("inf") if LEAST else -float("inf")
    bits = dtype.primitive_bitwidth - 1
    return 2**bits - 1 if LEAST else -(2**bits)


@triton.constexpr_function
def turns(dtype, alignment, BLOCK):
    """How many loads a lane makes of a row, so that it holds 8 elements: the more it holds, the
    fewer steps between lanes a sum needs."""
    at_once = 128 // dtype.primitive_bitwidth
    at_once = alignment if alignment < at_once else at_once
    at_once = at_once if at_once < BLOCK else BLOCK
    there = BLOCK // at_once
    wanted = 8 // at_once if at_once < 8 else 1
    return wanted if wanted < there else there


@triton.constexpr_function
def folds(dtype, alignment, KEPT, BLOCK, LANES):
    """How many loads a lane makes of a tile of columns, so that those of one load are its own
    results: it adds the others to them at once, and keeps no running results of each."""
    at_once = 128 // dtype.primitive_bitwidth
    at_once = alignment if alignment < at_once else at_once
    across = LANES * (at_once if at_once < KEPT else KEPT) // KEPT
    return BLOCK // across if 0 < across < BLOCK else 1


@triton.jit
def divided(count, by):
    """The quotient and the remainder, without the division where there is nothing to divide by: it
    takes longer than all other arithmetic before the first load."""
    quotient = count
    if by > 1:
        quotient = count // by
    return quotient, count - quotient * by


@triton.jit
def ahead_of(group, middle, outer_stride, middle_stride):
    """Where the elements of a group begin."""
    ahead = group.to(tl.int64) * outer_stride
    if middle > 1:
        above = group // middle
        ahead = above.to(tl.int64) * outer_stride
        ahead += (group - above * middle).to(tl.int64) * middle_stride
    return ahead


@triton.jit
def larger(a, b):
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def magnitude(values, dtype: tl.constexpr):
    """Absolute values; the type's largest for its least, whose own it does not have."""
    found = tl.abs(values)
    if not dtype.is_floating():
        LEAST: tl.constexpr = worst(dtype, False)
        found = tl.where(values == LEAST, -(LEAST + 1), found)
    return found


@triton.jit
def smaller(a, b):
    return tl.minimum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def times(a, b):
    return a * b


@triton.jit
def larger_at(a, a_at, b, b_at):
    """The larger of two with its place; of equals the first; NaN is larger than all."""
    first = a_at < b_at
    takes = (a > b) | ((a == b) & first) | ((a != a) & ((b == b) | first))
    return tl.where(takes, a, b), tl.where(takes, a_at, b_at)


@triton.jit
def smaller_at(a, a_at, b, b_at):
    """The smaller of two with its place; of equals the first; NaN is smaller than all."""
    first = a_at < b_at
    takes = (a < b) | ((a == b) & first) | ((a != a) & ((b == b) | first))
    return tl.where(takes, a, b), tl.where(takes, a_at, b_at)


@triton.jit
def followed(best, best_at, values, at, inside, LEAST: tl.constexpr, PLACED: tl.constexpr):
    """The best so far, after one more tile."""
    values = tl.where(inside, values, worst(values.dtype, LEAST))
    if PLACED:
        # Places grow from tile to tile, so an equal one that comes later replaces nothing.
        better = values < best if LEAST else values > best
        takes = better | ((values != values) & (best == best))
        best_at = tl.where(takes, at, best_at)
        best = tl.where(takes, values, best)
    elif LEAST:
        best = smaller(best, values)
    else:
        best = larger(best, values)
    return best, best_at


@triton.jit
def chosen(best, best_at, LEAST: tl.constexpr, PLACED: tl.constexpr):
    """The best along the second dimension."""
    if PLACED:
        best, best_at = tl.reduce((best, best_at), 1, smaller_at if LEAST else larger_at)
    else:
        best = tl.reduce(best, 1, smaller if LEAST else larger)
        best_at = best.to(tl.int32)
    return best, best_at


@triton.jit
def put(
    sums, means, norms, products, maxima, minima, largest, max_at, min_at, kept, there, count,
    total, squares, product, top, top_at, bottom, bottom_at, most,
    sum: tl.constexpr, mean: tl.constexpr, norm: tl.constexpr, prod: tl.constexpr,
    max: tl.constexpr, min: tl.constexpr, absmax: tl.constexpr, argmax: tl.constexpr,
    argmin: tl.constexpr,
):  # fmt: skip
    """Store the results that are asked for."""
    if sum:
        tl.store(sums + kept, total.to(sums.dtype.element_ty), there)
    if mean:
        made = total.to(tl.float32) / count
        tl.store(means + kept, made.to(means.dtype.element_ty), there)
    if norm:
        tl.store(norms + kept, tl.sqrt_rn(squares).to(norms.dtype.element_ty), there)
    if prod:
        tl.store(products + kept, product.to(products.dtype.element_ty), there)
    if max:
        tl.store(maxima + kept, top.to(maxima.dtype.element_ty), there)
    if min:
        tl.store(minima + kept, bottom.to(minima.dtype.element_ty), there)
    if absmax:
        tl.store(largest + kept, most.to(largest.dtype.element_ty), there)
    if argmax:
        tl.store(max_at + kept, top_at.to(tl.int64), there)
    if argmin:
        tl.store(min_at + kept, bottom_at.to(tl.int64), there)


@triton.jit
def reduction(
    x, sums, means, norms, products, maxima, minima, largest, max_at, min_at, parts, whole_parts,
    at_parts, outer, far, middle, near, inner, outer_stride, far_stride, middle_stride,
    near_stride, results, COLUMNS: tl.constexpr, KEPT: tl.constexpr, BLOCK: tl.constexpr,
    SPLIT: tl.constexpr, ONCE: tl.constexpr, LANES: tl.constexpr, alignment: tl.constexpr,
    sum: tl.constexpr, mean: tl.constexpr, norm: tl.constexpr, prod: tl.constexpr,
    max: tl.constexpr, min: tl.constexpr, absmax: tl.constexpr, argmax: tl.constexpr,
    argmin: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """One of SPLIT parts of KEPT results; ONCE: of one tile."""
    if DEPENDENT and SPLIT > 1:
        gdc_launch_dependents()
    SUMS: tl.constexpr = not (prod or max or min or absmax or argmax or argmin)
    FOLDED: tl.constexpr = COLUMNS and SUMS
    FOLDS: tl.constexpr = folds(x.dtype.element_ty, alignment, KEPT, BLOCK, LANES) if FOLDED else 1
    TURNS: tl.constexpr = FOLDS if COLUMNS else turns(x.dtype.element_ty, alignment, BLOCK)
    ACROSS: tl.constexpr = BLOCK // TURNS
    WHOLE: tl.constexpr = not x.dtype.element_ty.is_floating()
    SUMMED: tl.constexpr = tl.int64 if WHOLE else tl.float32
    FOLLOWED: tl.constexpr = running(x.dtype.element_ty)
    program, part = tl.program_id(0), tl.program_id(1)
    if COLUMNS:
        group, tile = divided(program, tl.cdiv(inner, KEPT))
        column = tile * KEPT + tl.arange(0, KEPT)
        there = column < inner
        kept = group * inner + column
    else:
        group = program * KEPT + tl.arange(0, KEPT)
        there = group < outer * middle
        column = 0
        kept = group
    from_x = x + ahead_of(group, middle, outer_stride, middle_stride) + column
    blocks = tl.cdiv(near, BLOCK)
    first, last = part * 0, far * blocks
    turn, start = first, first
    if ONCE:
        last = first + 1
    elif SPLIT > 1:
        # Parts differ by a tile at most, so that none is left without work.
        each = far * blocks // SPLIT
        more = far * blocks - each * SPLIT
        first = part * each + tl.minimum(part, more)
        last = first + each + (part < more).to(tl.int32)
        turn, start = divided(first, blocks)
        start *= BLOCK
    # The last dimension is a lane's own where it is folded, else the one before it.
    FIRST: tl.constexpr = ACROSS if FOLDED else TURNS
    SECOND: tl.constexpr = TURNS if FOLDED else ACROSS
    RUNNING: tl.constexpr = 1 if FOLDED else ACROSS
    total = tl.zeros((KEPT, FIRST, RUNNING), SUMMED)
    squares = tl.zeros((KEPT, FIRST, RUNNING), tl.float32)
    product = tl.full((KEPT, FIRST, SECOND), 1, SUMMED)
    top = tl.full((KEPT, FIRST, SECOND), worst(FOLLOWED, False), FOLLOWED)
    bottom = tl.full((KEPT, FIRST, SECOND), worst(FOLLOWED, True), FOLLOWED)
    most = tl.zeros((KEPT, FIRST, SECOND), FOLLOWED)
    # Right also where no value is better: then the first part's first element is the first of all.
    FAR: tl.constexpr = 1 if FOLDED else ACROSS
    NEAR: tl.constexpr = ACROSS if FOLDED else 1
    column_of = tl.arange(0, FIRST)[None, :, None] * FAR
    column_of += tl.arange(0, SECOND)[None, None, :] * NEAR
    top_at = tl.zeros((KEPT, FIRST, SECOND), tl.int32) + column_of
    bottom_at = top_at
    for _ in range(first, last):
        one = start + column_of
        inside = there[:, None, None] & (one < near)
        if COLUMNS:
            at = one.to(tl.int64) * near_stride
        else:
            at = one
        read = tl.load((from_x + turn.to(tl.int64) * far_stride)[:, None, None] + at, inside, 0)
        values = read.to(FOLLOWED)
        if sum or mean:
            added = values.to(SUMMED)
            if FOLDED:
                added = tl.sum(added, 2, keep_dims=True)
            total = added if ONCE else total + added
        if norm:
            square = values.to(tl.float32) * values.to(tl.float32)
            squares += tl.sum(square, 2, keep_dims=True) if FOLDED else square
        if prod:
            product *= tl.where(inside, values, 1).to(SUMMED)
        place = turn * near + one
        if max or argmax:
            top, top_at = followed(top, top_at, values, place, inside, False, argmax)
        if min or argmin:
            bottom, bottom_at = followed(bottom, bottom_at, values, place, inside, True, argmin)
        if absmax:
            most = larger(most, magnitude(values, x.dtype.element_ty))
        start += BLOCK
        over = start >= near
        turn += over.to(tl.int32)
        start = tl.where(over, 0, start)
    # First what each lane has by itself, then along lanes.
    total = tl.sum(tl.sum(total, 1), 1)
    squares = tl.sum(tl.sum(squares, 1), 1)
    product = tl.reduce(tl.reduce(product, 1, times), 1, times)
    top, top_at = chosen(top, top_at, False, argmax)
    top, top_at = chosen(top, top_at, False, argmax)
    bottom, bottom_at = chosen(bottom, bottom_at, True, argmin)
    bottom, bottom_at = chosen(bottom, bottom_at, True, argmin)
    most = tl.reduce(tl.reduce(most, 1, larger), 1, larger)
    if SPLIT == 1:
        put(
            sums, means, norms, products, maxima, minima, largest, max_at, min_at, kept, there,
            far.to(tl.float32) * near, total, squares, product, top, top_at, bottom, bottom_at,
            most, sum, mean, norm, prod, max, min, absmax, argmax, argmin,
        )  # fmt: skip
    else:
        to = kept.to(tl.int64) * SPLIT + part
        slot = results.to(tl.int64) * SPLIT
        held = whole_parts if WHOLE else parts
        if sum or mean:
            tl.store(held + to, total, there)
        if norm:
            tl.store(parts + slot + to, squares, there)
        if prod:
            tl.store(held + 2 * slot + to, product, there)
        if max or argmax:
            tl.store(held + 3 * slot + to, top.to(SUMMED), there)
        if min or argmin:
            tl.store(held + 4 * slot + to, bottom.to(SUMMED), there)
        if absmax:
            tl.store(held + 5 * slot + to, most.to(SUMMED), there)
        if argmax:
            tl.store(at_parts + to, top_at, there)
        if argmin:
            tl.store(at_parts + slot + to, bottom_at, there)


@triton.jit
def finish(
    x, sums, means, norms, products, maxima, minima, largest, max_at, min_at, parts, whole_parts,
    at_parts, far, near, results, SPLIT: tl.constexpr, sum: tl.constexpr, mean: tl.constexpr,
    norm: tl.constexpr, prod: tl.constexpr, max: tl.constexpr, min: tl.constexpr,
    absmax: tl.constexpr, argmax: tl.constexpr, argmin: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """The partial results of 1024 / SPLIT results, put together."""
    if DEPENDENT:
        gdc_wait()
    KEPT: tl.constexpr = 1024 // SPLIT
    WHOLE: tl.constexpr = not x.dtype.element_ty.is_floating()
    held = whole_parts if WHOLE else parts
    kept = tl.program_id(0) * KEPT + tl.arange(0, KEPT)
    there = kept < results
    inside = there[:, None]
    at = kept.to(tl.int64)[:, None] * SPLIT + tl.arange(0, SPLIT)[None, :]
    slot = results.to(tl.int64) * SPLIT
    total, squares, product, most = kept, kept, kept, kept
    top, top_at, bottom, bottom_at = kept, kept, kept, kept
    if sum or mean:
        total = tl.sum(tl.load(held + at, inside, 0), 1)
    if norm:
        squares = tl.sum(tl.load(parts + slot + at, inside, 0.0), 1)
    if prod:
        product = tl.reduce(tl.load(held + 2 * slot + at, inside, 1), 1, times)
    if max or argmax:
        top = tl.load(held + 3 * slot + at, inside, 0)
        if argmax:
            top_at = tl.load(at_parts + at, inside, 0)
        top, top_at = chosen(top, top_at, False, argmax)
    if min or argmin:
        bottom = tl.load(held + 4 * slot + at, inside, 0)
        if argmin:
            bottom_at = tl.load(at_parts + slot + at, inside, 0)
        bottom, bottom_at = chosen(bottom, bottom_at, True, argmin)
    if absmax:
        most = tl.reduce(tl.load(held + 5 * slot + at, inside, 0), 1, larger)
    put(
        sums, means, norms, products, maxima, minima, largest, max_at, min_at, kept, there,
        far.to(tl.float32) * near, total, squares, product, top, top_at, bottom, bottom_at,
        most, sum, mean, norm, prod, max, min, absmax, argmax, argmin,
    )  # fmt: skip
