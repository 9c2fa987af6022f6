"""Kernels of a family that `test_binder` makes up. Planning reads this file, and does not import
it."""
# ruff: noqa: F821

raise ImportError("planning has imported a kernel")


@triton.jit
def scale(
    x, y, bias, counts, rows, x_strides, factor, TILE: tl.constexpr, BIAS: tl.constexpr,
    WIDE: tl.constexpr,
):  # fmt: skip
    """Never run."""


@jit
def add(x, y, counts, rows, TILE: gl.constexpr):
    """Never run."""


@triton.jit
def few(x, others):
    """Takes a tuple."""


@triton.jit
def chained(x, extra, rows, CHAIN: tl.constexpr):
    """Takes a tuple of arrays and numbers, and functions."""


@triton.jit
def unsaid(x, DEPTH: tl.constexpr):
    """Takes a constant that neither the catalogue nor the config has."""


@triton.jit
def strange(x, columns):
    """Takes what the catalogue does not have."""


@triton.jit
def fixed(x, rows: tl.constexpr):
    """Takes as a constant what is known for each problem alone."""


def plain(x):
    """No kernel."""
