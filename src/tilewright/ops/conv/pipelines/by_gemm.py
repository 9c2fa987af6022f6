"""Pipeline ``gemm``: convolutions that are products of matrices (`product`), by GEMM's kernels.

Everything is GEMM's: rules, estimates, spaces (`by_gemm_space`), sources and launches are those of
the product. The estimate has one term more (`_first_us`), as these products are often short. Only
the operands' names are changed (`launch`). So the algorithms of the vendor's library for that
product are candidates of a tuning too (`gemm.library`).
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from functools import lru_cache

from tilewright.arch import arch as arch_called
from tilewright.arch.model import Arch, Device
from tilewright.dtypes import DTYPES
from tilewright.ops.conv import library_record, turning, turning_steps
from tilewright.ops.conv.config import ALIGNMENTS, ConvConfig, as_named, of_gemm
from tilewright.ops.conv.figures import CONV
from tilewright.ops.conv.problem import ConvProblem
from tilewright.ops.conv.product import OPERANDS, product
from tilewright.ops.estimate import Estimate, Estimates
from tilewright.ops.gemm import FAMILY as PRODUCTS
from tilewright.ops.gemm import legality, pipelines
from tilewright.ops.gemm.config import GemmConfig
from tilewright.ops.gemm.problem import GemmProblem
from tilewright.ops.library import Found, Matmul
from tilewright.ops.nouns import KernelSource, Launch, renamed
from tilewright.ops.pool import Columns, Pool, each
from tilewright.verdict import Verdict, no

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
    reason = turning.refusal(c.turned, p)
    if reason is None:
        reason = _channels_refusal(c, p, turning.turned_arrays(c.turned))
    if reason is not None:
        return no("turned", reason)
    of = product(turning.inside(p, c.turned))
    if isinstance(of, str):
        return no("product", of)
    verdict = PRODUCTS.supports(c.gemm_config, of, arch)
    return verdict if verdict else no(verdict.rule, f"as {of}: {verdict.reason}")


def _channels_refusal(c: ConvConfig, p: ConvProblem, turned: Sequence[str]) -> str | None:
    """Why the kernel between the layout steps does not compute the channels of the arrays that
    `c` turns, or None. A product may skip pixels, and its rows be whole where a pixel's channels
    are not."""
    for name in turned:
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
    """Estimates of several configs, which turn the same arrays and are none of the library's."""
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
    turned = turning.turned_arrays(c[0].turned)
    return [i for i in found if _channels_refusal(c[i], p, turned) is None] if turned else found


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
    kernel = as_named(PRODUCTS.interpreted(c.gemm_config), c.turned, c.dtype_out, c.epilogue)
    return of_gemm(c.direction, c.spatial_dims, kernel, c.turned)


def sources(c: ConvConfig, arch: Arch) -> Mapping[str, KernelSource]:
    """What to compile: GEMM's kernels, and the layout steps'."""
    own = PRODUCTS.sources(c.gemm_config, arch)
    return {**own, **turning_steps.sources(c, arch)} if c.turned else own


def launch(c: ConvConfig, p: ConvProblem, device: Device) -> Launch:
    """GEMM's launch of the product, over the convolution's operands."""
    of = _product(turning.inside(p, c.turned))
    between = renamed(PRODUCTS.launch(c.gemm_config, of, device), OPERANDS[c.direction])
    return turning_steps.launch(c, p, device, between)
