"""Which releases of Triton are supported. All other modules ask this one.

The user's torch requires its own Triton: torch 2.10 and 2.11 bring 3.6, 2.12 and 2.13 bring 3.7,
2.14 brings 3.8, and 2.15 brings 3.9. The releases differ as follows:

- Gluon renamed its copies and `_reinterpret`: `ops/device/gluon_api.py`.
- A descriptor without a tensor map has one more flag from 3.7 on: `descriptor_flags`.
- From 3.8 on the interpreter takes the formats of `dot_scaled` as they are. From 3.9 on its
  loads and stores take other hints, and no bf16 or fp8: `runtime/interpreter_patch.py`.
- Registers, spills and therefore speed: docs/versions.md.

To support another release, change `NEWEST` here and the range in pyproject.toml, and run
``benchmarks/versions.py``.
"""

from __future__ import annotations

import re

from tilewright import version

OLDEST = (3, 6)
NEWEST = (3, 9)


def installed() -> str:
    """The version of the installed Triton, from its package's metadata; ``""`` if there is none."""
    return version.installed("triton")


def refusal(version: str) -> str:
    """Why `version` (from `installed`) cannot be used, as a sentence; ``""`` if it can."""
    wanted = f"Triton {_text(OLDEST)} to {_text(NEWEST)}"
    if not version:
        return f"triton is not installed, and this needs {wanted}; pip install triton (Linux)"
    if OLDEST <= release(version) <= NEWEST:
        return ""
    return (
        f"Triton {version} is installed, and Tilewright needs {wanted}; install one of these, or "
        "a torch that brings one"
    )


def descriptor_flags(version: str) -> int:
    """The number of one-byte flags after the shape and strides of a descriptor that a kernel takes
    without a tensor map: whether it pads with NaN and, since 3.7, whether it rounds to TF32."""
    return 1 if release(version) < (3, 7) else 2


def release(version: str) -> tuple[int, int]:
    """Major and minor; (0, 0) if `version` does not begin with them."""
    found = re.match(r"(\d+)\.(\d+)", version)
    return (int(found[1]), int(found[2])) if found else (0, 0)


def _text(release: tuple[int, int]) -> str:
    return ".".join(map(str, release))
