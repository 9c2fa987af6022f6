"""``python build_script.py STORE CONFIGS``: build in a process of its own, to be killed or raced.

CONFIGS is how many element-wise kernels, for sm_90 and gfx942 in turn.
"""

from __future__ import annotations

import sys

import fake_family


def requests(count: int) -> list[tuple[fake_family.FakeConfig, str]]:
    return [
        (fake_family.FakeConfig(block=128 << i // 2), ("sm_90", "gfx942")[i % 2])
        for i in range(count)
    ]


if __name__ == "__main__":
    from tilewright.build import Store, build

    fake_family.install()
    store = Store(sys.argv[1])
    report = build(
        requests(int(sys.argv[2])),
        store=store,
        workers=2,
        progress=lambda result, done, total: print(result.status, flush=True),
    )
    print(report, "triton" in sys.modules)
    sys.exit(bool(report.failures))
