"""Edits of PTX: barriers initialised together, and another workgroup's shared memory."""

from __future__ import annotations

import re

import pytest

from tilewright.compile.clusters import across_workgroups
from tilewright.compile.setup import barriers_together
from tilewright.errors import BuildFailed

INIT = (
    "\t// begin inline asm\n\t@%p1 mbarrier.init.shared::cta.b64 [%r{}], 1;\n\t// end inline asm\n"
)
MEETING = "\tbar.sync \t0, 128;\n"
ADD = "\tadd.s32 \t%r9, %r8, 64;\n"
STORE = "\tst.shared.b32 \t[%r9], 0;\n"


@pytest.mark.parametrize(
    ("ptx", "left"),
    [
        (INIT.format(1) + MEETING + INIT.format(2), 0),
        (INIT.format(1) + ADD + MEETING + ADD + INIT.format(2) + MEETING + INIT.format(3), 0),
        (MEETING + INIT.format(1) + MEETING + INIT.format(2) + MEETING, 2),
        (INIT.format(1) + MEETING + STORE + INIT.format(2), 1),  # a store is ordered by it
        (INIT.format(1) + STORE + MEETING + INIT.format(2), 1),
        (INIT.format(1) + MEETING + "$L__BB0_1:\n" + INIT.format(2), 1),
        (INIT.format(1) + "\tbar.sync \t1, 128;\n" + INIT.format(2), 1),  # another barrier
        (STORE + MEETING + STORE, 1),
    ],
)
def test_only_meetings_between_initialisations_go(ptx, left):
    made = barriers_together(ptx)
    assert made.count("bar.sync") == left
    assert made.replace(MEETING, "") == ptx.replace(MEETING, "")


HEAD = ".visible .entry k()\n.reqntid 256\n.maxnreg 255\n"
HEAD += "{\n\t.reg .pred \t%p<3>;\n\t.reg .b32 \t%r<9>;\n" + MEETING
BARRIER = "\t@%p2 mbarrier.arrive.shared::cta.b64 _, [%r6];\n"
SENT = "\tst.shared.v4.b32 \t[%r5+512], {%r1, %r2, %r3, %r4};\n"
WAIT = (
    "\t// from the cluster %r3\n\tmbarrier.try_wait.parity.shared.b64 complete, [%r6], %r8;\n"
    "\t// here again %r4\n\tst.shared.b32 \t[%r5], %r1;\n\tret;\n}\n"
)


def sending(*lines: str) -> str:
    return "\t// to workgroup %r7 %r1\n" + "".join(lines) + "\t// here again %r2\n"


@pytest.mark.parametrize("space", ["shared", "shared::cta"], ids=["Triton 3.6", "Triton 3.9"])
def test_stores_go_to_the_other_workgroup(space):
    wait = WAIT.replace("parity.shared", f"parity.{space}")
    made = across_workgroups(HEAD + sending(BARRIER, SENT) + wait, 4)
    assert ".reqnctapercluster 4\n.reqntid 256" in made
    assert made.index("barrier.cluster.arrive") < made.index("bar.sync")
    assert "setp.ge.u32 others, thread, 128;" in made  # the warps that do not say it themselves
    (sent,) = re.findall(
        r"mapa[^;]*there, %r5, %r7;\n\tmapa[^;]*its, %r6, %r7;\n\tst\.async[^;]*", made
    )
    assert "v4.b32 [there+512], {%r1, %r2, %r3, %r4}, [its]" in sent
    assert "mbarrier.arrive" not in made
    assert f"try_wait.parity.acquire.cluster.{space}.b64" in made
    assert "\tst.shared.b32 \t[%r5], %r1;" in made  # behind the region: its own memory


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("\tret;\n}\n", "0 places that reach out and 0 that wait"),
        (sending(BARRIER, SENT), "1 places that reach out and 0 that wait"),
        (sending(SENT) + WAIT, "0 barriers of stores to one workgroup"),
        (sending(BARRIER, BARRIER, SENT) + WAIT, "2 barriers of stores"),
        (sending(BARRIER) + WAIT, "0 stores to one workgroup, 0 as known"),
        (sending(BARRIER, SENT, "\t@%p1 st.shared.b32 [%r5], %r1;\n") + WAIT, "2 stores .* 1 as"),
    ],
)
def test_text_that_is_not_as_expected_is_an_error(body, said):
    """A store that was not understood would go to the workgroup's own memory."""
    with pytest.raises(BuildFailed, match=said):
        across_workgroups(HEAD + body, 2)
