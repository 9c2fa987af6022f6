"""The layer as a plan: what each step is asked, its kernel, and how long it may take."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from tilewright import ops
from tilewright.arch.figures import DEVICE
from tilewright.blocks import parse
from tilewright.default import default_dispatcher
from tilewright.moe.form import FEW_ROWS, Clamp, form, packed, rounds_in_product, sorts_at_once
from tilewright.moe.scaling import ROW, TENSOR, Scaling, chained
from tilewright.plan import Plan


@dataclass(frozen=True, slots=True)
class PlannedStep:
    """One step of a layer.

    name: route, sort (or both in one), first product, activation, second product, combine.
    plan: of its problem.
    estimated_us: the family's estimate of the chosen kernel, with the time of launches, which the
        estimates of declared operations leave out.
    """

    name: str
    plan: Plan
    estimated_us: float

    @property
    def problem(self) -> Any:
        """What the step computes."""
        return self.plan.problem


@dataclass(frozen=True, slots=True)
class LayerPlan:
    """The steps of a layer on one device, in order."""

    steps: tuple[PlannedStep, ...]

    @property
    def problems(self) -> tuple[Any, ...]:
        """Those of the steps; `tilewright.prepare` builds their kernels before the first call."""
        return tuple(step.problem for step in self.steps)

    @property
    def estimated_us(self) -> float:
        """The sum of the steps' estimates."""
        return sum(step.estimated_us for step in self.steps)

    def to_dict(self) -> dict[str, Any]:
        """As plain data, for JSON."""
        steps = [
            {
                "name": step.name,
                "problem": {"family": step.problem.family, **asdict(step.problem)},
                "kernel": step.plan.config.name,
                "estimated_us": step.estimated_us,
                "selector": step.plan.selector,
                "reason": step.plan.reason,
            }
            for step in self.steps
        ]
        device = asdict(self.steps[0].plan.device)
        return {"device": device, "estimated_us": self.estimated_us, "steps": steps}

    def __str__(self) -> str:
        device = self.steps[0].plan.device
        lines = [f"mixture of experts on {device.name}, estimated {self.estimated_us:.1f} us"]
        for step in self.steps:
            lines.append(f"  {step.name:<14} {step.estimated_us:8.1f} us  {step.plan.config.name}")
            lines.append(f"  {'':<14} {'':>8}     {step.problem}")
        return "\n".join(lines)


def plan(
    *,
    tokens: int,
    hidden: int,
    inner: int,
    experts: int,
    k: int,
    dtype: str = "bf16",
    activation: str = "silu",
    gated: bool = True,
    interleaved: bool = False,
    bias: bool = False,
    limit: float = math.inf,
    alpha: float = 1.0,
    shift: float = 0.0,
    index_dtype: str = "int32",
    weight_dtype: str = "fp32",
    dtype_b: str = "",
    scale_a: str = "",
    scale_b: str = "",
    zero_b: bool = False,
    weights_first: bool = False,
    all_experts: int = 0,
    capacity: int = 0,
    shared: int = 0,
    router: Mapping[str, Any] | None = None,
    dispatcher: Any = None,
) -> LayerPlan:
    """The plan of a layer, as `tilewright.fused_moe` runs it. Needs no GPU, and builds nothing.

    tokens, hidden, inner, experts, k: sizes. Under expert parallelism, experts are those here.
    dtype: of tokens and weights. weight_dtype, index_dtype: of the routing's weights and experts.
    dtype_b: what w1 and w2 hold where this is another type: fp8, `int8`, `int4`, `e2m1`.
    scale_a, scale_b: as `fused_moe` takes them.
    zero_b: whether int4 weights have zero points.
    weights_first: as `fused_moe` takes it.
    activation, gated, interleaved: as `fused_moe` takes them, or as w1's shape says.
    limit, alpha, shift: as `fused_moe` takes them.
    bias: whether both products have one.
    all_experts: of a map of experts; 0 without one.
    capacity: as `fused_moe` takes it.
    shared: inner columns of the expert that serves every token; 0 without one.
    router: fields of `topk_routing` besides sizes, for `routed_moe`; None without a router.
    dispatcher: which chooses, with its device; by default that of `tilewright.fused_moe`.

    Raises as `Dispatcher.select` does.
    """
    chooses = dispatcher or default_dispatcher()
    clamp = Clamp(limit, alpha, shift)
    scaling = Scaling(scale_a, scale_b, dtype_b, zero_b)
    scaling.check()
    on = chooses.device_for_planning().arch
    rows, columns = tokens * k, inner * (2 if gated else 1)
    whole = scaling.has_whole_blocks(inner) and rows > FEW_ROWS * experts
    how = form(
        activation,
        gated=gated,
        interleaved=interleaved,
        bias=bias,
        clamp=clamp,
        rounded=scaling.quant,
        whole_blocks=whole and rounds_in_product(on),
        by_columns=scaling.by_columns,
    )
    asked: list[tuple[str, str, dict[str, Any]]] = []
    at_once = False
    if router is not None:
        said = {"dtype": dtype, "k": k, **router}
        alone = not (all_experts or capacity or weights_first or scale_b == TENSOR)
        at_once = alone and sorts_at_once(tokens, experts, said)
        what = ("route and sort", "sorted_routing") if at_once else ("route", "topk_routing")
        asked.append((*what, {"rows": tokens, "experts": all_experts or experts, **said}))
    sorting: dict[str, Any] = {"tokens": tokens, "k": k, "experts": experts}
    sorting |= {"id_dtype": index_dtype, "capacity": capacity}
    if all_experts:
        sorting |= {"has_expert_map": True, "global_experts": all_experts}
    if weights_first:
        sorting["has_weights"] = True
        if weight_dtype != "fp32":
            flat = {**{f"n{i}": 1 for i in range(5)}, "n5": rows}
            asked.append(
                ("cast", "strided_copy", {**flat, "dtype": weight_dtype, "out_dtype": "fp32"})
            )
    if not at_once:
        asked.append(("sort", "sort_by_expert", sorting))
    product: dict[str, Any] = {"groups": experts, "m": rows, "dtype_a": dtype, "dtype_c": dtype}
    product |= scaling.blocks
    if dtype_b and packed(dtype_b) == 1:
        product |= {"dtype_b": dtype_b, "dtype_a": dtype_b if scale_a else dtype}
    ways = {"quant": scaling.quant, "out_dtype": dtype_b, "has_scale": scale_a == TENSOR}

    def rounded(count: int, width: int) -> None:
        if scale_a:
            said = {"rows": count, "columns": width, "dtype": dtype, **ways}
            asked.append(("round", "quantise_rows", said))

    def taken(of: str, count: int, per_row: int) -> None:
        said = {"tokens": count, "slots": rows, "width": 1, "per_row": per_row, "dtype": "fp32"}
        asked.append((f"scales of {of}", "take_rows", said))

    def multiplied(name: str, form: str, first: bool, epilogue: str, **more: Any) -> None:
        if scale_b == TENSOR:
            taken("experts", experts, 1)
        weights = "routing" if first and weights_first else None
        chain = chained(scaling.factors(weights, None, None, None, None), epilogue)
        said = {**product, "form": form, "epilogue": chain, **more}
        asked.append((name, "grouped_gemm", said))

    rounded(tokens, hidden)
    if scale_a == ROW:
        taken("tokens", tokens, k)
    tiled: dict[str, Any] = {"rows_a": tokens, "per_row": k, "gates_apart": how.gates_apart}
    tiled |= _sizes(columns, hidden, scaling)
    if how.quant:
        tiled |= {"quant": how.quant, "dtype_c": dtype_b}
    multiplied("first product", "gathered", True, how.epilogue, **tiled)
    if how.gate:
        gate = {"rows": rows, "columns": inner, "dtype": dtype, "gate": how.gate}
        gate |= ways if scale_a else {}
        asked.append(("activation", "gated_activation", {**gate, "interleaved": interleaved}))
    elif not how.quant:
        rounded(rows, inner)
    sizes = _sizes(hidden, inner, scaling)
    multiplied("second product", "contiguous", False, "bias" * bias, **sizes)
    if shared:
        # GEMM does not take halves that lie apart as pairs.
        every = form(
            activation, gated=gated, interleaved=interleaved, clamp=clamp, columns_lie=interleaved
        )
        wide = shared * (2 if gated else 1)
        of_all = {"m": tokens, "dtype_a": dtype, "dtype_c": dtype}
        of_first = {**of_all, "n": wide, "k": hidden, "epilogue": every.epilogue}
        asked.append(("shared first product", "gemm", of_first))
        if every.gate:
            gate = {"rows": tokens, "columns": shared, "dtype": dtype, "gate": every.gate}
            gate |= {"interleaved": interleaved}
            asked.append(("shared activation", "gated_activation", gate))
        asked.append(("shared second product", "gemm", {**of_all, "n": hidden, "k": shared}))
    summed = {"tokens": tokens, "k": k, "slots": rows, "width": hidden, "dtype": dtype}
    if not weights_first:
        summed |= {"has_weights": True, "weight_dtype": weight_dtype}
    summed["has_shared"] = shared > 0
    asked.append(("combine", "sum_of_experts", summed))
    return LayerPlan(tuple(_step(chooses, *one) for one in asked))


def _sizes(n: int, k: int, scaling: Scaling) -> dict[str, Any]:
    """A product's columns and sums, and where its weights' scales lie: as the weights do, [experts,
    columns, sums]."""
    found: dict[str, Any] = {"n": n, "k": k}
    block = parse(scaling.block_b)
    if block is not None:
        down, across = block.shape(k, n)
        found["strides_sb"] = (down * across, 1, down)
        if scaling.zero_b:
            found["strides_zb"] = found["strides_sb"]
    return found


def _step(dispatcher: Any, name: str, op: str, fields: Mapping[str, Any]) -> PlannedStep:
    family = ops.family(op)
    found = dispatcher.select(family.problem_type(**fields))
    estimate = family.estimate(found.config, found.problem, found.device)
    counted = any(word == "launch" for word, _ in estimate.terms)
    launches = 0.0 if counted else DEVICE.LAUNCH_US * len(found.launch.steps)
    return PlannedStep(name, found, estimate.total_us + launches)
