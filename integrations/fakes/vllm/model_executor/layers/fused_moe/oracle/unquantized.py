"""Which experts vLLM takes."""

from __future__ import annotations

from enum import Enum
from typing import Any


class UnquantizedMoeBackend(Enum):
    TRITON = "TRITON"
    MOONEP = "MOONEP"
    FLASHINFER_TRTLLM = "FlashInfer TRTLLM"


def select_unquantized_moe_backend(moe_config: Any) -> tuple[UnquantizedMoeBackend, Any]:
    return UnquantizedMoeBackend.FLASHINFER_TRTLLM, None
