"""Measure and decide: every kernel on every problem, on every GPU, in numbers to be trusted.

Drives the core (spaces, building, dispatching, verifying); owns no kernels, names or rules.
"""
