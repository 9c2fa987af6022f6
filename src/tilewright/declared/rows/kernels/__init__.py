"""Kernels of operations on rows."""
