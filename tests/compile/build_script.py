"""``python build_script.py STORE CONFIGS``: build in a process of its own, to be killed or raced.

CONFIGS is how many element-wise kernels, for sm_90 and gfx942 in turn. With STOP_AT_THE_FIRST in
the environment, the process stops itself when the first is done, to be killed in the middle.
"""

from __future__ import annotations

import os
import signal
import sys

import fake_family


def requests(count: int) -> list[tuple[fake_family.FakeConfig, str]]:
    return [
        (fake_family.FakeConfig(block=128 << i // 2), ("sm_90", "gfx942")[i % 2])
        for i in range(count)
    ]


def tell(result: object, done: int, total: int) -> None:
    print(result.status, flush=True)
    if done == 1 and os.environ.get("STOP_AT_THE_FIRST"):
        os.kill(os.getpid(), signal.SIGSTOP)


if __name__ == "__main__":
    from tilewright.compile import Store, build

    fake_family.install()
    store = Store(sys.argv[1])
    report = build(
        requests(int(sys.argv[2])),
        store=store,
        workers=2,
        progress=tell,
    )
    print(report, "triton" in sys.modules)
    sys.exit(bool(report.failures))
