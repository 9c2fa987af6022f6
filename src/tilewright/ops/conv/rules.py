"""The rules of convolutions: which configs an architecture can build, and which problems a config
can serve. Each rule is a function that returns a reason, or None."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache, partial
from typing import Any

from tilewright.arch.model import Arch
from tilewright.ops import epilogues, reasons
from tilewright.ops.conv import library, pipelines, runs, swapping, turning, windows
from tilewright.ops.conv.config import GEMM, INDEX_BITS, MOST_TILE, SHARING, VENDOR, ConvConfig
from tilewright.ops.conv.pipelines import PIPELINES, by_gemm, has
from tilewright.ops.conv.pipelines.common import on_vectors
from tilewright.ops.conv.pipelines.depthwise import MOST_ELEMENTS
from tilewright.ops.conv.pipelines.implicit import aligned_weights
from tilewright.ops.conv.problem import GRADIENT_DTYPES, ConvProblem
from tilewright.ops.limits import INT32_SPAN, MAX_STAGES, VECTOR_DOT_PRODUCTS
from tilewright.ops.pool import Columns, Each, Objections, Pool, any_of, because, each, either
from tilewright.ops.products import outputs
from tilewright.ops.tile_sharing import MAX_FLAGS
from tilewright.verdict import YES, Verdict, no

OVERHEAD_REGISTERS = 48
"""Registers of a thread beside sums: places of pixels, masks, addresses."""

MOST_GROUPS = 64
"""Groups of a tile."""

MOST_NUMBER = 2**31 - 2**20
"""Pixels, tiles and weights are numbered in 32 bits, up to a tile past the last."""

MOST_COUNT = 2**62
"""What arrays count up to."""


def _without_dot(c: ConvConfig) -> bool:
    """Whether a kernel has no tile of matrix instructions' shape."""
    return has(c, "depthwise") or has(c, "vector_units")


def _dtype(c: ConvConfig, arch: Arch) -> str | None:
    multiplied = "tf32" if c.precision == "tf32" else c.dtype
    for name in dict.fromkeys((multiplied, c.dtype, c.dtype_out)):
        support = arch.dtypes.get(name)
        if support is not None and support.support == "refused":
            return f"{arch.name} does not take {name}: {support.note}"
    if multiplied not in arch.dtypes:
        return f"{arch.name} does not take {multiplied}"
    if c.direction != "forward" and c.dtype not in GRADIENT_DTYPES:
        return f"gradients are of {', '.join(GRADIENT_DTYPES)}, not of {c.dtype}"
    if c.precision == "tf32" and (c.dtype != "fp32" or _without_dot(c)):
        return f"precision tf32 multiplies fp32 on matrix units, not {c.dtype} in {c.pipeline}"
    possible = outputs(c.dtype, c.epilogue)
    if c.dtype_out not in possible:
        return f"{c.dtype} is written as {', '.join(possible)}, not as {c.dtype_out}"
    return None


def _pipeline(c: ConvConfig, arch: Arch) -> str | None:
    of = pipelines.of(c)
    for word in of.needs:
        if not arch.has(word):
            return f"{arch.name} has no {word}, which pipeline {c.pipeline} needs"
    return of.objection(c, arch)


def _combination(c: ConvConfig, arch: Arch) -> str | None:
    if c.scheduler in SHARING and c.direction != "weights":
        return f"pixels are split for gradients of weights, not for direction {c.direction}"
    if c.parts_meet and _without_dot(c):
        return (
            f"{c.scheduler} {c.reduction}: parts of gradients in pipeline {c.pipeline} are added "
            "by a second kernel, under scheduler split and reduction two_stage"
        )
    if c.epilogue and c.direction == "weights":
        return "gradients of weights have no epilogue"
    for one in epilogues.parse(c.epilogue):
        if one.halves or any(taken.kind == "m" for taken in one.takes):
            return f"{one.name} is for rows or pairs of columns of a matrix"
    if bool(c.held) != has(c, "holds_filter"):
        holding = (name for name, record in PIPELINES.items() if record.has("holds_filter"))
        return (
            f"{' and '.join(holding)} are written out for a filter, as in 3x3s1x1; {c.pipeline} "
            f"has held = '{c.held}'"
        )
    if c.classes > 1 and (c.direction != "data" or pipelines.of(c).kind != "boxed"):
        return f"classes = {c.classes} are of gradients of the data by boxes"
    if c.grouped and pipelines.of(c).kind != "boxed":
        return f"grouped is of pipelines that copy boxes, not of {c.pipeline}"
    if c.merged_groups & (c.merged_groups - 1) or c.merged_groups > MOST_GROUPS:
        return f"merged_groups = {c.merged_groups} is not a power of two up to {MOST_GROUPS}"
    if c.merged_groups > 1 and not has(c, "merges_groups"):
        return f"pipeline {c.pipeline} does not merge groups"
    if c.runs and (c.pipeline, c.merged, c.merged_groups) != ("implicit", True, 1):
        return "runs are steps of several taps and of one group in pipeline implicit"
    if c.runs and c.direction == "data":
        return "runs are of pixels of x, which the gradient of the data does not read"
    if has(c, "depthwise"):
        if c.merged:
            return "a depthwise kernel has one channel, and nothing to merge with taps"
        no_depth = windows.of_row(c) if c.held else c.direction != "weights"
        if no_depth and c.tile_k != 1:
            return f"a depthwise kernel takes one tap in a step: tile_k is 1, not {c.tile_k}"
        if c.group_m != 1:
            return f"a depthwise kernel walks its tiles in one order: group_m is 1, not {c.group_m}"
    return None


def _tile(c: ConvConfig, arch: Arch) -> str | None:
    least = (1, 1, 1) if _without_dot(c) else arch.min_dot
    odd = pipelines.of(c).odd(c)
    most = MOST_ELEMENTS if _without_dot(c) else MOST_TILE
    for axis, size, low in zip("mnk", (c.tile_m, c.tile_n, c.tile_k), least, strict=True):
        if size & (size - 1) and f"tile_{axis}" not in odd:
            return f"tile_{axis} = {size} is not a power of two"
        if not low <= size <= most:
            return f"tile_{axis} = {size} is not from {low} to {most} on {arch.name}"
    return pipelines.of(c).tile(c, arch)


def _warps(c: ConvConfig, arch: Arch) -> str | None:
    if c.num_warps & (c.num_warps - 1) and "num_warps" not in pipelines.of(c).odd(c):
        return f"num_warps = {c.num_warps} is not a power of two"
    if (too_many := reasons.warps(arch, c.num_warps)) is not None:
        return too_many
    if c.num_stages > MAX_STAGES:
        return f"num_stages = {c.num_stages} is over {MAX_STAGES}"
    return None


def _written_out(c: ConvConfig, arch: Arch) -> bool:
    """Whether it has a dot on the vector units, which the compiler writes out."""
    return not _without_dot(c) and on_vectors(c, arch)


def _registers(c: ConvConfig, arch: Arch) -> str | None:
    threads = c.num_warps * arch.warp_size
    each = pipelines.of(c).sums(c) // threads
    if _written_out(c, arch):
        # Operands of a dot on the vector units are held too.
        each += (c.tile_m + c.tile_n) * c.tile_k // threads
    warps_per_simd = -(-c.num_warps // arch.simds_per_cu)
    available = min(arch.max_registers, arch.registers_per_lane // warps_per_simd)
    if each + OVERHEAD_REGISTERS > available:
        return f"{each} sums and {OVERHEAD_REGISTERS} other registers a thread, over {available}"
    return None


def _dot(c: ConvConfig, arch: Arch) -> str | None:
    """A dot on the vector units is unrolled, product by product."""
    if not _written_out(c, arch):
        return None
    products = c.tile_m * c.tile_n * c.tile_k // (c.num_warps * arch.warp_size)
    if products > VECTOR_DOT_PRODUCTS:
        return (
            f"{arch.name} multiplies {c.dtype} on the vector units: {products} products a thread "
            f"in a step, over {VECTOR_DOT_PRODUCTS}"
        )
    return None


def _shared_memory(c: ConvConfig, arch: Arch) -> str | None:
    if (need := pipelines.of(c).shared_memory(c, arch)) > arch.shared_memory:
        return f"{need} bytes of shared memory, over {arch.shared_memory}"
    return None


LEGALITY: tuple[tuple[str, Callable[[ConvConfig, Arch], str | None]], ...] = (
    ("dtype", _dtype),
    ("pipeline", _pipeline),
    ("combination", _combination),
    ("tile", _tile),
    ("warps", _warps),
    ("registers", _registers),
    ("dot", _dot),
    ("shared_memory", _shared_memory),
)


def judge(config: ConvConfig, arch: Arch) -> Verdict:
    """May `config` be built for `arch`? The first rule that refuses it. Spaces have the same
    objects for many problems, so verdicts are kept."""
    key = id(config), id(arch)
    known = _judged.get(key)
    if known is None or known[0] is not config or known[1] is not arch:
        if len(_judged) >= MOST_JUDGED:
            _judged.clear()
        known = _judged[key] = (config, arch, _judge(config, arch))
    return known[2]


MOST_JUDGED = 16384
_judged: dict[tuple[int, int], tuple[ConvConfig, Arch, Verdict]] = {}
"""Verdicts by the identities of config and architecture, which are kept with them."""


def _judge(config: ConvConfig, arch: Arch) -> Verdict:
    if config.pipeline == GEMM:
        return by_gemm.judge(config, arch)
    if config.pipeline == VENDOR:
        return library.judge(config, arch)
    kernels = swapping.within(config)
    for name, rule in LEGALITY:
        if (reason := rule(kernels, arch)) is not None:
            return no(name, reason)
    return YES


# --- support: can this config compute this problem? --------------------------------------------

SIGNATURE = ("direction", "dtype", "dtype_out", "precision", "epilogue")
"""Fields that a config and a problem share."""


def _signature(c: ConvConfig, p: ConvProblem) -> str | None:
    for field in SIGNATURE:
        if (has := getattr(c, field)) != (wants := getattr(p, field)):
            return f"is for {field} '{has}', not '{wants}'"
    if c.spatial_dims != len(p.spatial):
        return f"is for {c.spatial_dims} dimensions, not {len(p.spatial)}"
    return None


def _alike(c: Any, p: ConvProblem) -> Objections:
    yield each(c, _signed) != p.once(_signed), _signature


def _depthwise(c: Any, p: ConvProblem) -> Objections:
    of = pipelines.shared(c)
    served = p.depthwise or (p.group_c == 1 and of.has("several_filters"))
    if of.has("depthwise") and not served:
        said = (
            "has a filter of its own for every channel, but {p.k} filters of {p.groups} groups "
            "see {p.group_c} channels each"
        )
        yield True, said.format


def _refused(c: Any, p: ConvProblem) -> Objections:
    return pipelines.shared(c).refusal(c, p)


def _groups(c: Any, p: ConvProblem) -> Objections:
    if pipelines.shared(c).has("merges_groups"):
        said = "merges {c.merged_groups} groups, of {p.groups}"
        yield c.merged_groups >= 2 * p.groups, said.format


def _runs(c: Any, p: ConvProblem) -> Objections:
    if any_of(c.runs) and (reason := p.once(runs.refusal)):
        yield c.runs, because(reason)


def _aligned(c: Any, p: ConvProblem) -> Objections:
    of = pipelines.shared(c)
    read, made = of.alignments(p)
    if of.name == "implicit" and any_of(c.runs):
        by_runs = p.once(runs.alignments)
        read, made = either(c.runs, by_runs[0], read), either(c.runs, by_runs[1], made)
    said = "channels of what is read are aligned to {} bytes, under {c.alignment}"
    yield read < c.alignment, partial(said.format, read)
    if (of.name, p.direction) == ("implicit", "data"):
        weights, wanted = p.rows_alignment("w"), each(c, aligned_weights)
        said = "channels of weights are aligned to {} bytes, under {}"
        yield weights < wanted, partial(said.format, weights, wanted)
    said = "channels of {p.output_name} are aligned to {} bytes, under {c.alignment_out}"
    yield made < c.alignment_out, partial(said.format, made)


def _largest_span(p: ConvProblem) -> int:
    """Bytes of the longest array, from its first to past its last element."""
    return max(p.spans().values())


def index_bits(p: ConvProblem) -> int:
    """Bits of the indices that reach all elements."""
    return 32 if p.once(_largest_span) < INT32_SPAN else 64


def _index(c: Any, p: ConvProblem) -> Objections:
    said = f"an array spans {p.once(_largest_span)} bytes, which 32-bit indices do not reach"
    if index_bits(p) > INDEX_BITS[0]:
        yield c.index_bits == INDEX_BITS[0], because(said)
    for what, count in (
        ("pixels", p.walked_pixels),
        ("tiles", pipelines.shared(c).tiles(c, p)),
        ("weights", p.once(_weights)),
    ):
        yield count > MOST_NUMBER, partial("{} {}, over {}".format, count, what, MOST_NUMBER)


def _weights(p: ConvProblem) -> int:
    """How many weights kernels number."""
    return math.prod(p.shape_of("w"))


def _shared(c: Any, p: ConvProblem) -> Objections:
    if p.direction != "weights":
        return
    of, meet = pipelines.shared(c), c.parts_meet
    tiles, steps = of.tiles(c, p), of.steps(c, p)
    said = "the pixels are {} steps of {c.tile_k}, too few to share"
    yield meet & (steps < 2), partial(said.format, steps)
    flags = tiles * each(c, of.meetings)
    said = "{} tiles need more flags than the {} that there are: do not split"
    over = meet & c.splits & (flags > MAX_FLAGS)
    yield over, partial(said.format, tiles, MAX_FLAGS)
    every, said = tiles * steps, "{} steps of all tiles, over {}"
    yield meet & (every > MOST_NUMBER), partial(said.format, every, MOST_NUMBER)


SUPPORT: tuple[tuple[str, Callable[[Any, ConvProblem], Objections]], ...] = (
    ("signature", _alike),
    ("depthwise", _depthwise),
    ("groups", _groups),
    ("runs", _runs),
    ("vector_width", _aligned),
    ("pipeline", _refused),
    ("index", _index),
    ("sharing", _shared),
)
"""Each rule judges a config, or the `Columns` of several whose kind is the same."""


def supports(config: ConvConfig, problem: ConvProblem, arch: Arch) -> Verdict:
    """Can `config`, built for `arch`, compute `problem`?"""
    if config.pipeline in (GEMM, VENDOR):
        reason = _signature(config, problem)
        of = by_gemm if config.pipeline == GEMM else library
        return no("signature", reason) if reason else of.supports(config, problem, arch)
    for name, objections in _asked(config, problem):
        for refused, why in objections:
            if refused:
                between = problem if name == "turned" else turning.inside(problem, config.turned)
                return no(name, why(c=swapping.within(config), p=between))
    return judge(config, arch)


LIBRARY = "library"


def whose(config: ConvConfig) -> str:
    """Whose kernel a config is: `LIBRARY`, or a kind of pipelines, with the arrays that it turns.
    Configs of one are judged and estimated together."""
    if config.library:
        return LIBRARY
    kind = GEMM if config.pipeline == GEMM else pipelines.of(config).kind
    return f"{kind} {config.turned}".strip()


def serving(problem: ConvProblem, configs: Pool, arch: Arch) -> Sequence[int]:
    """The places of the configs of which `supports` says yes."""
    found: list[int] = []
    for word, (places, c) in configs.columns.groups(whose).items():
        if word == LIBRARY or _is_huge(problem):
            inside = [i for i, one in enumerate(c) if supports(one, problem, arch)]
        elif word.split()[0] == GEMM:
            known = each(c, _signed) == problem.once(_signed)
            inside = [i for i in by_gemm.serving(problem, c, arch) if known[i]]
        else:
            inside = each(c, _legal, arch).nonzero()[0]
            if len(inside):
                inside = inside[~_refused_of(c.part(inside), problem)]
        found += places[inside].tolist()
    return sorted(found)


def _refused_of(c: Columns, problem: ConvProblem) -> Each:
    """Whether a rule of support objects, for each of one or more configs."""
    import numpy as np

    found = np.zeros(len(c), bool)
    for _, objections in _asked(c, problem):
        if found.all():  # what the next rule asks may have no meaning for the problem
            break
        for refused, _ in objections:
            found = found | refused
    return found


@lru_cache(maxsize=64)
def _is_huge(p: ConvProblem) -> bool:
    """Whether tiles and steps of all tiles may not count in 64 bits, as arrays have them."""
    pixels = math.prod(dim.size + dim.out + dim.stride for dim in p.three)
    return p.n * pixels * max(1, p.k * p.c * p.taps) >= MOST_COUNT


def _signed(of: ConvConfig | ConvProblem) -> str:
    """The fields that a config and a problem share, and the dimensions."""
    rank = of.spatial_dims if isinstance(of, ConvConfig) else len(of.spatial)
    return " ".join(map(str, (rank, *(getattr(of, field) for field in SIGNATURE))))


def _legal(config: ConvConfig, arch: Arch) -> bool:
    return bool(judge(config, arch))


def _asked(c: Any, problem: ConvProblem) -> Iterator[tuple[str, Objections]]:
    """The rules of support, by name, with what they say of a config, or of `Columns` of one kind
    that turn the same arrays."""
    turned = (c[0] if isinstance(c, Columns) else c).turned
    if (reason := turning.refusal(turned, problem)) is not None:
        yield "turned", iter([(True, because(reason))])
        return
    between = turning.inside(problem, turned)
    c = swapping.all_within(c) if isinstance(c, Columns) else swapping.within(c)
    for name, rule in SUPPORT:
        yield name, rule(c, between)
