"""Element types: one table for their names in Tilewright, Triton, torch and NumPy.

`fp8` and `bf8` are aliases whose meaning (OCP or FNUZ) belongs to an architecture; everything
past the front door, kernel names included, carries the exact type.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from tilewright.errors import BadArgument, nearest

if TYPE_CHECKING:
    import numpy as np


@dataclass(frozen=True, slots=True)
class DType:
    """An element type.

    `name` is Tilewright's word, `bits` the storage width, `triton` the word in a kernel
    signature, `torch` the attribute of the torch module, `numpy` that of NumPy or ml_dtypes,
    `eps` the spacing of values at 1.0 (0 for integers), `largest` the value at which casts to
    it saturate (0 where they do not, but overflow or wrap).
    """

    name: str
    bits: int
    kind: Literal["float", "int"]
    triton: str
    torch: str
    numpy: str
    eps: float
    largest: float = 0.0

    @property
    def bytes(self) -> int:
        return self.bits // 8


DTYPES: dict[str, DType] = {
    d.name: d
    for d in (
        DType("fp32", 32, "float", "fp32", "float32", "float32", 2.0**-23),
        DType("fp16", 16, "float", "fp16", "float16", "float16", 2.0**-10),
        DType("bf16", 16, "float", "bf16", "bfloat16", "bfloat16", 2.0**-7),
        DType("e4m3fn", 8, "float", "fp8e4nv", "float8_e4m3fn", "float8_e4m3fn", 2.0**-3, 448.0),
        DType("e5m2", 8, "float", "fp8e5", "float8_e5m2", "float8_e5m2", 2.0**-2, 57344.0),
        DType(
            "e4m3fnuz", 8, "float", "fp8e4b8", "float8_e4m3fnuz", "float8_e4m3fnuz", 2.0**-3, 240.0
        ),
        DType(
            "e5m2fnuz",
            8,
            "float",
            "fp8e5b16",
            "float8_e5m2fnuz",
            "float8_e5m2fnuz",
            2.0**-2,
            57344.0,
        ),
        DType("int8", 8, "int", "i8", "int8", "int8", 0.0),
        DType("int32", 32, "int", "i32", "int32", "int32", 0.0),
        DType("int64", 64, "int", "i64", "int64", "int64", 0.0),
    )
}

FP8_ALIASES: dict[str, dict[str, str]] = {
    "fp8": {"ocp": "e4m3fn", "fnuz": "e4m3fnuz"},
    "bf8": {"ocp": "e5m2", "fnuz": "e5m2fnuz"},
}
"""What `fp8` and `bf8` mean in each flavour."""

_BY_TORCH = {d.torch: d for d in DTYPES.values()}
_BY_NUMPY = {d.numpy: d for d in DTYPES.values()}


def dtype(name: str) -> DType:
    """The element type called `name`. Raises `BadArgument` for an unknown or ambiguous name."""
    found = DTYPES.get(name)
    if found is not None:
        return found
    if name in FP8_ALIASES:
        meanings = " or ".join(FP8_ALIASES[name].values())
        raise BadArgument(
            f"dtype '{name}' means {meanings} depending on the architecture; "
            "name the exact type, or resolve it with an architecture"
        )
    raise BadArgument(
        f"unknown dtype '{name}'{nearest(name, [*DTYPES, *FP8_ALIASES])}; "
        f"known: {', '.join(DTYPES)}, and fp8 and bf8 where an architecture gives the flavour"
    )


def resolve(name: str, flavour: str) -> str:
    """The exact type name: `fp8` and `bf8` become those of `flavour` (``"ocp"`` or ``"fnuz"``)."""
    if name in FP8_ALIASES:
        return FP8_ALIASES[name][flavour]
    return dtype(name).name


def of(array: Any) -> DType:
    """The element type of a torch tensor or NumPy array. Raises `BadArgument` if not ours."""
    text = str(array.dtype)
    found = _BY_TORCH.get(text[6:]) if text.startswith("torch.") else _BY_NUMPY.get(text)
    if found is None:
        raise BadArgument(f"elements of type {text} are not supported; known: {', '.join(DTYPES)}")
    return found


def numpy_dtype(d: DType) -> np.dtype[Any]:
    """The NumPy dtype (ml_dtypes' for bf16 and the fp8 types)."""
    import numpy as np

    if d.name in ("bf16", "e4m3fn", "e5m2", "e4m3fnuz", "e5m2fnuz"):
        import ml_dtypes

        found: np.dtype[Any] = np.dtype(getattr(ml_dtypes, d.numpy))
        return found
    return np.dtype(d.numpy)
