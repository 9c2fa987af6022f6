"""Every example runs as a user would run it, and says what it should."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from patience import LIMIT_SECONDS

EXAMPLES = Path(__file__).parent.parent / "examples"
MOST_LINES = 40

EXPECTED = {
    "01_basic_gemm.py": "C is 200x96 on ",
    "02_batches.py": "4 batches are right",
    "03_benchmark.py": "median ",
    "04_validation.py": "after one element was spoiled: outside tolerance",
    "05_numpy.py": "int8 -> int32 is exact",
    "06_registry_out.py": "reading it back gives an equal registry",
    "07_stress.py": "48 of 48 kernels ",
    "08_custom_heuristic.py": "by user function, number 1 by small_tiles_for_few_rows",
    "09_registries.py": "registries of this process: decode, prefill",
    "10_advanced_benchmark.py": "chosen ",
    "11_registry_in.py": "an edited file is refused: edited.json: kernels[0]",
    "12_epilogues.py": "_epi-bias-gelu",
    "13_batched.py": "an empty batch gives (0, 40, 48)",
    "14_contraction.py": "B is no matrix over d (stride 3) and k (stride 96)",
    "15_grouped_list.py": "4 products in one launch",
    "16_mixture_of_experts.py": "96 rows through 6 experts in two launches",
    "17_block_scales.py": "_sa1x128_sb128x128",
    "18_int4_weights.py": "the product is exact to bf16",
    "19_mx.py": "MX fp4 on b200: pipeline mx",
    "20_multi_abd.py": "_prea-add-scale_preb-mul_epi-bias-relu",
    "21_preshuffled_weights.py": "pass tilewright.unshuffle(b) to this kernel",
    "22_attention.py": "the last 16, and the first 4  29% of all pairs",
    "23_attention_scores.py": "are capped to 1.95",
    "24_attention_dropout.py": "25.2% of the weights became zero",
    "25_attention_lengths.py": "4 sequences of [17, 0, 60, 1] rows in one launch",
    "26_attention_split.py": "split into parts of 128 keys, results differ by ",
    "27_attention_decode.py": "they now have [34, 11] rows in the cache",
    "28_attention_serving.py": "prefill of 37 rows through 3 layers",
    "29_attention_latent.py": "16 heads of 64 values each from 80 numbers of a token",
    "30_attention_fp8.py": "cache in fp8 bfloat16, relative error ",
    "31_attention_parity.py": "240 combinations have a kernel on AMD Instinct MI300X",
    "32_attention_training.py": "after 4 steps the loss is 3.95, 1.58 less",
    "33_attention_finetuning.py": "4 sequences of [9, 23, 1, 16] rows in one",
    "34_attention_deterministic.py": "two runs have the same bits in every parameter",
    "35_convolution_blocks.py": "ConvNeXt  [2, 16, 8, 8], and 3 gradients: True",
    "36_causal_convolution.py": "prefill of 21 tokens and 6 updates, state [2, 32, 3]",
    "37_convolution_video.py": "and 4 gradients: True\nframes that change with the last: [False, "
    "False, False, True]",
    "38_convolution_audio.py": "codec          [2, 4, 48], and 3 gradients: True",
    "39_convolution_inference.py": "in three launches: True\nchannels-last stays: True",
    "40_jax.py": "the loss falls in every step: True",
    "41_cupy.py": "bias and relu in the product's kernel: True",
    "42_dlpack.py": "a write to one is seen in the other: True",
    "43_mixture_with_router.py": "48 tokens through 2 of 6 experts each, as one layer",
}
NEEDS = {"40_jax.py": "jax"}
"""What may be missing here."""


def run(home: Path, script: str, *arguments: str) -> str:
    own = {"TILEWRIGHT_HOME": str(home), "TILEWRIGHT_STORE": str(home / "s"), "TMPDIR": str(home)}
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / script), *arguments],
        env={**os.environ, **own},
        capture_output=True,
        text=True,
        timeout=LIMIT_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_every_script_is_tested():
    scripts = {path.name for path in EXAMPLES.glob("[0-9]*.py")}
    assert scripts == set(EXPECTED)


@pytest.mark.turns(96)
@pytest.mark.parametrize("script", EXPECTED)
def test_it_runs(script, tmp_path):
    if script in NEEDS:
        pytest.importorskip(NEEDS[script])
    assert EXPECTED[script] in run(tmp_path, script)


@pytest.mark.parametrize("script", EXPECTED)
def test_it_is_short_and_explains_itself(script):
    text = (EXAMPLES / script).read_text()
    assert text.startswith('"""')
    assert len(text.splitlines()) <= MOST_LINES
    assert f"({script})" in (EXAMPLES / "README.md").read_text()


@pytest.mark.turns(96)
def test_one_examples_registry_is_anothers(tmp_path):
    file = tmp_path / "registry.json"
    run(tmp_path, "06_registry_out.py", str(file))
    assert "registry.json: registry 'example' has 2 kernels" in run(
        tmp_path, "11_registry_in.py", str(file)
    )
