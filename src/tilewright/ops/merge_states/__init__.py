"""States of attention over different keys, merged into attention over all of them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import fields as fields_of
from typing import Any

from tilewright import checks
from tilewright.arch.model import Arch, Device
from tilewright.dtypes import resolve
from tilewright.errors import BadArgument
from tilewright.ops import binder
from tilewright.ops.binder import Context
from tilewright.ops.defaults import Defaults
from tilewright.ops.estimate import Estimate
from tilewright.ops.keywords import Keyword
from tilewright.ops.merge_states import catalogue, operands, rules, spaces
from tilewright.ops.merge_states import config as config_module
from tilewright.ops.merge_states import estimate as estimate_module
from tilewright.ops.merge_states import reference as reference_module
from tilewright.ops.merge_states.config import MergeStatesConfig
from tilewright.ops.merge_states.problem import LIKE, MergeStatesProblem
from tilewright.ops.nouns import Call, KernelSource, Launch, Operand
from tilewright.ops.spelling import spelled
from tilewright.tolerance import Tolerance
from tilewright.verdict import Verdict

__all__ = ["FAMILY", "MergeStatesConfig", "MergeStatesProblem"]


class MergeStatesFamily(Defaults):
    """See `tilewright.ops.protocols.Family`."""

    name = "merge_states"
    problem_type = MergeStatesProblem
    config_type = MergeStatesConfig
    says = """States of attention over different keys, merged into attention over all of them.

o: `[tokens, states, heads, dim]`, a stack of states, or `[tokens, heads, dim]`.
lse: fp32, of o's shape without the last dimension.
other_o, other_lse: the other state of a pair.
operands: under `in_place` the other state, which is merged into o and lse.
mask: of `in_place`, uint8 `[tokens]`: 1 for rows that are merged.

Returns the merged o and lse."""
    arguments = (*operands.STATE, "*operands")

    def parse_name(self, name: str) -> MergeStatesConfig:
        return config_module.parse(name)

    def parse_problem(self, words: Mapping[str, str], arch: Arch) -> MergeStatesProblem:
        """Words are the problem's fields; strides as in ``o_strides=4096,128,1``."""
        known = [f.name for f in fields_of(MergeStatesProblem)]
        values: dict[str, Any] = {}
        for word, text in spelled("a merge_states problem", words, known).items():
            if word == "form":
                values[word] = text
            elif word == "dtype":
                values[word] = resolve(text, arch.fp8)
            elif word == "masked":
                values[word] = checks.parse_flag(word, text)
            elif word in LIKE:
                values[word] = tuple(checks.parse_whole(word, one) for one in text.split(","))
            else:
                values[word] = checks.parse_whole(word, text)
        for word in ("rows", "heads", "head_dim"):
            if word not in values:
                raise BadArgument(f"a merge_states problem needs {word} (as in {word}=64)")
        return MergeStatesProblem(**values)

    def axes(self) -> Mapping[str, Any]:
        return spaces.AXES

    def wildcard(self, axis: str, arch: Arch) -> Sequence[Any]:
        return spaces.wildcard(axis, arch)

    def make_config(self, fields: Mapping[str, Any], arch: Arch) -> MergeStatesConfig:
        values = {**fields, "dtype": resolve(fields["dtype"], arch.fp8)}
        return config_module.check(MergeStatesConfig(**values))

    def default_space(self, problem: MergeStatesProblem, arch: Arch) -> Any:
        return spaces.default_space(problem, arch)

    def tuning_spaces(self, problem: MergeStatesProblem, arch: Arch) -> Any:
        return spaces.tuning_spaces(problem, arch)

    def judge(self, config: MergeStatesConfig, arch: Arch) -> Verdict:
        return rules.judge(config, arch)

    def supports(
        self, config: MergeStatesConfig, problem: MergeStatesProblem, arch: Arch
    ) -> Verdict:
        return rules.supports(config, problem, arch)

    def estimate(
        self, config: MergeStatesConfig, problem: MergeStatesProblem, device: Device
    ) -> Estimate:
        return estimate_module.estimate(config, problem, device)

    def sources(self, config: MergeStatesConfig, arch: Arch) -> Mapping[str, KernelSource]:
        return binder.sources(catalogue.PARTS, catalogue.CATALOGUE, config, arch)

    def launch(
        self, config: MergeStatesConfig, problem: MergeStatesProblem, device: Device
    ) -> Launch:
        context = Context(config, problem, device)
        return binder.launch(catalogue.PARTS, catalogue.CATALOGUE, context)

    def operands(self, problem: MergeStatesProblem) -> tuple[Operand, ...]:
        return operands.operands(problem)

    def outputs(self, call: Call) -> tuple[Operand, ...]:
        return operands.outputs(call)

    def written(self, inputs: int, named: Collection[str]) -> tuple[int, ...]:
        return operands.written(inputs)

    def problem_of(self, call: Call, config: MergeStatesConfig | None = None) -> MergeStatesProblem:
        return operands.problem_of(call)

    def keywords(self) -> Mapping[str, Keyword]:
        return operands.KEYWORDS

    def options(self, problem: MergeStatesProblem) -> dict[str, Any]:
        return operands.options(problem)

    def reference(
        self, problem: MergeStatesProblem, inputs: Mapping[str, Any]
    ) -> Mapping[str, Any]:
        return reference_module.reference(problem, inputs)

    def tolerances(
        self, problem: MergeStatesProblem, config: MergeStatesConfig | None
    ) -> Mapping[str, Tolerance]:
        return reference_module.tolerances(problem)


FAMILY = MergeStatesFamily()
