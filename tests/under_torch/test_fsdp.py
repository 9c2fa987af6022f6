"""FSDP, which frees and resizes the storages of parameters between the calls that read them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tilewright import arrays

torch = pytest.importorskip("torch")

SCRIPT = Path(__file__).parent / "sharded_script.py"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float8_e4m3fn, torch.int32])
def test_a_storage_that_numpy_sees_stays_resizable(dtype):
    x = torch.arange(12).view(3, 4).to(dtype).t()
    seen = arrays.to_numpy(x)
    assert x.untyped_storage().resizable()
    assert seen.strides == tuple(s * x.itemsize for s in x.stride())
    assert seen.astype("float32").tolist() == x.float().tolist()
    seen[1, 2] = 3
    assert x[1, 2] == 3


@pytest.mark.turns(64)
@pytest.mark.skipif(not torch.distributed.is_available(), reason="torch without distributed")
def test_training_by_fsdp_is_plain_training(tmp_path):
    command = [sys.executable, SCRIPT]
    ranks = [
        subprocess.Popen(
            [*command, str(rank), tmp_path / "meeting"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    said = [each.communicate() for each in ranks]
    assert [each.returncode for each in ranks] == [0, 0], "\n".join(err for _, err in said)
    assert "trained 2 steps" in said[0][0]
