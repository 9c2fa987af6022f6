"""A grid of problems from the sizes in other libraries' tests and benchmarks (`peers_sizes.txt`,
which names the sources): CUTLASS, MIOpen, DeepBench, oneDNN.

Small sizes are in the grid in all three directions, the others in one, by turns. Dtype, layout and
epilogue of a problem are drawn from its number.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from conv_problems import EPILOGUES

from tilewright import verify
from tilewright.dispatch import Dispatcher
from tilewright.ops.conv import ConvProblem, geometry, words
from tilewright.ops.conv.formats import onednn
from tilewright.ops.conv.problem import DIRECTIONS, outputs
from tilewright.ops.conv.stated import first_strides

SIZES = Path(__file__).parent / "peers_sizes.txt"

SMALL = 2e7
"""Floating-point operations up to which a size is in the grid in all directions."""

EACH = 20
"""Problems that have each feature, at least."""

FEATURES = (
    *DIRECTIONS, "1-D", "2-D", "3-D", "groups", "depthwise", "dense", "stride", "dilation",
    "padding", "asymmetric padding", "negative padding", "1x1", "bf16", "fp16", "fp32", "tf32",
    "int8", "fp8", "epilogue", "wide result", "quantised result", "channels_first", "gaps",
)  # fmt: skip
"""What `coverage` counts."""

_FORWARD = ("bf16", "bf16", "fp16", "fp16", "fp32", "tf32", "int8", "fp8")
_GRADIENT = ("bf16", "bf16", "bf16", "fp16", "fp16", "fp32", "tf32")
_LAYOUTS = ("last", "last", "last", "last", "first", "gaps")
_GAP = 16
"""Elements between the channels of two pixels, as in CUTLASS's problems that are not packed."""


def sizes() -> list[str]:
    """The sizes, as benchdnn writes them."""
    rows = SIZES.read_text().splitlines()
    return [one for row in rows if not row.startswith("#") for one in row.split()]


def grid(fp8: str = "e4m3fn") -> list[ConvProblem]:
    """The problems, each different from all others.

    fp8: the type in 8 bits.
    """
    found: dict[ConvProblem, None] = {}
    for number, line in enumerate(sizes()):
        plain = words.parse(onednn.read(line), fp8)
        every = (*DIRECTIONS,)
        for direction in every if plain.flops <= SMALL else (every[number % 3],):
            found[_drawn(plain, direction, f"conv parity {number} {direction}", fp8)] = None
    return [*found]


def _drawn(plain: ConvProblem, direction: str, seed: str, fp8: str) -> ConvProblem:
    rng = random.Random(seed)
    word = rng.choice(_FORWARD if direction == "forward" else _GRADIENT)
    dtype = {"tf32": "fp32", "fp8": fp8}.get(word, word)
    chain = rng.choice(EPILOGUES) if rng.random() < 0.5 else ""
    if word in ("int8", "fp8") and rng.random() < 0.4:
        chain = "scale"
    if direction == "weights":
        chain = ""
    # One 8-bit type each. Sums of int8 products overflow fp16.
    results = [one for one in outputs(dtype, chain) if one == fp8 or not one.startswith("e")]
    if dtype == "int8" and "fp16" in results:
        results.remove("fp16")
    if chain == "scale":
        results = results[-2:]  # after a scale: the types in 8 bits
    p = replace(
        plain,
        direction=direction,
        dtype=dtype,
        precision="tf32" if word == "tf32" else "ieee",
        epilogue=chain,
        dtype_out=rng.choice(results) if rng.random() < 0.5 else results[0],
    )
    layout = rng.choice(_LAYOUTS)
    if layout == "first":
        return replace(p, **first_strides(p))
    return replace(p, **_with_gaps(p)) if layout == "gaps" else p


def _with_gaps(p: ConvProblem) -> dict[str, tuple[int, ...]]:
    """Strides of x and y in channels-last, with elements of others between two pixels."""
    found = {}
    for name in "xy":
        n, c, *spatial = p.shape_of(name)
        found[f"{name}_strides"] = geometry.channels_last(n, c + _GAP, spatial)
    return found


def coverage(problems: Iterable[ConvProblem]) -> Counter[str]:
    """How many problems have each of `FEATURES`, and each operation of an epilogue."""
    found: Counter[str] = Counter()
    for p in problems:
        said = {p.direction, f"{len(p.spatial)}-D"}
        said.add("tf32" if p.precision == "tf32" else "fp8" if p.dtype[0] == "e" else p.dtype)
        said.add("depthwise" if p.depthwise else "groups" if p.groups > 1 else "dense")
        pads = [*zip(p.pad, p.pad_after, strict=True)]
        for word, has in (
            ("stride", max(p.stride) > 1), ("dilation", max(p.dilation) > 1),
            ("padding", any(map(any, pads))), ("1x1", p.taps == 1),
            ("asymmetric padding", any(before != after for before, after in pads)),
            ("negative padding", min(map(min, pads)) < 0), ("epilogue", bool(p.epilogue)),
            ("wide result", p.dtype != "fp32" == p.dtype_out),
            ("quantised result", p.dtype_out == "int8" or p.dtype_out[0] == "e"),
            ("gaps", bool(p.x_strides) and p.x_strides[1] == 1 != p.c),
            ("channels_first", first_strides(p)["x_strides"] == p.x_strides != ()),
        ):  # fmt: skip
            if has:
                said.add(word)
        found.update(said)
        found.update(f"epilogue {word}" for word in filter(None, p.epilogue.split("+")))
    return found


def compute(
    dispatcher: Dispatcher, p: ConvProblem, seed: int, device: str, name: str = ""
) -> tuple[str, verify.Check]:
    """Compute `p` on fresh data with the kernel called `name`, by default the chosen one. Returns
    its name, and how the result compares."""
    name = name or dispatcher.select(p).config.name
    return name, verify.verify(dispatcher, p, name, seed=seed, device=device)
