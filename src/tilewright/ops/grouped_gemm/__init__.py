"""Grouped GEMM: many products in one launch; their sizes are known on the device."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, replace
from functools import partial
from typing import Any

from tilewright import checks
from tilewright.arch.model import Arch, Device
from tilewright.dtypes import DTYPES, resolve
from tilewright.errors import BadArgument, nearest, shown
from tilewright.ops import epilogues
from tilewright.ops.backward import Backward
from tilewright.ops.defaults import Defaults
from tilewright.ops.estimate import Estimate
from tilewright.ops.foreign import Reader, with_lines
from tilewright.ops.formats import Formats
from tilewright.ops.gemm import FAMILY as GEMM
from tilewright.ops.gemm import operands as gemm_operands
from tilewright.ops.gemm import rows, sizes
from tilewright.ops.gemm.formats import benchdnn
from tilewright.ops.gemm.operands import SCALES
from tilewright.ops.grouped_gemm import (
    calling,
    catalogue,
    names,
    operands,
    pipelines,
    rules,
    scales,
    spaces,
)
from tilewright.ops.grouped_gemm import gradients as gradients_module
from tilewright.ops.grouped_gemm import reference as reference_module
from tilewright.ops.grouped_gemm.config import OWN, GroupedGemmConfig
from tilewright.ops.grouped_gemm.formats import aiter, onednn, vllm
from tilewright.ops.grouped_gemm.problem import FORMS, GroupedGemmProblem, of_gemm
from tilewright.ops.grouped_gemm.problem import SCALES as MADE
from tilewright.ops.grouped_gemm.table import Packed, check, pack
from tilewright.ops.keywords import Keyword
from tilewright.ops.nearby import Invariance, Nearby
from tilewright.ops.nouns import Call, KernelSource, Launch, Operand
from tilewright.ops.pool import Pool
from tilewright.ops.spelling import spelled
from tilewright.tolerance import Tolerance, tolerance
from tilewright.verdict import Verdict

__all__ = ["FAMILY", "GroupedGemmConfig", "GroupedGemmProblem", "Packed", "check", "pack"]


class GroupedGemmFamily(Defaults):
    """See `tilewright.ops.protocols.Family`."""

    name = "grouped_gemm"
    variant_fields = frozenset({"num_stages", "group_m"})
    problem_type = GroupedGemmProblem
    config_type = GroupedGemmConfig
    says = """C_g = A_g·B_g for each group g in one launch; sizes are read on the device.

A: `[m, k]` with rows sorted by group, or `[groups, m, k]` with a capacity of m rows each.
B: `[groups, k, n]`; `[k, n]` where groups lie along k or along columns.
offsets: int32 `[groups]`: where each group ends, or how many rows of its capacity it has.
operands: those of the scales and of `epilogue`, or by their names.
rows, per_row: a map of rows of C to rows of A, int32 `[m]`, and how many rows of C each row has.
zero_rest: writes zeros to rows of no group, which are else left as they are.
bounds: whether offsets begin with where the first group begins.
epilogue, precision, scale_a, scale_b, dtype_a, dtype_b: as `gemm` takes them.
zero_b: whether weights in int4 have zero points.
gates_apart: of an epilogue that pairs columns, whether B has all gates before all ups.
quant: ``block`` rounds C to 8 bits, and the scales of each row's 128 columns are returned too.
sizes, layout, alignment: of a list of products, as `tilewright.ops.grouped_gemm.pack` has them.

Returns C, `[m, n]` or `[groups, m, n]`, in A's dtype (bf16 of fp8, int32 of int8). Sizes on the
device are clamped and not checked: `tilewright.ops.grouped_gemm.check` checks them, and waits for
the device."""
    arguments = ("A", "B", "offsets", "*operands", "**numbered")
    formats = Formats(spaces.read_sweep, tuple(spaces.VARIANTS), by_name=vllm.space)
    drivers = (benchdnn.driver((onednn.OPTION,), onednn.read),)

    def parse_name(self, name: str) -> GroupedGemmConfig:
        return names.parse(name)

    def parse_problem(self, words: Mapping[str, str], arch: Arch) -> GroupedGemmProblem:
        known = ["dtype", *(f.name for f in fields(GroupedGemmProblem))]
        values: dict[str, Any] = {}
        for word, text in spelled(
            "a grouped_gemm problem", with_lines(words, self.drivers), known
        ).items():
            field = "dtype_a" if word == "dtype" else word
            if field.startswith("dtype"):
                values[field] = resolve(text, arch.fp8)
            elif field in ("form", "layout", "precision", "epilogue", "quant", *SCALES):
                values[field] = text
            elif field in ("strides_sa", "strides_sb", "strides_zb"):
                values[field] = tuple(_whole(word, part) for part in text.split(","))
            elif field == "sizes":
                values[field] = tuple(_three(size) for size in text.split(","))
            elif field in ("bounds", "zero_rest", "gates_apart", scales.ZEROS):
                if text not in ("true", "false"):
                    raise BadArgument(f"{field} = {shown(text)} is not true or false")
                values[field] = text == "true"
            else:
                values[field] = _whole(word, text)
        form = values.get("form", "")
        if form not in FORMS:
            raise BadArgument(
                f"a grouped_gemm problem needs form, one of {', '.join(FORMS)}, not '{form}'"
                f"{nearest(form, FORMS)}"
            )
        needed = ("sizes",) if form == "list" else ("groups", "m", "n", "k")
        needed += ("rows_a",) * (form == "gathered")
        missing = [field for field in needed if field not in values]
        if missing:
            example = "sizes=64x128x32,7x48x80" if needed == ("sizes",) else "groups=8"
            raise BadArgument(
                f"a {form} grouped_gemm problem needs {', '.join(missing)} (as in {example})"
            )
        return GroupedGemmProblem(**values)

    def table(self, problem: GroupedGemmProblem) -> str:
        return f"{self.name}_{problem.dtype_a}"

    def nearby(self, problem: GroupedGemmProblem) -> Iterable[Nearby]:
        by_rows = problem.m if problem.form in _BY_ROWS else 0  # of 0 rows, there is none
        return rows.nearby(by_rows, partial(_with_rows, problem))

    def invariance(self, problem: GroupedGemmProblem) -> Invariance:
        return rows.invariance(partial(_with_rows, problem))

    def pipelines(self, arch: Arch) -> Sequence[str]:
        return pipelines.on(arch)

    def axes(self) -> Mapping[str, Any]:
        return spaces.AXES

    def wildcard(self, axis: str, arch: Arch) -> Sequence[Any]:
        return spaces.wildcard(axis, arch)

    def make_config(self, fields: Mapping[str, Any], arch: Arch) -> GroupedGemmConfig:
        own = dict(fields)
        apart = {axis: own.pop(axis) for axis in OWN}
        of_one = own | {"epilogue": of_gemm(own["epilogue"], apart["quant"])}
        one = GEMM.make_config({**GEMM.axes(), **of_one, "scheduler": "persistent"}, arch)
        made = {axis: getattr(one, axis) for axis in own} | {"epilogue": own["epilogue"]}
        return names.check(GroupedGemmConfig(**apart, **made))

    def foreign(self, titles: Sequence[str], file: str = "") -> Reader | None:
        return aiter.Layers() if aiter.states(titles) else None

    def default_space(self, problem: GroupedGemmProblem, arch: Arch) -> Any:
        return spaces.default_space(problem, arch)

    def tuning_spaces(self, problem: GroupedGemmProblem, arch: Arch) -> Any:
        return [spaces.default_space(problem, arch, tuned=True)]

    def has_gates_apart(self, arch: Arch) -> bool:
        """Whether some kernel has gates and their ups in parts of its tile, and so rounds what they
        make without tiles of twice the columns."""
        return any(pipelines.PIPELINES[name].gates_apart for name in pipelines.on(arch))

    def judge(self, config: GroupedGemmConfig, arch: Arch) -> Verdict:
        return rules.judge(config, arch)

    def supports(
        self, config: GroupedGemmConfig, problem: GroupedGemmProblem, arch: Arch
    ) -> Verdict:
        return rules.supports(config, problem, arch)

    def serving(
        self, problem: GroupedGemmProblem, configs: Sequence[GroupedGemmConfig], arch: Arch
    ) -> Sequence[int]:
        return rules.serving(problem, Pool.of(configs), arch) if configs else ()

    def repeats(self, config: GroupedGemmConfig) -> Verdict:
        return GEMM.repeats(config.one)

    def invariant(self, config: GroupedGemmConfig) -> Verdict:
        return GEMM.invariant(config.one)

    def sources(self, config: GroupedGemmConfig, arch: Arch) -> Mapping[str, KernelSource]:
        return catalogue.sources(config, arch)

    def interpreted(self, config: GroupedGemmConfig) -> GroupedGemmConfig:
        sibling = pipelines.PIPELINES[config.pipeline].one.interpreted
        own = config.epilogue != "" or config.quant != ""
        apart = pipelines.PIPELINES[config.pipeline].gates_apart and own
        if apart or config.form not in pipelines.PIPELINES[sibling].forms:
            sibling = "basic"
        # A sibling without several blocks of scales in a step has one.
        return replace(config, pipeline=sibling, tile_k=sizes.summed_k(config.one))

    def launch(
        self, config: GroupedGemmConfig, problem: GroupedGemmProblem, device: Device
    ) -> Launch:
        return catalogue.launch(config, problem, device)

    def operands(self, problem: GroupedGemmProblem) -> tuple[Operand, ...]:
        return operands.operands(problem)

    def outputs(self, call: Call) -> tuple[Operand, ...]:
        return calling.made(call) or super().outputs(call)

    def problem_of(self, call: Call, config: GroupedGemmConfig | None = None) -> GroupedGemmProblem:
        return calling.problem_of(call, config.layout if config else "rcr")

    def gradients(self, problem: GroupedGemmProblem, wanted: Sequence[str]) -> Backward | Verdict:
        return gradients_module.gradients(problem, wanted)

    def lowered(
        self, inputs: int, named: Sequence[str], options: Mapping[str, Any]
    ) -> tuple[int, ...]:
        return calling.lowered(inputs, named, options)

    def keywords(self) -> Mapping[str, Keyword]:
        """The options, and the operands of all operations that there are."""
        return calling.KEYWORDS | gemm_operands.chain_keywords()

    def keyword(self, name: str) -> Keyword | None:
        return calling.KEYWORDS.get(name) or gemm_operands.chain_keyword(name)

    def options(self, problem: GroupedGemmProblem) -> dict[str, Any]:
        told = ("precision", "epilogue", "quant", *SCALES)
        said: dict[str, Any] = {name: getattr(problem, name) for name in told}
        for name in calling.TYPES:  # arrays say theirs, unless it is packed in bytes
            if DTYPES[getattr(problem, name)].packed > 1:
                said[name] = getattr(problem, name)
        found = {name: word for name, word in said.items() if word not in ("ieee", "")}
        flags = ("zero_rest", "gates_apart", scales.ZEROS)
        found |= {name: True for name in flags if getattr(problem, name)}
        if problem.bounds and problem.form == "weights":  # else the stacked operand has the groups
            found["bounds"] = True
        if problem.per_row > 1:
            found["per_row"] = problem.per_row
        if problem.form == "list":
            listed = ("sizes", "layout", "alignment")
            found |= {name: getattr(problem, name) for name in listed}
        return found

    def rank(
        self,
        problem: GroupedGemmProblem,
        configs: Iterable[GroupedGemmConfig],
        device: Device,
    ) -> Sequence[tuple[GroupedGemmConfig, Estimate]]:
        pool = Pool.of(configs)
        found: Sequence[Any] = _estimating().ranking(problem, pool, device) if pool else ()
        return found

    def estimate(
        self, config: GroupedGemmConfig, problem: GroupedGemmProblem, device: Device
    ) -> Estimate:
        (one,) = self.rank(problem, [config], device)
        return one[1]

    def reference(
        self, problem: GroupedGemmProblem, inputs: Mapping[str, Any]
    ) -> Mapping[str, Any]:
        return reference_module.reference(problem, [*inputs.values()])

    def tolerances(
        self, problem: GroupedGemmProblem, config: GroupedGemmConfig | None
    ) -> Mapping[str, Tolerance]:
        one = None if config is None else config.one
        if problem.form != "list":
            found = GEMM.tolerances(problem.one, one)
            if not problem.quant:
                return found
            of_values = replace(problem.one, dtype_c="fp32")
            return {**found, MADE: GEMM.tolerances(of_values, one)["C"]}
        k = max(size[2] for size in problem.sizes)
        amplified = epilogues.amplification(problem.epilogue)
        operand = problem.dtype_a if one is None else sizes.operand_dtype(one)
        return {"C": tolerance(operand, problem.dtype_c, max(1, k), amplified=amplified)}


_BY_ROWS = ("contiguous", "gathered", "masked")
"""Forms with groups of rows, the same kernels for more or fewer."""


def _with_rows(problem: GroupedGemmProblem, m: int) -> GroupedGemmProblem:
    """The same problem with `m` rows. Raises `BadArgument` for other forms than `_BY_ROWS`."""
    if problem.form == "list":
        raise BadArgument("the groups of a list have rows of their own, not one M")
    if problem.form not in _BY_ROWS:
        raise BadArgument(f"form {problem.form} has no groups of rows to have more or fewer of")
    rows_a = problem.rows_a and max(1, -(-problem.rows_a * m // max(1, problem.m)))
    # A and C are row-major: of all strides, those of A's scales may depend on M.
    strides_sa = scales.with_rows(problem, rows_a or m)
    return replace(problem, m=m, rows_a=rows_a, strides_sa=strides_sa)


def _whole(word: str, text: str) -> int:
    return checks.parse_whole(word, text, -checks.MOST_WHOLE)


def _three(text: str) -> tuple[int, int, int]:
    """``64x128x32``."""
    parts = tuple(_whole("sizes", part) for part in text.split("x"))
    if len(parts) != 3:
        raise BadArgument(f"sizes: {shown(text)} is not MxNxK, as in 64x128x32")
    return parts


def _estimating() -> Any:
    """The estimate's module, which takes NumPy: imported where something is estimated."""
    from tilewright.ops.grouped_gemm import estimate

    return estimate


FAMILY = GroupedGemmFamily()
