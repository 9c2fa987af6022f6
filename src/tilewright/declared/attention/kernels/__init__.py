"""Kernels of this folder's pages."""
