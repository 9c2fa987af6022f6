"""Pipeline ``gemm``: convolutions that are products of matrices, by GEMM's kernels on the arrays as
they lie, without a copy. About half of the layers of image networks are 1×1.

Without padding, a pixel of y is what its taps meet of x times the weights. With one tap these are
the channels c of a pixel of x. With several they may be one row of x all the same (`_run`): where a
filter covers its image, as in patches that a vision model embeds, or a window's neighbours lie side
by side, as in one dimension with channels innermost. Then c counts the taps too:

    forward   y [pixels, k] = x [pixels, c] · wᵀ
    data      x [pixels, c] = y [pixels, k] · w
    weights   w [k, c]      = yᵀ [k, pixels] · x [pixels, c]

So forward is GEMM's layout ``rcr``, data ``rrr`` and weights ``crr`` where channels are innermost;
other strides give other letters, and channels-first images are column-major matrices. Pixels must
lie at one distance, so that they are rows of one matrix. Where images (or rows of pixels, under a
stride) lie further apart, each is a matrix of a strided batch that shares the weights; the gradient
of weights is then the sum of a batch's products. So both matrices of channels-first images are
read as they lie, along the pixels that are summed. Groups are a batch too: their channels lie side
by side.

Where the arrays as they lie are no product whose rows are whole 16 bytes, layout steps may leave
one (`turnings`): of patches, of channels side by side, and of longer rows. A config names them
(`ConvConfig.turned`).

Everything else is GEMM's: rules, estimates, spaces, sources and launches are those of the product
(`product`). The estimate has one term more (`_first_us`), as these products are often short. Only
the operands' names are changed (`launch`). So the algorithms of the vendor's library for that
product are candidates of a tuning too (`gemm.library`).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from operator import attrgetter
from typing import Any

from tilewright.arch import arch as arch_called
from tilewright.arch.model import Arch, Device
from tilewright.dtypes import DTYPES
from tilewright.errors import BadArgument, EmptySpace
from tilewright.ops import epilogues
from tilewright.ops.conv import library_record, longer, patches, tapping, turning
from tilewright.ops.conv.config import (
    ALIGNMENTS,
    LONGER,
    PATCHES,
    TAPS,
    WINDOWS,
    ConvConfig,
    Product,
    of_gemm,
)
from tilewright.ops.conv.figures import CONV
from tilewright.ops.conv.pipelines.record import LINKED, Row
from tilewright.ops.conv.problem import ConvProblem
from tilewright.ops.estimate import Estimate, Estimates
from tilewright.ops.gemm import FAMILY as PRODUCTS
from tilewright.ops.gemm import legality, pipelines
from tilewright.ops.gemm.config import GemmConfig
from tilewright.ops.gemm.problem import GemmProblem
from tilewright.ops.library import Found, Matmul
from tilewright.ops.nouns import KernelSource, Launch, renamed
from tilewright.ops.pool import Columns, Pool, each
from tilewright.space import KernelSpace, of_rows
from tilewright.verdict import Verdict, no

OPERANDS: Mapping[str, Mapping[str, str]] = {
    "forward": {"A": "x", "B": "w", "C": "y"},
    "data": {"A": "y", "B": "w", "C": "x"},
    "weights": {"A": "y", "B": "x", "C": "w"},
}
"""The operands of a convolution that are A, B and C of its product."""

_USUAL = {"forward": "rcr", "data": "rrr", "weights": "crr"}
"""The layout where a dimension of one element leaves a choice: that of arrays with channels
innermost."""

# --- the product -------------------------------------------------------------------------------


@lru_cache(maxsize=1024)
def product(p: ConvProblem) -> GemmProblem | str:
    """The product that computes `p` on its operands as they lie; or why there is none."""
    if any(p.pad) or any((d.out - 1) * d.stride + d.filter > d.size for d in p.dims):
        return "with padding, a row of y is not of pixels of x alone"
    if p.direction == "data" and any(
        d.stride != d.filter or d.out * d.filter != d.size for d in p.dims
    ):
        return "the gradient of x has pixels that no tap meets, or several, and is no product"
    if any(0 in p.shape_of(name) for name in "xwy"):
        return "an array without elements is no matrix"
    if p.depthwise and p.groups > 1:
        return "where every channel has a filter of its own, there is nothing to add up"
    kinds = {taken.kind for taken in epilogues.takes(p.epilogue)}
    if p.groups > 1 and "n" in kinds:
        return (
            f"epilogue '{p.epilogue}' reads a value for each channel, and the batch of {p.groups} "
            "groups would share them"
        )
    if p.taps > 1 and (reason := _run(p)) is not None:
        return reason
    levels = _pixels(p)
    if len(levels) + (p.groups > 1) > 2:
        return (
            f"the pixels of x and y lie at {len(levels)} distances, and can only be the rows of "
            "one matrix, or of one batch"
        )
    try:
        return _matrices(p, levels)
    except BadArgument as error:
        return str(error)


def _run(p: ConvProblem) -> str | None:
    """Why what the taps of a filter meet is not a row of x, with the weights in the same order; or
    None."""
    if any(d.filter > 1 and d.dilation > 1 for d in p.dims):
        return "taps of a dilated filter do not lie side by side"
    if any(d.out > 1 and d.stride < d.filter for d in p.dims):
        return "windows of several taps overlap, and a matrix's rows do not"
    if p.direction == "data" and any(taken.kind == "n" for taken in epilogues.takes(p.epilogue)):
        return f"epilogue '{p.epilogue}' reads a value for each channel, and a row has all taps'"
    counts = (p.group_c, *p.filter)
    (_, *of_x), (_, *of_w) = p.strides_of("x"), p.strides_of("w")
    met = sorted((x, w, n) for x, w, n in zip(of_x, of_w, counts, strict=True) if n > 1)
    step = 1
    for x, w, n in met:
        if (x, w) != (step, step):
            return "what several taps meet of x and their weights are not rows in one order"
        step *= n
    return None


Level = tuple[int, int, int]
"""Pixels that lie at one distance: how many, and the distance in x and in y."""


def _pixels(p: ConvProblem) -> list[Level]:
    """The pixels of x that are seen, and those of y, walked together: outer levels first. A level
    is several dimensions where these lie as one."""
    _, _, *of_x = p.strides_of("x")
    _, _, *of_y = p.strides_of("y")
    found: list[Level] = [(p.n, p.strides_of("x")[0], p.strides_of("y")[0])]
    for dim, x, y in zip(p.dims, of_x, of_y, strict=True):
        count, step_x, step_y = dim.out, x * dim.stride, y
        outer, outer_x, outer_y = found[-1]
        if count == 1:
            continue
        if outer == 1:
            found[-1] = (count, step_x, step_y)
        elif (outer_x, outer_y) == (count * step_x, count * step_y):
            found[-1] = (outer * count, step_x, step_y)
        else:
            found.append((count, step_x, step_y))
    return found


def _matrices(p: ConvProblem, levels: Sequence[Level]) -> GemmProblem:
    """The product of `p`, whose innermost level of pixels are rows. Raises `BadArgument`."""
    pixels, row_x, row_y = levels[-1]
    (_, x, *_), (w_k, w_c, *_), (_, y, *_) = (p.strides_of(name) for name in "xwy")
    c, k = p.group_c * p.taps, p.group_k
    if p.taps > 1:
        x = w_c = 1  # of rows with all taps (`_run`)
    forms = {
        "forward": ((pixels, c, row_x, x), (c, k, w_c, w_k), (pixels, k, row_y, y)),
        "data": ((pixels, k, row_y, y), (k, c, w_k, w_c), (pixels, c, row_x, x)),
        "weights": ((k, pixels, y, row_y), (pixels, c, row_x, x), (k, c, w_k, w_c)),
    }
    a, b, result = forms[p.direction]
    names = OPERANDS[p.direction]
    letters, lds = zip(
        *(
            _lying(names[name], *form, usual)
            for name, form, usual in zip("ABC", (a, b, result), _USUAL[p.direction], strict=True)
        ),
        strict=True,
    )
    said: dict[str, Any] = {}
    matrix = epilogues.has_matrix(p.epilogue)
    if len(levels) > 1 or p.groups > 1:
        steps = {"x": c * x, "w": k * w_k, "y": k * y}
        batch = p.groups
        if len(levels) > 1:
            batch, step_x, step_y = levels[0]
            steps = {"x": step_x, "w": 0, "y": step_y}
        summed = p.direction == "weights" and len(levels) > 1
        said = {f"stride_{name.lower()}": steps[names[name]] for name in "ABC"}
        said |= {"batch": batch, "batching": "summed" if summed else "strided"}
        said |= {"stride_d": said["stride_c"]} if matrix else {}
    found = GemmProblem(
        a[0],
        b[1],
        a[1],
        dtype_a=p.dtype,
        dtype_c=p.dtype_out,
        layout="".join(letters),
        lda=lds[0],
        ldb=lds[1],
        ldc=lds[2],
        precision=p.precision,
        epilogue=p.epilogue,
        ldd=lds[2] if matrix else 0,
        **said,
    )
    return found if found.alignment <= p.alignment else replace(found, alignment=p.alignment)


def _lying(
    name: str, rows: int, columns: int, down: int, along: int, usual: str
) -> tuple[str, int]:
    """The letter of a matrix in a layout, and its leading dimension (0: without gaps). Raises
    `BadArgument` where neither its rows nor its columns are contiguous.

    down, along: elements from a row to the next, and from a column to the next.
    """
    either = {
        "r": (along == 1 or columns == 1, 0 if rows == 1 else down),
        "c": (down == 1 or rows == 1, 0 if columns == 1 else along),
    }
    for letter in (usual, "c" if usual == "r" else "r"):
        contiguous, ld = either[letter]
        if contiguous:
            if ld == 0 and (rows if letter == "r" else columns) > 1:
                raise BadArgument(f"{name} repeats elements by a stride of 0")
            return letter, ld
    raise BadArgument(
        f"{name} is a matrix whose rows are {down} and whose columns are {along} elements apart: "
        "neither lie side by side"
    )


# --- rules and estimates -----------------------------------------------------------------------


def tile(c: ConvConfig) -> Hashable:
    """What variants of GEMM's kernel have in common."""
    return PRODUCTS.tile(c.gemm_config)


def judge(c: ConvConfig, arch: Arch) -> Verdict:
    """Whether `c` may be built for `arch`: as GEMM's rules say."""
    kernel = c.gemm_config
    if isinstance(kernel, GemmConfig):
        return legality.judged(kernel, arch)
    return PRODUCTS.judge(kernel, arch)


def supports(c: ConvConfig, p: ConvProblem, arch: Arch) -> Verdict:
    """Whether GEMM's kernel computes the product that `p` is."""
    if (reason := _refusal(c, p)) is not None:
        return no("turned", reason)
    of = product(turning.inside(p, c.turned))
    if isinstance(of, str):
        return no("product", of)
    verdict = PRODUCTS.supports(c.gemm_config, of, arch)
    return verdict if verdict else no(verdict.rule, f"as {of}: {verdict.reason}")


def _refusal(c: ConvConfig, p: ConvProblem) -> str | None:
    """Why the layout steps of `c` cannot turn the arrays of `p`, or None. A product may skip
    pixels, and its rows be whole where a pixel's channels are not."""
    if (reason := turning.refusal(c.turned, p)) is not None:
        return reason
    for name in turning.turned_arrays(c.turned):
        channels, whole = p.shape_of(name)[1], turning.whole_channels(c, name)
        if channels % whole:
            return f"{channels} channels of {name} are no multiple of {whole}"
    return None


def repeats(c: ConvConfig) -> Verdict:
    """Whether two runs give the same bits."""
    return PRODUCTS.repeats(c.gemm_config)


FIRST = "first loads"


def _first_us(c: ConvConfig, device: Device) -> float:
    """Microseconds before the first products that GEMM's estimate does not count: the copy engine
    reads the arrays' descriptors; warps that copy through pointers work out the addresses of all
    steps that are loaded ahead, also of those past the last. Products of a few microseconds are
    told apart by this."""
    kernel = c.gemm_config
    assert isinstance(kernel, GemmConfig), f"{c.name} is the library's"
    record = pipelines.of(kernel)
    if record.reads != "pointers":
        return 0.0 if record.has("few_rows") else float(CONV.DESCRIPTOR_US)
    step = DTYPES[kernel.dtype_a].size(kernel.tile_m * kernel.tile_k)
    step += DTYPES[kernel.dtype_b].size(kernel.tile_n * kernel.tile_k)
    this = arch_called(device.arch)
    lanes = this.warp_size * min(kernel.num_warps, this.simds_per_cu)
    copies = step / (max(ALIGNMENTS) * lanes)
    return copies * (kernel.num_stages - 1) * CONV.FIRST_COPY_CLOCKS / device.clock_mhz


def estimate(c: ConvConfig, p: ConvProblem, device: Device) -> Estimate:
    """What GEMM's kernel should take for the product, and the layout steps."""
    if c.library:
        return PRODUCTS.estimate(c.gemm_config, _product(p), device)
    return estimates(Columns([c]), p, device).one(0)


def estimates(c: Columns, p: ConvProblem, device: Device) -> Estimates:
    """The same of several configs, which turn the same arrays and are none of the library's."""
    from tilewright.ops.gemm import estimate  # here, as it takes NumPy

    kernels, turned = c.gemm_config, c[0].turned
    of = _product(turning.inside(p, turned))
    found = estimate.estimates(Pool(kernels, kernels), of, device)
    found = found.later(FIRST, each(c, _first_us, device))
    if not turned:
        return found
    return found.later(turning.TURNING, turning.us(p, turned, device))


def serving(p: ConvProblem, c: Columns, arch: Arch) -> Sequence[int]:
    """The places of the configs, which turn the same arrays, whose kernels compute the product that
    `p` is."""
    if turning.refusal(c[0].turned, p) is not None:
        return []
    of, kernels = product(turning.inside(p, c[0].turned)), c.gemm_config
    found = [] if isinstance(of, str) else PRODUCTS.serving(of, Pool(kernels, kernels), arch)
    return [i for i in found if _refusal(c[i], p) is None] if c[0].turned else found


def _product(p: ConvProblem) -> GemmProblem:
    of = product(p)
    assert not isinstance(of, str), of
    return of


# --- the vendor's library ----------------------------------------------------------------------


def library_query(p: ConvProblem, arch: Arch, library_name: str) -> Matmul | Verdict:
    """The question to a library about the product of `p`, or why none is asked."""
    of = product(p)
    return (
        no("product", of) if isinstance(of, str) else PRODUCTS.library_query(of, arch, library_name)
    )


def library_config(p: ConvProblem, library_name: str, found: Found) -> ConvConfig:
    """The config of an algorithm that the library offers for the product. Raises `BadArgument` for
    one that no name can say."""
    of = PRODUCTS.library_config(_product(p), library_name, found)
    return of_gemm(p.direction, len(p.spatial), of)


@lru_cache(maxsize=256)  # a plan asks several times
def library_faster(p: ConvProblem, device: Device) -> Verdict:
    """Whether the library's first algorithm is expected to be faster than the estimate's choice."""
    of = product(p)
    return no("product", of) if isinstance(of, str) else library_record.faster(p, of, device)


# --- what to compile and to launch -------------------------------------------------------------


def interpreted(c: ConvConfig) -> ConvConfig:
    """The config whose kernel the interpreter runs in place of `c`'s."""
    kernel = _outside(PRODUCTS.interpreted(c.gemm_config), c.turned, c.dtype_out, c.epilogue)
    return of_gemm(c.direction, c.spatial_dims, kernel, c.turned)


def _outside(kernel: Product, turned: str, dtype_out: str, epilogue: str) -> Product:
    """The kernel as a name says it: with the dtype and the epilogue that follow a sum over
    taps."""
    if not turned.startswith(TAPS):
        return kernel
    return replace(kernel, dtype_c=dtype_out, epilogue=epilogue)


def sources(c: ConvConfig, arch: Arch) -> Mapping[str, KernelSource]:
    """What to compile: GEMM's kernels, and the layout steps'."""
    own = PRODUCTS.sources(c.gemm_config, arch)
    return {**own, **turning.sources(c, arch)} if c.turned else own


def launch(c: ConvConfig, p: ConvProblem, device: Device) -> Launch:
    """GEMM's launch of the product, over the convolution's operands."""
    of = _product(turning.inside(p, c.turned))
    between = renamed(PRODUCTS.launch(c.gemm_config, of, device), OPERANDS[c.direction])
    return turning.launch(c, p, device, between)


# --- spaces ------------------------------------------------------------------------------------

Tile = tuple[str, int, int, int, int, int, str]
"""Pipeline, rows, columns, bytes of K, warps, stages, store."""

SUMS: tuple[Tile, ...] = (
    ("gluon_ws", 64, 64, 128, 4, 13, "direct"),
    ("gluon_ws", 64, 128, 128, 4, 8, "direct"),
    ("gluon_ws", 128, 128, 128, 8, 6, "direct"),
    ("gluon_ws", 128, 256, 128, 8, 4, "split"),
    *(
        (pipeline, rows, columns, 128, warps, 3, "direct")
        for pipeline in ("basic", "tma", "gluon_cdna")
        for rows, columns, warps in ((64, 64, 4), (64, 128, 4), (128, 128, 8))
    ),
)
"""For gradients of weights, which are few tiles with sums over many pixels."""

SHARED = (("stream_k", 1, "linear"), ("stream_k", 1, "tree"), ("split_k", 16, "linear"))
"""Schedulers, parts of K, and how partial sums meet: orders that repeat bit for bit."""

APART: tuple[tuple[Tile, tuple[int, ...]], ...] = (
    (("gluon_ws", 64, 128, 128, 4, 7, "direct"), (8, 16, 32, 64, 128)),
    (("gluon_ws", 128, 128, 128, 8, 5, "direct"), (16, 32, 64, 128)),
    (("gluon_ws", 128, 256, 128, 8, 3, "split"), (16, 32, 64, 128)),
)
"""Tiles, and parts of K that a second kernel adds up, for sums over all images: few tiles in so
many parts that all compute units have some, down to one tile. The operands come from memory while
they are waited for, so 128×128 is for products without 256 columns: it reads a third more."""

NARROW: tuple[tuple[Tile, tuple[int, ...]], ...] = (
    (("basic", 16, 16, 512, 4, 4, "direct"), (64, 128)),
    (("basic", 32, 16, 512, 4, 4, "direct"), (64, 128)),
    (("basic", 16, 32, 512, 4, 4, "direct"), (64, 128)),
    (("basic", 32, 32, 256, 4, 4, "direct"), (64, 128)),
    (("basic", 16, 64, 512, 4, 4, "direct"), (64, 128)),
    (("basic", 64, 16, 512, 4, 4, "direct"), (64, 128)),
    (("basic", 16, 128, 256, 8, 4, "direct"), (32, 64, 128)),
    (("basic", 32, 128, 256, 8, 4, "direct"), (32, 64, 128)),
    (("basic", 64, 32, 256, 4, 4, "direct"), (64, 128)),
    (("basic", 128, 32, 256, 8, 4, "direct"), (32, 64, 128)),
)
"""The same of pixels that are one matrix, where filters or channels are up to `FEWER`, also of rows
that are no whole 16 bytes, but whole copies. Kernels that know any filter find the place of each
pixel for each copy, which takes three times as many instructions."""

FEW, FEWER = 64, 32
FEW_APART: tuple[tuple[Tile, tuple[int, ...]], ...] = (
    (("basic", 16, 16, 512, 4, 4, "direct"), (32, 128)),
    (("basic", 32, 16, 512, 4, 4, "direct"), (32, 128)),
    (("basic", 32, 32, 128, 4, 4, "direct"), (64, 128)),
    (("gluon_ws", 64, 32, 128, 4, 12, "direct"), (64, 128)),
    (("gluon_ws", 64, 64, 128, 4, 13, "direct"), (64, 128)),
)
"""The same where channels and filters are up to `FEW`, and either up to `FEWER`, as in the first
layers of networks for phones: larger tiles are mostly empty there. With as many steps ahead as
memory is away."""

_ALGORITHM = (
    "pipeline", "tile_m", "tile_n", "tile_k", "num_warps", "num_stages", "store",
    "scheduler", "split_k", "reduction",
)  # fmt: skip


def turnings(p: ConvProblem, tuned: bool = False) -> tuple[str, ...]:
    """The layout steps, as in `ConvConfig.turned`, that leave a product whose rows are whole 16
    bytes; none where `p` is one as its arrays lie. The first of a kind that does, and in a tuning
    longer rows of what is a product already: no figure says yet when they are worth their copies.
    """
    as_it_lies = product(p)
    if _whole_rows(as_it_lies):
        return ()
    can = p.once(turning.turnable)
    tried = [can] if can else []
    if cut := _cut(p, can):
        cut += "w" * (patches.row(p, True) != patches.columns(p))
        tried = [cut, cut + "y" * ("y" in can)]
    found = [*itertools.islice(filter(partial(_leave_whole_rows, p), tried), 1)]
    few = TAPS + "w" * ("w" in can)
    if _few_taps(p) and _leave_whole_rows(p, few):
        found.append(few)
    names = longer.needed(p) if tuned and not isinstance(as_it_lies, str) else ""
    if names and _leave_whole_rows(p, LONGER + names):
        found.append(LONGER + names)
    return tuple(found)


def _few_taps(p: ConvProblem) -> bool:
    """Whether filters have fewer taps together than x has channels, so that what the taps have is
    about as much as x."""
    return tapping.columns(p) <= p.c


MOST_GROWN = 2.5
"""Elements that windows have, over those of x or over those of the filters, whichever are more, up
to which they are cut out. Audio codecs have windows of twice their stride."""


def _cut(p: ConvProblem, can: str) -> str:
    """How x is cut into rows, if it is: of windows that overlap only where arrays lie with channels
    outside of their pixels, and so would be turned for kernels of other pipelines. A cut copies
    lines of pixels. The filters, which may have most of the elements, stay as they lie. A gradient
    of x of few channels is added up of such rows wherever they lie, as y, which has most of the
    elements, is read once then."""
    if patches.refusal(p) is None:
        return PATCHES
    if patches.windows_refusal(p) is not None:
        return ""
    if p.direction == "data" and patches.columns(p) <= p.k:
        return WINDOWS
    most = MOST_GROWN * max(math.prod(p.shape_of("x")), math.prod(p.shape_of("w")))
    by_lines = p.direction == "data" or p.strides_of("x")[-1] == 1
    return WINDOWS if can and by_lines and patches.grown(p) <= most else ""


def _leave_whole_rows(p: ConvProblem, how: str) -> bool:
    return turning.refusal(how, p) is None and _whole_rows(product(turning.inside(p, how)))


def _whole_rows(of: GemmProblem | str) -> bool:
    return not isinstance(of, str) and of.alignment == ALIGNMENTS[-1]


def rows(p: ConvProblem, arch: Arch, tuned: bool, turned: str = "") -> Iterator[Row]:
    """The kernels of GEMM's default space (or of those of a tuning, some twice) for the product
    that `p` is between layout steps; for the gradient of weights also kernels whose tiles are
    shared. Rows of `LINKED`, whether they serve these very sizes or not: so problems have the same
    candidates, and share what follows from them."""
    of = product(turning.inside(p, turned))
    if isinstance(of, str):
        return
    spaces = PRODUCTS.tuning_spaces(of, arch) if tuned else [PRODUCTS.default_space(of, arch)]
    if p.direction == "weights":
        spaces = [*spaces, _sums(of, arch)]
    for space in spaces:
        yield from _expanded(space, arch, p, turned)


def _sums(of: GemmProblem, arch: Arch) -> KernelSpace:
    """`SUMS`, with the default space's signature."""
    element, here = DTYPES[of.dtype_a].bytes, pipelines.on(arch)
    rows = [
        (pipeline, m, n, k_bytes // element, *rest, *how)
        for pipeline, m, n, k_bytes, *rest in SUMS
        for how in SHARED
        if pipeline in here
    ]
    if of.batching == "summed":
        rows += [
            (pipeline, m, n, k_bytes // element, *rest, "split_k", parts, "two_stage")
            for (pipeline, m, n, k_bytes, *rest), several in (
                *APART,
                *(FEW_APART if max(of.m, of.n) <= FEW and min(of.m, of.n) <= FEWER else ()),
            )
            for parts in several
            if pipeline in here and ((m, n) != (128, 128) or of.n < 256)
        ]
    elif min(of.m, of.n) <= FEWER and of.batching == "none":
        rows += [
            (pipeline, m, n, k_bytes // element, *rest, "split_k", parts, "two_stage")
            for (pipeline, m, n, k_bytes, *rest), several in NARROW
            for parts in several
            if pipeline in here
        ]
    axes = PRODUCTS.default_space(of, arch).axes
    fixed = {axis: value for axis, (value,) in axes.items()} | {"alignment": of.alignment}
    return of_rows("gemm", fixed, _ALGORITHM, rows)


MOST_EXPANDED = 256
_kept: dict[tuple[Any, ...], Sequence[Row]] = {}
"""The kernels of spaces, by what `_expanded` takes: expanding one takes as long as planning ten
problems."""


def _expanded(space: KernelSpace, arch: Arch, p: ConvProblem, turned: str) -> Sequence[Row]:
    """The kernels of a space of GEMM's as rows of a convolution's."""
    made = (p.dtype_out, p.epilogue)
    key = (arch.name, p.direction, len(p.spatial), turned, *made, space.key)
    if key not in _kept:
        if len(_kept) >= MOST_EXPANDED:
            _kept.clear()
        try:
            kernels = space.expand(arch).configs
        except EmptySpace:
            kernels = ()
        configs = (
            of_gemm(p.direction, len(p.spatial), _outside(kernel, turned, *made), turned)
            for kernel in kernels
        )
        _kept[key] = [*map(attrgetter(*LINKED), configs)]
    return _kept[key]
