"""Triton and Gluon functions that kernels of several families call: epilogues, tile order,
reductions, and the names that differ between Triton's releases."""
