"""Lines of other libraries' programs that state a problem."""

from __future__ import annotations

from tilewright.ops.conv.formats import ck, miopen, onednn
from tilewright.ops.foreign import Driver
from tilewright.ops.gemm.formats import benchdnn

DRIVERS = (
    Driver("miopen", "MIOpenDriver", tuple(miopen.DTYPES), miopen.read, miopen.lines),
    benchdnn.driver(onednn.DRIVERS, onednn.read),
    Driver("ck", "ckProfiler", tuple(ck.OPERATIONS), ck.profiler),
)
