"""Operations on rows, forward and backward. Rows of 64 elements to 32,768, of softmax 512 to
262,144; 8 rows to 65,536."""

from __future__ import annotations

from declared_cases import Ranges, cases_of

SIZES = {"rows": (8, 65536, 1), "columns": (64, 32768, 64)}
LONG = {"rows": (8, 65536, 1), "columns": (512, 262144, 8)}

RANGES: Ranges = {
    **dict.fromkeys(
        ("rms_norm", "rms_norm_backward", "layer_norm", "layer_norm_backward", "quantise_rows"),
        SIZES,
    ),
    **dict.fromkeys(("softmax", "softmax_backward", "log_softmax", "log_softmax_backward"), LONG),
    **dict.fromkeys(("gated_activation", "gated_activation_backward"), SIZES),
    "quantise_expert_rows": {
        "tokens": (8, 8192, 1),
        "columns": (256, 16384, 64),
        "experts": (8, 384, 1),
        "slots": (1, 10, 1),
    },
}

CASES = cases_of(RANGES)
