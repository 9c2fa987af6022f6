"""The rules of GEMM about problems: which of them a config can serve.

A rule yields its objections, for one config or for all of a `Pool` at once. The table `SUPPORT`
names the rules and fixes their order: the selector, the CLI and the docs read it. Whether an
architecture can build a config is for the rules of `legality`.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from operator import attrgetter
from typing import Any

from tilewright.arch.model import Arch
from tilewright.dtypes import DTYPES
from tilewright.ops import epilogues
from tilewright.ops.gemm import pipelines, scales, two_stage
from tilewright.ops.gemm.config import GemmConfig
from tilewright.ops.gemm.layouts import gated
from tilewright.ops.gemm.legality import judged
from tilewright.ops.gemm.library_config import VendorConfig
from tilewright.ops.gemm.problem import GemmProblem
from tilewright.ops.gemm.sizes import MAX_TILES, meetings
from tilewright.ops.limits import INT32_SPAN
from tilewright.ops.pool import Columns, Each, Objections, Pool, each
from tilewright.ops.tile_sharing import MAX_FLAGS
from tilewright.verdict import YES, Verdict, no

_SIGNATURE = (
    "layout", "dtype_a", "dtype_b", "dtype_c", "dtype_acc", "precision", "epilogue", "batching",
    "scale_a", "scale_b", "pre_a", "pre_b",
)  # fmt: skip
_words = attrgetter(*_SIGNATURE)
_numbers: dict[tuple[str, ...], int] = {}
_unused = itertools.count()


def _numbered(of: GemmConfig | GemmProblem) -> int:
    """A number for the words that a config and a problem must have alike, to compare arrays by."""
    words = _words(of)
    number = _numbers.get(words)
    return _numbers.setdefault(words, next(_unused)) if number is None else number


def signature(c: GemmConfig | VendorConfig, p: GemmProblem) -> str | None:
    """The first word of the problem that the config has otherwise."""
    for field in _SIGNATURE:
        have, want = getattr(c, field), getattr(p, field)
        if have != want:
            reason = f"{field} is {have or 'none'}, the problem has {want or 'none'}"
            if field == "layout" and "s" in have + want and have[1] != want[1]:
                which = "shuffle" if have[1] == "s" else "unshuffle"
                reason += f": pass tilewright.{which}(b) to this kernel"
            return reason
    return None


def _alike(c: Any, p: GemmProblem) -> Objections:
    yield each(c, _numbered) != _numbered(p), signature


def _divides(c: Any, p: GemmProblem) -> Objections:
    pads = (c.pad_m, c.pad_n, c.pad_k)
    sizes = zip("mnk", (p.m, p.n, p.k), (c.tile_m, c.tile_n, c.tile_k), strict=True)
    for (axis, size, tile), gate, pad in zip(sizes, gated(p.layout), pads, strict=True):
        said = "{0} = {1} is not a multiple of tile_{0} = {2} and is not padded"
        if gate:
            yield (size % tile > 0) & (pad ^ True), partial(said.format, axis, size, tile)


@lru_cache(maxsize=64)
def _facts(p: GemmProblem) -> tuple[int, tuple[int, ...]]:
    """A problem's `extent_alignment` and `spans_bytes`."""
    return p.extent_alignment, p.spans_bytes


def _aligned(c: Any, p: GemmProblem) -> Objections:
    said = "addresses and rows are aligned to {p.alignment} bytes, under {c.alignment}"
    yield p.alignment < c.alignment, said.format
    vectors = (each(c, pipelines.of).writes == "pointers") | epilogues.has_matrix(p.epilogue)
    extents, _ = _facts(p)
    said = "rows hold multiples of {p.extent_alignment} bytes, under {c.alignment}"
    yield (vectors | c.two_stage) & (extents < c.alignment), said.format


def _addressable(c: Any, p: GemmProblem) -> Objections:
    in_32_bits = (c.index_bits == 32) & (each(c, pipelines.of).reads == "pointers")
    _, spans = _facts(p)
    if (span := max(spans)) >= INT32_SPAN:
        said = "{} spans {} bytes, beyond 32-bit addressing"
        yield in_32_bits, partial(said.format, p.in_memory[spans.index(span)][0], span)
    apart = c.split_k * float(two_stage.part_bytes(p)) >= INT32_SPAN
    said = "{c.split_k} parts of C in 32 bits span 2 GiB, beyond 32-bit addressing"
    yield in_32_bits & c.two_stage & apart, said.format
    for s in scales.of(p):
        said = "{} spans {} elements, beyond 32-bit addressing"
        beyond = s.elements * DTYPES[s.block.dtype].bytes >= INT32_SPAN
        yield beyond, partial(said.format, s.name, s.elements)


def _tiles(c: Any, p: GemmProblem) -> Each:
    """As `sizes.tiles`; a float, since arrays hold no larger integers than 64 bits."""
    return float(p.matrices_of_c) * (-(-p.m // c.tile_m) * -(-p.n // c.tile_n))


def _steps(c: Any, p: GemmProblem) -> Each:
    """As `sizes.steps`."""
    return float(p.addends) * -(-p.k // c.tile_k)


def _startable(c: Any, p: GemmProblem) -> Objections:
    if 0 in (p.k, p.addends):
        said = "pipeline {c.pipeline} takes at least one step along K, but k = 0; basic takes none"
        yield each(c, pipelines.has, "zero_k") ^ True, said.format
    if p.m * p.n * p.matrices_of_c > MAX_TILES:
        tiles, said = _tiles(c, p), "{:.0f} tiles, over {}, which is as far as a kernel counts"
        yield tiles > MAX_TILES, partial(said.format, tiles, MAX_TILES)
    if p.addends > 1:
        said = "the matrices' steps of {c.tile_k} are {:.0f} elements of K, over {}"
        summed = _steps(c, p) * c.tile_k
        yield summed > MAX_TILES, partial(said.format, summed, MAX_TILES)


def _shareable(c: Any, p: GemmProblem) -> Objections:
    steps, ways = _steps(c, p), c.split_k + (c.split_k < 2)
    said = "k = {p.k} is {:.0f} steps of {c.tile_k}, too few to split {} ways"
    yield c.shares & (steps < ways), partial(said.format, steps, ways)
    parts = _tiles(c, p) * c.split_k
    if 0 in (p.m, p.n, p.matrices_of_c):
        yield c.shares, "there is no tile to share".format
    meet, flags = c.parts_meet & (c.scheduler == "split_k"), parts * each(c, meetings)
    said = "{:.0f} parts of tiles need {:.0f} flags, over {}: do not split so many"
    yield meet & (flags > MAX_FLAGS), partial(said.format, parts, flags, MAX_FLAGS)


def _few_rows(c: Any, p: GemmProblem) -> Objections:
    said = "m = {p.m} is over tile_m = {c.tile_m}, and pipeline {c.pipeline} has no second row"
    yield each(c, pipelines.has, "few_rows") & (p.m > c.tile_m), said.format


def _deep_enough(c: Any, p: GemmProblem) -> Objections:
    shallow = _steps(c, p) // c.split_k < c.num_stages
    refused = each(c, pipelines.has, "fills_ring") & shallow
    said = "is under {c.num_stages} steps of {c.tile_k}, which pipeline {c.pipeline} has under way"
    yield refused & (c.split_k > 1), f"k = {{p.k}} in {{c.split_k}} parts {said}".format
    yield refused, f"k = {{p.k}} {said}".format


def _ends_inside(c: Any, p: GemmProblem) -> Objections:
    """Where rows of C are longer than whole 16 bytes of its elements, a last tile that begins
    earlier would begin within 16 bytes, where the copy engine stores nothing: the launch ends with
    an illegal instruction."""
    of_rows = p.layout[2] == "r"
    size, axis = (p.n, "n") if of_rows else (p.m, "m")
    earlier = p.layout[1] != "r" if of_rows else p.layout[0] == "r"
    whole = 16 // DTYPES[p.dtype_c].bytes
    if size % whole and earlier and not (p.scale_a or epilogues.has_matrix(p.epilogue)):
        moved = each(c, pipelines.has, "ends_inside") & (c.scheduler != "stream_k")
        said = "{} = {} is no multiple of {}, and the last tile would begin within 16 bytes of C"
        several = (c.tile_m < size) | (c.tile_n < size)  # of which one is along the axis
        yield moved & several, partial(said.format, axis, size, whole)


def _unchanged_b(c: Any, p: GemmProblem) -> Objections:
    if not p.constant_b:
        said = (
            "it loads B before the kernel before it has ended; pass constant_b=True if nothing "
            "that may still be running writes B"
        )
        yield c.dependent_launch == "ahead", said.format


SUPPORT: tuple[tuple[str, Callable[[Any, GemmProblem], Objections]], ...] = (
    ("signature", _alike),
    ("divisibility", _divides),
    ("vector_width", _aligned),
    ("addressing", _addressable),
    ("extent", _startable),
    ("last_tile", _ends_inside),
    ("sharing", _shareable),
    ("few_rows", _few_rows),
    ("depth", _deep_enough),
    ("constant_b", _unchanged_b),
)
"""Each rule judges a config, or the `Columns` of several."""


def supports(config: GemmConfig, problem: GemmProblem, arch: Arch) -> Verdict:
    """Whether `config` on `arch` computes `problem`; if not, the first rule that refuses it."""
    verdict = takes(config, problem)
    return judged(config, arch) if verdict else verdict


def takes(config: GemmConfig, problem: GemmProblem) -> Verdict:
    """Whether all rules of `SUPPORT` let `config` compute `problem`, which may not be legal."""
    for name, rule in SUPPORT:
        for refused, why in rule(config, problem):
            if refused:
                return no(name, str(why(c=config, p=problem)))
    return YES


def serving(problem: GemmProblem, configs: Pool, arch: Arch) -> Sequence[int]:
    """The places of the configs of which `supports` says yes."""
    return [i for i, no in enumerate(refused(configs.columns, problem, arch).tolist()) if not no]


def refused(c: Columns, problem: GemmProblem, arch: Arch) -> Each:
    """For which configs `supports` says no."""
    return each(c, _illegal, arch) | unsupported(c, problem)


def unsupported(c: Columns, problem: GemmProblem) -> Each:
    """Which configs a rule of `SUPPORT` refuses; one answer if it is the same of all."""
    found: Each = False
    for _, rule in SUPPORT:
        for objected, _ in rule(c, problem):
            found = found | objected
    return found


def _illegal(config: GemmConfig, arch: Arch) -> bool:
    return not judged(config, arch)
