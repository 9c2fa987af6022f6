"""Kernels of causal convolutions."""
