"""Attention with other weights than a softmax's, on the device functions of attention's kernels."""
