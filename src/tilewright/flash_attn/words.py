"""FlashAttention's arguments in the words of `tilewright.attention`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tilewright import checks, dtypes
from tilewright.errors import BadArgument, shown
from tilewright.flash_attn import checked
from tilewright.operation import again, alike, operation, remember, scalars

attention = operation("attention")
"""`tilewright.attention`."""

_LATENT = "latent attention is tilewright.attention(q, kv), without v; leave it out"
_PARALLEL = (
    "keys of other devices are not seen; merge the states of the devices by "
    "tilewright.serving.merge_state"
)

_ABSENT: dict[str, tuple[Any, str]] = {
    "attention_chunk": (
        0,
        "pass the chunks of a prompt as sequences of their own (flash_attn_varlen_func, cu_seqlens "
        "at multiples of the chunk); for one new query, pass cache_leftpad=(cache_seqlens - 1) // "
        "chunk * chunk",
    ),
    "cp_rank": (0, _PARALLEL),
    "cp_tot_seqused_k": (None, _PARALLEL),
    "cp_world_size": (1, _PARALLEL),
    "cu_seqlens_k_new": (
        None,
        "new keys are [batch, seqlen_new, heads, dim], as many for each sequence; write others by "
        "tilewright.serving.append_paged_kv_cache and leave k and v out",
    ),
    "pack_gqa": (None, "how heads are packed is chosen with the kernel; leave it out"),
    "q_v": (None, _LATENT),
    "qv": (None, _LATENT),
    "rotary_seqlens": (None, "rows are rotated by their place in the cache; leave it out"),
    "scheduler_metadata": (None, "kernels need none; leave it out"),
    "sm_margin": (0, "kernels take the whole GPU; leave it out"),
}
"""Arguments of FlashAttention 3, and of vLLM's fork, that are taken at their default alone, which
says nothing; of each, why it is not there and the way around it."""

VERSIONS = (2, 3, 4)
"""What ``fa_version`` of vLLM's fork may be. It names a library that computes the same; here one
does."""


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
        try:
            given = () if scale is None else scalars("attention", scale=scale)
        except BadArgument:  # the call that is made instead says so of its argument
            return None
        return again(self.what, self.given, given)

    def remember(
        self, operands: tuple[Any, ...], said: Mapping[str, Any], made: Any, out: Any = None
    ) -> None:
        """See `tilewright.operation.remember`.

        operands, said, made: what `attention` was given and returned.
        out: the last of `given`, where O was written.
        """
        outputs = made if isinstance(made, tuple) else (made,)
        if out is not None and len(outputs) > 1:
            return
        returned = outputs if out is None else (None,)
        remember(self.what, self.given, self.names, "attention", operands, said, outputs, returned)


def written(
    attention: Callable[..., Any], operands: tuple[Any, ...], said: Mapping[str, Any], out: Any
) -> Any:
    """What `attention` returns, with O written to `out` if it is given."""
    if out is None:
        return attention(*operands, **said)
    if not said.get("lse"):
        attention(*operands, out=out, **said)
        return out
    if len(out.shape) < 3:
        raise BadArgument(f"out is {list(out.shape)}, but must have the shape of q")
    *batch, rows, heads, _ = out.shape
    lse = out.new_empty((*batch, heads, rows), dtype=_float32())
    attention(*operands, out=(out, lse), **said)
    return out, lse


def _float32() -> Any:
    import torch

    return torch.float32


def refuse(function: str, others: Mapping[str, Any]) -> None:
    """Raise unless the keywords that a function does not name say nothing."""
    for name, value in others.items():
        if name == "fa_version":
            if checks.plain(name, value) not in VERSIONS:
                raise BadArgument(f"{function}: fa_version = {shown(value)} is not 2, 3 or 4")
            continue
        if name not in _ABSENT:
            raise TypeError(f"{function}() got an unexpected keyword argument '{name}'")
        default, why = _ABSENT[name]
        own = checks.plain(name, value)
        if type(own) not in checks.PLAIN or own != default:
            raise BadArgument(f"{function}: {name} is not supported: {why}")


def bounds(window_size: Any) -> Any:
    """A `window_size` that is no tuple as one, so that a call with it may be repeated; None is no
    bound at all."""
    if window_size is None:
        return (-1, -1)
    if not isinstance(window_size, tuple | list) or len(window_size) != 2:
        raise BadArgument(f"window_size = {shown(window_size)} is not (left, right)")
    return tuple(window_size)


def masked(causal: Any, window_size: Any) -> dict[str, Any]:
    """The mask."""
    causal = checked.flag("causal", causal)
    if len(window_size) != 2:
        raise BadArgument(f"window_size = {shown(window_size)} is not (left, right)")
    left, right = (
        None
        if one is None
        else checked.count("window_size", one, -checks.MOST_WHOLE, checks.MOST_WHOLE)
        for one in window_size
    )
    if left is not None and left < 0:
        left = None
    if causal:
        return {"mask": "causal"} if left is None else {"mask": "causal", "window": (left, None)}
    if right is not None and right < 0:
        right = None
    return {} if left is None and right is None else {"window": (left, right)}


def dropped(dropout_p: Any) -> dict[str, Any]:
    """Dropout, with a fresh seed."""
    dropout_p = checks.plain("dropout_p", dropout_p)
    if type(dropout_p) not in (int, float) or not 0 <= dropout_p < 1:
        raise BadArgument(f"dropout_p = {shown(dropout_p)} is not from 0 to under 1{_ORDER}")
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

    given: the arguments that say them, None for one left out. The first letter of a name says
        whether it is of q, k or v.
    """
    if all(value is None for value in given.values()):
        return {}
    made = {
        name[0]: checked.scale(name, value, q if name[0] == "q" else k)
        for name, value in given.items()
    }
    if dtypes.of(q).bits != 8:
        made.pop("q", None)
    like = max((x for x in made.values() if x is not None), key=lambda x: x.ndim)
    for letter, x in made.items():
        if x is None:
            made[letter] = like.new_ones(like.shape)
        elif x.numel() == 1:
            made[letter] = x.expand(like.shape).contiguous()
    return {f"{letter}_scale": x for letter, x in made.items()}


def splits(function: str, num_splits: Any) -> dict[str, Any]:
    """What a number of splits asks for."""
    own = checks.plain("num_splits", num_splits)
    if type(own) is not int:
        raise BadArgument(f"{function}: num_splits = {shown(num_splits)} is not a whole number")
    if own not in (0, 1):
        raise BadArgument(
            f"{function}: num_splits is not supported at {own}: the number is chosen with the "
            "kernel; pass 0, or 1 for a kernel that is the same for every batch"
        )
    return {"batch_invariant": True} if own else {}


def common(
    softmax_scale: Any,
    softcap: Any,
    alibi_slopes: Any,
    learnable_sink: Any,
    deterministic: Any = False,
) -> dict[str, Any]:
    """What every function has besides."""
    said: dict[str, Any] = {}
    if isinstance(softmax_scale, bool):
        raise BadArgument(f"softmax_scale = {softmax_scale} is no number{_ORDER}")
    if softmax_scale is not None:
        said["scale"] = softmax_scale
    cap = checked.number("softcap", softcap)
    if cap > 0:
        said["softcap"] = cap
    checked.given("alibi_slopes", alibi_slopes)
    if alibi_slopes is not None:
        said["slopes"] = alibi_slopes
    checked.given("learnable_sink", learnable_sink, "heads")
    if learnable_sink is not None:
        said["sinks"] = learnable_sink.float()
    if checked.flag("deterministic", deterministic):
        said["deterministic"] = True
    return said


def one_of(**given: Any) -> Any:
    """The argument, by either of its two names; None where it is left out."""
    (name, value), (other, same) = given.items()
    if value is not None and same is not None:
        raise BadArgument(f"{name} and {other} are two names of one argument; pass one")
    return same if value is None else value


def one_table(block_table: Any, page_table: Any) -> Any:
    """The page table, by either of its names; None where there is none."""
    table = one_of(block_table=block_table, page_table=page_table)
    if table is None:
        return None
    name = "page_table" if block_table is None else "block_table"
    checked.tensor(name, table, "batch", "pages of a sequence", kinds=("int32",))
    return table.contiguous()


def dense_inside(x: Any) -> Any:
    """`x`, copied unless its innermost dimension is contiguous."""
    return x if x.stride(-1) == 1 else x.contiguous()
