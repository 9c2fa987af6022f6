"""Registers the moments family: what other processes import to find it."""

from moments_family import FAMILY

from tilewright import ops

ops.register(FAMILY, __name__)
