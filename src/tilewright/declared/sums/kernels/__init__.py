"""Kernels of reductions and pooling."""
