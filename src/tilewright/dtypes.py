"""Element types: one table of their names in Tilewright, Triton, torch and NumPy.

`fp8` and `bf8` are aliases whose meaning (OCP or FNUZ) belongs to an architecture. Everything
behind the public entry points, including kernel names, uses the exact type.

Elements of 4 bits are stored in bytes, two neighbours in each: the element with the lower index is
in the lower four bits. torch, NumPy and kernels see bytes (see `tilewright.packing`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from tilewright.errors import BadArgument, nearest, shown

if TYPE_CHECKING:
    import numpy as np


@dataclass(frozen=True, slots=True)
class DType:
    """An element type.

    name: Tilewright's word.
    bits: of one element.
    triton: the word in a kernel signature.
    torch: the attribute of the torch module.
    numpy: the attribute of NumPy or ml_dtypes.
    eps: the spacing of values at 1.0; 0 for integers.
    largest: the value at which casts to it saturate; 0 if they overflow or wrap instead.

    For the 4-bit types, `triton`, `torch` and `numpy` describe the bytes that hold them.
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
    def packed(self) -> int:
        """Elements in a stored unit: 2 for the 4-bit types, which share a byte, else 1."""
        return max(1, 8 // self.bits)

    @property
    def bytes(self) -> int:
        """Bytes of a stored unit: one element, or two elements of 4 bits."""
        return self.packed * self.bits // 8

    @property
    def range(self) -> tuple[float, float] | None:
        """The bounds at which fp32 results saturate when stored in it; None if they overflow
        instead."""
        if self.name == "int8":
            return -128.0, 127.0
        return (-self.largest, self.largest) if self.largest else None

    def size(self, count: int) -> int:
        """Bytes of `count` elements."""
        return -(-count * self.bits // 8)


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
        # Two's complement, -8 … 7.
        DType("int4", 4, "int", "u8", "uint8", "uint8", 0.0),
        # The fp4 of the OCP Microscaling formats: ±0, 0.5, 1, 1.5, 2, 3, 4, 6.
        DType("e2m1", 4, "float", "u8", "float4_e2m1fn_x2", "uint8", 0.5, 6.0),
        # Scales of the MX formats: 2^(code - 127), and NaN for code 255.
        DType("e8m0", 8, "float", "u8", "float8_e8m0fnu", "float8_e8m0fnu", 1.0),
        # A byte, 0 or 1.
        DType("bool", 8, "int", "u8", "bool", "bool", 0.0),
        # Bytes, until a call states the dtype packed in them.
        DType("uint8", 8, "int", "u8", "uint8", "uint8", 0.0),
    )
}

FP8_ALIASES: dict[str, dict[str, str]] = {
    "fp8": {"ocp": "e4m3fn", "fnuz": "e4m3fnuz"},
    "bf8": {"ocp": "e5m2", "fnuz": "e5m2fnuz"},
}
"""The meaning of `fp8` and `bf8` in each flavour."""

COUNTERPART = {"bf16": "fp16", "fp16": "bf16"}
"""Types that are as wide as each other and that matrix units multiply at the same rate."""

_BY_TORCH = {d.torch: d for d in DTYPES.values()}  # uint8 comes last, so it means itself
_BY_NUMPY = {d.numpy: d for d in DTYPES.values()}


_SPELLINGS = {
    "half": "fp16", "f16": "fp16", "float": "fp32", "f32": "fp32", "single": "fp32",
    "e4m3": "fp8", "fp8_e4m3": "fp8", "float8_e4m3": "fp8", "fp8_e5m2": "bf8",
    "fp8_e4m3fn": "e4m3fn", "fp8_e4m3fnuz": "e4m3fnuz", "fp8_e5m2fnuz": "e5m2fnuz",
    "i8": "int8", "i32": "int32", "i64": "int64", "i4": "int4", "fp4": "e2m1", "u8": "uint8",
}  # fmt: skip
"""Names of other libraries that are neither torch's nor NumPy's."""


def spelled(word: str) -> str:
    """The name here, or ``fp8`` or ``bf8``, of an element type as people call it: ``float16``,
    ``half``, ``torch.bfloat16``, ``BF16``. Any other word is returned unchanged."""
    if word in DTYPES:
        return word
    lower = word.strip().lower()
    for library in ("torch.", "np.", "numpy."):
        lower = lower.removeprefix(library)
    if lower in DTYPES or lower in FP8_ALIASES:
        return lower
    found = _BY_TORCH.get(lower) or _BY_NUMPY.get(lower)
    return found.name if found is not None else _SPELLINGS.get(lower, word)


def named(word: Any) -> str:
    """The name of an element type given as text (`spelled`), as torch's (``torch.bfloat16``), or as
    NumPy's or ml_dtypes' (``np.float16``, ``np.dtype("float16")``). Raises `BadArgument` for
    anything else."""
    if isinstance(word, str):
        return spelled(word)
    said = str(word)
    if said.startswith("torch."):
        found = _BY_TORCH.get(said[len("torch.") :])
    else:
        kind = word if isinstance(word, type) else type(word)
        said = getattr(word, "name", None) or kind.__name__
        found = _BY_NUMPY.get(said) if kind.__module__.startswith(("numpy", "ml_dtypes")) else None
    if found is None:
        raise BadArgument(f"{shown(word)} is not an element type; known: {', '.join(DTYPES)}")
    return found.name


def dtype(name: str) -> DType:
    """The element type called `name`. Raises `BadArgument` for an unknown or ambiguous name."""
    if not isinstance(name, str):
        raise BadArgument(f"a dtype is a name such as 'bf16', not {shown(name)}")
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
        f"unknown dtype {shown(name)}{nearest(name, [*DTYPES, *FP8_ALIASES])}; "
        f"known: {', '.join(DTYPES)}, and fp8 and bf8 where an architecture gives the flavour"
    )


def torch_called(name: str) -> str | None:
    """The element type that torch calls `name` (``bfloat16``); None if there is none."""
    found = _BY_TORCH.get(name)
    return None if found is None else found.name


def resolve(name: str, flavour: str) -> str:
    """The exact type name of an element type as people call it (`spelled`): `fp8` and `bf8` become
    the types of `flavour` (``"ocp"`` or ``"fnuz"``)."""
    if isinstance(name, str):
        name = spelled(name)
    if isinstance(name, str) and name in FP8_ALIASES:
        return FP8_ALIASES[name][flavour]
    return dtype(name).name


def of(array: Any) -> DType:
    """The element type of a torch tensor or NumPy array. Raises `BadArgument` if it is not
    supported."""
    return of_dtype(array.dtype)


def of_dtype(kind: Any) -> DType:
    """The element type that is torch's or NumPy's `kind`. Raises `BadArgument` if it is not
    supported."""
    text = str(kind)
    found = _BY_TORCH.get(text[6:]) if text.startswith("torch.") else _BY_NUMPY.get(text)
    if found is None:
        raise BadArgument(f"elements of type {text} are not supported; known: {', '.join(DTYPES)}")
    return found


def numpy_dtype(d: DType) -> np.dtype[Any]:
    """The NumPy dtype (ml_dtypes' for bf16 and the 8-bit floats)."""
    import numpy as np

    if d.name in ("bf16", "e4m3fn", "e5m2", "e4m3fnuz", "e5m2fnuz", "e8m0"):
        import ml_dtypes

        found: np.dtype[Any] = np.dtype(getattr(ml_dtypes, d.numpy))
        return found
    return np.dtype(d.numpy)
