"""Named sets of kernels to build: the gradients of what frameworks call (`attention.profiles`)."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import fields
from functools import partial

from tilewright.arch.model import Arch
from tilewright.ops.attention import features
from tilewright.ops.attention import profiles as forward
from tilewright.ops.attention.gradients import refused
from tilewright.ops.attention.problem import AttentionProblem
from tilewright.ops.attention_backward.problem import USUAL, AttentionBackwardProblem
from tilewright.ops.profiles import Profile

TRAINING = ("flash", "pytorch", "aiter", "fp32")
"""Attention's profiles that have calls of training."""


def _problems(name: str, arch: Arch) -> Iterator[AttentionBackwardProblem]:
    """The gradients of the profile's calls of more than one query that return LSE: with and without
    the bias's."""
    for one in forward.PROFILES[name].problems(arch):
        if "lse" in one.words and one.q_len > 1 and refused(one) is None:
            said = {f.name: getattr(one, f.name) for f in fields(AttentionProblem)}
            said["others"] = features.join(features.listed(one.others) - {"lse"})
            yield AttentionBackwardProblem(**said)
            if one.bias_shape:
                yield AttentionBackwardProblem(**said, grads=f"{USUAL}+dbias")


def _all(arch: Arch) -> Iterator[AttentionBackwardProblem]:
    return itertools.chain.from_iterable(_problems(name, arch) for name in TRAINING)


PROFILES = {
    **{
        name: Profile(f"gradients: {forward.PROFILES[name].about}", partial(_problems, name))
        for name in TRAINING
    },
    "all": Profile("all of these", _all),
}
"""By name."""
