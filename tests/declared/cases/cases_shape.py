"""Small problems of the operations on shapes."""

from tilewright.declared.shape._problems import permuted

CASES = {
    "strided_copy": (
        permuted((2, 48, 80), (0, 2, 1)),
        permuted((2, 5, 3, 32), (0, 2, 1, 3), dtype="fp16"),
        permuted((3, 7, 4, 5), (3, 1, 0, 2), dtype="fp32"),
        permuted((2, 2, 3, 2, 3, 2), (5, 3, 1, 4, 0, 2), dtype="int8"),
        permuted((2, 3, 49), (0, 2, 1), dtype="int64"),
        permuted((1, 3, 20, 48), (0, 2, 3, 1)),
        {**permuted((40, 32), (1, 0)), "s4": 2, "s5": 96, "dtype": "fp32"},
        permuted((40, 24), (0, 1), dtype="fp32", out_dtype="bf16"),
        permuted((32, 24), (1, 0), out_dtype="e4m3fn", has_scale=True),
        permuted((3, 100), (0, 1), dtype="fp32", out_dtype="int8", has_scale=True),
        permuted((3, 100), (0, 1), dtype="int32", out_dtype="fp32"),
        permuted((8, 20), (0, 1), dtype="fp32", out_dtype="e5m2"),
    ),
}
