"""The body of norms of rows: RMS norm, and layer norm, which takes the mean off first.

Idea. A workgroup has ROWS rows. Where BLOCK elements hold a row, it is read once and stays in
registers: statistics, norm, largest value and result are made of it. BLOCK may be the sum of two
powers of two: the row is then held in two tiles (`norm_in_two`). A longer row is read once for
its statistics, once for its largest value if it is quantised by row, and once for the result; the
second and third time mostly from L2. Larger pieces are for rows that would leave L2 before that: L2
is told to keep them until then, and no longer.

With AGAIN a row that BLOCK holds is read for its statistics, and again for its result, from the
SM's own cache. It takes no registers meanwhile, nor do w and b, so an SM has more rows at a time:
that is what keeps memory busy while some of them sum, wait and store.

With AHEAD there are as many workgroups as the GPU holds, and each takes rows in turns. The next
rows are on their way to shared memory while one is normed, so memory is never idle; w and b are
read once for all rows of a workgroup.

Data. x and the residual are read in the type in which they lie; sums are in fp32. The norm is made
of the sum before the sum is rounded. The variance is that of values less their mean: where a row is
held, of the row's mean; else every place of the tile keeps the mean and the variance of the values
that it met (Welford, 1962), and these are merged at the end (Chan, Golub and LeVeque, 1979). So a
mean far from 0 costs no digits.
"""

import triton
import triton.language as tl

from tilewright.declared.rows.kernels._quantise import put
from tilewright.ops.device.rounding import scale_of_block


@triton.constexpr_function
def policy(KEPT):
    """Which lines the caches replace: 1, last, since they are read again; -1, first, since they are
    not; 0, as usual."""
    return {1: "evict_last", -1: "evict_first", 0: ""}[KEPT]


@triton.constexpr_function
def told(BLOCK, KEPT):
    """What L2 is told of pieces of a row: nothing of small ones, whose rows stay by themselves."""
    return KEPT if BLOCK > 4096 else 0


@triton.jit
def summed(x, residual, at, inside, HAS: tl.constexpr, KEPT: tl.constexpr = 0):
    """x, with the residual added if there is one, in fp32; 0 outside. KEPT: as of `policy`."""
    found = tl.load(x + at, inside, 0.0, eviction_policy=policy(KEPT)).to(tl.float32)
    if HAS:
        found += tl.load(residual + at, inside, 0.0, eviction_policy=policy(KEPT)).to(tl.float32)
    return found


@triton.jit
def of_columns(x, column, columns, HAS: tl.constexpr):
    """A value for each column in the type in which it lies, if there are any."""
    found = 0.0
    if HAS:
        found = tl.load(x + column, column < columns, 0.0)[None, :]
    return found


@triton.jit
def finished(
    values, mean, rstd, w, b, smooth, offset,
    CENTRED: tl.constexpr, has_w: tl.constexpr, has_b: tl.constexpr, has_smooth: tl.constexpr,
):  # fmt: skip
    """Values less their mean, times what they are multiplied by."""
    found = values
    if CENTRED:
        found -= mean[:, None]
    found *= rstd[:, None]
    if has_w:
        found *= w.to(tl.float32) + offset
    if has_b:
        found += b.to(tl.float32)
    if has_smooth:
        found *= smooth
    return found


@triton.jit
def met(mean, apart, values, inside, times):
    """Mean, and sum of squared distances from it, in each place that meets a further value, its
    `times`-th."""
    new = tl.where(inside, values - mean, 0.0)
    mean += new / times
    return mean, apart + new * (values - mean)


@triton.jit
def merged(mean, apart, columns, inside):
    """Means and sums of squared distances of places, as those of whole rows."""
    BLOCK: tl.constexpr = mean.shape[1]
    times = (columns - tl.arange(0, BLOCK) + BLOCK - 1) // BLOCK
    times = times.to(tl.float32)[None, :]
    whole = tl.sum(mean * times, 1) / columns
    off = mean - whole[:, None]
    return whole, tl.sum(apart + off * off * times, 1)


@triton.jit
def held_statistics(values, inside, columns, eps, CENTRED: tl.constexpr):
    """Mean of rows that are held, 0 without CENTRED, and 1 / sqrt(mean of squares + eps)."""
    mean = tl.zeros((values.shape[0],), tl.float32)
    if CENTRED:
        mean = tl.sum(values, 1) / columns
        values = tl.where(inside, values - mean[:, None], 0.0)
    return mean, tl.rsqrt(tl.sum(values * values, 1) / columns + eps)


@triton.jit
def read_statistics(
    x, residual, there, columns, eps, BLOCK: tl.constexpr, CENTRED: tl.constexpr,
    has_residual: tl.constexpr, KEPT: tl.constexpr = 0,
):  # fmt: skip
    """The same of rows that are read for it, piece by piece. x and residual: where rows begin.
    KEPT: as of `policy`."""
    mean = tl.zeros((there.shape[0], BLOCK), tl.float32)
    squares = tl.zeros((there.shape[0], BLOCK), tl.float32)
    for start in range(0, columns, BLOCK):
        column = start + tl.arange(0, BLOCK)
        inside = there & (column < columns)[None, :]
        values = summed(x, residual, column[None, :], inside, has_residual, KEPT)
        if CENTRED:
            mean, squares = met(mean, squares, values, inside, start // BLOCK + 1)
        else:
            squares += values * values
    if CENTRED:
        whole, square = merged(mean, squares, columns, there)
    else:
        whole, square = tl.zeros((there.shape[0],), tl.float32), tl.sum(squares, 1)
    return whole, tl.rsqrt(square / columns + eps)


@triton.jit
def store_statistics(means, rstds, row, rows, mean, rstd, CENTRED: tl.constexpr):
    """Store what rows were normed with."""
    if CENTRED:
        tl.store(means + row, mean, row < rows)
    tl.store(rstds + row, rstd, row < rows)


@triton.constexpr_function
def first_of(BLOCK):
    """The largest power of two in BLOCK, which is one or the sum of two."""
    return 1 << (BLOCK.bit_length() - 1)


@triton.jit
def multiplied_by(
    w, b, smooth, start, columns, WIDTH: tl.constexpr, has_w: tl.constexpr, has_b: tl.constexpr,
    has_smooth: tl.constexpr,
):  # fmt: skip
    """w, b and smooth of WIDTH columns from column `start` on."""
    column = start + tl.arange(0, WIDTH)
    ws = of_columns(w, column, columns, has_w)
    bs = of_columns(b, column, columns, has_b)
    smooths = of_columns(smooth, column, columns, has_smooth)
    return ws, bs, smooths


@triton.jit
def begun(
    x, residual, total, row, there, start, columns, WIDTH: tl.constexpr, has_residual: tl.constexpr
):  # fmt: skip
    """WIDTH columns from column `start` on: the values, and which of them there are. Sums with the
    residual are stored."""
    column = start + tl.arange(0, WIDTH)
    inside = there & (column < columns)[None, :]
    values = summed(x, residual, column[None, :], inside, has_residual)
    if has_residual:
        at = row[:, None] * columns + column[None, :]
        tl.store(total + at, values.to(total.dtype.element_ty), inside)
    return values, inside


@triton.jit
def sum_of_two(values, more):
    """The sums of rows that two tiles hold: each lane adds up its own first, so that lanes meet
    once."""
    ROWS: tl.constexpr = values.shape[0]
    REST: tl.constexpr = more.shape[1]
    parts = values.reshape(ROWS, values.shape[1] // REST, REST)
    return tl.sum(tl.sum(parts, 1) + more, 1)


@triton.jit
def statistics_in_two(values, inside, more, further, columns, eps, CENTRED: tl.constexpr):
    """As `held_statistics`, of rows that two tiles hold, the second one smaller."""
    mean = tl.zeros((values.shape[0],), tl.float32)
    apart, more_apart = values, more
    if CENTRED:
        mean = sum_of_two(values, more) / columns
        apart = tl.where(inside, values - mean[:, None], 0.0)
        more_apart = tl.where(further, more - mean[:, None], 0.0)
    squares = sum_of_two(apart * apart, more_apart * more_apart)
    return mean, tl.rsqrt(squares / columns + eps)


@triton.jit
def norm_in_two(
    x, residual, times, more_times, y, total, means, rstds, row, there, rows, columns, eps, offset,
    BLOCK: tl.constexpr, CENTRED: tl.constexpr, has_w: tl.constexpr, has_b: tl.constexpr,
    has_residual: tl.constexpr, has_smooth: tl.constexpr, statistics: tl.constexpr,
):  # fmt: skip
    """Rows that two tiles hold, the second one smaller, and that are not quantised. x and residual:
    where rows begin. times, more_times: what columns of either tile are multiplied by."""
    FIRST: tl.constexpr = first_of(BLOCK)
    REST: tl.constexpr = BLOCK - FIRST
    values, inside = begun(x, residual, total, row, there, 0, columns, FIRST, has_residual)
    more, further = begun(x, residual, total, row, there, FIRST, columns, REST, has_residual)
    mean, rstd = statistics_in_two(values, inside, more, further, columns, eps, CENTRED)
    if statistics:
        store_statistics(means, rstds, row, rows, mean, rstd, CENTRED)
    ws, bs, smooths = times
    values = finished(
        values, mean, rstd, ws, bs, smooths, offset, CENTRED, has_w, has_b, has_smooth
    )
    ws, bs, smooths = more_times
    more = finished(more, mean, rstd, ws, bs, smooths, offset, CENTRED, has_w, has_b, has_smooth)
    put(y, None, values, row, there, 0, columns, 1.0, "")
    put(y, None, more, row, there, FIRST, columns, 1.0, "")


@triton.jit
def norm_in_one(
    x, residual, times, w, b, smooth, y, total, means, rstds, row_scales, block_scales, row, there,
    rows, columns, eps, offset, by, BLOCK: tl.constexpr, CENTRED: tl.constexpr, has_w: tl.constexpr,
    has_b: tl.constexpr, has_residual: tl.constexpr, has_smooth: tl.constexpr, quant: tl.constexpr,
    statistics: tl.constexpr,
):  # fmt: skip
    """Rows that one tile holds. times: what columns are multiplied by; () for what is to be
    loaded."""
    column = tl.arange(0, BLOCK)
    inside = there & (column < columns)[None, :]
    values = summed(x, residual, column[None, :], inside, has_residual)
    if len(times) == 0:  # before the sums over the row, which would otherwise be waited for first
        times = multiplied_by(w, b, smooth, 0, columns, BLOCK, has_w, has_b, has_smooth)
    if has_residual:
        at = row[:, None] * columns + column[None, :]
        tl.store(total + at, values.to(total.dtype.element_ty), inside)
    mean, rstd = held_statistics(values, inside, columns, eps, CENTRED)
    if statistics:
        store_statistics(means, rstds, row, rows, mean, rstd, CENTRED)
    ws, bs, smooths = times
    values = finished(
        values, mean, rstd, ws, bs, smooths, offset, CENTRED, has_w, has_b, has_smooth
    )
    if quant == "row":
        sizes = tl.abs(values)
        if CENTRED:  # else they are 0 outside, as x is
            sizes = tl.where(inside, sizes, 0.0)
        most = tl.max(sizes, 1)
        scales = scale_of_block(most, y.dtype.element_ty)
        tl.store(row_scales + row, scales, row < rows)
        by = scales[:, None]
    put(y, block_scales, values, row, there, 0, columns, by, quant)


@triton.jit
def read_again(
    x, w, b, residual, smooth, y, total, block_scales, row, there, columns, mean, rstd, offset, by,
    start, WIDTH: tl.constexpr, CENTRED: tl.constexpr, has_w: tl.constexpr, has_b: tl.constexpr,
    has_residual: tl.constexpr, has_smooth: tl.constexpr, quant: tl.constexpr,
):  # fmt: skip
    """The results of WIDTH columns from column `start` on, which are read for them, for the last
    time. x and residual: where rows begin."""
    column = start + tl.arange(0, WIDTH)
    inside = there & (column < columns)[None, :]
    values = summed(x, residual, column[None, :], inside, has_residual, -1)
    ws, bs, smooths = multiplied_by(w, b, smooth, start, columns, WIDTH, has_w, has_b, has_smooth)
    if has_residual:
        at = row[:, None] * columns + column[None, :]
        tl.store(total + at, values.to(total.dtype.element_ty), inside)
    values = finished(
        values, mean, rstd, ws, bs, smooths, offset, CENTRED, has_w, has_b, has_smooth
    )
    put(y, block_scales, values, row, there, start, columns, by, quant)


@triton.jit
def statistics_at_once(
    x, residual, there, columns, eps, BLOCK: tl.constexpr, CENTRED: tl.constexpr,
    has_residual: tl.constexpr,
):  # fmt: skip
    """As `read_statistics`, of rows that one tile or two hold, and that are read again."""
    FIRST: tl.constexpr = first_of(BLOCK)
    column = tl.arange(0, FIRST)
    inside = there & (column < columns)[None, :]
    values = summed(x, residual, column[None, :], inside, has_residual, 1)
    if FIRST < BLOCK:
        column = FIRST + tl.arange(0, BLOCK - FIRST)
        further = there & (column < columns)[None, :]
        more = summed(x, residual, column[None, :], further, has_residual, 1)
        return statistics_in_two(values, inside, more, further, columns, eps, CENTRED)
    return held_statistics(values, inside, columns, eps, CENTRED)


@triton.jit
def norm_held(
    group, x, w, b, residual, smooth, times, more_times, y, total, means, rstds, row_scales,
    block_scales, rows, columns, x_stride, residual_stride, eps, offset, by, BLOCK: tl.constexpr,
    ROWS: tl.constexpr, CENTRED: tl.constexpr, has_w: tl.constexpr, has_b: tl.constexpr,
    has_residual: tl.constexpr, has_smooth: tl.constexpr, quant: tl.constexpr,
    statistics: tl.constexpr,
):  # fmt: skip
    """The `group`-th ROWS rows, which are held."""
    row = group * ROWS + tl.arange(0, ROWS)
    there = (row < rows)[:, None]
    from_x = x + row[:, None] * x_stride
    from_residual = residual
    if has_residual:
        from_residual = residual + row[:, None] * residual_stride
    if first_of(BLOCK) < BLOCK:
        norm_in_two(
            from_x, from_residual, times, more_times, y, total, means, rstds, row, there, rows,
            columns, eps, offset, BLOCK, CENTRED, has_w, has_b, has_residual, has_smooth,
            statistics,
        )  # fmt: skip
    else:
        norm_in_one(
            from_x, from_residual, times, w, b, smooth, y, total, means, rstds, row_scales,
            block_scales, row, there, rows, columns, eps, offset, by, BLOCK, CENTRED, has_w, has_b,
            has_residual, has_smooth, quant, statistics,
        )  # fmt: skip


@triton.jit
def norm(
    x, w, b, residual, smooth, scale, y, total, means, rstds, row_scales, block_scales, rows,
    columns, x_stride, residual_stride, eps, offset, BLOCK: tl.constexpr, ROWS: tl.constexpr,
    HELD: tl.constexpr, AGAIN: tl.constexpr, AHEAD: tl.constexpr, CENTRED: tl.constexpr,
    has_w: tl.constexpr, has_b: tl.constexpr, has_residual: tl.constexpr, has_smooth: tl.constexpr,
    quant: tl.constexpr, statistics: tl.constexpr,
):  # fmt: skip
    """ROWS rows; with AHEAD, ROWS at a time, in turns with all workgroups."""
    by = 1.0
    if quant == "tensor":
        by = tl.load(scale)
    first = tl.program_id(0).to(tl.int64)
    if HELD and not AGAIN:
        FIRST: tl.constexpr = first_of(BLOCK)
        times = ()
        more_times = ()
        if AHEAD > 0 or FIRST < BLOCK:
            times = multiplied_by(w, b, smooth, 0, columns, FIRST, has_w, has_b, has_smooth)
        if FIRST < BLOCK:
            more_times = multiplied_by(
                w, b, smooth, FIRST, columns, BLOCK - FIRST, has_w, has_b, has_smooth
            )
        if AHEAD > 0:
            groups = (rows + ROWS - 1) // ROWS
            for group in tl.range(first, groups, tl.num_programs(0), num_stages=AHEAD + 1):
                norm_held(
                    group, x, w, b, residual, smooth, times, more_times, y, total, means, rstds,
                    row_scales, block_scales, rows, columns, x_stride, residual_stride, eps, offset,
                    by, BLOCK, ROWS, CENTRED, has_w, has_b, has_residual, has_smooth, quant,
                    statistics,
                )  # fmt: skip
        else:
            norm_held(
                first, x, w, b, residual, smooth, times, more_times, y, total, means,
                rstds, row_scales, block_scales, rows, columns, x_stride, residual_stride, eps,
                offset, by, BLOCK, ROWS, CENTRED, has_w, has_b, has_residual, has_smooth, quant,
                statistics,
            )  # fmt: skip
    else:
        row = first * ROWS + tl.arange(0, ROWS)
        there = (row < rows)[:, None]
        from_x = x + row[:, None] * x_stride
        from_residual = residual
        if has_residual:
            from_residual = residual + row[:, None] * residual_stride
        if HELD:
            mean, rstd = statistics_at_once(
                from_x, from_residual, there, columns, eps, BLOCK, CENTRED, has_residual
            )
        else:
            mean, rstd = read_statistics(
                from_x, from_residual, there, columns, eps, BLOCK, CENTRED, has_residual,
                told(BLOCK, 1),
            )  # fmt: skip
        if statistics:
            store_statistics(means, rstds, row, rows, mean, rstd, CENTRED)
        if quant == "row":
            most = tl.zeros((ROWS, BLOCK), tl.float32)
            for start in range(0, columns, BLOCK):
                column = start + tl.arange(0, BLOCK)
                inside = there & (column < columns)[None, :]
                values = summed(from_x, from_residual, column[None, :], inside, has_residual, 1)
                ws = of_columns(w, column, columns, has_w)
                bs = of_columns(b, column, columns, has_b)
                smooths = of_columns(smooth, column, columns, has_smooth)
                values = finished(
                    values, mean, rstd, ws, bs, smooths, offset, CENTRED, has_w, has_b, has_smooth
                )
                most = tl.maximum(most, tl.where(inside, tl.abs(values), 0.0))
            scales = scale_of_block(tl.max(most, 1), y.dtype.element_ty)
            tl.store(row_scales + row, scales, row < rows)
            by = scales[:, None]
        if HELD:
            WHOLE: tl.constexpr = first_of(BLOCK)
            read_again(
                from_x, w, b, from_residual, smooth, y, total, block_scales, row, there, columns,
                mean, rstd, offset, by, 0, WHOLE, CENTRED, has_w, has_b, has_residual, has_smooth,
                quant,
            )  # fmt: skip
            if WHOLE < BLOCK:
                read_again(
                    from_x, w, b, from_residual, smooth, y, total, block_scales, row, there,
                    columns, mean, rstd, offset, by, WHOLE, BLOCK - WHOLE, CENTRED, has_w, has_b,
                    has_residual, has_smooth, quant,
                )  # fmt: skip
        else:
            for start in range(0, columns, BLOCK):
                read_again(
                    from_x, w, b, from_residual, smooth, y, total, block_scales, row, there,
                    columns, mean, rstd, offset, by, start, BLOCK, CENTRED, has_w, has_b,
                    has_residual, has_smooth, quant,
                )  # fmt: skip
