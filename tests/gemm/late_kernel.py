"""A kernel that lets the next one start at once, and reads and writes its own arrays much later."""

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait, globaltimer

EACH = 1024
"""Elements of a workgroup."""


@triton.jit
def late_copy(x, y, LATE: tl.constexpr, EACH: tl.constexpr):
    """y = x, each workgroup EACH elements, LATE nanoseconds after the kernel before has ended."""
    gdc_launch_dependents()
    gdc_wait()
    begin = globaltimer()
    now = begin
    while now - begin < LATE:
        now = globaltimer()
    at = tl.program_id(0) * EACH + tl.arange(0, EACH)
    tl.store(y + at, tl.load(x + at))
