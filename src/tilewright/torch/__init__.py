"""Under PyTorch: every operation as a torch operator (``torch.ops.tilewright.gemm``), and its
gradients.

    import tilewright.torch            # registers the operators; needs torch

`tilewright.gemm` imports this by itself when torch has to know of a call, so only code that names
``torch.ops.tilewright`` needs the import.
"""

from __future__ import annotations

import sys

from tilewright.torch import operators
from tilewright.torch.preparing import prepare

if "torch.utils.flop_counter" in sys.modules:
    from tilewright.torch import flops  # noqa: F401

__all__ = ["operators", "prepare"]
