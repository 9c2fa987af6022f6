"""Kernels of operations that send tokens to experts."""
