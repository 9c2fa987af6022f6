"""The sizes of the problems that `tilewright sweep` measures of operations on rows of activations.

Columns are what layers of published models have: Llama 3.2 1B (2048) and 3B (3072), Llama 3 8B
(4096), Qwen2.5 32B (5120), DeepSeek-V3 (7168; 18432 between its dense layers' products), Llama 3
70B (8192), GPT-3 (12288), Llama 3.1 405B (16384). Rows are tokens: one sequence that is decoded,
a batch of them, a prompt, and the tokens of a step of training.
"""

from __future__ import annotations

from typing import Any

COLUMNS = (2048, 3072, 4096, 5120, 7168, 8192, 12288, 16384, 18432)
ROWS = (1, 16, 256, 4096, 32768)
MOST_ELEMENTS = 1 << 28
"""512 MiB of bf16: more tells nothing new, and takes long to check."""


def problems(**fields: Any) -> tuple[dict[str, Any], ...]:
    """Every number of rows with every number of columns, and these fields."""
    return tuple(
        {"rows": rows, "columns": columns, **fields}
        for columns in COLUMNS
        for rows in ROWS
        if rows * columns <= MOST_ELEMENTS
    )


def few(**fields: Any) -> tuple[dict[str, Any], ...]:
    """Those of one model, Llama 3 8B, and these fields: for forms that differ little from another
    whose `problems` are listed."""
    return tuple({"rows": rows, "columns": 4096, **fields} for rows in ROWS)
