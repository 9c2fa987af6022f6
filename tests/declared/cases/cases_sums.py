"""Small problems of reductions and pooling."""

ROWS = {"outer": 5, "far": 1, "middle": 1, "near": 70, "inner": 1}
PLACES = {"argmax": True, "argmin": True}
MOST = {"max": True, "min": True, "absmax": True}
SUMS = {"sum": True, "mean": True, "norm": True}
ARRIVED = {"has_d_sum": True, "has_d_mean": True, "has_d_norm": True, "has_norm": True}
PLACED = {"has_d_max": True, "has_max_at": True, "has_d_min": True, "has_min_at": True}

CASES = {
    "reduction": (
        {**ROWS, **SUMS, **MOST, **PLACES},
        {**ROWS, "outer": 2, "far": 2, "middle": 3, "near": 9, "dtype": "fp32", "sum": True},
        {**ROWS, "outer": 2, "middle": 2, "near": 9, "inner": 5, **SUMS, **PLACES},
        {**ROWS, "outer": 1, "near": 8200, "max": True, **SUMS, "dtype": "fp16"},
        {**ROWS, "outer": 1, "near": 600, "inner": 16, **SUMS, "out_dtype": "fp32"},
        {
            **ROWS,
            "near": 8,
            "sum": True,
            "prod": True,
            **MOST,
            "dtype": "int8",
            "out_dtype": "int64",
        },
        {**ROWS, "near": 20, "near_stride": 3, "outer_stride": 64, "dtype": "fp32", "argmin": True},
    ),
    "reduction_backward": (
        {**ROWS, **ARRIVED, **PLACED},
        {**ROWS, "outer": 2, "far": 2, "middle": 3, "near": 9, **PLACED, "dtype": "fp32"},
        {**ROWS, "outer": 2, "middle": 2, "near": 9, "inner": 16, **ARRIVED, "dtype": "fp16"},
    ),
}
