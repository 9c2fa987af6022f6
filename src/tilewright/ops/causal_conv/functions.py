"""``causal_conv1d`` and ``causal_conv1d_update``, with the arguments and the meaning of
causal-conv1d (Dao-AILab, https://github.com/Dao-AILab/causal-conv1d)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tilewright import checks
from tilewright.errors import BadArgument, shown

Operation = Callable[..., Any]


def _causal_conv1d(run: Operation) -> Operation:
    def causal_conv1d(
        x: Any,
        weight: Any,
        bias: Any = None,
        seq_idx: Any = None,
        initial_states: Any = None,
        return_final_states: bool = False,
        final_states_out: Any = None,
        activation: str | None = None,
    ) -> Any:
        """A causal depthwise convolution of sequences; differentiable in x, weight, bias and
        initial states.

        x: [batch, channels, positions], with neighbouring channels or positions.
        weight: [channels, width], of a width up to 16; of any of the dtypes of x.
        bias: [channels], in the dtype of weight.
        seq_idx: [batch, positions], int32: of which sequence each position is. Results see the
            positions of their own sequence; negative numbers are padding, whose results are 0.
        initial_states: [batch, channels, width - 1]: what is before the first position; None is
            zeros.
        return_final_states: return (y, final states) and not y alone: the last width - 1
            positions, [batch, channels, width - 1].
        final_states_out: where final states are written.
        activation: None, ``"silu"`` or ``"swish"``, which are the same.

        Raises `BadArgument`, also for seq_idx beside states.
        """
        return_final_states = checks.plain("return_final_states", return_final_states)
        if type(return_final_states) is not bool:
            raise BadArgument(f"return_final_states = {shown(return_final_states)} is no flag")
        if final_states_out is not None and not return_final_states:
            raise BadArgument("final_states_out is written where return_final_states is true")
        said = {"final": True} if return_final_states else {}
        found = run(
            x, weight, bias=bias, seq_idx=seq_idx, initial_states=initial_states,
            activation=activation, **said,
        )  # fmt: skip
        if final_states_out is None:
            return found
        y, final = found
        final_states_out[...] = final
        return y, final_states_out

    return causal_conv1d


def _causal_conv1d_update(run: Operation) -> Operation:
    def causal_conv1d_update(
        x: Any,
        conv_state: Any,
        weight: Any,
        bias: Any = None,
        activation: str | None = None,
        cache_seqlens: Any = None,
        conv_state_indices: Any = None,
    ) -> Any:
        """New positions of `causal_conv1d`, behind those in a state, which is updated in place.

        x: [batch, channels], a position for each sequence, or [batch, channels, positions].
        conv_state: [batch, channels, slots] in the dtype of x, of width - 1 slots or more.
        weight, bias, activation: as of `causal_conv1d`.
        cache_seqlens: [batch], int32: the state is circular, and new positions are written from
            these places on, modulo slots; from 0 on for negative numbers. None: the state's
            positions move up.
        conv_state_indices: [batch], int32: which entry of a larger conv_state is each sequence's;
            no two the same. Numbers that name no entry, such as negative ones, are padding: their
            results are 0, and nothing is written.

        Returns y in the shape of x. It has no gradients. Raises `BadArgument`.
        """
        one = len(getattr(x, "shape", ())) == 2
        y = run(
            x[..., None] if one else x, conv_state, weight, direction="update", bias=bias,
            activation=activation, cache_seqlens=cache_seqlens,
            conv_state_indices=conv_state_indices,
        )  # fmt: skip
        return y[..., 0] if one else y

    return causal_conv1d_update


FUNCTIONS: Mapping[str, Callable[[Operation], Operation]] = {
    "causal_conv1d": _causal_conv1d,
    "causal_conv1d_update": _causal_conv1d_update,
}
"""By name, each from the operation."""
