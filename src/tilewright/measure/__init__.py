"""How a number is made: kernels verified and timed on GPUs, and the results kept.

Uses spaces, building, dispatching and verifying; owns no kernels, names or rules.
"""
