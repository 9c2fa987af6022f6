"""Tilewright's kernels in SGLang. SGLang calls `register` in each of its processes.

``TILEWRIGHT_SGLANG`` says which parts SGLang is given, separated by commas:

- ``attention`` (always): ``--attention-backend tilewright``;
- ``linear``: linear layers without quantisation, in bf16;
- ``fp8``: products of fp8 activations and fp8 weights with a scale for each channel;
- ``moe``: mixture of experts without quantisation, in bf16.

Not run in a server yet.
"""

from __future__ import annotations

import os

__all__ = ["PARTS", "register"]

PARTS = ("attention", "linear", "fp8", "moe")
"""What `register` may give SGLang."""

_given: set[str] = set()


def register() -> None:
    """Give SGLang the parts that ``TILEWRIGHT_SGLANG`` names, each once in a process.

    Raises `ValueError` for a part that there is not.
    """
    for part in sorted(_wanted() - _given):
        if part == "attention":
            from tilewright_sglang.attention import register_attention

            register_attention()
        else:
            from tilewright_sglang.hooks import register_hook

            register_hook(part)
        _given.add(part)


def _wanted() -> set[str]:
    words = {word.strip() for word in os.environ.get("TILEWRIGHT_SGLANG", "").split(",")} - {""}
    unknown = sorted(words - set(PARTS))
    if unknown:
        raise ValueError(
            f"TILEWRIGHT_SGLANG has {', '.join(unknown)}; the parts are {', '.join(PARTS)}"
        )
    return words | {"attention"}
