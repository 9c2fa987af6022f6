"""The kinds of aiter's GEMM tuning files, and how the problem of a line is said in each.

aiter (https://github.com/ROCm/aiter, aiter/configs) has a file for each of its operators, called
``<form>_tuned_gemm.csv`` and ``<form>_untuned_gemm.csv``. Only a part of the problem stands in the
columns; the rest is what the operator does:

    bf16               X·Wᵀ, then a factor (scaleAB), then a bias; W shuffled with bpreshuffle
    bf16_batched       B products of bf16 (the file is bf16_tuned_batched_gemm.csv)
    a8w8               int8 or fp8, with a scale for each row of X and each row of W
    a8w8_batched       B of these, of int8 (a8w8_tuned_batched_gemm.csv); see its `Form.differs`
    a8w8_bpreshuffle   a8w8 with W shuffled
    a8w8_blockscale    fp8, with a scale for 1×128 of X and 128×128 of W
    a8w8_blockscale_bpreshuffle   the same with W shuffled, which no kernel here reads
    a4w4_blockscale    MXFP4: a power of two for each 32 of K
    a8w8_blockscale_batched   a8w8_blockscale, B times, its scales powers of two
                       (batched_gemm_a8w8_blockscale_mxscale_tuned.csv), which no kernel here reads
    a8w8_asm           a8w8 in int8 with W shuffled and a bias, of aiter's assembly kernels
                       (asm_a8w8_gemm.csv, which aiter itself reads no more)

aiter's W is N × K, so every layout here is ``rcr``, or ``rsr`` where it is shuffled.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tilewright.dtypes import DTYPES, torch_called
from tilewright.errors import BadArgument
from tilewright.ops.foreign import Foreign, flag, microseconds, whole

SHAPE = ("M", "N", "K")


@dataclass(frozen=True, slots=True)
class Form:
    """One kind of file (a `tilewright.ops.foreign.Form`).

    key: columns that say the problem, besides those of the GPU; those after the sizes may be left
        out.
    says: what the operator adds, in the words of a problem.
    dtype: of the operands, if no column says it.
    results: the other columns of a tuned file, in order.
    differs: what the operator does and no problem here can say. The reader of a file is told.
    """

    name: str
    key: tuple[str, ...]
    says: tuple[tuple[str, str], ...]
    dtype: str
    results: tuple[str, ...]
    differs: str = ""

    @property
    def sizes(self) -> tuple[str, ...]:
        """The columns that no file may leave out."""
        return tuple(column for column in self.key if column in _SIZES)

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of a tuned file, except those of the GPU."""
        return (*self.key, *self.results)

    def strange(self, titles: Sequence[str]) -> list[str]:
        """The titles that no file of aiter's GEMMs has. Raises `BadArgument` for a title that is
        missing, or that only files of other forms have."""
        missing = [column for column in self.sizes if column not in titles]
        if missing:
            raise BadArgument(f"a file of form {self.name} has a column {', '.join(missing)}")
        problem = {column for form in FORMS.values() for column in form.key}
        wrong = sorted({*titles} & problem - {*self.key, _DTYPE})
        if wrong:
            raise BadArgument(f"a file of form {self.name} has no column {', '.join(wrong)}")
        results = {column for form in FORMS.values() for column in form.results}
        return [title for title in titles if title not in problem | results]

    def read(self, cells: Mapping[str, str]) -> tuple[Foreign]:
        """The problem of a line, with its kernel and its time if the file is a tuned one."""
        for column in self.sizes:
            whole(cells, column)
        words, otherwise = tuple(self.words(cells).items()), (("dtype", self.dtype),)
        us = microseconds(cells, "us")
        if "us" not in cells:
            return (Foreign(words, otherwise=otherwise),)
        number = cells.get("kernelId") or cells.get("solidx", "")
        kernel, library = cells.get("kernelName", "") or number, cells.get("libtype", "")
        return (Foreign(words, kernel, us, library=library, otherwise=otherwise),)

    def line(self, problem: Any, config: Any) -> dict[str, str]:
        """`cells`, and how many parts of K the kernel sums on its own."""
        return {**self.cells(problem), "splitK": str(config.split_k)}

    def words(self, cells: Mapping[str, str]) -> dict[str, str]:
        """The problem of a line, in words, as far as the line and the operator say it. Raises
        `BadArgument` for a cell that cannot be meant."""
        said = {word: cells[column] for column, word in _SIZES.items() if column in self.key}
        said |= dict(self.says)
        for column in ("dtype", "q_dtype_w"):
            if cells.get(column):
                said["dtype"] = _dtype(cells[column])
        if cells.get("outdtype"):
            said["dtype_c"] = _dtype(cells["outdtype"])
        steps = [step for column, step in _STEPS.items() if flag(cells, column)]
        if steps:
            said["epilogue"] = "+".join(filter(None, (said.get("epilogue"), *steps)))
        if flag(cells, "bpreshuffle"):
            said["layout"] = "rsr"
        return said

    def cells(self, problem: Any) -> dict[str, str]:
        """The cells that `words` may read as `problem`: whether they do is the caller's to see."""
        steps = problem.epilogue.split("+")
        every = {
            **{column: str(getattr(problem, word)) for column, word in _SIZES.items()},
            "q_dtype_w": _torch(problem.dtype_a),
            "dtype": _torch(problem.dtype_a),
            "outdtype": _torch(problem.dtype_c),
            "bpreshuffle": str(problem.layout == "rsr"),
            **{column: str(step in steps) for column, step in _STEPS.items()},
        }
        return {column: every[column] for column in self.key}


_SIZES = {"B": "batch", "M": "m", "N": "n", "K": "k"}
_SIZES |= {column.lower(): word for column, word in _SIZES.items()}
_STEPS = {"scaleAB": "scale", "bias": "bias"}  # in the order of the operator
_DTYPE = "q_dtype_w"
"""A column that files of forms without need of it may have too."""
_RESULTS = ("kernelId", "splitK", "us", "kernelName", "tflops", "bw", "errRatio")
_BF16 = ("bias", "dtype", "outdtype", "scaleAB", "bpreshuffle")
_ALWAYS_BF16 = {*SHAPE, "bias", "dtype"}  # the oldest of its columns
_BF16_RESULTS = (
    "libtype", "solidx", "splitK", "us", "kernelName", "err_ratio", "tflops", "bw",
)  # fmt: skip
_ROWWISE = (("dtype_c", "bf16"), ("epilogue", "row_scale+col_scale"))
_BLOCKS = (("dtype_c", "bf16"), ("scale_a", "1x128"), ("scale_b", "128x128"))
_SHUFFLED = ("layout", "rsr")

FORMS: dict[str, Form] = {
    form.name: form
    for form in (
        Form("bf16", (*SHAPE, *_BF16), (), "bf16", _BF16_RESULTS),
        Form("bf16_batched", ("B", *SHAPE), (), "bf16", _RESULTS),
        Form("a8w8", (*SHAPE, "q_dtype_w"), _ROWWISE, "int8", _RESULTS),
        Form(
            "a8w8_batched",
            ("B", *SHAPE),
            _ROWWISE,
            "int8",
            _RESULTS,
            "aiter has scales for each product of a batch; in the problems here all share one set",
        ),
        Form(
            "a8w8_bpreshuffle",
            (*SHAPE, "q_dtype_w"),
            (*_ROWWISE, _SHUFFLED),
            "fp8",
            ("libtype", *_RESULTS),
        ),
        Form("a8w8_blockscale", SHAPE, _BLOCKS, "fp8", ("libtype", *_RESULTS)),
        Form(
            "a8w8_blockscale_bpreshuffle",
            SHAPE,
            (*_BLOCKS, _SHUFFLED),
            "fp8",
            ("libtype", *_RESULTS),
        ),
        Form(
            "a4w4_blockscale",
            SHAPE,
            (("dtype_c", "bf16"), ("scale_a", "1x32-e8m0"), ("scale_b", "32x1-e8m0")),
            "e2m1",
            _RESULTS,
        ),
        Form(
            "a8w8_blockscale_batched",
            ("b", "m", "n", "k"),
            (("dtype_c", "bf16"), ("scale_a", "1x128-e8m0"), ("scale_b", "128x128-e8m0")),
            "fp8",
            ("libtype", *_RESULTS),
        ),
        Form(
            "a8w8_asm",
            (*SHAPE, "bias", "outdtype"),
            (*_ROWWISE, _SHUFFLED),
            "int8",
            ("splitK", "us"),
        ),
    )
}

_BY_COLUMNS = {
    "bf16": _ALWAYS_BF16,
    "a8w8_blockscale_batched": {"gfx", "b", "m", "n", "k"},
    "a8w8_asm": {*SHAPE, "bias", "outdtype"},
}
"""Columns that only one form's files have together; the first that fits counts."""

_FILE = re.compile(r"(?P<form>.+?)_(?:un)?tuned_(?P<batched>batched_)?gemm")


def form_of(titles: Sequence[str], file: str) -> Form | None:
    """The form of a file, by its columns or its name; None if it is no file of GEMMs. Raises
    `BadArgument` for a file of GEMMs whose form neither says."""
    for name, together in _BY_COLUMNS.items():
        if together.issubset(titles):
            return FORMS[name]
    said = _FILE.match(file)
    if said is not None:
        called = said["form"].removesuffix("_cktile") + ("_batched" if said["batched"] else "")
        fits = [name for name in FORMS if called == name or called.endswith(f"_{name}")]
        if fits:
            return FORMS[max(fits, key=len)]
    if {*SHAPE} <= {*titles}:
        raise BadArgument(
            "neither its columns nor its name say which of aiter's files it is: say the form, one "
            f"of {', '.join(FORMS)}, or call it as aiter does (a8w8_tuned_gemm.csv); a list in "
            "Tilewright's words has columns m, n, k"
        )
    return None


def _dtype(cell: str) -> str:
    found = torch_called(cell.removeprefix("torch."))
    if found is None:
        raise BadArgument(f"dtype '{cell}' is none of torch's that is known here")
    return found


def _torch(dtype: str) -> str:
    return f"torch.{DTYPES[dtype].torch}"
