"""Gradients under masks of blocks: the kernels in the interpreter against float64, the lists that
tiles of keys walk, what is refused, torch's autograd, and what the kernels are built to."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from block_masks import MASKS

import selection
import tilewright as tw
from shared_builds import build_once
from simulate import worst_error
from tilewright import Dispatcher, ops
from tilewright.arch import arch, device
from tilewright.errors import BadArgument, TilewrightError
from tilewright.ops.attention_backward import AttentionBackwardProblem, spaces
from tilewright.registry import Registry
from tilewright.runtime.interpreter import interpreter
from tilewright.verify import verify

FAMILY = ops.family("attention_backward")
HERE = arch("sm_90")


def problem_of(q_len=40, kv_len=67, shape=(1, 2), **fields):
    said = {"batch": 2, "head_dim": 32, "kv_heads": 1, "dtype": "fp32", "block_size": 32, **fields}
    return AttentionBackwardProblem(heads=2, q_len=q_len, kv_len=kv_len, blocks_shape=shape, **said)


def config(p, **algorithm):
    """A config of pipeline basic for a problem."""
    signature = {name: getattr(p, name) for name in spaces.SIGNATURE} | {"mask": p.mask.kind}
    fields = {"tile_rows": 32, "step_rows": 16, "alignment": 1, **algorithm}
    return FAMILY.make_config({**FAMILY.axes(), **signature, **fields}, HERE)


def check(problem, seed=0, **algorithm):
    chosen = config(problem, **algorithm)
    on = Dispatcher(Registry("blocks").register_all([chosen]), device="h200")
    found = verify(on, problem, chosen.name, seed=seed)
    assert found.ok, (chosen.name, str(problem), str(found))


@pytest.mark.grid(2)
@pytest.mark.turns(6)
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("sizes", [(40, 67), (67, 40), (1, 70), (70, 1), (64, 96), (3, 0)], ids=str)
def test_sizes_under_masks(sizes, mask):
    check(problem_of(*sizes, **MASKS[mask]))


@pytest.mark.grid(1)
@pytest.mark.turns(6)
@pytest.mark.parametrize("tile", [(16, 16), (16, 32), (32, 32)])
@pytest.mark.parametrize("density", [0.0, 0.25, 1.0])
def test_tiles_and_steps_within_blocks(tile, density):
    rows, step = tile
    check(problem_of(70, 70, right=0, density=density), tile_rows=rows, step_rows=step)


FORMS = {
    "bf16": {"dtype": "bf16"},
    "fp16": {"dtype": "fp16", "dtype_o": "fp32"},
    "one mask": {"shape": (2, 1)},
    "a mask each": {"shape": (2, 2)},
    "softcap": {"softcap": 3.0},
    "alibi": {"others": "alibi", "grads": "dq+dk+dv+dslopes"},
    "slopes alone": {"others": "alibi", "grads": "dslopes"},
    "sinks": {"others": "sinks", "grads": "dq+dk+dv+dsinks"},
    "dropout": {"dropout": 0.25},
    "dlse": {"dlse": True},
    "accumulate": {"accumulate": True},
    "packed": {"others": "packedq+packedkv", "total_q": 90, "total_kv": 130},
    "lengths": {"others": "usedq+usedkv", "left": 20},
    "wide": {"head_dim": 80, "head_dim_v": 40},
    "dq": {"grads": "dq"},
    "dk": {"grads": "dk"},
    "dv": {"grads": "dv"},
}


@pytest.mark.grid(1)
@pytest.mark.turns(8)
@pytest.mark.parametrize("form", FORMS)
def test_features_within_blocks(form):
    check(problem_of(70, 67, right=0, **FORMS[form]), seed=5)


def mask_of(*shape, share=0.4):
    return np.random.default_rng(7).uniform(size=shape) < share


@pytest.mark.turns(4)
@pytest.mark.parametrize("mask", MASKS)
def test_lists_have_the_queries_that_see_a_block_whole_ones_first(mask):
    p = problem_of(16 * 300 + 3, 100, head_dim=16, block_size=16, **MASKS[mask])
    blocks = mask_of(1, 2, 301, 7)
    c = config(p, tile_rows=16)
    launch = FAMILY.launch(c, p, device("h200"))
    (step,) = (step for step in launch.steps if step.part == "list_queries")
    made = {one.name: np.full(one.shape, -7, np.int32) for one in launch.temporaries}
    alone = replace(launch, steps=(step,))
    interpreter().run(FAMILY.sources(c, HERE), alone, {"blocks": blocks}, (), temporaries=made)
    seen = np.zeros((301 * 16, 7 * 16), bool)
    seen[: p.q_len, : p.kv_len] = p.mask.seen(
        np.arange(p.q_len), np.arange(p.kv_len), p.q_len, p.kv_len
    )
    seen = seen.reshape(301, 16, 7, 16)
    for b, h, column in np.ndindex(2, 2, 7):
        own = blocks[0, h, :, column]
        whole = own & seen.all((1, 3))[:, column]
        cut = own & seen.any((1, 3))[:, column] & ~whole
        n, m = made["query_counts"][b, h, column]
        listed = made["query_list"][b, h, column].tolist()
        assert listed[:n] == np.flatnonzero(whole).tolist()
        assert listed[301 - m :][::-1] == np.flatnonzero(cut).tolist()


def dense(blocks, size, n_q, n_kv):
    return blocks.repeat(size, 2).repeat(size, 3)[..., :n_q, :n_kv]


def operands(n_q=40, n_kv=56, heads=2, kv_heads=1, dim=32):
    rng = np.random.default_rng(3)
    shapes = (2, n_q, heads, dim), (2, n_kv, kv_heads, dim), (2, n_kv, kv_heads, dim)
    return [torch.from_numpy(rng.standard_normal(s, np.float32)) for s in shapes]


def gradients_of(given, blocks, call):
    leaves = [x.clone().requires_grad_() for x in given]
    o = call(*leaves, blocks)
    weights = torch.linspace(-1, 1, o.numel()).reshape(o.shape)
    return torch.autograd.grad((o * weights).sum(), leaves)


def attend(q, k, v, blocks):
    return tw.attention(q, k, v, blocks=blocks, block_size=16, mask="causal")


@pytest.mark.turns(8)
def test_autograd_gives_the_gradients_of_a_boolean_bias():
    """A row of blocks that is empty has no gradient; a column that is empty neither."""
    given, blocks = operands(), mask_of(1, 2, 3, 4, share=0.6)
    blocks[:, :, 1] = False  # queries 16 to 31 see nothing
    blocks[..., 2] = False  # nobody sees keys 32 to 47
    bias = torch.from_numpy(dense(blocks, 16, 40, 56))

    def biased(q, k, v, bias):
        return tw.attention(q, k, v, bias=bias, mask="causal")

    dq, dk, dv = gradients_of(given, torch.from_numpy(blocks), attend)
    for x, other in zip((dq, dk, dv), gradients_of(given, bias, biased), strict=True):
        torch.testing.assert_close(x, other, atol=1e-5, rtol=1e-5)
    assert not dq[:, 16:32].any() and not dk[:, 32:48].any() and not dv[:, 32:48].any()
    assert dq[:, 32:].any() and dk[:, :32].any()


def test_hidden_keys_may_be_nan():
    q, k, v = operands()
    blocks = mask_of(1, 1, 3, 4, share=0.6)
    blocks[..., 2] = False
    k[:, 32:48] = v[:, 32:48] = float("nan")
    assert all(
        x.isfinite().all() for x in gradients_of((q, k, v), torch.from_numpy(blocks), attend)
    )


@pytest.mark.turns(32)
def test_a_compiled_call_has_the_gradients_of_the_call():
    given, blocks = operands(), torch.from_numpy(mask_of(1, 2, 3, 4))
    compiled = torch.compile(attend, fullgraph=True, backend="aot_eager")
    for x, other in zip(
        gradients_of(given, blocks, compiled), gradients_of(given, blocks, attend), strict=True
    ):
        assert torch.equal(x, other)


def test_beside_a_bias_gradients_are_refused():
    with pytest.raises(BadArgument, match="masks of blocks beside a bias have no gradients"):
        problem_of(bias_shape=(1, 1))
    q, k, v = operands()
    blocks, bias = torch.from_numpy(mask_of(1, 1, 3, 4)), torch.zeros(1, 1, 40, 56)
    said = {"blocks": blocks, "block_size": 16, "bias": bias}
    with pytest.raises(TilewrightError, match="put the mask into the bias"):
        tw.attention(q.requires_grad_(), k, v, **said)
    assert tw.attention(q.detach(), k, v, **said).isfinite().all()


def test_tiles_that_no_block_is_a_multiple_of_are_refused():
    p = problem_of(block_size=48)
    assert FAMILY.supports(config(p, tile_rows=16), p, HERE)
    for fields, why in (
        ({"tile_rows": 32}, "blocks of 48 rows are no multiple of tiles 32x16"),
        ({"tile_rows": 16, "step_rows": 32}, "blocks of 48 rows are no multiple of tiles 16x32"),
    ):
        verdict = FAMILY.supports(config(p, **fields), p, HERE)
        assert verdict.rule == "mask_blocks" and why in verdict.reason


def on_hopper(p, ordered=False):
    """The kernels of pipeline gluon_ws for a problem."""
    fields = {"pipeline": "gluon_ws", "tile_rows": 128, "step_rows": 8192 // p.head_dim}
    fields |= {"num_warps": 8, "num_stages": 2, "alignment": 16, "ordered": ordered}
    return config(p, **fields)


def large(q_len=300, kv_len=290, **fields):
    said = {"batch": 1, "head_dim": 64, "dtype": "bf16", "block_size": 128, "density": 0.6}
    return problem_of(q_len, kv_len, **{**said, **fields})


def right(p, seed=0):
    c = on_hopper(p)
    assert FAMILY.supports(c, p, HERE)
    return worst_error(c, p, device("h200"), seed) <= 1


@pytest.mark.grid(2)
@pytest.mark.turns(8)
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("sizes", [(300, 290), (100, 420), (420, 200), (1, 333)], ids=str)
def test_hopper_s_kernels_in_simulation(sizes, mask):
    assert right(large(*sizes, **MASKS[mask]))


SIMULATED = {
    "blocks of two tiles": {"block_size": 256, "kv_len": 500, "q_len": 500},
    "a mask for all": {"shape": (1, 1)},
    "nothing is seen": {"density": 0.001},
    "head dim 128": {"head_dim": 128, "dtype": "fp16"},
    "softcap": {"softcap": 3.0},
    "slopes": {"others": "alibi", "grads": "dq+dk+dv+dslopes"},
    "lse and sinks": {"others": "sinks", "grads": "dq+dk+dv+dsinks", "dlse": True},
    "packed": {"batch": 2, "others": "packedq+packedkv", "total_q": 420, "total_kv": 450},
    "lengths": {"batch": 2, "others": "usedq+usedkv", "left": 90},
    "added": {"accumulate": True},
}


@pytest.mark.grid(1)
@pytest.mark.turns(8)
@pytest.mark.parametrize("form", SIMULATED)
def test_forms_in_simulation(form):
    assert right(large(**{"right": 0, **SIMULATED[form]}), seed=3)


def test_what_hopper_s_kernels_refuse():
    p = large()
    turns = FAMILY.judge(on_hopper(p, ordered=True), HERE)
    assert turns.rule == "words" and "turns of tiles are counted without" in turns.reason
    small = replace(p, block_size=64)
    verdict = FAMILY.supports(on_hopper(small), small, HERE)
    assert verdict.rule == "mask_blocks" and "128x128" in verdict.reason
    on = Dispatcher(device="h200")
    assert on.select(large(4096, 4096)).config.pipeline == "gluon_ws"
    assert on.select(large(4096, 4096, block_size=64)).config.pipeline == "basic"
    assert on.select(large(4096, 4096, deterministic=True)).config.pipeline == "basic"


@pytest.mark.parametrize("pipeline", ["gluon_lean", "gluon_roles"])
def test_pipelines_without_blocks_say_so(pipeline):
    other = config(problem_of(dtype="bf16"), pipeline=pipeline)
    assert f"pipeline {pipeline} does not know blocks" in FAMILY.judge(other, HERE).reason


@pytest.mark.parametrize("block_size", [16, 48, 64, 128])
def test_every_architecture_has_a_kernel(block_size):
    for head_dim in (64, 128, 256):
        p = problem_of(300, 300, block_size=block_size, head_dim=head_dim, dtype="bf16")
        for name in ("sm_80", "sm_90", "gfx942", "gfx1201"):
            this = arch(name)
            configs = FAMILY.default_space(p, this).expand(this).configs
            assert FAMILY.serving(p, configs, this)


def test_a_density_is_what_the_estimate_takes():
    p = problem_of(4096, 4096, head_dim=128, block_size=128, dtype="bf16")
    c = config(p, tile_rows=64, step_rows=32)
    times = [
        FAMILY.estimate(c, replace(p, density=share), device("h200")).total_us
        for share in (0.0, 1.0, 0.25)
    ]
    assert times[0] == times[1] > 2 * times[2]
    assert replace(p, density=0.25).flops == p.flops / 4


def test_words_and_names_are_read_as_they_are_written():
    words = {"batch": "2", "heads": "2", "kv_heads": "1", "q_len": "40", "kv_len": "67",
             "head_dim": "32", "dtype": "fp32", "blocks": "1x2", "block_size": "32"}  # fmt: skip
    p = FAMILY.parse_problem(words, HERE)
    assert p == problem_of()
    assert FAMILY.parse_name(config(p).name) == config(p) and config(p).name.endswith("_f-blocks")


ARCHS = selection.architectures(("sm_90", "gfx942", "gfx950", "gfx1201"))


@pytest.mark.turns(20)
@pytest.mark.parametrize("name", ARCHS)
def test_it_compiles_without_spills(name, store):
    this = arch(name)
    p = problem_of(2048, 2048, (1, 1), head_dim=64, dtype="bf16", block_size=64, right=0)
    found = FAMILY.default_space(p, this).expand(this).configs
    found = [c for c in found if c.pipeline == "basic"]
    results = build_once([(found[0], name)], store).results
    assert {r.part for r in results} >= {"list_queries", "list_blocks"}
    for result in results:
        assert result.kernel is not None, result.reason
        assert result.kernel.resources.spill_bytes == 0, result.part


@pytest.mark.turns(20)
def test_hopper_s_kernels_spill_no_more_than_without_blocks(store):
    those = [on_hopper(large(head_dim=dim, right=0)) for dim in (64, 128)]
    results = build_once([(c, "sm_90") for c in those], store).results
    assert {r.part for r in results} >= {"list_queries", "gradients_gluon_ws"}
    for result in results:
        assert result.kernel is not None, result.reason
        limit = 64 if result.part == "gradients_gluon_ws" else 0
        assert result.kernel.resources.spill_bytes <= limit, result.part
