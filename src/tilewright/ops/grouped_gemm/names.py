"""The configs that a name can express, and the config of a kernel's name."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from tilewright.errors import BadArgument, nearest
from tilewright.ops.gemm import names as gemm
from tilewright.ops.grouped_gemm import scales
from tilewright.ops.grouped_gemm.config import MADE, PREFIX, ZERO, GroupedGemmConfig
from tilewright.ops.grouped_gemm.pipelines import PIPELINES
from tilewright.ops.grouped_gemm.problem import STACKED, WALKED, check_quant, of_gemm
from tilewright.ops.names import read


def check(config: GroupedGemmConfig) -> GroupedGemmConfig:
    """Return `config` if a name can express every field. Raises `BadArgument`."""
    if config.form not in WALKED:
        known = ", ".join(WALKED)
        raise BadArgument(
            f"form = {config.form!r}{nearest(str(config.form), WALKED)} is not one of {known}"
        )
    check_quant(config)
    gemm.check(config.one)
    scales.check_blocks(config)
    scales.check_zeros(config)
    if config.form not in STACKED:
        scales.refuse(config)
    if config.pipeline not in PIPELINES:
        raise BadArgument(
            f"pipeline = {config.pipeline!r} does not walk groups; {', '.join(PIPELINES)} do"
        )
    return config


def parse(name: str) -> GroupedGemmConfig:
    """The config with this name. Raises `UnknownName` for a name that does not parse, or whose
    fields contradict each other."""
    form, _, rest = name.removeprefix(PREFIX).partition("_")
    zero_b = rest.startswith(f"{ZERO}_")
    rest = rest.removeprefix(f"{ZERO}_")
    quant = "block" if rest.startswith(f"{MADE}_") else ""
    rest = rest.removeprefix(f"{MADE}_")

    def made() -> GroupedGemmConfig:
        one = gemm.parse(f"gemm_{rest}")
        own = {f.name for f in fields(GroupedGemmConfig)}
        same: dict[str, Any] = {f.name: getattr(one, f.name) for f in fields(one) if f.name in own}
        if quant:
            same["epilogue"] = one.epilogue.removesuffix("scale").removesuffix("+")
        if of_gemm(same["epilogue"], quant) != one.epilogue:
            raise BadArgument(f"{MADE} makes a last scale, which '{one.epilogue}' lacks")
        return check(GroupedGemmConfig(form=form, zero_b=zero_b, quant=quant, **same))

    return read(name, "a grouped GEMM kernel", made)
