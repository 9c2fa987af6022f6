"""GEMM: C = A·B, and what follows it elementwise."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import fields, replace
from functools import partial
from typing import Any, ClassVar

from tilewright import checks
from tilewright.arch.model import Arch, Device
from tilewright.dtypes import DTYPES, resolve
from tilewright.errors import BadArgument
from tilewright.ops import epilogues
from tilewright.ops.backward import Backward
from tilewright.ops.defaults import Defaults
from tilewright.ops.estimate import Estimate, Ranking
from tilewright.ops.foreign import Reader, with_lines
from tilewright.ops.formats import Formats
from tilewright.ops.gemm import (
    calling,
    contraction,
    joining,
    kinds,
    library,
    library_config,
    library_record,
    lowbit,
    names,
    operands,
    pipelines,
    pre,
    profiles,
    rows,
    scales,
    sharding,
    shuffle,
    spaces,
    support,
    tuning,
)
from tilewright.ops.gemm import gradients as gradients_module
from tilewright.ops.gemm import traits as traits_module
from tilewright.ops.gemm import vendor as vendor_module
from tilewright.ops.gemm.config import GemmConfig
from tilewright.ops.gemm.formats import aiter, benchdnn, decode, onednn, tile_engine, variants
from tilewright.ops.gemm.kinds import Config
from tilewright.ops.gemm.library_config import VENDOR, VendorConfig
from tilewright.ops.gemm.problem import GemmProblem
from tilewright.ops.joined import Joined
from tilewright.ops.keywords import Keyword
from tilewright.ops.library import NO_AXES, Matmul
from tilewright.ops.nearby import Invariance, Nearby
from tilewright.ops.nouns import Call, KernelSource, Launch, Operand
from tilewright.ops.pool import Columns, Each, Pool, each
from tilewright.ops.products import OUTPUTS, accumulator, outputs
from tilewright.ops.protocols import Bind
from tilewright.ops.shards import Shards
from tilewright.ops.spelling import spelled
from tilewright.tolerance import Tolerance, tolerance
from tilewright.verdict import Verdict

__all__ = ["FAMILY", "GemmConfig", "GemmProblem"]


class GemmFamily(Defaults):
    """See `tilewright.ops.protocols.Family`."""

    name = "gemm"
    variant_fields = frozenset({"num_stages", "group_m", "store"})
    problem_type = GemmProblem
    config_type = GemmConfig
    says = """C = A·B, and what follows it elementwise.

A: `[m, k]`. Either order of A, B and C in memory is read and written as it lies, so ``w.T`` is no
    copy. With dimensions in front, a batch, as for ``torch.matmul``.
B: `[k, n]`, or a shuffled B (`tilewright.shuffle`). Its dtype is A's, or one of fewer bits.
operands: those of `pre_a`, `pre_b`, the scales and `epilogue`, in this order, or by their names:
    ``bias=`` beside ``epilogue="bias"``.
epilogue, pre_a, pre_b: operations on C, A and B, joined by ``+``.
scale_a, scale_b: blocks that share a scale, as in ``1x128``.
dtype_a, dtype_b: of operands in packed bytes.
equation: an einsum of A and B in place of a product of matrices, as in ``bmk,bkn->bmn``.
batching: ``summed`` adds the products of a batch up.
precision: ``ieee`` or ``tf32``, of operands in fp32.
constant_b: promises that nothing which may still be running writes to B.

Returns C, `[m, n]` in A's dtype (bf16 of fp8, int32 of int8). Operands in fp32, fp16, bf16, fp8,
int8 or few bits; sums are in fp32, of int8 in int32."""
    arguments = ("A", "B", "*operands", "**numbered")
    # CK Tile Engine's sweeps do not say that they are of GEMMs.
    formats = Formats(tile_engine.read_sweep, (*variants.VARIANTS, decode.VARIANT), unnamed=True)
    helpers: ClassVar[Mapping[str, Callable[..., Any]]] = {
        "shuffle": shuffle.shuffle,
        "unshuffle": shuffle.unshuffle,
    }
    foreign_forms = aiter.FORMS
    drivers = (benchdnn.driver(onednn.DRIVERS, onednn.read),)
    profiles = profiles.PROFILES

    def parse_name(self, name: str) -> Config:
        return library_config.parse(name) if library_config.is_vendors(name) else names.parse(name)

    def foreign(self, titles: Sequence[str], file: str = "") -> Reader | None:
        return aiter.form_of(titles, file)

    def parse_problem(self, words: Mapping[str, str], arch: Arch) -> GemmProblem:
        known = ["dtype", *(f.name for f in fields(GemmProblem))]
        values: dict[str, Any] = {}
        words = spelled("a gemm problem", with_lines(words, self.drivers), known)
        for word, text in words.items():
            field = "dtype_a" if word == "dtype" else word
            if field.startswith("dtype"):
                values[field] = resolve(text, arch.fp8)
            elif field in ("layout", "batching", *calling.TOLD):
                values[field] = text
            elif field == "constant_b":
                values[field] = checks.parse_flag(word, text)
            elif field in ("strides_sa", "strides_sb", "outer_strides"):
                values[field] = _strides(word, text)
            else:
                values[field] = checks.parse_whole(word, text, -checks.MOST_WHOLE)
        missing = [size for size in ("m", "n", "k") if size not in values]
        if missing:
            raise BadArgument(
                f"a gemm problem needs {', '.join(missing)} (as in {missing[0]}=4096)"
            )
        return GemmProblem(**values)

    def table(self, problem: GemmProblem) -> str:
        return f"{self.name}_{problem.dtype_a}"

    def kin(self, problem: GemmProblem) -> Hashable:
        return traits_module.kin(problem)

    def kind(self, problem: GemmProblem) -> str:
        return traits_module.kind(problem)

    def traits(self, problem: GemmProblem, configs: Columns, device: Device) -> Mapping[str, Each]:
        return traits_module.traits(problem, configs, device)

    def nearby(self, problem: GemmProblem) -> Iterable[Nearby]:
        yield from rows.nearby(problem.m, partial(rows.with_rows, problem))
        if problem.constant_b:  # kernels for problems without the promise serve those with it
            plain = replace(problem, constant_b=False)
            yield Nearby(plain, "without constant_b")
            for one in self.nearby(plain):
                yield Nearby(one.problem, f"{one.how}, without constant_b")

    def invariance(self, problem: GemmProblem) -> Invariance:
        return rows.invariance(partial(rows.with_rows, problem))

    def pipelines(self, arch: Arch) -> Sequence[str]:
        return (*pipelines.on(arch), VENDOR)

    def axes(self) -> Mapping[str, Any]:
        return spaces.AXES

    def wildcard(self, axis: str, arch: Arch) -> Sequence[Any]:
        return spaces.wildcard(axis, arch)

    def make_config(self, fields: Mapping[str, Any], arch: Arch) -> GemmConfig:
        values = dict(fields)
        if values["pipeline"] == VENDOR:
            raise BadArgument(NO_AXES)
        dtype_a = values["dtype_a"] = resolve(values["dtype_a"], arch.fp8)
        values["dtype_b"] = resolve(values["dtype_b"] or dtype_a, arch.fp8)
        if values["dtype_c"]:
            values["dtype_c"] = resolve(values["dtype_c"], arch.fp8)
        else:
            known = dtype_a in OUTPUTS
            scaled = bool(values["scale_a"] or values["scale_b"])
            after = (values["epilogue"], scaled)
            values["dtype_c"] = outputs(dtype_a, *after)[0] if known else dtype_a
        if not values["dtype_acc"]:
            values["dtype_acc"] = accumulator(dtype_a)
        return names.check(GemmConfig(**values))

    def default_space(self, problem: GemmProblem, arch: Arch) -> Any:
        return spaces.default_space(problem, arch)

    def tuning_spaces(self, problem: GemmProblem, arch: Arch) -> Any:
        return tuning.tuning_spaces(problem, arch)

    def judge(self, config: Config, arch: Arch) -> Verdict:
        return kinds.of(config).judge(config, arch)

    def supports(self, config: Config, problem: GemmProblem, arch: Arch) -> Verdict:
        return kinds.of(config).supports(config, problem, arch)

    def repeats(self, config: Config) -> Verdict:
        return kinds.of(config).repeats(config)

    def invariant(self, config: Config) -> Verdict:
        return kinds.of(config).invariant(config)

    def library_query(
        self, problem: GemmProblem, arch: Arch, library_name: str
    ) -> Matmul | Verdict:
        return library.query(problem, arch, library_name)

    def library_config(self, problem: GemmProblem, library_name: str, found: Any) -> VendorConfig:
        return library.config_of(problem, library_name, found)

    def library_faster(self, problem: GemmProblem, device: Device) -> Verdict:
        return library_record.faster(problem, device)

    def sources(self, config: Config, arch: Arch) -> Mapping[str, KernelSource]:
        return kinds.of(config).sources(config, arch)

    def interpreted(self, config: Config) -> GemmConfig:
        return kinds.of(config).interpreted(config)

    def launch(self, config: Config, problem: GemmProblem, device: Device) -> Launch:
        return kinds.of(config).launch(config, problem, device)

    def operands(self, problem: GemmProblem) -> tuple[Operand, ...]:
        return operands.operands(problem)

    def problem_of(self, call: Call, config: Config | None = None) -> GemmProblem:
        if config is None:
            return calling.problem_of(call)
        return calling.problem_of(call, config.layout, config.batching)

    def shards(self, call: Call) -> Shards | None:
        return sharding.shards(call)

    def outputs(self, call: Call) -> tuple[Operand, ...]:
        return (calling.output(call),)

    def keywords(self) -> Mapping[str, Keyword]:
        """The options, and the operands of all operations that there are."""
        return calling.OPTIONS | operands.chain_keywords()

    def keyword(self, name: str) -> Keyword | None:
        return calling.OPTIONS.get(name) or operands.chain_keyword(name)

    def joined(self, call: Call, apart: Sequence[bool]) -> Joined | None:
        return joining.joined(call, apart)

    def options(self, problem: GemmProblem) -> dict[str, Any]:
        said = {name: getattr(problem, name) for name in calling.TOLD}
        for name in ("dtype_a", "dtype_b"):  # arrays say theirs, unless it is packed in bytes
            if DTYPES[said[name]].packed == 1:
                del said[name]
        if problem.batching == "strided" and 0 in problem.batch_strides[:2]:
            said["batching"] = problem.batching  # else the call might be folded
        if problem.batching == "summed":
            said["batching"] = problem.batching
        if problem.batching == "nested":
            said |= {"equation": contraction.NESTED, "batching": problem.batching}
        said["constant_b"] = problem.constant_b
        return {name: word for name, word in said.items() if word not in ("ieee", "", False)}

    def serving(self, problem: GemmProblem, configs: Sequence[Config], arch: Arch) -> Sequence[int]:
        pool = Pool.of(configs)
        if not pool:
            return []
        if _some_are_theirs(pool):
            return super().serving(problem, configs, arch)
        return support.serving(problem, pool, arch)

    def rank(
        self, problem: GemmProblem, configs: Iterable[Config], device: Device
    ) -> Sequence[tuple[Config, Estimate]]:
        """The library's algorithms come last, in their order: only a measurement says how good they
        are."""
        pool = Pool.of(configs)
        if pool and not _some_are_theirs(pool):
            from tilewright.ops.gemm import estimate  # takes NumPy

            found: Ranking = estimate.ranking(problem, pool, device)
            return found
        ours = [config for config in pool if not _is_theirs(config)]
        last = [(c, self.estimate(c, problem, device)) for c in pool if _is_theirs(c)]
        return [*self.rank(problem, ours, device), *last] if ours else last

    def estimate(self, config: Config, problem: GemmProblem, device: Device) -> Estimate:
        return kinds.of(config).estimate(config, problem, device)

    def reference(self, problem: GemmProblem, inputs: Mapping[str, Any]) -> Mapping[str, Any]:
        a, b, *extra = inputs.values()
        a, b = lowbit.decoded(a, b, problem)
        if problem.layout[1] == "s":
            b = shuffle.matrix(b)
        of_a, of_b = len(problem.pre_a_shapes), len(problem.pre_b_shapes)
        a = pre.reference(problem.pre_a, a, extra[:of_a], problem.dtype_a)
        b = pre.reference(problem.pre_b, b, extra[of_a : of_a + of_b], problem.dtype_b)
        extra = extra[of_a + of_b :]
        if problem.scale_a:
            a = scales.dequantised(a, extra.pop(0), problem.scale_a)
        if problem.scale_b:
            b = scales.dequantised(b, extra.pop(0), problem.scale_b)
        product = (a @ b).sum(0) if problem.batching == "summed" else a @ b
        result = epilogues.reference(problem.epilogue, product, extra)
        within = DTYPES[problem.dtype_c].range if problem.epilogue else None
        return {"C": result.clip(*within) if within else result}

    def tolerances(self, problem: GemmProblem, config: Config | None) -> Mapping[str, Tolerance]:
        operands, splits, summed_k = problem.dtype_a, 1, 0
        if config is not None:
            operands, splits, summed_k = kinds.of(config).sums(config, problem)
        amplified, combined = (
            sum(epilogues.amplification(chain) for chain in chains)
            for chains in ((problem.epilogue,), (problem.pre_a, problem.pre_b))
        )
        terms = problem.k * problem.addends
        if summed_k and scales.count(problem):
            # A sum of a block's products, then one of blocks in fp32.
            terms = min(problem.k, scales.k_block(problem))
            splits += -(-problem.k // summed_k) - 1
            amplified = scales.amplification(problem) * (amplified or 1.0)
        allowed = tolerance(operands, problem.dtype_c, terms, splits, amplified, combined)
        return {"C": allowed}

    def vendor(self, problem: GemmProblem) -> Mapping[str, Bind]:
        return vendor_module.vendor(problem)

    def gradients(self, problem: GemmProblem, wanted: Sequence[str]) -> Backward | Verdict:
        return gradients_module.gradients(problem, wanted)

    def lowered(
        self, inputs: int, named: Sequence[str], options: Mapping[str, Any]
    ) -> tuple[int, ...]:
        return operands.lowered(inputs, named, options)


def _is_theirs(config: Config) -> bool:
    return config.pipeline == VENDOR


def _some_are_theirs(pool: Pool) -> bool:
    """Whether a pool, or the whole that it is a part of, has algorithms of the library."""
    return bool(each(pool.columns.whole, _is_theirs).any())


def _strides(word: str, text: str) -> tuple[int, ...]:
    return tuple(checks.parse_whole(word, part, -checks.MOST_WHOLE) for part in text.split(","))


FAMILY = GemmFamily()
