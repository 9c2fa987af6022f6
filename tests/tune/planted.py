"""A kernel's epilogue that misbehaves, in a way that its tile's size decides, so that good and bad
kernels meet on one problem. The reference sees none of it.

The interpreter's process runs it as Python; `wild` and `endless` are for a GPU.
"""

import os

import numpy as np
import triton
import triton.language as tl

from tilewright.ops.epilogues import Operation


def _hoard():
    held = []
    while True:
        held.append(np.empty(1 << 23))


HANGS_VARIABLE = "PLANTED_HANGS"
"""Names a file that a kernel makes before it loops for ever."""


def _hang():
    if told := os.environ.get(HANGS_VARIABLE):
        os.close(os.open(told, os.O_CREAT | os.O_WRONLY))
    while True:
        pass


def _raise():
    raise ValueError("planted")


@triton.jit
def moody(acc):
    size = acc.shape
    if size == (16, 16):
        os.abort()
    if size == (16, 32):
        _hang()
    if size == (16, 64):
        acc = acc * 1.5
    if size == (16, 128):
        acc = acc * float("nan")
    if size == (32, 16):
        _hoard()
    if size == (32, 32):
        _raise()
    return tl.maximum(acc, acc)


INTERPRETED = {
    (16, 16): "crashed",
    (16, 32): "timeout",
    (16, 64): "mismatch",
    (16, 128): "nan",
    (32, 16): "out_of_memory",
    (32, 32): "crashed",
    (64, 64): "ok",
    (64, 128): "ok",
    (128, 64): "ok",
    (128, 128): "ok",
}
"""What comes of each tile."""


@triton.jit
def faulty(acc):
    rows: tl.constexpr = acc.shape[0]
    cols: tl.constexpr = acc.shape[1]
    if rows == 64 and cols == 32:  # a load from where nothing is
        wild = (acc.to(tl.int64) + 16).to(tl.pointer_type(tl.float32), bitcast=False)
        acc += tl.load(wild)
    if rows == 32 and cols == 64:  # a loop on a value that stays what it is
        total = tl.sum(tl.sum(tl.abs(acc), 1), 0)
        while total >= 0:
            total = total + tl.abs(total)
        acc += total
    if rows == 32 and cols == 32:
        acc = acc * 1.5
    return acc


LAUNCHED = {
    (64, 32): "illegal_access",
    (32, 64): "timeout",
    (32, 32): "mismatch",
}
"""The same of `faulty` on a GPU; all others are fine."""

VENDOR = "vendor.numpy.matmul"


def vendor_call(problem):
    """A vendor's library for the CPU: right for 32 rows, wrong for 48, and without others."""

    def bind(inputs, outputs):
        def call():
            if problem.m not in (32, 48):
                raise ValueError("no such size")
            a, b = (inputs[name].astype(np.float32) for name in ("A", "B"))
            return (a @ b * (1.5 if problem.m == 48 else 1)).astype(outputs["C"].dtype)

        return call

    return bind


OPERATIONS = (
    Operation("moody", "planted:moody", "misbehaves in the interpreter", lambda x: x),
    Operation("faulty", "planted:faulty", "misbehaves on a GPU", lambda x: x),
)
