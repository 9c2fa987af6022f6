"""FlashAttention's arguments in the words of `tilewright.attention`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tilewright import dtypes
from tilewright.errors import BadArgument
from tilewright.operation import again, alike, operation, remember, scalars

attention = operation("attention")
"""`tilewright.attention`."""

_ABSENT: dict[str, tuple[Any, str]] = {
    "attention_chunk": (0, "chunks are not there"),
    "cu_seqlens_k_new": (None, "new keys are [batch, seqlen_new, heads, dim], as many for each"),
    "num_splits": (0, "the number of splits is chosen with the kernel"),
    "pack_gqa": (None, "how heads are packed is chosen with the kernel"),
    "qv": (None, "latent attention is tilewright.attention(q, kv), without v"),
    "rotary_seqlens": (None, "rows are rotated by their place in the cache"),
    "scheduler_metadata": (None, "kernels need none"),
    "sm_margin": (0, "kernels take the whole GPU"),
}
"""Arguments of FlashAttention 3 that are taken at their default alone, which says nothing."""


_ORDER = "; the order is FlashAttention 2's, so pass those of FlashAttention 3 by keyword"


class Like:
    """A call, as `again` and `remember` take it.

    function: of this package.
    softmax_scale: its argument.
    words: its other arguments that are no arrays.
    names: of each array behind the first three, the word of `attention`.
    given: q, k, v and these arrays; None for one that is not there.
    """

    __slots__ = ("given", "names", "scale", "what")

    def __init__(
        self,
        function: str,
        softmax_scale: Any,
        words: tuple[Any, ...],
        names: tuple[str, ...],
        given: tuple[Any, ...],
    ) -> None:
        plain = not isinstance(softmax_scale, bool)  # which is refused, though it equals a number
        self.what = alike(function, *words) if plain else None
        self.scale, self.names, self.given = softmax_scale, names, given

    def again(self) -> Any:
        """See `tilewright.operation.again`."""
        if self.what is None:
            return None
        scale = self.scale
        given = () if scale is None else scalars("attention", scale=scale)
        return again(self.what, self.given, given)

    def remember(self, operands: tuple[Any, ...], said: Mapping[str, Any], made: Any) -> None:
        """See `tilewright.operation.remember`.

        operands, said, made: what `attention` was given and returned.
        """
        outputs = made if isinstance(made, tuple) else (made,)
        remember(self.what, self.given, self.names, "attention", operands, said, outputs, outputs)


def refuse(function: str, others: Mapping[str, Any]) -> None:
    """Raise unless the keywords that a function does not name say nothing."""
    for name, value in others.items():
        if name not in _ABSENT:
            raise TypeError(f"{function}() got an unexpected keyword argument '{name}'")
        default, why = _ABSENT[name]
        if value is not default and value != default:
            raise BadArgument(f"{function}: {name} is not supported: {why}; leave it out")


def masked(causal: bool, window_size: Any) -> dict[str, Any]:
    """The mask."""
    if not isinstance(window_size, tuple | list) or len(window_size) != 2:
        raise BadArgument(f"window_size = {window_size!r} is not (left, right)")
    left, right = window_size
    if left is not None and left < 0:
        left = None
    if causal:
        return {"mask": "causal"} if left is None else {"mask": "causal", "window": (left, None)}
    if right is not None and right < 0:
        right = None
    return {} if left is None and right is None else {"window": (left, right)}


def dropped(dropout_p: float | None) -> dict[str, Any]:
    """Dropout, with a fresh seed."""
    if dropout_p is None or not 0 <= dropout_p < 1:
        raise BadArgument(f"dropout_p = {dropout_p} is not from 0 to under 1{_ORDER}")
    if not dropout_p:
        return {}
    share = min(255, round(256 * dropout_p)) / 256
    if not share:
        raise BadArgument(f"dropout_p = {dropout_p} is nearer to 0 than to 1/256, its unit")
    import torch

    seed = int(torch.randint(2**63 - 1, (), dtype=torch.int64))
    return {"dropout": share, "seed": seed}


def scaled(q: Any, k: Any, **given: Any) -> dict[str, Any]:
    """Scales of operands in fp8. Where one is given, those left out are 1.

    given: q_scale, k_scale, v_scale: arrays, or numbers; None for one left out.
    """
    if all(x is None for x in given.values()):
        return {}
    example = next((x for x in given.values() if hasattr(x, "new_full")), None)
    if dtypes.of(q).bits != 8 and given.pop("q_scale", None) is not None:
        raise BadArgument("a scale of q is given, but q is not in fp8; leave it out")
    if dtypes.of(k).bits != 8:
        raise BadArgument("a scale of k or v is given, but they are not in fp8; leave it out")
    return {
        name: x.contiguous() if hasattr(x, "new_full") else _like(example, 1.0 if x is None else x)
        for name, x in given.items()
    }


def _like(example: Any, number: Any) -> Any:
    """A number for a scale, in the shape of another scale that is an array."""
    return number if example is None else example.new_full(example.shape, number)


def common(
    softmax_scale: float | None,
    softcap: float,
    alibi_slopes: Any,
    learnable_sink: Any,
    deterministic: bool = False,
) -> dict[str, Any]:
    """What every function has besides."""
    said: dict[str, Any] = {}
    if isinstance(softmax_scale, bool):
        raise BadArgument(f"softmax_scale = {softmax_scale} is no number{_ORDER}")
    if softmax_scale is not None:
        said["scale"] = softmax_scale
    if softcap > 0:
        said["softcap"] = float(softcap)
    if alibi_slopes is not None:
        said["slopes"] = alibi_slopes
    if learnable_sink is not None:
        said["sinks"] = learnable_sink.float()
    if deterministic:
        said["deterministic"] = True
    return said


def one_table(block_table: Any, page_table: Any) -> Any:
    """The page table, by either of its names; None where there is none."""
    if block_table is not None and page_table is not None:
        raise BadArgument("block_table and page_table are two names of one argument; pass one")
    table = page_table if block_table is None else block_table
    return None if table is None else table.contiguous()


def dense_inside(x: Any) -> Any:
    """`x`, copied unless its innermost dimension is contiguous."""
    return x if x.stride(-1) == 1 else x.contiguous()
