"""Causal convolutions of sequences, as in state-space models: forward, gradients, updates."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import fields as fields_of
from typing import Any

from tilewright import checks
from tilewright.arch.model import Arch, Device
from tilewright.dtypes import resolve
from tilewright.errors import BadArgument
from tilewright.ops import binder
from tilewright.ops.backward import Backward
from tilewright.ops.causal_conv import catalogue, functions, operands, rules, spaces
from tilewright.ops.causal_conv import config as config_module
from tilewright.ops.causal_conv import estimate as estimate_module
from tilewright.ops.causal_conv import gradients as gradients_module
from tilewright.ops.causal_conv import reference as reference_module
from tilewright.ops.causal_conv.config import CausalConvConfig
from tilewright.ops.causal_conv.problem import LIKE, CausalConvProblem
from tilewright.ops.defaults import Defaults
from tilewright.ops.estimate import Estimate
from tilewright.ops.keywords import Keyword, operand
from tilewright.ops.nouns import Call, KernelSource, Launch, Operand
from tilewright.ops.spelling import spelled
from tilewright.tolerance import Tolerance
from tilewright.verdict import Verdict

__all__ = ["FAMILY", "CausalConvConfig", "CausalConvProblem"]

_TEXTS = ("direction", "extras")
_NOTE = "seen_in"
"""A column of lists of problems that says nothing of the problem."""


class CausalConvFamily(Defaults):
    """See `tilewright.ops.protocols.Family`. Every kernel repeats: shares of a sum are added in a
    fixed order."""

    name = "causal_conv"
    problem_type = CausalConvProblem
    config_type = CausalConvConfig
    says = """A causal convolution of sequences, its gradients, or an update of its states.

x: `[batch, channels, positions]` in bf16, fp16 or fp32.
operands: w `[channels, width]`; of an update the states `[batch, channels, width - 1 or more]`, in
    place, and w.
direction: ``forward``, ``backward`` or ``update``.
bias: `[channels]`.
activation: ``silu`` or None.
seq_idx: int32 `[batch, positions]`, the sequence of each position.
initial_states, final: states before the first position, and whether those after the last are
    returned.
cache_seqlens, conv_state_indices: int32 `[batch]`, of an update: where in circular states, and in
    which of them.

`causal_conv1d` and `causal_conv1d_update` state it as causal-conv1d does. Returns y like x."""
    arguments = ("x", "*operands")
    functions = functions.FUNCTIONS

    def parse_name(self, name: str) -> CausalConvConfig:
        return config_module.parse(name)

    def parse_problem(self, words: Mapping[str, str], arch: Arch) -> CausalConvProblem:
        """Words are the problem's fields; strides as in ``x_strides=4096,1,64``."""
        known = [f.name for f in fields_of(CausalConvProblem)]
        values: dict[str, Any] = {}
        for word, text in spelled("a causal_conv problem", words, [_NOTE, *known], known).items():
            if word == _NOTE:
                continue
            if word in _TEXTS:
                values[word] = text
            elif word.startswith("dtype"):
                values[word] = resolve(text, arch.fp8)
            elif word in LIKE:
                values[word] = tuple(checks.parse_whole(word, one) for one in text.split(","))
            else:
                values[word] = checks.parse_whole(word, text)
        for word in ("batch", "channels", "tokens"):
            if word not in values:
                raise BadArgument(f"a causal_conv problem needs {word} (as in {word}=64)")
        return CausalConvProblem(**values)

    def table(self, problem: CausalConvProblem) -> str:
        return f"{self.name}_{problem.dtype}"

    def axes(self) -> Mapping[str, Any]:
        return spaces.AXES

    def wildcard(self, axis: str, arch: Arch) -> Sequence[Any]:
        return spaces.wildcard(axis, arch)

    def make_config(self, fields: Mapping[str, Any], arch: Arch) -> CausalConvConfig:
        values = dict(fields)
        values["dtype"] = resolve(values["dtype"], arch.fp8)
        values["dtype_w"] = resolve(values["dtype_w"] or values["dtype"], arch.fp8)
        return config_module.check(CausalConvConfig(**values))

    def default_space(self, problem: CausalConvProblem, arch: Arch) -> Any:
        return spaces.default_space(problem, arch)

    def tuning_spaces(self, problem: CausalConvProblem, arch: Arch) -> Any:
        return spaces.tuning_spaces(problem, arch)

    def judge(self, config: CausalConvConfig, arch: Arch) -> Verdict:
        return rules.judge(config, arch)

    def supports(self, config: CausalConvConfig, problem: CausalConvProblem, arch: Arch) -> Verdict:
        return rules.supports(config, problem, arch)

    def estimate(
        self, config: CausalConvConfig, problem: CausalConvProblem, device: Device
    ) -> Estimate:
        return estimate_module.estimate(config, problem, device)

    def sources(self, config: CausalConvConfig, arch: Arch) -> Mapping[str, KernelSource]:
        return binder.sources(catalogue.PARTS, catalogue.CATALOGUE, config, arch)

    def launch(
        self, config: CausalConvConfig, problem: CausalConvProblem, device: Device
    ) -> Launch:
        context = catalogue.context(config, problem, device)
        return binder.launch(catalogue.PARTS, catalogue.CATALOGUE, context)

    def operands(self, problem: CausalConvProblem) -> tuple[Operand, ...]:
        return operands.operands(problem)

    def outputs(self, call: Call) -> tuple[Operand, ...]:
        return operands.outputs(call)

    def written(self, inputs: int, named: Collection[str]) -> tuple[int, ...]:
        """The state of an update, which alone has three operands by position."""
        return (1,) if inputs == len(operands.POSITIONAL["update"]) else ()

    def problem_of(self, call: Call, config: CausalConvConfig | None = None) -> CausalConvProblem:
        return operands.problem_of(call)

    def keywords(self) -> Mapping[str, Keyword]:
        return operands.OPTIONS | {
            name: operand() for name in (*operands.OF_BACKWARD, *operands.KEYWORDS)
        }

    def options(self, problem: CausalConvProblem) -> dict[str, Any]:
        return operands.options(problem)

    def reference(self, problem: CausalConvProblem, inputs: Mapping[str, Any]) -> Mapping[str, Any]:
        return reference_module.reference(problem, inputs)

    def tolerances(
        self, problem: CausalConvProblem, config: CausalConvConfig | None
    ) -> Mapping[str, Tolerance]:
        return reference_module.tolerances(problem)

    def gradients(self, problem: CausalConvProblem, wanted: Sequence[str]) -> Backward | Verdict:
        return gradients_module.gradients(problem, wanted)

    def lowered(
        self, inputs: int, named: Sequence[str], options: Mapping[str, Any]
    ) -> tuple[int, ...]:
        return gradients_module.lowered(inputs, named, options)


FAMILY = CausalConvFamily()
