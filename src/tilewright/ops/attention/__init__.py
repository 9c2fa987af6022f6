"""Fused attention: O = softmax(mask(scale · Q·Kᵀ))·V."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from tilewright.arch.model import Arch, Device
from tilewright.dtypes import resolve
from tilewright.errors import BadArgument
from tilewright.ops import binder
from tilewright.ops.attention import (
    alike,
    calling,
    ck,
    engine_record,
    joining,
    library,
    operands,
    pipelines,
    profiles,
    rules,
    sharding,
    spaces,
)
from tilewright.ops.attention import config as config_module
from tilewright.ops.attention import gradients as gradients_module
from tilewright.ops.attention import inputs as inputs_module
from tilewright.ops.attention import reference as reference_module
from tilewright.ops.attention import tolerances as tolerances_module
from tilewright.ops.attention import traits as traits_module
from tilewright.ops.attention import vendor as vendor_module
from tilewright.ops.attention import words as words_module
from tilewright.ops.attention.catalogue import CATALOGUE
from tilewright.ops.attention.config import VENDOR, AttentionConfig
from tilewright.ops.attention.problem import FP8, AttentionProblem
from tilewright.ops.attention.splits import splits_of
from tilewright.ops.backward import Backward
from tilewright.ops.binder import Context
from tilewright.ops.defaults import Defaults
from tilewright.ops.estimate import Estimate, Estimates
from tilewright.ops.joined import Joined
from tilewright.ops.keywords import Keyword
from tilewright.ops.library import CUDNN, LIBRARIES, NO_AXES
from tilewright.ops.library_attention import Attention
from tilewright.ops.library_engine import repeats
from tilewright.ops.nearby import Invariance, Nearby
from tilewright.ops.nouns import Call, KernelSource, Launch, Number, Operand
from tilewright.ops.pool import Columns, Each, Pool
from tilewright.ops.protocols import Bind
from tilewright.ops.shards import Shards
from tilewright.tolerance import Tolerance
from tilewright.verdict import YES, Verdict

__all__ = ["FAMILY", "AttentionConfig", "AttentionProblem"]


class AttentionFamily(Defaults):
    """See `tilewright.ops.protocols.Family`."""

    name = "attention"
    problem_type = AttentionProblem
    config_type = AttentionConfig
    says = """O = softmax(mask(scale · Q·Kᵀ))·V, without the matrix of scores in memory.

q: `[batch, queries, heads, dim]` in fp16, bf16, fp32 or fp8; packed, `[rows, heads, dim]`.
k, v: `[batch, keys, kv_heads, dim]`, or pages of them; without v, K's first columns are the values.
scale: of scores; `dim ** -0.5` if it is left out.
mask, causal, is_causal, window, first, corner: which keys a query sees.
bias, slopes, sinks, softcap, dropout: what changes scores and weights.
blocks, block_size: a mask of blocks.
q_offsets, kv_offsets, max_q, max_kv: int32 `[batch + 1]`, where sequences of packed rows begin.
q_used, kv_used, left_pad: int32 `[batch]`, rows that each sequence has.
page_table, page_list, page_starts: pages of a cache.
q_scale, k_scale, v_scale, o_scale: of fp8.
new_k, new_v, rotary_cos, rotary_sin: rows to append to the cache, and angles to turn them by.
layout, kv_layout: ``bshd`` or ``bhsd``.
seed, offset: of dropout's random numbers.
deterministic: gradients have the same bits in every run.
batch_invariant: one kernel whatever the batch is.

Returns O like Q (bf16 of fp8); with `lse`, also the logarithm of each row's sum, fp32
`[batch, heads, queries]`; with `random`, dropout's bytes."""
    arguments = ("q", "k", "v=")
    scalars = MappingProxyType(
        {"scale": Number("fp32"), "seed": Number("i64"), "offset": Number("i64")}
    )
    profiles = profiles.PROFILES
    drivers = ck.DRIVERS

    def parse_name(self, name: str) -> AttentionConfig:
        return config_module.parse(name, tuple(pipelines.PIPELINES))

    def parse_problem(self, words: Mapping[str, str], arch: Arch) -> AttentionProblem:
        return words_module.parse(words, arch.fp8)

    def tuning_key(self, problem: AttentionProblem) -> AttentionProblem:
        return alike.tuning_key(problem)

    def table(self, problem: AttentionProblem) -> str:
        return f"{self.name}_{problem.dtype}"

    def kin(self, problem: AttentionProblem) -> Hashable:
        return traits_module.kin(problem)

    def kind(self, problem: AttentionProblem) -> str:
        return traits_module.kind(problem)

    def traits(
        self, problem: AttentionProblem, configs: Columns, device: Device
    ) -> Mapping[str, Each]:
        return traits_module.traits(problem, configs, device)

    def nearby(self, problem: AttentionProblem) -> Iterable[Nearby]:
        return alike.nearby(problem)

    def invariance(self, problem: AttentionProblem) -> Invariance:
        return alike.invariance(problem)

    def invariant(self, config: AttentionConfig) -> Verdict:
        return alike.invariant(config)

    def pipelines(self, arch: Arch) -> Sequence[str]:
        theirs = (VENDOR,) if CUDNN in LIBRARIES[arch.backend] else ()
        return (*pipelines.on(arch), *theirs)

    def library_faster(self, problem: AttentionProblem, device: Device) -> Verdict:
        return engine_record.faster(problem, device)

    def axes(self) -> Mapping[str, Any]:
        return spaces.AXES

    def wildcard(self, axis: str, arch: Arch) -> Sequence[Any]:
        return spaces.wildcard(axis, arch)

    def make_config(self, fields: Mapping[str, Any], arch: Arch) -> AttentionConfig:
        values = dict(fields)
        if values["pipeline"] == VENDOR:
            raise BadArgument(NO_AXES)
        dtype = values["dtype"] = resolve(values["dtype"], arch.fp8)
        values["dtype_kv"] = resolve(values["dtype_kv"] or dtype, arch.fp8)
        default = "bf16" if dtype in FP8 else dtype
        values["dtype_o"] = resolve(values["dtype_o"] or default, arch.fp8)
        values["head_dim_v"] = values["head_dim_v"] or values["head_dim"]
        return config_module.check(AttentionConfig(**values), tuple(pipelines.PIPELINES))

    def default_space(self, problem: AttentionProblem, arch: Arch) -> Any:
        return spaces.default_space(problem, arch)

    def tuning_spaces(self, problem: AttentionProblem, arch: Arch) -> Any:
        return spaces.tuning_spaces(problem, arch)

    def judge(self, config: AttentionConfig, arch: Arch) -> Verdict:
        return rules.judge(config, arch)

    def supports(self, config: AttentionConfig, problem: AttentionProblem, arch: Arch) -> Verdict:
        return rules.supports(config, problem, arch)

    def repeats(self, config: AttentionConfig) -> Verdict:
        return repeats(config.library_engine) if config.library_engine else YES

    def library_query(
        self, problem: AttentionProblem, arch: Arch, library_name: str
    ) -> Attention | Verdict:
        return library.query(problem, arch, library_name)

    def library_config(
        self, problem: AttentionProblem, library_name: str, found: Any
    ) -> AttentionConfig:
        return library.config_of(problem, library_name, found)

    def serving(
        self, problem: AttentionProblem, configs: Sequence[AttentionConfig], arch: Arch
    ) -> Sequence[int]:
        return rules.serving(problem, Pool.of(configs), arch)

    def estimates(self, configs: Columns, problem: AttentionProblem, device: Device) -> Estimates:
        from tilewright.ops.attention import estimate  # here, as it takes NumPy

        return estimate.estimates(configs, problem, device)

    def estimate(
        self, config: AttentionConfig, problem: AttentionProblem, device: Device
    ) -> Estimate:
        if config.library_engine:
            return library.estimate(problem, device)
        return self.estimates(Columns([config]), problem, device).one(0)

    def sources(self, config: AttentionConfig, arch: Arch) -> Mapping[str, KernelSource]:
        if config.library_engine:
            return {}
        return binder.sources(pipelines.parts(config), CATALOGUE, config, arch)

    def interpreted(self, config: AttentionConfig) -> AttentionConfig:
        if config.library_engine:
            return library.interpreted(config)
        record = pipelines.of(config)
        if record.sibling == record.name:
            return config
        return replace(
            config, pipeline=record.sibling, tile_q=64, tile_kv=64,
            scheduler="split" if config.scheduler == "split" else "tile",
            # Kernels of Hopper take values of fp8 by columns.
            alignment=1 if config.dtype in FP8 else config.alignment,
        )  # fmt: skip

    def launch(self, config: AttentionConfig, problem: AttentionProblem, device: Device) -> Launch:
        if config.library_engine:
            return library.launch(config, problem, device)
        splits = splits_of(config, problem, device)
        context = Context(config, problem, device, splits=splits)
        return binder.launch(pipelines.parts(config), CATALOGUE, context)

    def operands(self, problem: AttentionProblem) -> tuple[Operand, ...]:
        return operands.operands(problem)

    def shards(self, call: Call) -> Shards | None:
        return sharding.shards(call)

    def outputs(self, call: Call) -> tuple[Operand, ...]:
        return calling.outputs(call)

    def written(self, inputs: int, named: Collection[str]) -> tuple[int, ...]:
        return tuple(range(1, inputs)) if "new_k" in named else ()

    def problem_of(self, call: Call, config: AttentionConfig | None = None) -> AttentionProblem:
        return calling.problem_of(call)

    def keywords(self) -> Mapping[str, Keyword]:
        return calling.KEYWORDS

    def joined(self, call: Call, apart: Sequence[bool]) -> Joined | None:
        return joining.joined(call, apart)

    def options(self, problem: AttentionProblem) -> dict[str, Any]:
        return calling.options(problem)

    def scalar_defaults(self, problem: AttentionProblem) -> Mapping[str, int | float]:
        found: dict[str, int | float] = {"scale": problem.head_dim**-0.5, "offset": 0}
        return found if problem.dropout else found | {"seed": 0}

    def make_inputs(self, problem: AttentionProblem, rng: Any) -> Mapping[str, Any]:
        return inputs_module.make_inputs(problem, rng)

    def reference(self, problem: AttentionProblem, inputs: Mapping[str, Any]) -> Mapping[str, Any]:
        return reference_module.reference(problem, inputs)

    def tolerances(
        self, problem: AttentionProblem, config: AttentionConfig | None
    ) -> Mapping[str, Tolerance]:
        return tolerances_module.tolerances(problem, config)

    def gradients(self, problem: AttentionProblem, wanted: Sequence[str]) -> Backward | Verdict:
        return gradients_module.gradients(problem, wanted)

    def lowered(
        self, inputs: int, named: Sequence[str], options: Mapping[str, Any]
    ) -> tuple[int, ...]:
        return gradients_module.lowered(inputs, named, options)

    def vendor(self, problem: AttentionProblem) -> Mapping[str, Bind]:
        return vendor_module.vendor(problem)

    def stand_in(self, problem: AttentionProblem) -> Mapping[str, Bind]:
        return vendor_module.stand_in(problem)


FAMILY = AttentionFamily()
