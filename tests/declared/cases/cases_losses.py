"""Small problems of softmax and of losses."""

CASES = {
    "softmax": (
        {"rows": 5, "columns": 200, "dtype": "fp32"},
        {"rows": 9, "columns": 64, "x_stride": 70, "out_dtype": "fp32"},
        {"rows": 2, "columns": 16400},
        {"rows": 1, "columns": 17000, "dtype": "fp16", "alignment": 1},
    ),
    "softmax_backward": (
        {"rows": 5, "columns": 200, "dtype": "fp32"},
        {"rows": 1, "columns": 17000, "out_dtype": "fp32"},
    ),
    "log_softmax": (
        {"rows": 5, "columns": 200},
        {"rows": 2, "columns": 17000, "dtype": "fp32"},
    ),
    "log_softmax_backward": (
        {"rows": 5, "columns": 200},
        {"rows": 1, "columns": 17000, "dtype": "fp16"},
    ),
}
