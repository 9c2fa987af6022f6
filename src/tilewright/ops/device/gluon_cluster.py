"""What the workgroups of a cluster do with each other's shared memory, in Gluon for sm_90.

All workgroups run one kernel, so a tile or a barrier is at the same place in each. Triton has no
words for this: comments in the code mark what is meant for another workgroup, and
`compile.clusters` gives it that workgroup's addresses. Nothing else may stand between two comments.

The order is: `ready` once barriers are initialised and expect what will come, by the warps that
begin the kernel; `meet` before the first `send`; then `send` and `hear`. A workgroup may end once
it has heard from all who send to it.
"""

from tilewright.ops.device.gluon_api import gl, jit, mbarrier


@jit
def ready():
    """Say that this workgroup's barriers are initialised."""
    gl.inline_asm_elementwise(
        "fence.mbarrier_init.release.cluster; barrier.cluster.arrive.relaxed; // $0",
        "=r", [], dtype=gl.int32, is_pure=False, pack=1,
    )  # fmt: skip


@jit
def meet():
    """Wait until all workgroups are `ready`."""
    gl.inline_asm_elementwise(
        "barrier.cluster.wait.acquire; // $0", "=r", [], dtype=gl.int32, is_pure=False, pack=1
    )


@jit
def _to(rank):
    gl.inline_asm_elementwise(
        "// to workgroup $1 $0", "=r,r", [rank], dtype=gl.int32, is_pure=False, pack=1
    )


@jit
def _here():
    gl.inline_asm_elementwise("// here again $0", "=r", [], dtype=gl.int32, is_pure=False, pack=1)


@jit
def send(tile, value, barrier, rank):
    """Store a tensor into the tile of workgroup number `rank` of the cluster, whose `barrier`
    counts the bytes that come."""
    _to(rank)
    mbarrier.arrive(barrier, count=1)  # becomes the barrier that the stores name
    tile.store(value)
    _here()


@jit
def hear(barrier, phase):
    """Wait until all that a barrier expects of the other workgroups has come."""
    gl.inline_asm_elementwise(
        "// from the cluster $0", "=r", [], dtype=gl.int32, is_pure=False, pack=1
    )
    mbarrier.wait(barrier, phase)
    _here()
