"""Decides which kernel is best for a problem, from the measurements of `tilewright.measure`."""
