"""torch's own functions of activations, by the names that epilogues and `linear` know."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch

_functions = torch.nn.functional

ACTIVATIONS: Mapping[str, Callable[[Any], Any]] = {
    "gelu": _functions.gelu,
    "gelu_tanh": partial(_functions.gelu, approximate="tanh"),
    "relu": torch.relu,
    "silu": _functions.silu,
}
