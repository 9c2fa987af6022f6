"""The vendors' libraries for GEMMs: a record of each, which says what the library is asked for.

A new library is a record here, the class of its configs in `library_config`, and its binding
(`tilewright.runtime.libraries`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tilewright.ops.gemm.problem import LAYOUTS
from tilewright.ops.gemm.vendor import FP8_MULTIPLE
from tilewright.ops.library import CUBLASLT, HIPBLASLT, LIBRARIES, Algorithm, Chain, Solution


@dataclass(frozen=True, slots=True, kw_only=True)
class VendorLibrary:
    """A library, as far as products go. No field has a default, so a record that forgets one is a
    `TypeError` that names the field.

    kind: its word in kernels' names, without the version. title, owner: its name and its vendor's,
        for people.
    algorithm: the class of what fixes one of its algorithms.
    types: for each dtype of A and B that it multiplies, the dtypes of C that it may store.
    chains, fp8_chains: what it does to the sums of such operands, by our epilogues that are the
        same. Its columns are rows of a row-major C.
    refused: its other operations, and why it is not asked for them.
    blocks: dtypes of operands whose blocks may have scales.
    layouts_8_bit: layouts of 8-bit operands.
    multiple_8_bit: what n, k and the bytes of alignment are multiples of with 8-bit operands.
    """

    kind: str
    title: str
    owner: str
    algorithm: type[Algorithm] | type[Solution]
    types: Mapping[str, tuple[str, ...]]
    chains: Mapping[str, Chain]
    fp8_chains: Mapping[str, Chain]
    refused: Mapping[str, str]
    blocks: tuple[str, ...]
    layouts_8_bit: tuple[str, ...]
    multiple_8_bit: int

    def serves(self, backend: str) -> bool:
        """Whether it is the library of a backend."""
        return self.kind in LIBRARIES.get(backend, ())


_CUBLASLT = VendorLibrary(
    kind=CUBLASLT,
    title="cuBLASLt",
    owner="NVIDIA",
    algorithm=Algorithm,
    types={
        "bf16": ("bf16", "fp32"),
        "fp16": ("fp16", "fp32"),
        "fp32": ("fp32",),
        "e4m3fn": ("bf16", "fp16", "fp32"),
        "int8": ("int32",),
    },
    chains={"": "", "bias": "bias"},
    fp8_chains={"": "", "scale": "scale", "row_scale+col_scale": "scales"},
    # On an H200, `bias+gelu_tanh` into bf16 was off by up to 3.35 times our tolerance (cuBLAS 13,
    # 128×1024×512, algorithm 16). There the largest error was 0.45 among results under 128, where
    # one rounding to bf16 is off by at most 0.25: the sum had been rounded once before the bias
    # was added.
    refused={
        "relu": "the library's relu makes 0 of NaN; relu here keeps it",
        "gelu_tanh": "the library's gelu is less exact than results here may be",
    },
    blocks=("e4m3fn",),
    layouts_8_bit=("rcr",),
    multiple_8_bit=FP8_MULTIPLE,
)

_HIPBLASLT = VendorLibrary(
    kind=HIPBLASLT,
    title="hipBLASLt",
    owner="AMD",
    algorithm=Solution,
    types={
        "bf16": ("bf16", "fp32"),
        "fp16": ("fp16", "fp32"),
        "fp32": ("fp32",),
        "e4m3fn": ("bf16", "fp16", "fp32"),
        "e4m3fnuz": ("bf16", "fp16", "fp32"),
    },
    chains={"": "", "bias": "bias"},
    fp8_chains={"": "", "scale": "scale"},  # it was never asked for more than one scale
    refused=dict.fromkeys(
        ("relu", "gelu_tanh"), "hipBLASLt's activations were never compared with those here"
    ),
    blocks=(),
    layouts_8_bit=LAYOUTS,
    multiple_8_bit=1,
)

RECORDS: dict[str, VendorLibrary] = {one.kind: one for one in (_CUBLASLT, _HIPBLASLT)}
