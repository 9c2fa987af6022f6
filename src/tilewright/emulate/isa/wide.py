"""Vector instructions on integers of 64 bits, and those with a carry for each lane."""

from __future__ import annotations

import numpy as np

from tilewright.emulate.isa.access import destination, lane_mask, put_lane_mask, source
from tilewright.emulate.isa.elementwise import elementwise
from tilewright.emulate.isa.registry import Context, Executor, means
from tilewright.emulate.waves import Array, Waves
from tilewright.listing.text import Instruction

_Q = np.uint64


def _by(count: Array) -> Array:
    """A shift's count: the low six bits."""
    return (count & np.uint32(63)).astype(_Q)


def _shifted_and_added(a: Array, count: Array, b: Array) -> Array:
    """V_LSHL_ADD_U64 shifts by 0 to 4 (the count's low three bits)."""
    return (a << (count & np.uint32(7)).astype(_Q)) + b


def _product(a: Array, b: Array, c: Array) -> Array:
    return a.astype(_Q) * b.astype(_Q) + c


elementwise("v_mov_b64", "u64 <- u64", lambda a: a)
elementwise("v_lshlrev_b64", "u64 <- u32 u64", lambda a, b: b << _by(a))
elementwise("v_lshrrev_b64", "u64 <- u32 u64", lambda a, b: b >> _by(a))
elementwise("v_ashrrev_i64", "i64 <- u32 i64", lambda a, b: b >> _by(a).view(np.int64))
elementwise("v_lshl_add_u64", "u64 <- u64 u32 u64", _shifted_and_added)
elementwise("v_add_nc_u64", "u64 <- u64 u64", lambda a, b: a + b)
elementwise("v_sub_nc_u64", "u64 <- u64 u64", lambda a, b: a - b)
elementwise("v_mul_u64", "u64 <- u64 u64", lambda a, b: a * b)
for _kind in ("u64", "i64"):  # of gfx1250
    elementwise(f"v_min_{_kind}", f"{_kind} <- {_kind} {_kind}", np.minimum)
    elementwise(f"v_max_{_kind}", f"{_kind} <- {_kind} {_kind}", np.maximum)
elementwise("v_mad_nc_u64_u32", "u64 <- u32 u32 u64", _product)
elementwise(
    "v_mad_nc_i64_i32",
    "i64 <- i32 i32 i64",
    lambda a, b, c: a.astype(np.int64) * b.astype(np.int64) + c,
)


@means("v_mad_u64_u32", "v_mad_co_u64_u32")
def _multiply_and_add(ins: Instruction, context: Context) -> Executor:
    """A product of 64 bits and an addend; the carry out of 64 bits goes to a mask."""
    target = context.target
    a, b = (source(ins, i, "u32", target, i - 2) for i in (2, 3))
    c = source(ins, 4, "u64", target, 2)
    write, write_carry = destination(ins, 0, "u64", target), put_lane_mask(ins, 1, target)

    def execute(waves: Waves) -> None:
        addend = c(waves)
        total = _product(a(waves), b(waves), addend)
        carry = np.broadcast_to(total < addend, waves.active.shape)
        write(waves, total)
        write_carry(waves, carry)

    return execute


@means("v_mad_i64_i32", "v_mad_co_i64_i32")
def _multiply_and_add_signed(ins: Instruction, context: Context) -> Executor:
    """Multiply and add signed numbers; the mask gets bit 64 of the exact sum, which is its sign."""
    target = context.target
    a, b = (source(ins, i, "i32", target, i - 2) for i in (2, 3))
    c = source(ins, 4, "i64", target, 2)
    write, write_sign = destination(ins, 0, "i64", target), put_lane_mask(ins, 1, target)

    def execute(waves: Waves) -> None:
        addend = c(waves)
        product = a(waves).astype(np.int64) * b(waves).astype(np.int64)
        total = product + addend
        # Two numbers of one sign have a sum of that sign, whatever is left of it in 64 bits.
        negative = np.where((product < 0) == (addend < 0), product < 0, total < 0)
        write(waves, total)
        write_sign(waves, np.broadcast_to(negative, waves.active.shape))

    return execute


_ADDS = ("v_add_co_u32", "v_add_co_ci_u32", "v_addc_co_u32")
_SUBTRACTS = ("v_sub_co_u32", "v_sub_co_ci_u32", "v_subb_co_u32")
_REVERSED = ("v_subrev_co_u32", "v_subrev_co_ci_u32", "v_subbrev_co_u32")


@means(*_ADDS, *_SUBTRACTS, *_REVERSED)
def _with_carry(ins: Instruction, context: Context) -> Executor:
    """A sum or a difference, its carry or borrow in a mask; another mask's is added before, where
    the name says so."""
    target = context.target
    takes = ins.base not in ("v_add_co_u32", "v_sub_co_u32", "v_subrev_co_u32")
    if len(ins.operands) != 4 + takes:
        raise ValueError(f"it has {len(ins.operands)} operands")
    first, second = (3, 2) if ins.base in _REVERSED else (2, 3)
    a, b = (source(ins, i, "u32", target, i - 2) for i in (first, second))
    carry_in = lane_mask(ins, 4, target) if takes else None
    write = destination(ins, 0, "u32", target, sources=2)
    write_carry = put_lane_mask(ins, 1, target)
    adds = ins.base in _ADDS

    def execute(waves: Waves) -> None:
        x, y = a(waves).astype(np.int64), b(waves).astype(np.int64)
        carry = 0 if carry_in is None else carry_in(waves).astype(np.int64)
        total = x + y + carry if adds else x - y - carry
        over = np.broadcast_to((total < 0) | (total >> 32 > 0), waves.active.shape)
        write(waves, total.astype(np.uint32))
        write_carry(waves, over)

    return execute
