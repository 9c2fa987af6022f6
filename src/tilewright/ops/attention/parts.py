"""The kernels in Triton that stand before and behind a pipeline's own in a launch."""

from __future__ import annotations

from tilewright.arch.model import Arch
from tilewright.ops.attention.catalogue import array, having, rotates, turned_len
from tilewright.ops.attention.config import AttentionConfig
from tilewright.ops.binder import Context, Part, Value

KERNELS = "tilewright.ops.attention.kernels"

APPENDED_ROWS = 8
"""Rows that a workgroup of the appending kernel has; a constant of that kernel."""

TURNED = 128, 64
"""Keys and columns that a workgroup of the turning kernel has; constants of that kernel."""

COMBINED_COLUMNS = 128
"""Columns that a workgroup of the combining kernel has; a constant of that kernel."""


def _four_warps(c: AttentionConfig, arch: Arch) -> tuple[tuple[str, Value], ...]:
    return ("num_warps", 4), ("num_stages", 1)


def _dependent(c: AttentionConfig, arch: Arch) -> tuple[tuple[str, Value], ...]:
    """The kernel may start before the kernel before it has ended, where an architecture has
    programmatic dependent launch."""
    return *_four_warps(c, arch), *((("launch_pdl", True),) if arch.has("pdl") else ())


def _appended(x: Context) -> tuple[int, int, int]:
    """Rows are heads of tokens: of keys, of values, and of queries that are rotated."""
    p = x.problem
    rows = p.new_kv * p.kv_heads
    if not rotates(x.config):
        return -(-rows // APPENDED_ROWS), 2, p.batch
    return -(-max(rows, p.q_len * p.heads) // APPENDED_ROWS), 3, p.batch


def _turned(x: Context) -> tuple[int, int, int]:
    p, (keys, columns) = x.problem, TURNED
    return -(-turned_len(p) // keys), -(-p.head_dim_v // columns) * p.kv_heads, p.batch


def _listed(x: Context) -> int:
    """Rows of the mask, of all sequences."""
    p = x.problem
    lines: int = p.batch * p.blocks_shape[1] * p.block_counts[0]
    return lines


def _combined(x: Context) -> tuple[int, int, int]:
    p = x.problem
    return p.q_len * p.heads * p.batch, -(-p.head_dim_v // COMBINED_COLUMNS), 1


APPEND = Part(
    name="append",
    kernel=f"{KERNELS}.append:append",
    grid=_appended,
    options=_four_warps,
    there=having("append"),
    own={"q": array("dtype", aligned=True)},  # the caller's
)
"""Writes new keys and values behind those of the cache, and rotates them and Q."""

TURN = Part(
    name="turn",
    kernel=f"{KERNELS}.turn:turn",
    grid=_turned,
    options=_four_warps,
)
"""Writes values by columns: keys of a head and column are neighbours."""

LIST_BLOCKS = Part(
    name="list_blocks",
    kernel=f"{KERNELS}.blocks:list_blocks",
    grid=_listed,
    options=_four_warps,
    there=having("blocks"),
)
"""Lists the blocks of keys that each block of queries sees."""

COMBINE = Part(
    name="combine",
    kernel=f"{KERNELS}.combine:combine",
    grid=_combined,
    options=_dependent,
    there=lambda c: c.scheduler == "split",
    own={"DEPENDENT": lambda c, arch: arch.has("pdl")},
)
"""Adds up what the splits of each row found."""
