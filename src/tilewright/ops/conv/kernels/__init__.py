"""Triton kernels of convolutions."""
