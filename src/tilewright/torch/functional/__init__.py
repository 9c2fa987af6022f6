"""Torch's functions of products, attention and convolution, with torch's arguments and semantics.

    from tilewright.torch import linear          # as torch.nn.functional.linear

Each maps a call onto an operation of Tilewright: shapes become views, and nothing is copied that
torch's own function would not copy. So what holds of `tilewright.gemm` under PyTorch holds of them:
gradients, autocast, ``torch.compile``, fake tensors, the profiler, counted operations. A call like
an earlier one is launched without the Python code in between.

A call that the kernels here do not compute raises `BadArgument` and names torch's own function.
"""
