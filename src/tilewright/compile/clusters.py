"""Shared memory of a cluster's other workgroups, for kernels in Gluon (NVIDIA).

Triton 3.6 launches clusters, but has no words for one workgroup's access to another's memory. So a
kernel says between two comments what is meant for another workgroup (`ops/device/gluon_cluster`):
a barrier, by an arrival, and stores. Here the stores get that workgroup's addresses, and add their
bytes to its barrier; the arrival goes. Who waits for them sees what the whole cluster stored:

    // to workgroup %r7
    mbarrier.arrive … [%r6];
    st.shared.v4.b32 [%r5+256], {…};        →  st.async… [%r5+256 of %r7], {…}, [%r6 of %r7];
    // here again

    // from the cluster
    mbarrier.try_wait.parity.shared.b64 …;  →  mbarrier.try_wait.parity.acquire.cluster.shared.b64 …
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
_ARRIVE = re.compile(r"@%p\d+ mbarrier\.arrive\.shared::cta\.b64 _, \[(?P<at>%r\d+)\](?:, \d+)?;")
_WAIT = re.compile(
    r"(// from the cluster [^\n]*\n.*?mbarrier\.try_wait\.parity)"
    r"(\.shared(?:::cta)?\.b64.*?// here again)",
    re.DOTALL,
)
_HEAD = re.compile(r"\.reqntid \d+\n.*?\{\n(?:\s*\.(?:reg|local) [^\n]*\n)+", re.DOTALL)
_FIRST_WARPS = re.compile(r"bar\.sync \t0, (\d+);")


def across_workgroups(ptx: str, size: int) -> str:
    """PTX of a kernel whose clusters have `size` workgroups. Raises `BuildFailed` if the compiler's
    text is other than expected."""
    ptx, regions = _REGION.subn(_sent, ptx)
    ptx, waits = _WAIT.subn(r"\1.acquire.cluster\2", ptx)
    head, first = _HEAD.search(ptx), _FIRST_WARPS.search(ptx)
    if not (regions and waits and head and first):
        raise _unexpected(f"{regions} places that reach out and {waits} that wait")
    begin = (
        "\t{ .reg .pred others; .reg .b32 thread; mov.u32 thread, %tid.x;\n"
        f"\tsetp.ge.u32 others, thread, {first[1]};\n"
        "\t@others barrier.cluster.arrive.relaxed; }\n"
    )
    ptx = ptx[: head.end()] + begin + ptx[head.end() :]
    cluster = f".explicitcluster\n.reqnctapercluster {size}\n"
    return ptx[: head.start()] + cluster + ptx[head.start() :]


def _sent(found: re.Match[str]) -> str:
    """What is between two comments, for another workgroup."""
    inside, rank = found["inside"], found["rank"]
    barriers = _ARRIVE.findall(inside)
    if len(barriers) != 1:
        raise _unexpected(f"{len(barriers)} barriers of stores to one workgroup")

    def store(one: re.Match[str]) -> str:
        return (
            "\t{ .reg .b32 there; .reg .b32 its;\n"
            f"\tmapa.shared::cluster.u32 there, {one['at']}, {rank};\n"
            f"\tmapa.shared::cluster.u32 its, {barriers[0]}, {rank};\n"
            "\tst.async.weak.shared::cluster.mbarrier::complete_tx::bytes"
            f"{one['kind']} [there{one['offset'] or ''}], {one['value']}, [its]; }}"
        )

    sent, stores = _STORE.subn(store, _ARRIVE.sub("", inside))
    if not stores or stores != inside.count("st.shared"):
        raise _unexpected(f"{inside.count('st.shared')} stores to one workgroup, {stores} as known")
    return sent + "// here again"


def _unexpected(what: str) -> BuildFailed:
    return BuildFailed(
        f"the compiler's PTX of a kernel with clusters has {what}; build it with a Triton release "
        "that is supported"
    )
