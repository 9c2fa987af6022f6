"""Forms of moving and casting elements."""

from __future__ import annotations

from typing import Any

import torch

from forms.common import clipped, kind


def strided_copy(x: Any, scale: Any, out_dtype: str) -> Any:
    if scale is not None:
        return clipped(x.float() / scale, out_dtype).contiguous()
    return x.to(kind(out_dtype), copy=True, memory_format=torch.contiguous_format)


FORMS = {"strided_copy": strided_copy}
