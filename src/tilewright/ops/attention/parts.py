"""The kernels that stand before and behind a pipeline's own in a launch."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Part:
    """A kernel in Triton that every pipeline shares.

    name: of the part. module, function: where it is. num_warps: it runs with.
    arguments, constants: names in the catalogue (`arguments`), in the kernel's order.
    dependent: whether it may start before the kernel before it has ended, where an architecture has
        programmatic dependent launch; its constant DEPENDENT says so.
    """

    name: str
    module: str
    function: str
    num_warps: int
    arguments: tuple[str, ...]
    constants: tuple[str, ...]
    dependent: bool = False


APPEND = Part(
    name="append",
    module="append",
    function="append",
    num_warps=4,
    arguments=(
        "q", "rotated_q", "k", "v", "new_k", "new_v", "rotary_cos", "rotary_sin", "q_offsets",
        "q_used", "kv_used", "left_pad", "page_table", "page_list", "page_starts", "k_scale",
        "v_scale", "given_q_strides", "q_strides", "k_strides", "v_strides", "kv_scale_strides",
        "heads", "kv_heads", "q_len", "kv_len", "total_q", "new_kv", "pages", "page_entries",
        "rotary_dim", "rotary_len", "scale_block",
    ),
    constants=(
        "HEAD_DIM", "HEAD_DIM_V", "MASK", "PAGE", "PACKEDQ", "USEDQ", "LEFTPAD", "PAGETABLE",
        "PAGELIST", "VECTORISED", "LATENT", "TSCALE", "HSCALE", "BSCALE", "ROTARYI", "ROTARYH",
        "LARGEST_KV",
    ),
)  # fmt: skip
"""Writes new keys and values behind those of the cache, and rotates them and Q."""

TURN = Part(
    name="turn",
    module="turn",
    function="turn",
    num_warps=4,
    arguments=(
        "v", "turned_v", "kv_used", "v_strides", "kv_heads", "kv_len", "new_kv", "turned_len",
    ),
    constants=("HEAD_DIM_V", "USEDKV", "APPEND", "UNIT"),
)  # fmt: skip
"""Writes values by columns: keys of a head and column are neighbours."""

COMBINE = Part(
    name="combine",
    module="combine",
    function="combine",
    num_warps=4,
    arguments=(
        "partial_o", "partial_lse", "o", "lse", "sinks", "q_offsets", "q_used", "o_scale",
        "o_strides", "batch", "heads", "q_len", "total_q", "rows", "splits",
    ),
    constants=(
        "HEAD_DIM_V", "LSE", "BIAS", "SINKS", "PACKEDQ", "USEDQ", "OSCALE", "LARGEST_O", "UNIT",
    ),
    dependent=True,
)  # fmt: skip
"""Adds up what the splits of each row found."""
