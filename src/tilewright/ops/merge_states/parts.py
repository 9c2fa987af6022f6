"""What to compile and to launch for merging states."""

from __future__ import annotations

from collections.abc import Mapping

from tilewright.arch.model import Arch, Device
from tilewright.dtypes import DTYPES
from tilewright.ops.merge_states.config import MergeStatesConfig
from tilewright.ops.merge_states.problem import MergeStatesProblem
from tilewright.ops.nouns import MAIN, Argument, KernelSource, Launch, Pointer, Scalar, Step

KERNEL = "tilewright.ops.merge_states.kernels.merge"

ARRAYS = ("o", "lse", "other_o", "other_lse", "mask", "to_o", "to_lse")
"""The kernel's pointers, in order."""

STRIDES = {"o": 3, "lse": 3, "other_o": 2, "other_lse": 2, "to_o": 2, "to_lse": 2}
"""The arrays whose strides the kernel takes, in order, and how many: along rows, states of a stack,
and heads."""

NUMBERS = ("count", "states", "heads", "head_dim")


def _operand(form: str, masked: bool, array: str) -> str:
    """The operand that one of the kernel's arrays is; "" where it has none."""
    if array.startswith("other") and form == "stack":
        return ""
    if array.startswith("to_"):
        kind = array.removeprefix("to_")
        return kind if form == "in_place" else f"merged_{kind}"
    return "" if array == "mask" and not masked else array


def sources(c: MergeStatesConfig, arch: Arch) -> Mapping[str, KernelSource]:
    """What to compile for `c` on `arch`, by part."""
    types = {"mask": "*u8", **{name: "*fp32" for name in ARRAYS if name.endswith("lse")}}
    signature: list[tuple[str, str]] = []
    promises: dict[str, int] = {}
    for name in ARRAYS:
        there = _operand(c.form, c.masked, name)
        kind = types.get(name, f"*{DTYPES[c.dtype].triton}")
        signature.append((name, kind if there else "()"))
        if there and name.endswith("o") and c.alignment > 1:
            promises[name] = c.alignment
    signature += [(name, "i32") for name in NUMBERS]
    elements = c.alignment // DTYPES[c.dtype].bytes
    for name, count in STRIDES.items():
        if not _operand(c.form, c.masked, name):
            signature.append((f"{name}_strides", "()"))
            continue
        signature += [(f"{name}_strides.{i}", "i64") for i in range(count)]
        if name.endswith("o") and elements > 1:
            promises |= {f"{name}_strides.{i}": elements for i in range(count)}
    if elements > 1:
        promises["head_dim"] = elements
    constants: dict[str, int | bool | str] = {
        "TILE_M": c.tile_m, "TILE_N": c.tile_n, "STATES": c.states, "FORM": c.form,
        "MASK": c.masked,
    }  # fmt: skip
    return {
        MAIN: KernelSource(
            module=KERNEL,
            function="merge",
            signature=(*signature, *((name, "constexpr") for name in constants)),
            constants=tuple(constants.items()),
            divisibility=tuple(promises.items()),
            options=(("num_warps", c.num_warps), ("num_stages", 1)),
        )
    }


def workgroups(c: MergeStatesConfig, p: MergeStatesProblem) -> int:
    """Of the launch."""
    return -(-p.rows * p.heads // c.tile_m)


def launch(c: MergeStatesConfig, p: MergeStatesProblem, device: Device) -> Launch:
    """The launch of `c` for `p`; nothing for results without elements."""
    if not (count := workgroups(c, p)):
        return Launch(())
    of = {name: _operand(p.form, p.masked, name) for name in ARRAYS}
    arguments: list[Argument] = [Pointer(of[name]) for name in ARRAYS if of[name]]
    values = {
        "count": p.rows * p.heads, "states": p.states, "heads": p.heads, "head_dim": p.head_dim,
    }  # fmt: skip
    arguments += [Scalar("i32", values[name]) for name in NUMBERS]
    for name, length in STRIDES.items():
        if of[name]:
            shape, strides = p.shape_of(of[name]), p.strides_of(of[name])
            # 0 along dimensions of one element: a multiple of whatever was promised.
            by = [0 if n <= 1 else s for n, s in zip(shape, strides, strict=True)]
            by = by[:-1] if name.endswith("o") else by
            if len(by) < length:
                by.insert(1, 0)
            arguments += [Scalar("i64", stride) for stride in by]
    return Launch((Step((count, 1, 1), tuple(arguments)),))
