"""Kernels of operations on shapes."""
