"""Tilewright's kernels in vLLM. vLLM calls `register` in each of its processes.

``TILEWRIGHT_VLLM`` says which parts vLLM is given, separated by commas:

- ``attention`` (always): the attention backend CUSTOM, used with ``--attention-backend CUSTOM``;
- ``linear``: linear layers without quantisation, in bf16;
- ``fp8``: linear layers of fp8 weights and activations, with scales by tensor, channel and token;
- ``moe``: mixture of experts without quantisation, in bf16.

Not run in a server yet.
"""

from __future__ import annotations

import os

__all__ = ["PARTS", "register"]

PARTS = ("attention", "linear", "fp8", "moe")
"""What `register` may give vLLM."""

_given: set[str] = set()


def register() -> None:
    """Give vLLM the parts that ``TILEWRIGHT_VLLM`` names, each once in a process.

    Raises `ValueError` for a part that there is not.
    """
    for part in sorted(_wanted() - _given):
        if part == "attention":
            from tilewright_vllm.attention import register_attention as give
        elif part == "linear":
            from tilewright_vllm.linear import register_linear as give
        elif part == "fp8":
            from tilewright_vllm.fp8 import register_fp8 as give
        else:
            from tilewright_vllm.moe import register_moe as give
        give()
        _given.add(part)


def _wanted() -> set[str]:
    words = {word.strip() for word in os.environ.get("TILEWRIGHT_VLLM", "").split(",")} - {""}
    unknown = sorted(words - set(PARTS))
    if unknown:
        raise ValueError(
            f"TILEWRIGHT_VLLM has {', '.join(unknown)}; the parts are {', '.join(PARTS)}"
        )
    return words | {"attention"}
