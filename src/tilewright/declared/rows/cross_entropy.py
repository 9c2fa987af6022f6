"""Cross-entropy of rows of logits with the class that each should have: a loss for each row.

    loss = factor · ((1 - ε) · w[t] · (lse - x[t]) + ε / classes · sum(w · (lse - x)) + z · lse²)

t is the row's `target`, int64 or int32, lse the logarithm of its sum of exponentials, w the
classes' `weight` (1 without it), ε `label_smoothing`, from 0 to 1, and z `lse_square_scale`, of the
z-loss (PaLM, arXiv:2204.02311).

- Rows whose target is `ignore_index` have the loss 0 and no gradient, whatever their logits are.
- Any other target that is no class gives NaN, as loss and as gradient. Nothing is read for it.
- ``with_lse`` returns lse too; it is 0 for ignored rows.
- ``with_gradient`` returns the gradient of each row's loss too, from the same launch, as Liger
  Kernel (arXiv:2410.10989) makes it. The backward pass then multiplies it by what arrives for the
  loss. State `factor`, the mean's 1 / rows say, and use it as it is to leave that out.

Else the backward pass is `cross_entropy_backward`, which reads the logits once more.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tilewright.custom import Declaration, Gradient, In, Out, declare, kernel
from tilewright.declared._arrays import functions
from tilewright.declared.rows import _entropy, _long, _softmax, _tiles
from tilewright.errors import BadArgument, shown


def reference(
    logits: Any,
    target: Any,
    weight: Any,
    ignore_index: int,
    label_smoothing: float,
    lse_square_scale: float,
    factor: float,
    problem: Any,
) -> tuple[Any, ...]:
    rows = _entropy.Rows(logits, target, weight, ignore_index, label_smoothing)
    less, log_sum = _softmax.below(logits)
    lse = functions(logits).amax(logits, axis=-1) + log_sum[:, 0]
    loss = rows.own * (log_sum[:, 0] - less[rows.index]) + lse_square_scale * lse * lse
    if label_smoothing:
        loss = loss + (rows.spread * (log_sum - less)).sum(-1)
    made = [rows.only(loss) * factor]
    if problem.with_lse:
        made.append(functions(lse).where(rows.ignored, 0 * lse, lse))
    if problem.with_gradient:
        made.append(rows.only(rows.gradient(logits, lse, lse_square_scale)) * factor)
    return tuple(made)


PLACE = f"{__package__}.kernels.cross_entropy"


def scaled(dlogits: Any, dloss: Any) -> Any:
    """The gradient that the forward pass wrote, times what arrives for each row's loss."""
    import torch

    return torch.mul(dlogits, dloss[:, None], out=torch.empty_like(dlogits))


def gradients(problem: Any) -> Sequence[Gradient]:
    if problem.with_gradient:
        return (Gradient("logits", scaled, ("dlogits", "grad loss")),)
    keywords = {name: name for name in ("weight", *_entropy.SCALARS)}
    read = ("logits", "target", "lse", "grad loss")
    return (Gradient("logits", "cross_entropy_backward", read, keywords=keywords),)


REDUCTIONS = ("mean", "sum", "none")


def like_torch(operation: Callable[..., Any]) -> Callable[..., Any]:
    """``tilewright.cross_entropy_loss``."""

    def cross_entropy_loss(
        input: Any,
        target: Any,
        weight: Any = None,
        ignore_index: int = -100,
        reduction: str = "mean",
        label_smoothing: float = 0.0,
    ) -> Any:
        """``torch.nn.functional.cross_entropy`` of classes in the last dimension.

        input: logits [*rows, classes].
        target: int64 or int32 [*rows].
        weight: fp32 [classes].
        reduction: "mean" over the rows that are not ignored, by their weights; "sum"; "none".

        Raises `BadArgument` for another reduction, and for smoothing that is not between 0 and 1.
        """
        if not isinstance(reduction, str) or reduction not in REDUCTIONS:
            raise BadArgument(f"reduction = {shown(reduction)}; there are {', '.join(REDUCTIONS)}")
        more = {} if weight is None else {"weight": weight}
        loss = operation(
            input, target, ignore_index=ignore_index, label_smoothing=label_smoothing, **more
        )
        if reduction == "none":
            return loss
        if reduction == "sum":
            return loss.sum()
        counted = target != ignore_index
        if weight is None:
            return loss.sum() / counted.sum()
        f = functions(loss)
        weights = weight[f.where(counted, target, 0 * target)]
        return loss.sum() / f.where(counted, weights, 0 * weights).sum()

    return cross_entropy_loss


declare(
    Declaration(
        name="cross_entropy",
        module=__name__,
        operands={
            "logits": In("*rows", "classes", strides=("logits_stride", 1)),
            "target": _entropy.TARGET,
            "weight": In("classes", dtype="fp32", optional=True, values=(0.5, 2.0)),
            "loss": Out("*rows", dtype="fp32"),
            "lse": Out("*rows", dtype="fp32", when="with_lse", differentiable=False),
            "dlogits": Out("*rows", "classes", when="with_gradient", differentiable=False),
        },
        scalars=_entropy.SCALARS,
        limits=_entropy.LIMITS,
        dtypes=_entropy.DTYPES,
        options={"with_lse": False, "with_gradient": False},
        axes=_long.AXES,
        parts=(
            kernel("main", f"{PLACE}:cross_entropy", _tiles.programs, _long.alone),
            kernel("parts", f"{PLACE}:cross_entropy_parts", _long.workgroups, _long.shared),
            kernel(
                "finish",
                f"{PLACE}:cross_entropy_finish",
                _long.workgroups,
                _long.shared,
                dependent=True,
            ),
        ),
        temporaries={"parts": _long.parts(4)},
        refuses=_entropy.refused,
        supports=_entropy.TILES.fits,
        narrows=_entropy.TILES.narrows,
        prefers=_entropy.TILES.prefers,
        multiples=("classes", "logits_stride"),
        reference=reference,
        amplifies=8.0,
        gradients=gradients,
        records={"with_lse": True},
        functions={"cross_entropy_loss": like_torch},
        problems=(
            *_entropy.PROBLEMS,
            *({**fields, "with_gradient": True} for fields in _entropy.PROBLEMS),
        ),
    )
)
