"""Small problems of reductions and pooling."""

ROWS = {"outer": 5, "far": 1, "middle": 1, "near": 70, "inner": 1}
PLACES = {"argmax": True, "argmin": True}
MOST = {"max": True, "min": True, "absmax": True}
SUMS = {"sum": True, "mean": True, "norm": True}
ARRIVED = {"has_d_sum": True, "has_d_mean": True, "has_d_norm": True, "has_norm": True}
PLACED = {"has_d_max": True, "has_max_at": True, "has_d_min": True, "has_min_at": True}

IMAGES = {"images": 2, "depth": 1, "height": 7, "width": 6, "channels": 5}
PLANES = {**IMAGES, "images": 3, "width": 9, "channels": 1}
THREE = {"kernel_h": 3, "kernel_w": 3, "stride_h": 2, "stride_w": 2, "pad_h": 1, "pad_w": 1}
CEILED = {"kernel_h": 2, "kernel_w": 2, "stride_h": 2, "stride_w": 4, "over_h": 1, "over_w": 1}
APART = {"kernel_d": 2, "kernel_w": 3, "dilation_w": 2, "pad_w": 2, "depth": 3}
MEAN = {"mode": "average"}
INNER = {**MEAN, "include_pad": False}

CASES = {
    "reduction": (
        {**ROWS, **SUMS, **MOST, **PLACES},
        {**ROWS, "outer": 2, "far": 2, "middle": 3, "near": 9, "dtype": "fp32", "sum": True},
        {**ROWS, "outer": 2, "middle": 2, "near": 9, "inner": 5, **SUMS, **PLACES},
        {**ROWS, "outer": 1, "near": 40004, "max": True, **SUMS, "dtype": "fp16"},
        {**ROWS, "outer": 1, "near": 600, "inner": 16, **SUMS, "out_dtype": "fp32"},
        {**ROWS, "outer": 2, "near": 11, "inner": 1042, "mean": True, "dtype": "fp16"},
        {**ROWS, "outer": 70, "near": 6, **SUMS, "argmax": True},
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
    "pool": (
        {**IMAGES, "channels": 16, **THREE, "index": True},
        {**PLANES, **THREE, "dtype": "fp32", "mode": "min"},
        {**PLANES, **CEILED, **MEAN, "dtype": "fp16"},
        {**IMAGES, **APART, **INNER},
        {**IMAGES, **APART, "index": True, "mode": "min"},
        {**IMAGES, **THREE, **MEAN, "divisor": 7},
        {**PLANES, "kernel_h": 6, "kernel_w": 7, "dtype": "int8"},
    ),
    "pool_backward": (
        {**IMAGES, "channels": 16, **THREE, "has_index": True},
        {**PLANES, **THREE, **MEAN, "dtype": "fp32"},
        {**PLANES, **CEILED, **INNER, "dtype": "fp16"},
        {**IMAGES, **APART, "stride_w": 2, **INNER},
        {**IMAGES, "kernel_h": 7, "kernel_w": 6, "pad_h": 1, **INNER},
    ),
}
