"""A family that needs all that GEMM does not: two kernels, two outputs of different dtypes, an
optional operand, a scalar given at the call, temporaries, and descriptors of rank 4 and over a
temporary.

    y[n, c] = scale · mean of x[n, :, :, c]  (+ bias[c])        z[n] = mean of x[n]²
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

from tilewright import checks
from tilewright.arch.model import Arch, Device
from tilewright.dtypes import DTYPES, resolve
from tilewright.errors import BadArgument, UnknownName
from tilewright.ops.defaults import Defaults
from tilewright.ops.estimate import Estimate
from tilewright.ops.nouns import (
    Call,
    Descriptor,
    Given,
    KernelSource,
    Launch,
    Number,
    Operand,
    Pointer,
    Scalar,
    Step,
    Temporary,
)
from tilewright.ops.problem import Problem
from tilewright.space import KernelSpace
from tilewright.tolerance import Tolerance, tolerance
from tilewright.verdict import YES, Verdict, no

TILE_W = 8
ROWS_AT_A_TIME = 4


@dataclass(frozen=True, slots=True, eq=False)
class MomentsProblem(Problem):
    n: int
    h: int
    w: int
    c: int
    dtype: str = "bf16"
    bias: bool = False
    alignment: int = 16
    family: ClassVar[str] = "moments"

    def _complete(self) -> None:
        for size in ("n", "h", "w", "c"):
            checks.whole(size, getattr(self, size), 1)

    @property
    def flops(self) -> int:
        return 3 * self.n * self.h * self.w * self.c

    @property
    def work(self) -> Mapping[str, int]:
        return {"fp32": self.flops}

    @property
    def min_bytes(self) -> int:
        size = DTYPES[self.dtype].bytes
        return size * (self.n * self.h * self.w * self.c + self.n * self.c) + 4 * self.n


@dataclass(frozen=True, slots=True)
class MomentsConfig:
    dtype: str = "bf16"
    bias: bool = False
    tile_h: int = 2
    tile_c: int = 32
    num_warps: int = 4
    fault: str = "none"
    family: ClassVar[str] = "moments"
    pipeline: ClassVar[str] = "moments"

    @property
    def name(self) -> str:
        words = f"moments_{self.dtype}_bias{int(self.bias)}_h{self.tile_h}_c{self.tile_c}"
        return f"{words}_w{self.num_warps}_{self.fault}"


_NAME = re.compile(r"moments_(\w+?)_bias([01])_h(\d+)_c(\d+)_w(\d+)_(none|y|z)")


class MomentsFamily(Defaults):
    name = "moments"
    problem_type = MomentsProblem
    config_type = MomentsConfig
    scalars: ClassVar = {"scale": Number("fp32")}

    # --- words
    def parse_name(self, name: str) -> MomentsConfig:
        found = _NAME.fullmatch(name)
        if found is None or found[1] not in DTYPES:
            raise UnknownName(f"'{name}' is no kernel of moments")
        h, c, w = map(int, found.group(3, 4, 5))
        return MomentsConfig(found[1], found[2] == "1", h, c, w, found[6])

    def parse_problem(self, words: Mapping[str, str], arch: Arch) -> MomentsProblem:
        sizes = {
            w: checks.parse_whole(w, t) for w, t in words.items() if w not in ("dtype", "bias")
        }
        dtype = resolve(words.get("dtype", "bf16"), arch.fp8)
        return MomentsProblem(**sizes, dtype=dtype, bias=words.get("bias", "0") == "1")

    def axes(self) -> Mapping[str, Any]:
        return asdict(MomentsConfig())

    def wildcard(self, axis: str, arch: Arch) -> Sequence[Any]:
        raise BadArgument(f"'*' has no meaning on {axis}")

    def make_config(self, fields: Mapping[str, Any], arch: Arch) -> MomentsConfig:
        return MomentsConfig(**fields)

    # --- legality
    def default_space(self, problem: MomentsProblem, arch: Arch) -> KernelSpace:
        return KernelSpace("moments", {
            "dtype": [problem.dtype], "bias": [problem.bias], "tile_h": [1, 2], "tile_c": [32, 64],
        })  # fmt: skip

    def tuning_spaces(self, problem: MomentsProblem, arch: Arch) -> Sequence[KernelSpace]:
        return (self.default_space(problem, arch),)

    def judge(self, config: MomentsConfig, arch: Arch) -> Verdict:
        return YES

    def supports(self, config: MomentsConfig, problem: MomentsProblem, arch: Arch) -> Verdict:
        if (config.dtype, config.bias) != (problem.dtype, problem.bias):
            return no("signature", f"is for {config.dtype}, bias {config.bias}")
        if problem.c * DTYPES[problem.dtype].bytes % 16 or problem.alignment % 16:
            return no("alignment", f"wants channels of whole 16 bytes, not {problem.c}")
        return YES

    def estimate(self, config: MomentsConfig, problem: MomentsProblem, device: Device) -> Estimate:
        memory = problem.min_bytes / device.bandwidth_gbs / 1e3
        steps = 5.0 * len(self.sources(config, None))
        return Estimate(memory + steps, "memory", (("memory", memory), ("launches", steps)))

    # --- launching
    def sources(self, config: MomentsConfig, arch: Arch | None) -> Mapping[str, KernelSource]:
        kind = DTYPES[config.dtype].triton
        sizes = tuple((name, "i32") for name in ("h", "w", "c", "rows"))
        tiles = (("TILE_H", config.tile_h), ("TILE_W", TILE_W), ("TILE_C", config.tile_c))
        partial = (("FAULT", config.fault),)
        combine = (("TILE_C", config.tile_c), ("HAS_BIAS", config.bias), ("FAULT", config.fault))
        block = f"tensordesc<{kind}[1, {config.tile_h}, {TILE_W}, {config.tile_c}]>"
        sums = f"tensordesc<fp32[1, {ROWS_AT_A_TIME}, {config.tile_c}]>"
        absent = () if config.bias else (("bias", 0),)
        bias = f"*{kind}" if config.bias else "constexpr"
        return {
            "partial": self._source(
                "partial",
                (("x", block), ("sums", "*fp32"), ("squares", "*fp32"), *sizes),
                (*tiles, *partial),
                config,
            ),
            "combine": self._source(
                "combine",
                (("sums", sums), ("squares", "*fp32"), ("bias", bias), ("y", f"*{kind}"),
                 ("z", "*fp32"), *sizes, ("scale", "fp32")),
                (*absent, *combine),
                config,
            ),
        }  # fmt: skip

    def _source(self, function: str, arguments: Any, constants: Any, config: Any) -> KernelSource:
        named = {name for name, _ in arguments}
        later = ((name, "constexpr") for name, _ in constants if name not in named)
        return KernelSource(
            "moments_kernels", function, (*arguments, *later), tuple(constants),
            options=(("num_warps", config.num_warps), ("num_stages", 2)),
        )  # fmt: skip

    def launch(self, config: MomentsConfig, problem: MomentsProblem, device: Device) -> Launch:
        p = problem
        rows, channels = -(-p.h // config.tile_h), -(-p.c // config.tile_c)
        padded = channels * config.tile_c
        sizes = tuple(Scalar("i32", size) for size in (p.h, p.w, p.c, rows))
        x = Descriptor(
            "x", p.dtype, (p.n, p.h, p.w, p.c), (p.h * p.w * p.c, p.w * p.c, p.c, 1),
            (1, config.tile_h, TILE_W, config.tile_c),
        )  # fmt: skip
        sums = Descriptor(
            "sums", "fp32", (p.n, rows, padded), (rows * padded, padded, 1),
            (1, ROWS_AT_A_TIME, config.tile_c),
        )  # fmt: skip
        bias = (Pointer("bias"),) if p.bias else ()
        scale = Given("fp32", "scale")
        partial = (x, Pointer("sums"), Pointer("squares"), *sizes)
        combine = (sums, Pointer("squares"), *bias, Pointer("y"), Pointer("z"), *sizes, scale)
        return Launch(
            (
                Step((p.n * rows, channels, 1), partial, "partial"),
                Step((p.n, channels, 1), combine, "combine"),
            ),
            (
                Temporary("sums", (p.n, rows, padded), "fp32"),
                Temporary("squares", (p.n,), "fp32", "zero"),
            ),
        )

    def operands(self, problem: MomentsProblem) -> tuple[Operand, ...]:
        p = problem
        bias = (Operand("bias", (p.c,), (1,), p.dtype, keyword=True),) if p.bias else ()
        return (
            Operand("x", (p.n, p.h, p.w, p.c), (p.h * p.w * p.c, p.w * p.c, p.c, 1), p.dtype),
            *bias,
            Operand("y", (p.n, p.c), (p.c, 1), p.dtype, "out"),
            Operand("z", (p.n,), (1,), "fp32", "out"),
        )

    def problem_of(self, call: Call, config: Any = None) -> MomentsProblem:
        if len(call.inputs) != 1 or len(call.inputs[0].shape) != 4 or set(call.named) - {"bias"}:
            raise BadArgument("moments takes x [n, h, w, c], and bias= [c]")
        if call.options:
            raise BadArgument(f"moments has no options {', '.join(call.options)}")
        (x,) = call.inputs
        addresses = [v.address for v in (x, *call.named.values(), *(call.outputs or ()))]
        return MomentsProblem(
            *x.shape, x.dtype, "bias" in call.named, alignment=math.gcd(16, *addresses)
        )

    # --- checking
    def make_inputs(self, problem: MomentsProblem, rng: Any) -> Mapping[str, Any]:
        return {**super().make_inputs(problem, rng), "scale": rng.numpy.uniform(0.5, 2.0)}

    def reference(self, problem: MomentsProblem, inputs: Mapping[str, Any]) -> Mapping[str, Any]:
        x = inputs["x"]
        y = x.mean((1, 2)) * inputs["scale"]
        if problem.bias:
            y = y + inputs["bias"]
        return {"y": y, "z": (x * x).mean((1, 2, 3))}

    def tolerances(self, problem: MomentsProblem, config: Any) -> Mapping[str, Tolerance]:
        p = problem
        return {
            "y": tolerance(p.dtype, p.dtype, p.h * p.w, amplified=2.0),
            "z": tolerance(p.dtype, "fp32", p.h * p.w * p.c, amplified=2.0),
        }


FAMILY = MomentsFamily()
