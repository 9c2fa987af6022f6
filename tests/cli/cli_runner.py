"""Kernels, a space and a runner that the command line's tests share."""

from __future__ import annotations

import json
from typing import Any

from typer.testing import CliRunner

from tilewright.cli.app import app

NAME = "gemm_rcr_bf16_bf16_bf16_fp32_16x32x32_w4_s2_basic_tile_g8_direct_padmnk_al1"
TMA_NAME = "gemm_rcr_bf16_bf16_bf16_fp32_16x32x64_w4_s3_tma_tile_g8_direct_padmnk_al16"

SPACE = {
    "family": "gemm",
    "tile_config": {"tile_m": [16, 24], "tile_n": [32], "tile_k": [64]},
    "trait_config": {"pipeline": ["basic", "tma"], "scheduler": ["intrawave"]},
    "num_warps": [4],
}
"""Two kernels on sm_90, one on gfx942, and both of rule `tile` and a note."""


class Cli:
    """Runs commands in this process; the last result's parts are attributes."""

    def __call__(self, *words: str, code: int = 0) -> str:
        self.result = CliRunner().invoke(app, [str(word) for word in words])
        if self.result.exception and not isinstance(self.result.exception, SystemExit):
            raise self.result.exception
        assert self.result.exit_code == code, self.result.output
        return self.result.stdout

    def json(self, *words: str, code: int = 0) -> Any:
        return json.loads(self(*words, "--json", code=code))

    def fails(self, code: int, *words: str) -> str:
        """The one line on stderr of a command that must fail."""
        self(*words, code=code)
        lines = self.result.stderr.splitlines()
        assert len(lines) == 1, self.result.stderr
        assert lines[0].startswith("error: ")
        return lines[0].removeprefix("error: ")
