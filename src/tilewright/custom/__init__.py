"""A kernel of your own as an operation, in one short file.

`operation` decorates a Triton or Gluon kernel and says what it computes. The operation is then
planned, built for every architecture, stored, verified, swept, tuned, kept in tables and explained
like those of Tilewright. `docs/add-a-kernel.md` has a whole one. `declare` states the same in a
module that imports no Triton; the operations in `tilewright.declared` are stated so.
"""

from tilewright.custom.declaration import Declaration, In, InOut, Out, Scratch
from tilewright.custom.gradient import Gradient
from tilewright.custom.register import declare, kernel, operation

__all__ = [
    "Declaration",
    "Gradient",
    "In",
    "InOut",
    "Out",
    "Scratch",
    "declare",
    "kernel",
    "operation",
]
