"""``DTensor``: how operators are split over a mesh of devices.

A family says along which dimensions its calls can be split (`tilewright.ops.shards`). Of that the
rules are made that torch's own registry has for each operator. Torch chooses a rule by the cost of
bringing the operands there; one rule, which needs no split, has every operand whole.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any

from tilewright import dtypes, ops
from tilewright.ops.nouns import View
from tilewright.ops.shards import Shards
from tilewright.torch import fake
from tilewright.torch.said import read

WHOLE = Shards((), ())


def is_sharded(x: Any) -> bool:
    """Whether this is a ``DTensor``."""
    distributed = sys.modules.get("torch.distributed.tensor")
    return distributed is not None and isinstance(x, distributed.DTensor)


def beside(tensors: Sequence[Any], others: Sequence[Any]) -> Sequence[Any]:
    """`others`, whole on every device where they are plain and `tensors` are ``DTensor``. Autograd
    makes plain zeros for an output without a gradient."""
    mesh = next((x.device_mesh for x in tensors if is_sharded(x)), None)
    if mesh is None:
        return others
    from torch.distributed.tensor import DTensor, Replicate

    whole = [Replicate()] * mesh.ndim
    return [
        x if is_sharded(x) else DTensor.from_local(x, mesh, whole, run_check=False) for x in others
    ]


@cache
def register(op: str, operator: Any) -> None:
    """Tell torch how an operation's operator is split, once: torch's module is imported."""
    from torch.distributed.tensor import DTensor
    from torch.distributed.tensor._op_schema import RuntimeSchemaInfo

    propagator: Any = DTensor._op_dispatcher.sharding_propagator  # as `register_sharding` does
    static = RuntimeSchemaInfo(1, needs_pytree=True)
    propagator.register_op_strategy(operator, partial(_strategy, op), static)


def _strategy(op: str, schema: Any) -> Any:
    """The rules for one call, for all dimensions of the mesh.

    schema: torch's ``OpSchema`` of the call, with strategies in place of tensors.
    """
    from torch.distributed.tensor._ops.utils import expand_to_full_mesh_op_strategy

    given = [strategy.strategies[0].output_spec for strategy in schema.args_strategy]
    passed = dict(zip(("operands", "said", "scalars"), schema.args_schema, strict=False))
    said, _ = read(passed.get("said", "")).whole(passed.get("scalars") or ())
    call = fake.call(said, tuple(map(_view, given)))
    family, mesh = ops.family(op), schema.get_mesh_from_args()
    shards, made = family.shards(call) or WHOLE, len(family.outputs(call))
    found: Any = expand_to_full_mesh_op_strategy(
        mesh,
        schema,
        placements(shards, len(given), made),
        input_index=made,
        is_valid_strategy_cb=_even,
    )
    for one in found.strategies:
        if made == 1:  # torch takes one for a tensor, not for a list of one
            one.output_specs = (one.output_specs,)
    return found


def placements(shards: Shards, inputs: int, outputs: int) -> list[list[Any]]:
    """Placements of outputs, then of inputs, over one dimension of a mesh, for each way to split a
    call."""
    from torch.distributed.tensor import Partial, Replicate, Shard

    def lies(labels: Sequence[str], label: str, other: Callable[[], Any]) -> Any:
        return Shard(labels.index(label)) if label in labels else other()

    found = [[Replicate()] * (outputs + inputs)]
    for label in shards.labels:
        partial_sum = all(label not in one for one in shards.outputs)
        rest = Partial if partial_sum else Replicate
        row = [lies(one, label, rest) for one in shards.outputs]
        for place, one in enumerate(shards.inputs):
            adds = partial_sum and place in shards.added
            row.append(lies(one, label, Partial if adds else Replicate))
        found.append(row)
    return found


def _even(inputs: Sequence[Any], outputs: Any) -> bool:
    """Whether every dimension that is split is split into equal parts."""
    for spec in inputs:
        sizes = list(spec.tensor_meta.shape)
        for placement, count in zip(spec.placements, spec.mesh.shape, strict=True):
            if placement.is_shard():
                if sizes[placement.dim] % count:
                    return False
                sizes[placement.dim] //= count
    return True


def _view(spec: Any) -> View:
    """A tensor as the family sees it; its address and place decide nothing here."""
    meta = spec.tensor_meta
    name = dtypes.of_dtype(meta.dtype).name
    return View(tuple(meta.shape), tuple(meta.stride), name, 0, "cpu")
