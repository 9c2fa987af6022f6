"""The gradients of fused attention: of Q, K, V, a bias, sinks and slopes, from O, LSE and dO."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import fields as fields_of
from dataclasses import replace
from typing import Any

from tilewright.arch.model import Arch, Device
from tilewright.dtypes import resolve
from tilewright.errors import BadArgument, shown
from tilewright.ops import binder
from tilewright.ops.attention import FAMILY as ATTENTION
from tilewright.ops.attention import AttentionProblem, joining, sharding
from tilewright.ops.attention.config import VENDOR
from tilewright.ops.attention_backward import config as config_module
from tilewright.ops.attention_backward import inputs as inputs_module
from tilewright.ops.attention_backward import (
    library,
    operands,
    pipelines,
    profiles,
    rules,
    spaces,
)
from tilewright.ops.attention_backward import reference as reference_module
from tilewright.ops.attention_backward import tolerances as tolerances_module
from tilewright.ops.attention_backward import traits as traits_module
from tilewright.ops.attention_backward import vendor as vendor_module
from tilewright.ops.attention_backward.catalogue import CATALOGUE
from tilewright.ops.attention_backward.config import AttentionBackwardConfig
from tilewright.ops.attention_backward.problem import USUAL, AttentionBackwardProblem
from tilewright.ops.binder import Context
from tilewright.ops.defaults import Defaults
from tilewright.ops.estimate import Estimate, Estimates
from tilewright.ops.joined import Joined
from tilewright.ops.keywords import Keyword
from tilewright.ops.library import CUDNN, LIBRARIES, NO_AXES
from tilewright.ops.library_attention import Attention
from tilewright.ops.library_engine import repeats
from tilewright.ops.nouns import Call, KernelSource, Launch, Operand
from tilewright.ops.physics import at_best
from tilewright.ops.pool import Columns, Each
from tilewright.ops.protocols import Bind
from tilewright.ops.shards import Shards
from tilewright.tolerance import Tolerance
from tilewright.verdict import YES, Verdict, no

__all__ = ["FAMILY", "AttentionBackwardConfig", "AttentionBackwardProblem"]

_FLAGS = ("dlse", "accumulate")
"""Words of a problem that are true or false."""


class AttentionBackwardFamily(Defaults):
    """See `tilewright.ops.protocols.Family`."""

    name = "attention_backward"
    problem_type = AttentionBackwardProblem
    config_type = AttentionBackwardConfig
    says = """The gradients of `attention`, from what it read and wrote and what arrives for O.

q, k, v, o, lse: the operands and results of `attention`, which was called with ``lse=True``.
do: what arrives for O, of its shape.
gradients: arrays that dQ, dK and dV are added to, in place of outputs.
grads: which gradients are made, as in ``dq+dk+dv``.
dlse: what arrives for LSE.

All other options are those of the forward call. Returns the gradients in the order of `grads`, each
of the shape and dtype of its operand."""
    arguments = ("q", "k", "v", "o", "lse", "do", "*gradients")
    scalars = ATTENTION.scalars
    profiles = profiles.PROFILES

    def parse_name(self, name: str) -> AttentionBackwardConfig:
        return config_module.parse(name, tuple(pipelines.PIPELINES))

    def parse_problem(self, words: Mapping[str, str], arch: Arch) -> AttentionBackwardProblem:
        """Words of attention's problems, and ``grads=dq+dk``, ``dlse=true`` and
        ``accumulate=true``."""
        own = ("grads", *_FLAGS)
        words = {word.lower() if word.lower() in own else word: x for word, x in words.items()}
        others = {word: text for word, text in words.items() if word not in own}
        one = ATTENTION.parse_problem(others, arch)
        said: dict[str, Any] = {f.name: getattr(one, f.name) for f in fields_of(AttentionProblem)}
        for name in _FLAGS:
            if (flag := words.get(name, "false")) not in ("true", "false"):
                raise BadArgument(f"{name} = {shown(flag)} is not true or false")
            said[name] = flag == "true"
        return AttentionBackwardProblem(**said, grads=words.get("grads", USUAL))

    def pipelines(self, arch: Arch) -> Sequence[str]:
        theirs = (VENDOR,) if CUDNN in LIBRARIES[arch.backend] else ()
        return (*pipelines.on(arch), *theirs)

    def table(self, problem: AttentionBackwardProblem) -> str:
        return f"{self.name}_{problem.dtype}"

    def kin(self, problem: AttentionBackwardProblem) -> Hashable:
        return ATTENTION.kin(problem)

    def kind(self, problem: AttentionBackwardProblem) -> str:
        return traits_module.kind(problem)

    def traits(
        self, problem: AttentionBackwardProblem, configs: Columns, device: Device
    ) -> Mapping[str, Each]:
        return traits_module.traits(problem, configs, device)

    def axes(self) -> Mapping[str, Any]:
        return spaces.AXES

    def wildcard(self, axis: str, arch: Arch) -> Sequence[Any]:
        return spaces.wildcard(axis, arch)

    def make_config(self, fields: Mapping[str, Any], arch: Arch) -> AttentionBackwardConfig:
        values = dict(fields)
        if values["pipeline"] == VENDOR:
            raise BadArgument(NO_AXES)
        dtype = values["dtype"] = resolve(values["dtype"], arch.fp8)
        values["dtype_o"] = resolve(values["dtype_o"] or dtype, arch.fp8)
        values["head_dim_v"] = values["head_dim_v"] or values["head_dim"]
        return config_module.check(AttentionBackwardConfig(**values), tuple(pipelines.PIPELINES))

    def default_space(self, problem: AttentionBackwardProblem, arch: Arch) -> Any:
        return spaces.default_space(problem, arch)

    def tuning_spaces(self, problem: AttentionBackwardProblem, arch: Arch) -> Any:
        return spaces.tuning_spaces(problem, arch)

    def judge(self, config: AttentionBackwardConfig, arch: Arch) -> Verdict:
        return rules.judge(config, arch)

    def supports(
        self, config: AttentionBackwardConfig, problem: AttentionBackwardProblem, arch: Arch
    ) -> Verdict:
        found = rules.supports(config, problem, arch)
        return self.repeats(config) if found and problem.deterministic else found

    def repeats(self, config: AttentionBackwardConfig) -> Verdict:
        if config.library_engine:
            return repeats(config.library_engine)
        if pipelines.of(config).repeats(config):
            return YES
        return no("deterministic", "workgroups add to dQ in any order")

    def library_query(
        self, problem: AttentionBackwardProblem, arch: Arch, library_name: str
    ) -> Attention | Verdict:
        return library.query(problem, arch, library_name)

    def library_config(
        self, problem: AttentionBackwardProblem, library_name: str, found: Any
    ) -> AttentionBackwardConfig:
        return library.config_of(problem, library_name, found)

    def estimates(
        self, configs: Columns, problem: AttentionBackwardProblem, device: Device
    ) -> Estimates:
        from tilewright.ops.attention_backward import estimate  # here, as it takes NumPy

        return estimate.estimates(configs, problem, device)

    def estimate(
        self, config: AttentionBackwardConfig, problem: AttentionBackwardProblem, device: Device
    ) -> Estimate:
        if config.library_engine:
            return at_best(problem, device, "cuDNN's engine, at best")
        return self.estimates(Columns([config]), problem, device).one(0)

    def sources(self, config: AttentionBackwardConfig, arch: Arch) -> Mapping[str, KernelSource]:
        if config.library_engine:
            return {}
        return binder.sources(pipelines.of(config).parts, CATALOGUE, config, arch)

    def interpreted(self, config: AttentionBackwardConfig) -> AttentionBackwardConfig:
        """For a config in Gluon, one in Triton that computes the same."""
        if config.library_engine:
            return library.interpreted(config)
        if config.pipeline == "basic":
            return config
        return replace(
            config, pipeline="basic", tile_rows=64, step_rows=32, num_warps=8, num_stages=1
        )

    def launch(
        self, config: AttentionBackwardConfig, problem: AttentionBackwardProblem, device: Device
    ) -> Launch:
        if config.library_engine:
            return library.launch(config, problem, device)
        context = Context(config, problem, device)
        return binder.launch(pipelines.of(config).parts, CATALOGUE, context)

    def operands(self, problem: AttentionBackwardProblem) -> tuple[Operand, ...]:
        return operands.operands(problem)

    def shards(self, call: Call) -> Shards | None:
        return sharding.backward_shards(call, operands.INPUTS)

    def outputs(self, call: Call) -> tuple[Operand, ...]:
        return operands.outputs(call)

    def written(self, inputs: int, named: Collection[str]) -> tuple[int, ...]:
        return tuple(range(operands.INPUTS, inputs))

    def problem_of(
        self, call: Call, config: AttentionBackwardConfig | None = None
    ) -> AttentionBackwardProblem:
        return operands.problem_of(call)

    def keywords(self) -> Mapping[str, Keyword]:
        return operands.KEYWORDS

    def joined(self, call: Call, apart: Sequence[bool]) -> Joined | None:
        grads = str(call.options.get("grads", USUAL))
        return joining.gradients_joined(call, apart, grads)

    def options(self, problem: AttentionBackwardProblem) -> dict[str, Any]:
        return operands.options(problem)

    def scalar_defaults(self, problem: AttentionBackwardProblem) -> Mapping[str, int | float]:
        return ATTENTION.scalar_defaults(problem)

    def make_inputs(self, problem: AttentionBackwardProblem, rng: Any) -> Mapping[str, Any]:
        return inputs_module.make_inputs(problem, rng)

    def reference(
        self, problem: AttentionBackwardProblem, inputs: Mapping[str, Any]
    ) -> Mapping[str, Any]:
        return reference_module.reference(problem, inputs)

    def tolerances(
        self, problem: AttentionBackwardProblem, config: AttentionBackwardConfig | None
    ) -> Mapping[str, Tolerance]:
        return tolerances_module.tolerances(problem, config)

    def vendor(self, problem: AttentionBackwardProblem) -> Mapping[str, Bind]:
        return vendor_module.vendor(problem)

    def stand_in(self, problem: AttentionBackwardProblem) -> Mapping[str, Bind]:
        return vendor_module.stand_in(problem)


FAMILY = AttentionBackwardFamily()
