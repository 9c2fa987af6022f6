"""Shared memory of a cluster's other workgroups, for kernels in Gluon (NVIDIA).

Triton 3.6 launches clusters, but has no words for one workgroup's access to another's memory. So a
kernel says between two comments what is meant for another workgroup (`ops/device/gluon_cluster`),
and here its stores and arrivals there get that workgroup's addresses:

    // to workgroup %r7
    st.shared.v2.b32 [%r5+256], {…};        →  the same place in workgroup %r7's shared memory
    mbarrier.arrive … [%r6];                →  at workgroup %r7's barrier, after all stores before
    // here again

    // from the cluster
    mbarrier.try_wait … [%r6] …;            →  sees what the other workgroups stored before
    // here again

A workgroup may not be reached before it has begun. The first warps say that they have initialised
their barriers, and wait for the others before they reach out; all other warps have nothing to do
with that, but hardware counts every thread. So those arrive when they begin.
"""

from __future__ import annotations

import re

from tilewright.errors import BuildFailed

_REGION = re.compile(
    r"// to workgroup (?P<rank>%r\d+) [^\n]*\n(?P<inside>.*?)// here again", re.DOTALL
)
_STORE = re.compile(
    r"\tst\.shared(?P<kind>\S*) \t\[(?P<at>%r\d+)(?P<offset>\+\d+)?\], (?P<value>[^;]*);"
)
_ARRIVE = re.compile(
    r"(?P<when>@%p\d+) mbarrier\.arrive\.shared::cta\.b64 _, \[(?P<at>%r\d+)\](?P<count>, \d+)?;"
)
_WAIT = re.compile(
    r"(// from the cluster [^\n]*\n.*?mbarrier\.try_wait\.parity)(\.shared\.b64.*?// here again)",
    re.DOTALL,
)
_HEAD = re.compile(
    r"\.reqntid (?P<threads>\d+)\n.*?\{\n(?:\s*\.(?:reg|local) [^\n]*\n)+", re.DOTALL
)
_FIRST_WARPS = re.compile(r"bar\.sync \t0, (\d+);")


def across_workgroups(ptx: str, size: int) -> str:
    """PTX of a kernel whose clusters have `size` workgroups. Raises `BuildFailed` if the compiler's
    text is other than expected."""
    moved = _Moved()
    ptx = _REGION.sub(moved.region, ptx)
    ptx, waits = _WAIT.subn(r"\1.acquire.cluster\2", ptx)
    head, first = _HEAD.search(ptx), _FIRST_WARPS.search(ptx)
    if not (moved.stores and moved.arrivals and waits and head and first):
        raise BuildFailed(
            "the compiler's PTX of a kernel with clusters is not as expected: "
            f"{moved.stores} stores and {moved.arrivals} arrivals elsewhere, {waits} waits; "
            "build with a Triton release that is supported"
        )
    begin = (
        "\t{ .reg .pred others; .reg .b32 thread; mov.u32 thread, %tid.x;\n"
        f"\tsetp.ge.u32 others, thread, {first[1]};\n"
        "\t@others barrier.cluster.arrive.relaxed; }\n"
    )
    ptx = ptx[: head.end()] + begin + ptx[head.end() :]
    cluster = f".explicitcluster\n.reqnctapercluster {size}\n"
    return ptx[: head.start()] + cluster + ptx[head.start() :]


class _Moved:
    """Counts what goes to other workgroups."""

    def __init__(self) -> None:
        self.stores = self.arrivals = 0

    def region(self, found: re.Match[str]) -> str:
        there = f"mapa.shared::cluster.u32 there, {{}}, {found['rank']};"

        barrier = _ARRIVE.search(found["inside"])
        if barrier is None:
            return found[0]
        its = there.format(barrier["at"]).replace("there", "its")

        def store(one: re.Match[str]) -> str:
            return (
                f"\t{{ .reg .b32 there; .reg .b32 its; {there.format(one['at'])} {its}\n"
                "\tst.async.weak.shared::cluster.mbarrier::complete_tx::bytes"
                f"{one['kind']} [there{one['offset'] or ''}], {one['value']}, [its]; }}"
            )

        inside, arrivals = _ARRIVE.subn("", found["inside"])
        inside, stores = _STORE.subn(store, inside)
        self.stores += stores
        self.arrivals += arrivals
        return inside + "// here again"
