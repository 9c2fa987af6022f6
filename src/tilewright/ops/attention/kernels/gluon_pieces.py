"""The parts of a row that a thread has, in Gluon for sm_90; used by `gluon_guess`.

In wgmma's layout of sums, four neighbouring threads share a row: of every eight columns each has
two. A *piece* is a tensor of shape [rows, 4] with one element of each of these threads. So what
happens piece by piece stays inside a thread, and a number for each row and thread is a piece too.
Nothing here moves an element: pieces are other names for the same registers.
"""

from tilewright.ops.device.gluon_api import constexpr_function, gl, jit


@constexpr_function
def _halvings(count):
    """How often a power of two can be halved."""
    return int(count).bit_length() - 1


@constexpr_function
def _half(count):
    return int(count) // 2


@jit
def pieces(x):
    """`x`, of 32 to 256 columns, as a tuple of pieces: of every eight columns the first of
    each thread's two, then the second."""
    ROWS: gl.constexpr = x.shape[0]
    COUNT: gl.constexpr = x.shape[1] // 4
    if COUNT == 8:
        x = gl.permute(gl.reshape(x, (ROWS, 2, 2, 4, 2)), (0, 3, 4, 2, 1))
    elif COUNT == 16:
        x = gl.permute(gl.reshape(x, (ROWS, 2, 2, 2, 4, 2)), (0, 4, 5, 3, 2, 1))
    elif COUNT == 32:
        x = gl.permute(gl.reshape(x, (ROWS, 2, 2, 2, 2, 4, 2)), (0, 5, 6, 4, 3, 2, 1))
    else:
        gl.static_assert(COUNT == 64, "pieces are of 32, 64, 128 or 256 columns")
        x = gl.permute(gl.reshape(x, (ROWS, 2, 2, 2, 2, 2, 4, 2)), (0, 6, 7, 5, 4, 3, 2, 1))
    found = (x,)
    for _ in gl.static_range(_halvings(COUNT)):
        more = ()
        for i in gl.static_range(len(found)):
            more = more + gl.split(found[i])
        found = more
    return found


@jit
def _joined(found):
    """A tuple of pieces as one tensor, with a dimension of two for each halving of their number,
    the last piece bit first."""
    for _ in gl.static_range(_halvings(len(found))):
        fewer = ()
        for i in gl.static_range(_half(len(found))):
            fewer = fewer + (gl.join(found[2 * i], found[2 * i + 1]),)
        found = fewer
    return found[0]


@jit
def whole(found, LAYOUT: gl.constexpr):
    """The tensor that `pieces` took apart, in its layout."""
    COUNT: gl.constexpr = len(found)
    x = _joined(found)
    ROWS: gl.constexpr = x.shape[0]
    if COUNT == 16:
        x = gl.permute(x, (0, 5, 4, 3, 1, 2))
    elif COUNT == 32:
        x = gl.permute(x, (0, 6, 5, 4, 3, 1, 2))
    else:
        x = gl.permute(x, (0, 7, 6, 5, 4, 3, 1, 2))
    return gl.convert_layout(gl.reshape(x, (ROWS, 4 * COUNT)), LAYOUT, assert_trivial=True)


@jit
def in_line(words):
    """[rows, 4 · count]: of each piece the four threads' elements, piece after piece."""
    COUNT: gl.constexpr = len(words)
    x = _joined(words)
    ROWS: gl.constexpr = x.shape[0]
    if COUNT == 4:
        x = gl.permute(x, (0, 3, 2, 1))
    else:
        gl.static_assert(COUNT == 8, "words are of 64 or 128 keys")
        x = gl.permute(x, (0, 4, 3, 2, 1))
    return gl.reshape(x, (ROWS, 4 * COUNT))


@jit
def like_piece(number, piece):
    """A piece in the layout of another."""
    LAYOUT: gl.constexpr = piece.type.layout
    return gl.convert_layout(number, LAYOUT, assert_trivial=True)
