"""Small problems of the operations on shapes."""

from tilewright.declared.shape._problems import back, both, chained, permuted, windows

WINDOWS = (
    windows(2, 9, 32, 3, **both("pad", 1), **both("after", 1)),
    windows(2, 9, 3, 3, **both("stride", 2), pad_h=1, after_w=2, dilation_w=2, dtype="fp32"),
    windows(1, 8, 96, 2, **both("stride", 2), groups=3, dtype="fp16"),
    windows(2, 7, 6, 3, **both("stride", 3), groups=2),
    windows(1, 8, 3, 4, **both("stride", 4)),
    windows(2, 7, 12, 3, **both("pad", 1), **both("after", 1), dtype="fp32"),
    windows(1, 9, 24, 3, **both("stride", 2), **both("pad", 1), **both("after", 1), groups=6),
)

CASES = {
    "strided_copy": (
        permuted((2, 48, 80), (0, 2, 1)),
        permuted((2, 5, 3, 32), (0, 2, 1, 3), dtype="fp16"),
        permuted((3, 7, 4, 5), (3, 1, 0, 2), dtype="fp32"),
        permuted((2, 2, 3, 2, 3, 2), (5, 3, 1, 4, 0, 2), dtype="int8"),
        permuted((2, 3, 49), (0, 2, 1), dtype="int64"),
        permuted((2, 3, 20, 48), (0, 2, 3, 1)),  # few channels, and back
        permuted((2, 20, 48, 3), (0, 3, 1, 2), dtype="fp32", out_dtype="fp16"),
        permuted((5, 4, 1200), (0, 2, 1), dtype="fp32"),
        permuted((48, 20), (1, 0)),
        permuted((2, 196, 24), (0, 2, 1)),  # 4 elements at once on one side, 8 on the other
        permuted((2, 3, 50), (0, 2, 1)),  # rows of few elements, two at once
        permuted((2, 50, 3), (0, 2, 1)),
        permuted((5, 24, 3, 20), (0, 2, 1, 3)),
        {**permuted((40, 32), (1, 0)), "s4": 2, "s5": 96, "dtype": "fp32"},
        permuted((40, 24), (0, 1), dtype="fp32", out_dtype="bf16"),
        permuted((32, 24), (1, 0), out_dtype="e4m3fn", has_scale=True),
        permuted((3, 100), (0, 1), dtype="fp32", out_dtype="int8", has_scale=True),
        permuted((3, 100), (0, 1), dtype="int32", out_dtype="fp32"),
        permuted((8, 20), (0, 1), dtype="fp32", out_dtype="e5m2"),
        permuted((3, 50, 2, 15), (0, 2, 1, 3)),  # rows of odd length, over several tiles
        permuted((3, 50, 2, 5), (0, 2, 1, 3)),  # shorter ones
        permuted((2, 3, 5, 4, 7, 1), (2, 0, 4, 3, 1, 5), dtype="int64"),
        permuted((2, 3, 5, 4, 7, 9), (2, 0, 4, 3, 1, 5), dtype="fp32", out_dtype="fp16"),
        permuted((9, 333), (0, 1), dtype="fp32", out_dtype="fp16"),  # an odd number of elements
        permuted((9, 333), (0, 1), out_dtype="int8", has_scale=True),
    ),
    "elementwise_chain": (
        chained((3, 20, 48), "mul+add+gelu", 5, 7),
        chained((5, 6, 7, 9), "bias+silu+mul", 1, 10, a_dtype="fp16", b_dtype="bf16"),
        chained((40, 30), "clamp+add", 0, 0, 2, dtype="fp32"),
        chained((3, 20, 52), "mul+add", 5, 7),
        {**chained((8, 32), "add+relu", 3, dtype="fp32"), "x_over": 1, "a_s2": 48},
        {**chained((6, 10), "mul", 2, dtype="fp16"), "x_s2": 40, "x_s3": 2},
        chained((33, 64), "scale", 0, a_dtype="fp32", out_dtype="e4m3fn"),
        chained((300,), "gelu_tanh", dtype="int8", out_dtype="fp32"),
        {**chained((4, 5), "add", 3, dtype="fp32"), "x_over": 0},
        chained((3, 20, 48), "sub+div+tanh", 5, 7),
        chained((40, 30), "exp+log+sigmoid+neg", dtype="fp32"),
        chained((40, 30), "abs+sqrt+pow", 0, dtype="fp32"),
        chained((40, 30), "mul+rsqrt", 3, dtype="fp16"),
        chained((5, 7, 65), "add", 3, dtype="fp16"),  # rows of odd length, over several tiles
        chained((3, 5, 7, 21), "mul+add+sub", 11, 15, 6),
        chained((5, 7, 65), "clamp", 0, 4),
        {**chained((5, 7, 65), "add+mul", 7, 7, dtype="fp32"), "a_s1": 600, "a_s2": 80},
        chained((9, 333), "mul+relu", 3, a_dtype="fp16", out_dtype="fp32"),
        chained((1331,), "scale", 0, a_dtype="fp32", out_dtype="e4m3fn"),
    ),
    "im2col": (
        *WINDOWS,
        {**windows(1, 9, 8, 3, **both("pad", 1)), "x_n": 1 << 31},  # places beyond 32 bits
        {"n": 3, "depth": 1, "height": 1, "width": 9, "channels": 6, "filter_w": 3, "pad_w": 2},
        {**windows(1, 5, 3, 2, **both("pad", 1)), "x_c": 25, "x_w": 1, "x_h": 5, "x_d": 75},
        {"n": 2, "depth": 3, "height": 4, "width": 5, "channels": 2, "filter_d": 2, "stride_d": 1,
         "filter_w": 3, "pad_d": 1, "dtype": "int32"},
    ),
    "col2im": (
        *map(back, WINDOWS),
        {"n": 1, "out_d": 2, "out_h": 3, "out_w": 2, "columns": 24, "filter_d": 2, "filter_w": 3,
         "depth": 3, "height": 3, "width": 4, "dtype": "fp32"},
    ),
}  # fmt: skip
