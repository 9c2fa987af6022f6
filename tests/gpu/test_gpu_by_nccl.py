"""DTensor's rules, DDP and FSDP2 by NCCL: by one process, and by two with a GPU each."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.gpu
SCRIPT = Path(__file__).with_name("ranks_script.py")


@pytest.mark.parametrize("count", [1, 2])
def test_processes_split_copy_and_shard_a_model(count, tmp_path):
    if torch.cuda.device_count() < count:
        pytest.skip("there is one GPU")
    ranks = [
        subprocess.Popen(
            [sys.executable, SCRIPT, str(rank), str(count), tmp_path / "meeting", "cuda"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(count)
    ]
    said = [each.communicate() for each in ranks]
    codes = [each.returncode for each in ranks]
    assert codes == [0] * count, "\n".join(err[-3000:] for _, err in said)
    assert said[0][0].split() == ["products", "parallel", "replicated", "sharded"]
