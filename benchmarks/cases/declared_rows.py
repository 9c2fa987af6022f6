"""Operations on rows, forward and backward. Rows of 64 elements to 32,768, of softmax 512 to
262,144; 8 rows to 65,536. Cross-entropy of 8,192 classes to 262,144; rotations of 64 tokens to
32,768, whose heads are those of the pages' models."""

from __future__ import annotations

import random

from declared_cases import Fields, Ranges, between, cases_of

SIZES = {"rows": (8, 65536, 1), "columns": (64, 32768, 64)}
LONG = {"rows": (8, 65536, 1), "columns": (512, 262144, 8)}
CLASSES = {"rows": (64, 16384, 1), "classes": (8192, 262144, 8)}
TOKENS = {"tokens": (64, 32768, 1)}


def paged(by_chance: random.Random, fields: Fields) -> Fields:
    """Pages for as many tokens as there are."""
    tokens = between(by_chance, *TOKENS["tokens"])
    return {**fields, "tokens": tokens, "pages": -(-tokens // fields["page_size"])}


RANGES: Ranges = {
    **dict.fromkeys(
        ("rms_norm", "rms_norm_backward", "layer_norm", "layer_norm_backward", "quantise_rows"),
        SIZES,
    ),
    **dict.fromkeys(("softmax", "softmax_backward", "log_softmax", "log_softmax_backward"), LONG),
    **dict.fromkeys(("gated_activation", "gated_activation_backward"), SIZES),
    **dict.fromkeys(("cross_entropy", "cross_entropy_backward"), CLASSES),
    **dict.fromkeys(("rotary", "rotary_in_place"), TOKENS),
    "rotary_paged": paged,
    "quantise_expert_rows": {
        "tokens": (8, 8192, 1),
        "columns": (256, 16384, 64),
        "experts": (8, 384, 1),
        "slots": (1, 10, 1),
    },
}

CASES = cases_of(RANGES)
