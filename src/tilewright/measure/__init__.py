"""How a number is made: kernels are verified and timed on GPUs, and the results are kept.

This package uses spaces, building, dispatching and verifying. It owns no kernels, names or rules.
"""
