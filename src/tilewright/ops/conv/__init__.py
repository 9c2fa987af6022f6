"""Convolution and its gradients, in 1 to 3 dimensions: dense, grouped, depthwise, transposed."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from tilewright.arch.model import Arch, Device
from tilewright.ops.backward import Backward
from tilewright.ops.conv import (
    alike,
    engine_record,
    functions,
    joining,
    kinds,
    library,
    names,
    operands,
    pipelines,
    profiles,
    rules,
    spaces,
)
from tilewright.ops.conv import gradients as gradients_module
from tilewright.ops.conv import launch as launch_module
from tilewright.ops.conv import reference as reference_module
from tilewright.ops.conv import tolerances as tolerances_module
from tilewright.ops.conv import traits as traits_module
from tilewright.ops.conv import vendor as vendor_module
from tilewright.ops.conv import words as words_module
from tilewright.ops.conv.config import GEMM, VENDOR, ConvConfig
from tilewright.ops.conv.formats import lines, tile_engine
from tilewright.ops.conv.pipelines import by_gemm
from tilewright.ops.conv.pipelines.pointers import SHARED
from tilewright.ops.conv.problem import ConvProblem
from tilewright.ops.defaults import Defaults
from tilewright.ops.estimate import Estimate, Estimates
from tilewright.ops.formats import Formats
from tilewright.ops.gemm import operands as gemm_operands
from tilewright.ops.joined import Joined
from tilewright.ops.keywords import Keyword
from tilewright.ops.library import LIBRARIES, Found, Matmul, kind
from tilewright.ops.library_convolution import Convolution
from tilewright.ops.library_engine import Offered
from tilewright.ops.nearby import Nearby
from tilewright.ops.nouns import Call, Kept, KernelSource, Launch, Operand
from tilewright.ops.pool import Columns, Each, Pool
from tilewright.ops.protocols import Bind
from tilewright.tolerance import Tolerance
from tilewright.verdict import Verdict

__all__ = ["FAMILY", "ConvConfig", "ConvProblem"]


class ConvFamily(Defaults):
    """See `tilewright.ops.protocols.Family`."""

    name = "conv"
    variant_fields = frozenset({"num_stages", "group_m", "box"})
    problem_type = ConvProblem
    config_type = ConvConfig
    says = """A convolution, or its gradient of the data or of the weights, in 1 to 3 dimensions.

x: `[n, c, *spatial]`, or y's gradient `[n, k, *out]` under ``direction="data"``.
w: `[k, c // groups, *filter]`, or y's gradient under ``direction="weights"``.
spatial, filter: sizes of the gradient of x, and of w.
stride, pad, pad_after, dilation: a number for each dimension. Negative padding leaves pixels out.
epilogue: operations on the result, joined by ``+``; their operands go by name (``bias=``).
precision: ``ieee`` or ``tf32``, of operands in fp32.

Channels-first and channels-last arrays are told apart by their strides. Returns y, the gradient of
x, or that of w, in `dtype_out` or the operands' dtype (bf16 of fp8)."""
    arguments = ("x", "w", "**numbered")
    functions = functions.FUNCTIONS
    profiles = profiles.PROFILES
    formats = Formats(tile_engine.read_sweep, tile_engine.WORDS)
    drivers = lines.DRIVERS
    tie = SHARED

    def parse_name(self, name: str) -> ConvConfig:
        return names.parse(name)

    def parse_problem(self, words: Mapping[str, str], arch: Arch) -> ConvProblem:
        return words_module.parse(words, arch.fp8)

    def tuning_key(self, problem: ConvProblem) -> ConvProblem:
        return alike.tuning_key(problem)

    def table(self, problem: ConvProblem) -> str:
        return f"{self.name}_{problem.dtype}"

    def lesson(self, problem: ConvProblem) -> str:
        return f"{self.table(problem)}_{problem.direction}"

    def kept(self, problem: ConvProblem) -> Kept | None:
        """The filter, with its channels innermost."""
        if problem.direction == "weights" or not problem.w_strides:
            return None
        return Kept(1, 1, replace(problem, w_strides=()))

    def kin(self, problem: ConvProblem) -> Hashable:
        return traits_module.kin(problem)

    def kind(self, problem: ConvProblem) -> str:
        return traits_module.kind(problem)

    def traits(self, problem: ConvProblem, configs: Columns, device: Device) -> Mapping[str, Each]:
        return traits_module.traits(problem, configs, device)

    def nearby(self, problem: ConvProblem) -> Iterable[Nearby]:
        return alike.nearby(problem)

    def pipelines(self, arch: Arch) -> Sequence[str]:
        theirs = (VENDOR,) if {*library.KINDS} & {*LIBRARIES[arch.backend]} else ()
        return (*pipelines.on(arch), GEMM, *theirs)

    def axes(self) -> Mapping[str, Any]:
        return spaces.AXES

    def wildcard(self, axis: str, arch: Arch) -> Sequence[Any]:
        return spaces.wildcard(axis, arch)

    def make_config(self, fields: Mapping[str, Any], arch: Arch) -> ConvConfig:
        return spaces.make_config(fields, arch)

    def default_space(self, problem: ConvProblem, arch: Arch) -> Any:
        return spaces.default_space(problem, arch)

    def tuning_spaces(self, problem: ConvProblem, arch: Arch) -> Any:
        return spaces.tuning_spaces(problem, arch)

    def tile(self, config: ConvConfig) -> Hashable:
        return kinds.of(config).tile(config) or super().tile(config)

    def judge(self, config: ConvConfig, arch: Arch) -> Verdict:
        return rules.judge(config, arch)

    def supports(self, config: ConvConfig, problem: ConvProblem, arch: Arch) -> Verdict:
        return rules.supports(config, problem, arch)

    def repeats(self, config: ConvConfig) -> Verdict:
        return kinds.of(config).repeats(config)

    def library_query(
        self, problem: ConvProblem, arch: Arch, library_name: str
    ) -> Matmul | Convolution | Verdict:
        if kind(library_name) in library.KINDS:
            return library.query(problem, arch, library_name)
        return by_gemm.library_query(problem, arch, library_name)

    def library_config(
        self, problem: ConvProblem, library_name: str, found: Found | Offered
    ) -> ConvConfig:
        if isinstance(found, Offered):
            return library.config_of(problem, library_name, found)
        return by_gemm.library_config(problem, library_name, found)

    def library_faster(self, problem: ConvProblem, device: Device) -> Verdict:
        return by_gemm.library_faster(problem, device) or engine_record.faster(problem, device)

    def serving(
        self, problem: ConvProblem, configs: Sequence[ConvConfig], arch: Arch
    ) -> Sequence[int]:
        return rules.serving(problem, Pool.of(configs), arch)

    def estimates(self, configs: Columns, problem: ConvProblem, device: Device) -> Estimates:
        found = []
        for word, (places, c) in configs.groups(rules.whose).items():
            of = by_gemm if word.split()[0] == GEMM else launch_module
            found.append((places, of.estimates(c, problem, device)))
        return Estimates.joined(found)

    def estimate(self, config: ConvConfig, problem: ConvProblem, device: Device) -> Estimate:
        return kinds.of(config).estimate(config, problem, device)

    def interpreted(self, config: ConvConfig) -> ConvConfig:
        return kinds.of(config).interpreted(config)

    def sources(self, config: ConvConfig, arch: Arch) -> Mapping[str, KernelSource]:
        return kinds.of(config).sources(config, arch)

    def launch(self, config: ConvConfig, problem: ConvProblem, device: Device) -> Launch:
        return kinds.of(config).launch(config, problem, device)

    def operands(self, problem: ConvProblem) -> tuple[Operand, ...]:
        return operands.operands(problem)

    def outputs(self, call: Call) -> tuple[Operand, ...]:
        return operands.outputs(call)

    def problem_of(self, call: Call, config: ConvConfig | None = None) -> ConvProblem:
        return operands.problem_of(call)

    def keywords(self) -> Mapping[str, Keyword]:
        """The options, and the operands of all operations that there are."""
        return operands.OPTIONS | gemm_operands.chain_keywords()

    def keyword(self, name: str) -> Keyword | None:
        return operands.OPTIONS.get(name) or gemm_operands.chain_keyword(name)

    def joined(self, call: Call, apart: Sequence[bool]) -> Joined | None:
        return joining.joined(call, apart)

    def options(self, problem: ConvProblem) -> dict[str, Any]:
        return operands.options(problem)

    def reference(self, problem: ConvProblem, inputs: Mapping[str, Any]) -> Mapping[str, Any]:
        return reference_module.reference(problem, inputs)

    def tolerances(
        self, problem: ConvProblem, config: ConvConfig | None
    ) -> Mapping[str, Tolerance]:
        return tolerances_module.tolerances(problem)

    def gradients(self, problem: ConvProblem, wanted: Sequence[str]) -> Backward | Verdict:
        return gradients_module.gradients(problem, wanted)

    def lowered(
        self, inputs: int, named: Sequence[str], options: Mapping[str, Any]
    ) -> tuple[int, ...]:
        return operands.lowered(inputs, named, options)

    def vendor(self, problem: ConvProblem) -> Mapping[str, Bind]:
        return vendor_module.vendor(problem)

    def stand_in(self, problem: ConvProblem) -> Mapping[str, Bind]:
        return vendor_module.stand_in(problem)


FAMILY = ConvFamily()
