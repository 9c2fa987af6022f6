"""What the portable kernels are built to: nothing spills. The long matrix is
`f1dfe4c6:benchmarks/attention_builds.py --backward`."""

from __future__ import annotations

import pytest

import selection
from shared_builds import build_once
from tilewright import ops
from tilewright.arch import arch
from tilewright.ops.attention_backward import AttentionBackwardProblem

FAMILY = ops.family("attention_backward")
PACKED = {"total_q": 4096, "total_kv": 4096, "others": "packedq+packedkv"}
CASES = [
    ("sm_90", {"head_dim": 128}),
    ("gfx942", {"head_dim": 64, **PACKED}),
    ("gfx1100", {"head_dim": 128, **PACKED}),
    ("gfx1100", {"head_dim": 64, "dtype": "fp32"}),
    ("gfx1201", {"head_dim": 256}),
]
"""Of RDNA the most registers are taken at wide head dims and in fp32, whose products are vector
instructions."""
HERE = selection.architectures(dict.fromkeys(name for name, _ in CASES))
BUILT = selection.some([case for case in CASES if case[0] in HERE], 2)


def kernel(name, fields):
    """The last tile of the default space, with the portable kernels."""
    p = AttentionBackwardProblem(**{"batch": 2, "heads": 8, "q_len": 4096, "kv_len": 4096,
                                    "kv_heads": 2, "right": 0, **fields})  # fmt: skip
    found = FAMILY.default_space(p, arch(name)).expand(arch(name)).configs
    return [c for c in found if c.pipeline == "basic"][-1]


@pytest.fixture(scope="module")
def built(store):
    report = build_once([(kernel(*case), case[0]) for case in BUILT], store)
    return {(r.arch.name, r.name, r.part): r for r in report.results}


@pytest.mark.turns(16)
@pytest.mark.parametrize("case", BUILT, ids=str)
def test_nothing_spills(case, built):
    config = kernel(*case)
    for part in FAMILY.sources(config, arch(case[0])):
        result = built[case[0], config.name, part]
        assert result.kernel is not None, result.reason
        assert result.kernel.resources.spill_bytes == 0, part
