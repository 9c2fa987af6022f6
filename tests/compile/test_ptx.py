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


REGION = (
    "\t// to workgroup %r7 %r1\n{}\t@%p2 mbarrier.arrive.shared::cta.b64 _, [%r6];\n"
    "\tst.shared.v4.b32 \t[%r5+512], {{%r1, %r2, %r3, %r4}};\n\t// here again %r2\n"
    "\t// from the cluster %r3\n\tmbarrier.try_wait.parity.shared.b64 complete, [%r6], %r8;\n"
    "\t// here again %r4\n\tst.shared.b32 \t[%r5], %r1;\n\tret;\n}}\n"
)
HEAD = ".visible .entry k()\n.reqntid 256\n.maxnreg 255\n"
HEAD += "{\n\t.reg .pred \t%p<3>;\n\t.reg .b32 \t%r<9>;\n"


def test_stores_go_to_the_other_workgroup():
    made = across_workgroups(HEAD + MEETING + REGION.format(""), 4)
    assert ".reqnctapercluster 4\n.reqntid 256" in made
    assert made.index("barrier.cluster.arrive") < made.index("bar.sync")
    assert "setp.ge.u32 others, thread, 128;" in made  # the warps that do not say it themselves
    (sent,) = re.findall(
        r"mapa[^;]*there, %r5, %r7; mapa[^;]*its, %r6, %r7;\n\tst\.async[^;]*", made
    )
    assert "v4.b32 [there+512], {%r1, %r2, %r3, %r4}, [its]" in sent
    assert "mbarrier.arrive" not in made
    assert "try_wait.parity.acquire.cluster.shared.b64" in made
    assert "\tst.shared.b32 \t[%r5], %r1;" in made  # behind the region: its own memory


def test_text_that_is_not_as_expected_is_an_error():
    with pytest.raises(BuildFailed, match=r"0 stores .* is supported"):
        across_workgroups(HEAD + MEETING + "\tret;\n}\n", 2)
