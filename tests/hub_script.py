"""A user of an exported folder, who has torch and Triton alone.

Arguments: the folder, the device.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path

import torch


class Refuses:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "tilewright":
            raise ImportError(f"{name} is imported")


sys.meta_path.insert(0, Refuses())
folder = Path(sys.argv[1])
about = json.loads((folder / "metadata.json").read_text())
spec = importlib.util.spec_from_file_location(about["id"], folder / "__init__.py")
torch.set_default_device(sys.argv[2])
kernels = importlib.util.module_from_spec(spec)
sys.modules[about["id"]] = kernels
spec.loader.exec_module(kernels)  # as `kernels` imports it

a, b, bias = torch.randn(40, 64).half(), torch.randn(48, 64).half().T, torch.randn(48).half()
found = kernels.gemm(a, b, bias, epilogue="bias+relu")
theirs = torch.relu(a.float() @ b.float() + bias).half()
torch.testing.assert_close(found, theirs, atol=0.02, rtol=0.02)
torch.testing.assert_close(kernels.gemm(a, b, bias=bias, epilogue="bias+relu"), found)
q, k, v = torch.randn(1, 24, 4, 32), torch.randn(1, 24, 2, 32), torch.randn(1, 24, 2, 32)
found = kernels.attention(q, k, v, window=(None, 0), scale=0.25)
q, k, v = (x.transpose(1, 2) for x in (q, k, v))
attend = torch.nn.functional.scaled_dot_product_attention
theirs = attend(q, k, v, is_causal=True, scale=0.25, enable_gqa=True).transpose(1, 2)
torch.testing.assert_close(found, theirs, atol=3e-3, rtol=3e-3)
try:
    kernels.gemm(a[1:], b, bias, epilogue="bias+relu")
except ValueError as error:
    print(error)
