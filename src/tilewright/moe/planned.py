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
from tilewright.moe.form import Clamp, form, packed, sorts_at_once
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
    stored: str = "",
    scale_a: str = "",
    scale_b: str = "",
    all_experts: int = 0,
    capacity: int = 0,
    shared: int = 0,
    router: Mapping[str, Any] | None = None,
    dispatcher: Any = None,
) -> LayerPlan:
    """The plan of a layer, as `tilewright.fused_moe` runs it. Needs no GPU, and builds nothing.

    tokens, hidden, inner, experts, k: sizes. Under expert parallelism, experts are those here.
    dtype: of tokens and weights. weight_dtype, index_dtype: of the routing's weights and experts.
    stored: what w1 and w2 hold where this is another type: fp8, `int4`, `e2m1`.
    scale_a, scale_b: as `fused_moe` takes them.
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
    how = form(
        activation,
        gated=gated,
        interleaved=interleaved,
        bias=bias,
        clamp=clamp,
        rounded=scale_a != "",
    )
    rows, columns = tokens * k, inner * (2 if gated else 1)
    asked: list[tuple[str, str, dict[str, Any]]] = []
    at_once = False
    if router is not None:
        said = {"dtype": dtype, "k": k, **router}
        alone = not all_experts and not capacity
        at_once = alone and sorts_at_once(tokens, experts, said)
        what = ("route and sort", "sorted_routing") if at_once else ("route", "topk_routing")
        asked.append((*what, {"rows": tokens, "experts": all_experts or experts, **said}))
    sorting: dict[str, Any] = {"tokens": tokens, "k": k, "experts": experts}
    sorting |= {"id_dtype": index_dtype, "capacity": capacity}
    if all_experts:
        sorting |= {"has_expert_map": True, "global_experts": all_experts}
    if not at_once:
        asked.append(("sort", "sort_by_expert", sorting))
    product: dict[str, Any] = {"groups": experts, "m": rows, "dtype_a": dtype, "dtype_c": dtype}
    product |= {"scale_a": scale_a, "scale_b": scale_b}
    if stored:
        product["dtype_b" if packed(stored) > 1 else "dtype_a"] = stored
    first = {
        **product,
        "form": "gathered",
        **_sizes(columns, hidden, scale_b),
        "rows_a": tokens,
        "per_row": k,
        "epilogue": how.epilogue,
        "gates_apart": how.gates_apart,
    }

    def rounded(count: int, width: int) -> None:
        if scale_a:
            said = {"rows": count, "columns": width, "dtype": dtype, "out_dtype": stored}
            asked.append(("round", "quantise_rows", {**said, "quant": "block"}))

    rounded(tokens, hidden)
    asked.append(("first product", "grouped_gemm", first))
    if how.gate:
        gate = {"rows": rows, "columns": inner, "dtype": dtype, "gate": how.gate}
        if scale_a:
            gate |= {"quant": "block", "out_dtype": stored}
        asked.append(("activation", "gated_activation", {**gate, "interleaved": interleaved}))
    else:
        rounded(rows, inner)
    second = {**product, "form": "contiguous", **_sizes(hidden, inner, scale_b)}
    asked.append(("second product", "grouped_gemm", {**second, "epilogue": "bias" * bias}))
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
    summed |= {"has_weights": True, "weight_dtype": weight_dtype, "has_shared": shared > 0}
    asked.append(("combine", "sum_of_experts", summed))
    return LayerPlan(tuple(_step(chooses, *one) for one in asked))


def _sizes(n: int, k: int, scale_b: str) -> dict[str, Any]:
    """A product's columns and sums, and where its weights' scales lie: as the weights do, [experts,
    columns, sums]."""
    found: dict[str, Any] = {"n": n, "k": k}
    block = parse(scale_b)
    if block is not None:
        down, across = block.shape(k, n)
        found["strides_sb"] = (down * across, 1, down)
    return found


def _step(dispatcher: Any, name: str, op: str, fields: Mapping[str, Any]) -> PlannedStep:
    family = ops.family(op)
    found = dispatcher.select(family.problem_type(**fields))
    estimate = family.estimate(found.config, found.problem, found.device)
    counted = any(word == "launch" for word, _ in estimate.terms)
    launches = 0.0 if counted else DEVICE.LAUNCH_US * len(found.launch.steps)
    return PlannedStep(name, found, estimate.total_us + launches)
