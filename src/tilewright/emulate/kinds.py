"""What kind of instruction a mnemonic is, by the unit that executes it."""

from __future__ import annotations

import re
from typing import Literal

from tilewright.errors import UnknownInstruction

Kind = Literal[
    "matrix",
    "vector",
    "transcendental",
    "scalar",
    "LDS",
    "global",
    "scratch",
    "scalar memory",
    "cache",
    "branch",
    "wait",
    "barrier",
    "other",
]

KINDS: dict[Kind, str] = {
    "matrix": "products of matrices: MFMA, WMMA",
    "vector": "all other arithmetic and moves of vector registers; a dual instruction is one",
    "transcendental": "exponentials, logarithms, reciprocals, roots, sines",
    "scalar": "arithmetic of scalar registers",
    "LDS": "reads and writes of shared memory, and moves between lanes through its crossbar",
    "global": "loads, stores and atomics of global memory, loads straight to LDS among them",
    "scratch": "loads and stores of what did not fit into registers",
    "scalar memory": "loads into scalar registers",
    "cache": "write-backs and invalidations of caches",
    "branch": "branches, taken or not",
    "wait": "waits for memory",
    "barrier": "barriers of a workgroup",
    "other": "no operation, hints to the scheduler, messages, the end",
}
"""The kinds, and what each holds."""

_RULES: tuple[tuple[str, Kind], ...] = (
    (r"v_s?(mfma|wmma|mfmac|wmmac)_", "matrix"),
    (r"v_(s_)?(exp|log|rcp|rsq|sqrt|sin|cos|tanh)_", "transcendental"),
    (r"v_", "vector"),
    (r"ds_", "LDS"),
    (r"scratch_", "scratch"),
    (r"(buffer|global)_(inv|wb|wbl2|wbinv|gl\d)", "cache"),
    (r"(buffer|global|flat|tensor)_", "global"),
    (r"s_dcache", "cache"),
    (r"s_(load|store|buffer|scratch|atc|mem)", "scalar memory"),
    (r"s_c?branch|s_(setpc|set_pc|add_pc|swappc|call)", "branch"),
    (r"s_wait", "wait"),
    (r"s_barrier", "barrier"),
    (r"s_(nop|delay_alu|clause|setprio|sleep|sendmsg|endpgm|code_end|set_|sethalt|trap)", "other"),
    (r"s_", "scalar"),
)
"""The first that matches decides."""


def kind_of(mnemonic: str) -> Kind:
    """The kind of an instruction. Raises `UnknownInstruction` for a mnemonic of no unit."""
    for pattern, kind in _RULES:
        if re.match(pattern, mnemonic):
            return kind
    raise UnknownInstruction(f"no unit of a compute unit executes `{mnemonic}`")
