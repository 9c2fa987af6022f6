"""Pooling: the largest, the smallest or the mean of windows.

Idea. A workgroup has a tile of ROWS by FAST groups of results. A group has DOWN by ACROSS
neighbouring windows: of one channel, or, where channels come first, of one image. A lane goes
through the lines that the windows of its groups have, reads each element of a line once, makes the
line's part of each window (the largest of its elements there, or their sum), and puts that part to
every window that has the line. So what windows share is read and put together once: 7×7 windows of
stride 1 in groups of 4 by 4 read 100 elements for 16 results, where each by itself reads 49. The
largest of the lines' largest is the window's largest, and of equal ones the first: lines come in
their order. Of larger windows a group has one line of results, and goes through the lines in a
loop. A window of more elements than are unrolled, in a group of one, is read in a loop.

Data. Channels are read in vectors of VECTOR, as many as the number of channels allows. Where
channels come first, a group has the windows that begin in one vector of VECTOR pixels (less the
LEFT pixels of padding); the vector is read in pieces of PIECE pixels, which are the whole vector
where a line has a whole number of vectors, and taken apart in registers; pixels beside it are read
one by one. Results of a line are put together and written in vectors of STORED.
Results are made in fp32, of whole numbers in int32.

What limits it: memory. Measured on an H200 (2026-11-30) before groups, vectors of pixels, and
vectors of channels that are no multiple of 16, and with them; µs in graphs, ours and
torch.compile's of the first time:

                                              before   groups   torch.compile
    4096 × 112×112 × 1 bf16, 3×3 by 2          166.7     31.7     51.8
    1373 × 169×158 × 1 fp16, 3×3 by 2           79.3     70.3     45.9
    11 × 22×17×19 × 54 fp16, 3×3×3 by 2         21.6      6.5     14.9
    8 × 23×88 × 1673 bf16, mean of 7×7        1000.6     94.4    957.3
    64 × 224×224 × 64 bf16, 2×2 by 2           118.4    118.7    118.0
    64 × 7×7 × 2048 bf16, mean of 7×7            7.2      6.6     13.9

The first four were limited by instructions: each element was read by itself, with a mask and an
address of its own (some 118 instructions of sm_90 for each result of the first, now some 40), and
lanes beside each other went down lines where channels come first. The second had lines of 158
pixels in vectors of two, and in five tiles, each of which went down all images before the next
began; its 82 instructions for each result are 63 in pieces. In a later run that day it took 37.8,
and 43.8 in vectors of two with this order of tiles (torch.compile 46.7).
"""

import triton
import triton.language as tl

UNROLLED: tl.constexpr = tl.constexpr(32)
"""Elements of a window, at most, that are read without a loop."""
MOST_READ: tl.constexpr = tl.constexpr(128)
"""Elements of a group's windows, at most, that are read without a loop."""
AT_ONCE: tl.constexpr = tl.constexpr(8)
"""Elements of a larger window that a loop reads each time."""


@triton.jit
def begins(out, pad, STRIDE: tl.constexpr):
    """Where windows begin: before 0 in the padding."""
    return out * STRIDE - pad


@triton.jit
def counted(start, size, pad, KERNEL: tl.constexpr, DILATION: tl.constexpr, PADDED: tl.constexpr):
    """Elements of windows along one dimension: with the padding, or only those of the image."""
    if PADDED:
        return tl.minimum(KERNEL, tl.cdiv(size + pad - start, DILATION))
    before = tl.cdiv(tl.maximum(-start, 0), DILATION)
    return tl.minimum(KERNEL, tl.cdiv(size - start, DILATION)) - before


@triton.jit
def tile_of(neighbours, ROWS: tl.constexpr, FAST: tl.constexpr):
    """The rows and the neighbours of a workgroup's tile. Workgroups that follow one another have
    tiles of the same rows, so that lines that several have are read from memory at one time."""
    tiles = tl.cdiv(neighbours, FAST)
    row = tl.program_id(0) // tiles
    fast = tl.program_id(0) - row * tiles
    return row * ROWS + tl.arange(0, ROWS), fast * FAST + tl.arange(0, FAST)


@triton.jit
def across(row, fast, depth, height, width, channels, FIRST: tl.constexpr):
    """Of a tile: image, depth, height and width [1, ROWS], the neighbours' steps [FAST, 1], and
    which neighbours there are. Width is [FAST, 1] where channels come first.

    Neighbours are the first dimension of tiles: where the compiler sees vectors in none, as of
    every other pixel of a line, it has lanes beside each other go along the first."""
    if FIRST:
        w = fast[:, None]
        step = tl.zeros((1, 1), tl.int32)
        there = (fast < width)[:, None]
        line = row
    else:
        w = (row % width)[None, :]
        step = fast[:, None]
        there = (fast < channels)[:, None]
        line = row // width
    h = (line % height)[None, :]
    line = line // height
    return (line // depth)[None, :], (line % depth)[None, :], h, w, step, there


@triton.constexpr_function
def spanned(count, kernel, stride, dilation):
    """Elements along a dimension from the first to the last of `count` neighbouring windows."""
    return (count - 1) * stride + (kernel - 1) * dilation + 1


@triton.constexpr_function
def holds(at, one, kernel, stride, dilation):
    """Whether window number `one` of a group has the group's element number `at`."""
    apart = at - one * stride
    return apart >= 0 and apart % dilation == 0 and apart // dilation < kernel


@triton.constexpr_function
def held(at, count, kernel, stride, dilation):
    """Whether any window of a group has its element number `at`."""
    return any(holds(at, one, kernel, stride, dilation) for one in range(count))


@triton.constexpr_function
def different(count, kernel, stride, dilation):
    """How many elements along a dimension the windows of a group have."""
    span = spanned(count, kernel, stride, dilation)
    return sum(held(at, count, kernel, stride, dilation) for at in range(span))


@triton.constexpr_function
def turned(number, count):
    """A number below `count`, a power of two, with its bits in the other order."""
    found = 0
    while count > 1:
        found, number, count = 2 * found + number % 2, number // 2, count // 2
    return found


@triton.constexpr_function
def read_as(pixel, piece):
    """Where a pixel of a vector is, of the parts of its pieces one after another."""
    return pixel // piece * piece + turned(pixel % piece, piece)


@triton.jit
def none():
    """A tuple without elements."""
    return ()


@triton.jit
def apart(v, COUNT: tl.constexpr):
    """The COUNT neighbours of each place of `v` [FAST, ROWS, COUNT]; number n is at `turned(n)`."""
    FAST: tl.constexpr = v.shape[0]
    ROWS: tl.constexpr = v.shape[1]
    parts = (v,)
    for step in tl.static_range(COUNT.bit_length() - 1):
        more = none()
        for one in tl.static_range(1 << step):
            if COUNT >> step > 2:
                a, b = tl.split(parts[one].reshape(FAST, ROWS, COUNT >> (step + 1), 2))
            else:
                a, b = tl.split(parts[one])
            more = more + (a, b)
        parts = more
    return parts


@triton.jit
def together(parts, COUNT: tl.constexpr):
    """`apart` backwards: [FAST, ROWS, COUNT] of COUNT tiles in their order."""
    FAST: tl.constexpr = parts[0].shape[0]
    ROWS: tl.constexpr = parts[0].shape[1]
    some = none()
    for one in tl.static_range(COUNT):
        some = some + (parts[turned(one, COUNT)],)
    for step in tl.static_range(COUNT.bit_length() - 1):
        more = none()
        for one in tl.static_range(COUNT >> (step + 1)):
            both = tl.join(some[2 * one], some[2 * one + 1])
            more = more + (both.reshape(FAST, ROWS, 2 << step),)
        some = more
    return some[0]


@triton.jit
def pool(
    x, y, places, images, depth, height, width, channels, out_depth, out_height, out_width, pad_d,
    pad_h, pad_w, divisor, mode: tl.constexpr, include_pad: tl.constexpr, index: tl.constexpr,
    kernel_d: tl.constexpr, kernel_h: tl.constexpr, kernel_w: tl.constexpr,
    stride_d: tl.constexpr, stride_h: tl.constexpr, stride_w: tl.constexpr,
    dilation_d: tl.constexpr, dilation_h: tl.constexpr, dilation_w: tl.constexpr,
    FIRST: tl.constexpr, VECTOR: tl.constexpr, PIECE: tl.constexpr, LEFT: tl.constexpr,
    STORED: tl.constexpr, DOWN: tl.constexpr, ACROSS: tl.constexpr, ROWS: tl.constexpr,
    FAST: tl.constexpr,
):  # fmt: skip
    """ROWS by FAST groups of DOWN by ACROSS results."""
    AVERAGE: tl.constexpr = mode == "average"
    LEAST: tl.constexpr = mode == "min"
    WHOLE: tl.constexpr = not x.dtype.element_ty.is_floating()
    MADE: tl.constexpr = tl.int32 if WHOLE else tl.float32
    LIMIT: tl.constexpr = 2147483647 if WHOLE else float("inf")
    WORST: tl.constexpr = 0 if AVERAGE else (LIMIT if LEAST else -LIMIT)
    TAPS: tl.constexpr = kernel_d * kernel_h * kernel_w
    # Said so that vectors are read: this divides the elements of a line, or of a pixel.
    MOVED: tl.constexpr = PIECE if FIRST else VECTOR
    if FIRST:
        wide = 1
        line_length = width // MOVED
    else:
        wide = channels // VECTOR * VECTOR
        line_length = width * (channels // VECTOR)
    groups_w = tl.cdiv(out_width, ACROSS)
    row, fast = tile_of(groups_w if FIRST else wide, ROWS, FAST)
    image, out_d, group_h, group_w, step, there = across(
        row, fast, out_depth, tl.cdiv(out_height, DOWN), groups_w, wide, FIRST
    )
    from_d = begins(out_d, pad_d, stride_d)
    from_h = begins(group_h * DOWN, pad_h, stride_h)
    from_w = begins(group_w * ACROSS, pad_w, stride_w)
    best = tl.full((FAST, ROWS), WORST, MADE)
    best_at = tl.full((FAST, ROWS), -1, tl.int32)
    LINES: tl.constexpr = kernel_d * different(DOWN, kernel_h, stride_h, dilation_h)
    READ: tl.constexpr = LINES * different(ACROSS, kernel_w, stride_w, dilation_w)
    made = none()
    for _ in tl.static_range(DOWN * ACROSS):
        made = made + ((best, best_at),)
    if TAPS <= UNROLLED or (DOWN * ACROSS > 1 and READ <= MOST_READ):
        for tap_d in tl.static_range(kernel_d):
            d = from_d + tap_d * dilation_d
            for at_h in tl.static_range(spanned(DOWN, kernel_h, stride_h, dilation_h)):
                if held(at_h, DOWN, kernel_h, stride_h, dilation_h):
                    parts = line_parts(
                        x, best, best_at, image, d, from_h + at_h, group_w, from_w, step, there,
                        images, depth, height, width, wide, line_length, FIRST, VECTOR, MOVED,
                        LEFT, ACROSS, kernel_w, stride_w, dilation_w, AVERAGE, LEAST, index, WORST,
                    )  # fmt: skip
                    more = none()
                    for one in tl.static_range(DOWN * ACROSS):
                        if holds(at_h, one // ACROSS, kernel_h, stride_h, dilation_h):
                            more = more + (
                                better(made[one], parts[one % ACROSS], AVERAGE, LEAST, index),
                            )
                        else:
                            more = more + (made[one],)
                    made = more
    elif ACROSS > 1:
        for tap in range(kernel_d * kernel_h):
            parts = line_parts(
                x, best, best_at, image, from_d + tap // kernel_h * dilation_d,
                from_h + tap % kernel_h * dilation_h, group_w, from_w, step, there, images, depth,
                height, width, wide, line_length, FIRST, VECTOR, MOVED, LEFT, ACROSS, kernel_w,
                stride_w, dilation_w, AVERAGE, LEAST, index, WORST,
            )  # fmt: skip
            more = none()
            for one in tl.static_range(ACROSS):
                more = more + (better(made[one], parts[one], AVERAGE, LEAST, index),)
            made = more
    else:
        # Each window's elements lie at the same distances from its first one, which may be in
        # padding.
        first = (from_d * height + from_h) * width + from_w
        start = x + image.to(tl.int64) * depth * height * width * wide
        start = start + first.to(tl.int64) * wide + step
        for some in range(0, TAPS, AT_ONCE):
            for one in tl.static_range(AT_ONCE):
                tap = some + one
                best, best_at = taken(
                    best, best_at, start, first, from_d, from_h, from_w,
                    there & (image < images) & (tap < TAPS), depth, height, width, wide,
                    tap // (kernel_h * kernel_w) * dilation_d,
                    tap // kernel_w % kernel_h * dilation_h, tap % kernel_w * dilation_w, AVERAGE,
                    LEAST, index, WORST,
                )  # fmt: skip
        made = ((best, best_at),)
    for down in tl.static_range(DOWN):
        out_h = group_h * DOWN + down
        seen = (out_h < out_height) & (image < images)
        line = ((image * out_depth + out_d) * out_height + out_h).to(tl.int64)
        if FIRST:
            to = line * (out_width // STORED) * STORED
        else:
            to = line * (out_width * (wide // VECTOR)) * VECTOR
        results = none()
        for one in tl.static_range(ACROSS):
            best, _ = made[down * ACROSS + one]
            if AVERAGE:
                start_h = from_h + down * stride_h
                start_w = from_w + one * stride_w
                count = counted(from_d, depth, pad_d, kernel_d, dilation_d, include_pad)
                count *= counted(start_h, height, pad_h, kernel_h, dilation_h, include_pad)
                count = count * counted(start_w, width, pad_w, kernel_w, dilation_w, include_pad)
                # Windows behind the last one may count nothing; they are not stored.
                count = tl.where(divisor > 0, divisor, tl.maximum(count, 1))
                best = best / count.to(tl.float32)
            results = results + (best.to(y.dtype.element_ty),)
        stored(
            y + to, results, group_w, step, wide, out_width, seen, there, FIRST, STORED, ACROSS,
        )  # fmt: skip
        if index:
            found = none()
            for one in tl.static_range(ACROSS):
                _, best_at = made[down * ACROSS + one]
                found = found + (best_at.to(tl.int64),)
            stored(
                places + to, found, group_w, step, wide, out_width, seen, there, FIRST, STORED,
                ACROSS,
            )  # fmt: skip


@triton.jit
def line_parts(
    x, best, best_at, image, d, h, group_w, from_w, step, there, images, depth, height, width, wide,
    line_length, FIRST: tl.constexpr, VECTOR: tl.constexpr, PIECE: tl.constexpr,
    LEFT: tl.constexpr, ACROSS: tl.constexpr, KERNEL: tl.constexpr, STRIDE: tl.constexpr,
    DILATION: tl.constexpr, AVERAGE: tl.constexpr, LEAST: tl.constexpr, INDEX: tl.constexpr,
    WORST: tl.constexpr,
):  # fmt: skip
    """What line `h` of image plane `d` has for each of ACROSS windows."""
    seen = (d >= 0) & (d < depth) & (h >= 0) & (h < height) & (image < images)
    line = (image * depth + d) * height + h
    read = elements(
        x + line.to(tl.int64) * line_length * PIECE, group_w, from_w, step, width, wide, seen,
        there, best, FIRST, VECTOR, PIECE, LEFT, ACROSS, KERNEL, STRIDE, DILATION, WORST,
    )  # fmt: skip
    before = (d * height + h) * width + from_w
    parts = none()
    for one in tl.static_range(ACROSS):
        parts = parts + (
            folded(
                read, before, best, best_at, one, KERNEL, STRIDE, DILATION, AVERAGE, LEAST, INDEX
            ),
        )
    return parts


@triton.jit
def value(at, inside, MADE: tl.constexpr, WORST: tl.constexpr):
    """What is read, in type MADE; WORST where nothing is."""
    if MADE.is_floating():
        return tl.load(at, inside, WORST).to(MADE)
    return tl.where(inside, tl.load(at, inside, 0).to(MADE), WORST)


@triton.jit
def elements(
    start, group_w, from_w, step, width, wide, seen, there, like, FIRST: tl.constexpr,
    VECTOR: tl.constexpr, PIECE: tl.constexpr, LEFT: tl.constexpr, ACROSS: tl.constexpr,
    KERNEL: tl.constexpr, STRIDE: tl.constexpr, DILATION: tl.constexpr, WORST: tl.constexpr,
):  # fmt: skip
    """Load the elements of one line, from `start` on, that a group's windows read: for each a tile
    of values, WORST outside of the image, and a mask of those inside. `seen` masks lines, `there`
    neighbours."""
    found = none()
    if FIRST and VECTOR > 1:
        # The group's vector, whose first pixel is number LEFT of the group.
        PIECES: tl.constexpr = VECTOR // PIECE
        pixels = none()
        whole = none()
        for piece in tl.static_range(PIECES):
            at = group_w * PIECES + piece
            inside = seen & there & (at < width // PIECE)
            lanes = (at * PIECE)[:, :, None] + tl.arange(0, PIECE)[None, None, :]
            vectors = value(start[:, :, None] + lanes, inside[:, :, None], like.dtype, WORST)
            pixels = pixels + apart(vectors, PIECE)
            whole = whole + (inside,)
    seen = seen & there
    for at in tl.static_range(spanned(ACROSS, KERNEL, STRIDE, DILATION)):
        if held(at, ACROSS, KERNEL, STRIDE, DILATION):
            if FIRST and VECTOR > 1 and at >= LEFT and at < LEFT + VECTOR:
                found = found + ((pixels[read_as(at - LEFT, PIECE)], whole[(at - LEFT) // PIECE]),)
            else:
                w = from_w + at
                inside = seen & (w >= 0) & (w < width)
                found = found + (
                    (value(start + (w * wide + step), inside, like.dtype, WORST), inside),
                )
        else:
            found = found + ((like, seen),)
    return found


@triton.jit
def folded(
    read, before, best, best_at, ONE: tl.constexpr, KERNEL: tl.constexpr, STRIDE: tl.constexpr,
    DILATION: tl.constexpr, AVERAGE: tl.constexpr, LEAST: tl.constexpr, INDEX: tl.constexpr,
):  # fmt: skip
    """What a line has for window number ONE of a group: the best of its elements with its place,
    or their sum. Element 0 of the group is pixel `before` of the image."""
    for tap in tl.static_range(KERNEL):
        values, inside = read[ONE * STRIDE + tap * DILATION]
        at = best_at
        if INDEX:
            at = tl.where(inside, before + (ONE * STRIDE + tap * DILATION), -1)
        if tap == 0:
            best = values
            best_at = at
        else:
            best, best_at = better((best, best_at), (values, at), AVERAGE, LEAST, INDEX)
    return best, best_at


@triton.jit
def better(one, other, AVERAGE: tl.constexpr, LEAST: tl.constexpr, INDEX: tl.constexpr):
    """Of two parts of windows, the second of which comes later, the better with its place (-1 where
    there is none), or the sum: of equal ones the first, of several NaN the last."""
    best, best_at = one
    values, at = other
    if AVERAGE:
        best += values
    elif INDEX:
        ahead = values < best if LEAST else values > best
        takes = (at >= 0) & (ahead | (values != values) | (best_at < 0))
        best = tl.where(takes, values, best)
        best_at = tl.where(takes, at, best_at)
    elif LEAST:
        best = tl.minimum(best, values, propagate_nan=tl.PropagateNan.ALL)
    else:
        best = tl.maximum(best, values, propagate_nan=tl.PropagateNan.ALL)
    return best, best_at


@triton.jit
def stored(
    to, results, group_w, step, wide, out_width, seen, there, FIRST: tl.constexpr,
    STORED: tl.constexpr, ACROSS: tl.constexpr,
):  # fmt: skip
    """Writes a line of each group's results from `to` on."""
    if FIRST and ACROSS > 1:
        lanes = (group_w * ACROSS)[:, :, None] + tl.arange(0, ACROSS)[None, None, :]
        mask = (seen & there)[:, :, None] & (lanes < out_width // STORED * STORED)
        tl.store(to[:, :, None] + lanes, together(results, ACROSS), mask)
    else:
        for one in tl.static_range(ACROSS):
            out_w = group_w * ACROSS + one
            tl.store(to + (out_w * wide + step), results[one], seen & there & (out_w < out_width))


@triton.jit
def taken(
    best, best_at, start, first, from_d, from_h, from_w, there, depth, height, width, wide, tap_d,
    tap_h, tap_w, AVERAGE: tl.constexpr, LEAST: tl.constexpr, INDEX: tl.constexpr,
    WORST: tl.constexpr,
):  # fmt: skip
    """The results so far after one more element of each window."""
    d = from_d + tap_d
    h = from_h + tap_h
    w = from_w + tap_w
    inside = (d >= 0) & (d < depth) & (h >= 0) & (h < height) & there
    inside = inside & (w >= 0) & (w < width)
    more = (tap_d * height + tap_h) * width + tap_w
    at = start + more.to(tl.int64) * wide
    values = value(at, inside, best.dtype, WORST)
    place = tl.where(inside, first + more, -1) if INDEX else best_at
    return better((best, best_at), (values, place), AVERAGE, LEAST, INDEX)
