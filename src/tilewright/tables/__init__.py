"""Tuned tables: which kernel was measured to be the best for a problem, on which very GPU.

A `Row` is one answer, a `Table` all of them, keyed by (device, problem). Nothing here measures,
builds or launches.
"""
