"""Wrong calls of `tilewright.flash_attn` and `tilewright.serving` give a typed error with one clear
sentence; the calls that they differ from by one argument are right."""

from __future__ import annotations

import re
from functools import partial

import numpy as np
import pytest
import torch
from stated_problem import stated

from tilewright.errors import BadArgument, TilewrightError, WrongDevice
from tilewright.flash_attn import (
    flash_attn_func,
    flash_attn_kvpacked_func,
    flash_attn_qkvpacked_func,
    flash_attn_varlen_func,
    flash_attn_varlen_kvpacked_func,
    flash_attn_varlen_qkvpacked_func,
    flash_attn_with_kvcache,
    functions,
    kvcache,
)
from tilewright.serving import (
    Capacity,
    LatentAttention,
    PagedAttention,
    RaggedAttention,
    append_paged_kv_cache,
    get_batch_indices_positions,
    planned,
)

HEADS, KV_HEADS, DIM, PAGE = 4, 2, 16, 4
NAN, FP8 = float("nan"), torch.float8_e4m3fn


def ints(*values):
    return torch.tensor(values, dtype=torch.int32)


def zeros(*shape, dtype=torch.float32):
    return torch.zeros(shape, dtype=dtype)


Q, K, V = zeros(2, 5, HEADS, DIM), zeros(2, 7, KV_HEADS, DIM), zeros(2, 7, KV_HEADS, DIM)
DENSE = {"q": Q, "k": K, "v": V}
VARLEN = {
    "q": Q.flatten(0, 1), "k": K.flatten(0, 1), "v": V.flatten(0, 1),
    "cu_seqlens_q": ints(0, 5, 10), "cu_seqlens_k": ints(0, 7, 14), "max_seqlen_q": 5,
    "max_seqlen_k": 7,
}  # fmt: skip
CACHE = {"q": Q, "k_cache": K, "v_cache": V, "cache_seqlens": ints(3, 4)}
ANGLES = zeros(16, DIM // 2)
PAGES = zeros(6, 2, PAGE, KV_HEADS, DIM)
PAGED = {
    "qo_indptr": None, "paged_kv_indptr": ints(0, 2, 3), "paged_kv_indices": ints(1, 2, 5),
    "paged_kv_last_page_len": ints(3, 4), "num_qo_heads": HEADS, "num_kv_heads": KV_HEADS,
    "head_dim": DIM, "page_size": PAGE,
}  # fmt: skip
RAGGED = {
    "qo_indptr": ints(0, 2, 5), "kv_indptr": ints(0, 3, 7), "num_qo_heads": HEADS,
    "num_kv_heads": KV_HEADS, "head_dim": DIM,
}  # fmt: skip
LATENT = {
    "qo_indptr": None, "kv_indptr": ints(0, 2, 3), "kv_indices": ints(1, 2, 5),
    "kv_len_arr": ints(7, 4), "num_heads": HEADS, "head_dim_ckv": 16, "head_dim_kpe": 8,
    "page_size": PAGE, "causal": False, "sm_scale": 0.25,
}  # fmt: skip
APPEND = {
    "append_key": zeros(3, KV_HEADS, DIM), "append_value": zeros(3, KV_HEADS, DIM),
    "batch_indices": ints(0, 0, 1), "positions": ints(5, 6, 3), "paged_kv_cache": PAGES,
    "kv_indices": ints(1, 2, 5), "kv_indptr": ints(0, 2, 3),
}  # fmt: skip
PLACES = {"append_indptr": ints(0, 2, 3), "seq_lens": ints(7, 4), "nnz": 3}


def plan(kind, **arguments):
    attention = kind("cpu")
    attention.plan(**arguments)
    return attention


def run(kind, planned_, **arguments):
    return plan(kind, **planned_).run(**arguments)


def flash(function, right, /, **wrong):
    return function(**(right | wrong))


PAGED_RUN = {"q": zeros(2, HEADS, DIM), "paged_kv_cache": PAGES}
RAGGED_RUN = {
    "q": zeros(5, HEADS, DIM), "k": zeros(7, KV_HEADS, DIM), "v": zeros(7, KV_HEADS, DIM)
}  # fmt: skip
LATENT_RUN = {
    "q_nope": zeros(2, HEADS, 24), "q_pe": None, "ckv_cache": zeros(6, PAGE, 24), "kpe_cache": None
}  # fmt: skip
CALLS = {
    "func": (flash_attn_func, DENSE),
    "kvpacked": (flash_attn_kvpacked_func, {"q": Q, "kv": torch.stack((K, V), 2)}),
    "qkvpacked": (flash_attn_qkvpacked_func, {"qkv": torch.stack((K, K, V), 2)}),
    "varlen": (flash_attn_varlen_func, VARLEN),
    "varlen_kvpacked": (
        flash_attn_varlen_kvpacked_func,
        {n: x for n, x in VARLEN.items() if n not in "kv"} | {"kv": zeros(14, 2, KV_HEADS, DIM)},
    ),
    "varlen_qkvpacked": (
        flash_attn_varlen_qkvpacked_func,
        {"qkv": zeros(9, 3, HEADS, DIM), "cu_seqlens": ints(0, 9), "max_seqlen": 9},
    ),
    "kvcache": (flash_attn_with_kvcache, CACHE),
    "paged plan": (partial(plan, PagedAttention), PAGED),
    "ragged plan": (partial(plan, RaggedAttention), RAGGED),
    "latent plan": (partial(plan, LatentAttention), LATENT),
    "paged": (partial(run, PagedAttention, PAGED), PAGED_RUN),
    "ragged": (partial(run, RaggedAttention, RAGGED), RAGGED_RUN),
    "latent": (partial(run, LatentAttention, LATENT), LATENT_RUN),
    "append": (append_paged_kv_cache, APPEND),
    "places": (get_batch_indices_positions, PLACES),
    "capacity": (Capacity, {"batch": 2, "max_kv": 16}),
    "paged object": (PagedAttention, {"device": "cpu"}),
}  # fmt: skip

FP8_CACHE = {"q": Q.half(), "k_cache": K.to(FP8), "v_cache": V.to(FP8)}
FP8_PAGES = {"q": zeros(2, HEADS, DIM).half(), "paged_kv_cache": PAGES.to(FP8)}
RIGHT = [
    ("func", {"softmax_scale": np.float32(0.3)}),
    ("func", {"softmax_scale": torch.tensor(0.3)}),
    ("func", {"softcap": np.float64(5)}),
    ("func", {"causal": np.bool_(True)}),
    ("func", {"window_size": [3, 0]}),
    ("func", {"window_size": (np.int64(3), None)}),
    ("varlen", {"max_seqlen_q": np.int64(5)}),
    ("varlen", {"max_seqlen_k": torch.tensor(7)}),
    ("kvcache", {"cache_seqlens": np.int64(4)}),
    ("kvcache", {"cache_seqlens": torch.tensor(4)}),
    ("kvcache", FP8_CACHE | {"k_descale": 0.25}),
    (
        "kvcache",
        FP8_CACHE | {"k_descale": torch.tensor(0.25), "v_descale": torch.ones(2, 2)},
    ),
    ("paged plan", {"sm_scale": np.float32(0.25), "num_qo_heads": np.int64(4)}),
    ("paged plan", {"logits_soft_cap": torch.tensor(30.0), "window_left": np.int32(5)}),
    ("paged", FP8_PAGES | {"k_scale": np.float32(0.5), "v_scale": 2}),
    ("places", {"nnz": np.int64(3)}),
]
"""Numbers of NumPy, and tensors of no dimension, are numbers."""

WRONG = [
    ("func", {"q": Q.tolist()}, "q is a list"),
    ("func", {"q": Q.numpy()}, "q is a ndarray"),
    ("func", {"k": None}, "k is a NoneType"),
    ("func", {"q": Q[0]}, r"q is \[5, 4, 16\], but must be \[batch"),
    ("func", {"v": V[0]}, r"v is \[7, 2, 16\], but must be \[batch"),
    ("func", {"k": K[:, :, 0]}, "k is"),
    ("func", {"k": K.half()}, "fp16"),
    ("func", {"q": Q.double()}, "float64"),
    ("func", {"q": Q.to("meta")}, "meta"),
    ("func", {"dropout_p": "0.1"}, "dropout_p = '0.1'"),
    ("func", {"dropout_p": torch.zeros(2)}, "dropout_p"),
    ("func", {"dropout_p": NAN}, "dropout_p = nan"),
    ("func", {"softmax_scale": "0.3"}, "scale = '0.3'"),
    ("func", {"softmax_scale": NAN}, "scale = nan"),
    ("func", {"softmax_scale": torch.zeros(2)}, "scale"),
    ("func", {"softcap": NAN}, "softcap = nan"),
    ("func", {"softcap": "5"}, "softcap = '5'"),
    ("func", {"softcap": True}, "softcap = True"),
    ("func", {"softcap": None}, "softcap = None"),
    ("func", {"causal": "yes"}, "causal = 'yes'"),
    ("func", {"causal": None}, "causal = None"),
    ("func", {"deterministic": "yes"}, "deterministic = 'yes'"),
    ("func", {"return_attn_probs": 2}, "return_attn_probs = 2"),
    ("func", {"window_size": 3}, "window_size = 3"),
    ("func", {"window_size": (3,)}, "window_size"),
    ("func", {"window_size": (3.5, 0)}, "window_size"),
    ("func", {"window_size": ("3", 0)}, "window_size"),
    ("func", {"window_size": torch.tensor([3, 0])}, "window_size"),
    ("func", {"alibi_slopes": [0.5] * HEADS}, "alibi_slopes is a list"),
    ("func", {"alibi_slopes": 0.5}, "alibi_slopes is a float"),
    ("func", {"alibi_slopes": zeros(HEADS).double()}, "alibi_slopes|slopes"),
    ("func", {"learnable_sink": [0.5] * HEADS}, "learnable_sink is a list"),
    ("func", {"learnable_sink": zeros(HEADS + 1)}, "sink"),
    ("func", {"q_descale": 0.5}, "fp8"),
    ("func", {"k_descale": zeros(1)}, "fp8"),
    ("func", {"k_descale": "0.5"}, "k_descale = '0.5'"),
    ("kvpacked", {"kv": [1.0]}, "kv is a list"),
    ("kvpacked", {"kv": K}, "kv is"),
    ("qkvpacked", {"qkv": None}, "qkv is a NoneType"),
    ("qkvpacked", {"qkv": Q}, "qkv is"),
    ("varlen", {"q": Q}, r"q is \[2, 5, 4, 16\], but must be \[total_q"),
    ("varlen", {"k": K}, r"k is \[2, 7, 2, 16\], but must be \[total_k"),
    ("varlen", {"cu_seqlens_q": [0, 5, 10]}, "cu_seqlens_q is a list"),
    ("varlen", {"cu_seqlens_q": np.array([0, 5, 10], np.int32)}, "cu_seqlens_q is a ndarray"),
    ("varlen", {"cu_seqlens_q": None}, "cu_seqlens_q is a NoneType"),
    ("varlen", {"cu_seqlens_q": torch.tensor([0, 5, 10])}, "cu_seqlens_q is int64"),
    ("varlen", {"cu_seqlens_k": torch.tensor([0.0, 7, 14])}, "cu_seqlens_k is float32"),
    ("varlen", {"cu_seqlens_k": ints(0, 7, 14)[None]}, r"cu_seqlens_k is \[1, 3\]"),
    ("varlen", {"cu_seqlens_k": None}, "cu_seqlens_k is a NoneType"),
    ("varlen", {"cu_seqlens_k": ints(0, 14)}, "offsets|cu_seqlens"),
    ("varlen", {"cu_seqlens_q": ints(0, 5, 10).to("meta")}, "meta"),
    ("varlen", {"max_seqlen_q": 5.0}, "max_seqlen_q = 5.0"),
    ("varlen", {"max_seqlen_q": None}, "max_seqlen_q = None"),
    ("varlen", {"max_seqlen_k": "7"}, "max_seqlen_k = '7'"),
    ("varlen", {"max_seqlen_k": -1}, "max_seqlen_k = -1"),
    ("varlen", {"max_seqlen_k": ints(7, 7)}, "max_seqlen_k"),
    ("varlen", {"seqused_k": [3, 4]}, "seqused_k is a list"),
    ("varlen", {"seqused_k": torch.tensor([3, 4])}, "seqused_k is int64"),
    ("varlen", {"block_table": [[0, 1]]}, "block_table is a list"),
    ("varlen", {"block_table": ints(0, 1)}, r"block_table is \[2\]"),
    ("varlen", {"block_table": torch.zeros(2, 2)}, "block_table is float32"),
    ("varlen_kvpacked", {"kv": zeros(14, KV_HEADS, DIM)}, "kv is"),
    ("varlen_qkvpacked", {"qkv": zeros(9, HEADS, DIM)}, "qkv is"),
    ("varlen_qkvpacked", {"cu_seqlens": [0, 9]}, "cu_seqlens"),
    ("kvcache", {"q": Q[0]}, r"q is \[5, 4, 16\]"),
    ("kvcache", {"k_cache": [1.0]}, "k_cache is a list"),
    ("kvcache", {"v_cache": None}, "v_cache is a NoneType"),
    ("kvcache", {"k_cache": K[0]}, r"k_cache is \[7, 2, 16\]"),
    ("kvcache", {"cache_seqlens": [3, 4]}, "cache_seqlens is a list"),
    ("kvcache", {"cache_seqlens": 3.5}, "cache_seqlens = 3.5"),
    ("kvcache", {"cache_seqlens": True}, "cache_seqlens = True"),
    ("kvcache", {"cache_seqlens": -1}, "cache_seqlens = -1"),
    ("kvcache", {"cache_seqlens": 8}, "cache_seqlens = 8"),
    ("kvcache", {"cache_seqlens": "3"}, "cache_seqlens"),
    ("kvcache", {"cache_seqlens": torch.tensor([3, 4])}, "cache_seqlens is int64"),
    ("kvcache", {"cache_batch_idx": [0, 1]}, "cache_batch_idx is a list"),
    ("kvcache", {"cache_batch_idx": torch.zeros(2)}, "cache_batch_idx is float32"),
    ("kvcache", {"cache_batch_idx": ints(0, 1, 0)}, r"cache_batch_idx is \[3\]"),
    ("kvcache", {"cache_leftpad": [0, 1]}, "cache_leftpad is a list"),
    ("kvcache", {"cache_leftpad": 1}, "cache_leftpad is a int"),
    ("kvcache", {"block_table": ints(0, 1)}, r"block_table is \[2\]"),
    ("kvcache", {"k": [1.0], "v": [1.0]}, "k is a list"),
    ("kvcache", {"k": K, "v": K[0]}, r"v is \[7, 2, 16\]"),
    ("kvcache", {"k": K[:, :1], "v": V[:, :1], "rotary_cos": [1.0], "rotary_sin": [1.0]},
     "rotary_cos is a list"),
    ("kvcache", {"rotary_interleaved": "yes"}, "rotary_interleaved = 'yes'"),
    ("kvcache", {"q": Q[0], "cu_seqlens_q": [0, 5]}, "cu_seqlens_q is a list"),
    ("kvcache", {"num_splits": "1"}, "num_splits = '1'"),
    ("kvcache", {"return_softmax_lse": "yes"}, "return_softmax_lse = 'yes'"),
    ("kvcache", {"k_descale": 0.25}, "fp8"),
    ("paged plan", {"paged_kv_indptr": [0, 2, 3]}, "paged_kv_indptr is a list"),
    ("paged plan", {"paged_kv_indptr": None}, "paged_kv_indptr is a NoneType"),
    ("paged plan", {"paged_kv_indptr": torch.zeros(3)}, "paged_kv_indptr is float32"),
    ("paged plan", {"paged_kv_indptr": ints(0, 2, 3)[None]}, r"paged_kv_indptr is \[1, 3\]"),
    ("paged plan", {"paged_kv_indptr": torch.tensor(3)}, r"paged_kv_indptr is \[\]"),
    ("paged plan", {"paged_kv_indptr": ints(1, 2, 3)}, "paged_kv_indptr must be offsets from 0"),
    ("paged plan", {"paged_kv_indptr": ints()}, "paged_kv_indptr must be offsets from 0"),
    ("paged plan", {"qo_indptr": [0, 1, 2]}, "qo_indptr is a list"),
    ("paged plan", {"qo_indptr": np.array([0, 1, 2])}, "qo_indptr is a ndarray"),
    ("paged plan", {"paged_kv_indices": [1, 2, 5]}, "paged_kv_indices is a list"),
    ("paged plan", {"paged_kv_indices": torch.tensor([1.0, 2, 5])}, "paged_kv_indices is float32"),
    ("paged plan", {"paged_kv_indices": ints(1, 2, 5)[None]}, r"paged_kv_indices is \[1, 3\]"),
    ("paged plan", {"paged_kv_last_page_len": [3, 4]}, "paged_kv_last_page_len is a list"),
    ("paged plan", {"paged_kv_last_page_len": torch.ones(2)}, "paged_kv_last_page_len is f"),
    ("paged plan", {"num_qo_heads": "4"}, "num_qo_heads = '4'"),
    ("paged plan", {"num_qo_heads": 4.0}, "num_qo_heads = 4.0"),
    ("paged plan", {"num_kv_heads": 0}, "num_kv_heads = 0"),
    ("paged plan", {"num_kv_heads": 3}, "num_qo_heads = 4 is no multiple of num_kv_heads = 3"),
    ("paged plan", {"head_dim": None}, "head_dim = None"),
    ("paged plan", {"head_dim": -16}, "head_dim = -16"),
    ("paged plan", {"head_dim_vo": 16.0}, "head_dim_vo = 16.0"),
    ("paged plan", {"page_size": 0}, "page_size = 0"),
    ("paged plan", {"page_size": 4.0}, "page_size = 4.0"),
    ("paged plan", {"causal": "yes"}, "causal = 'yes'"),
    ("paged plan", {"window_left": -7}, "window_left = -7"),
    ("paged plan", {"window_left": None}, "window_left = None"),
    ("paged plan", {"window_left": 3.0}, "window_left = 3.0"),
    ("paged plan", {"logits_soft_cap": NAN}, "logits_soft_cap = nan"),
    ("paged plan", {"logits_soft_cap": -1.0}, "logits_soft_cap = -1.0"),
    ("paged plan", {"logits_soft_cap": "30"}, "logits_soft_cap = '30'"),
    ("paged plan", {"sm_scale": NAN}, "sm_scale = nan"),
    ("paged plan", {"sm_scale": True}, "sm_scale = True"),
    ("paged plan", {"sm_scale": "0.25"}, "sm_scale = '0.25'"),
    ("paged plan", {"sm_scale": zeros(2)}, "sm_scale"),
    ("paged plan", {"custom_mask": torch.ones(11)}, "custom_mask is float32"),
    ("paged plan", {"packed_custom_mask": [255, 7]}, "packed_custom_mask is a list"),
    ("paged plan", {"custom_mask": zeros(11) > 0, "causal": True}, "leave causal out"),
    ("paged plan", {"custom_mask": zeros(10) > 0}, "custom_mask has 10 elements, .* need 11"),
    ("paged plan", {"packed_custom_mask": zeros(3).byte()}, "packed_custom_mask has 3 elements"),
    ("ragged plan", {"qo_indptr": None}, "qo_indptr is a NoneType"),
    ("ragged plan", {"kv_indptr": [0, 3, 7]}, "kv_indptr is a list"),
    ("ragged plan", {"kv_indptr": ints(0, 7)}, "qo_indptr has 3 entries beside 1"),
    ("ragged plan", {"window_left": -7}, "window_left = -7"),
    ("ragged plan", {"num_qo_heads": None}, "num_qo_heads = None"),
    ("ragged plan", {"custom_mask": zeros(17)}, "custom_mask is float32"),
    ("latent plan", {"kv_len_arr": [7, 4]}, "kv_len_arr is a list"),
    ("latent plan", {"kv_len_arr": None}, "kv_len_arr is a NoneType"),
    ("latent plan", {"kv_len_arr": torch.tensor([7.0, 4.0])}, "kv_len_arr is float32"),
    ("latent plan", {"kv_len_arr": ints(9, 4)}, "kv_len_arr"),
    ("latent plan", {"sm_scale": None}, "sm_scale = None"),
    ("latent plan", {"sm_scale": NAN}, "sm_scale = nan"),
    ("latent plan", {"head_dim_kpe": "8"}, "head_dim_kpe = '8'"),
    ("latent plan", {"causal": 2}, "causal = 2"),
    ("paged", {"q": [1.0]}, "q is a list"),
    ("paged", {"q": None}, "q is a NoneType"),
    ("paged", {"q": zeros(2, HEADS)}, r"q is \[2, 4\]"),
    ("paged", {"q": zeros(3, HEADS, DIM)}, "q has 3 rows"),
    ("paged", {"paged_kv_cache": None}, "paged_kv_cache is a NoneType"),
    ("paged", {"paged_kv_cache": (PAGES[:, 0],)}, "paged_kv_cache has 1 parts"),
    ("paged", {"paged_kv_cache": (PAGES[:, 0],) * 3}, "paged_kv_cache has 3 parts"),
    ("paged", {"paged_kv_cache": (PAGES[:, 0], [1.0])}, "values is a list|values"),
    ("paged", {"paged_kv_cache": PAGES.numpy()}, "paged_kv_cache is a ndarray"),
    ("paged", {"paged_kv_cache": PAGES[:, 0]}, r"not \[pages, 2"),
    ("paged", {"paged_kv_cache": PAGES.to("meta")}, "meta"),
    ("paged", {"k_scale": NAN}, "k_scale = nan"),
    ("paged", {"k_scale": 0.5}, "fp8"),
    ("paged", FP8_PAGES | {"k_scale": "0.5"}, "k_scale = '0.5'"),
    ("paged", FP8_PAGES | {"v_scale": NAN}, "v_scale = nan"),
    ("paged", FP8_PAGES | {"v_scale": True}, "v_scale = True"),
    ("paged", {"sinks": [0.0] * HEADS}, "sinks is a list"),
    ("paged", {"sinks": zeros(HEADS).half()}, "sinks"),
    ("paged", {"out": [1.0]}, "out is a list"),
    ("paged", {"out": zeros(2, HEADS, DIM + 1)}, "o is|out is"),
    ("paged", {"return_lse": "yes"}, "return_lse = 'yes'"),
    ("ragged", {"q": [1.0]}, "q is a list"),
    ("ragged", {"k": None}, "k is a NoneType"),
    ("ragged", {"v": zeros(6, KV_HEADS, DIM)}, "v has 6 rows"),
    ("ragged", {"k": zeros(7, KV_HEADS * DIM)}, r"k is \[7, 32\]"),
    ("ragged", {"q": torch.tensor(1.0)}, r"q is \[\]"),
    ("ragged", {"q_scale": NAN}, "q_scale = nan"),
    ("latent", {"q_nope": [1.0]}, "q_nope is a list"),
    ("latent", {"q_nope": zeros(2, HEADS, 16)}, "q"),
    ("latent", {"q_pe": zeros(2, HEADS, 8)}, "q_nope is"),
    ("latent", {"q_nope": zeros(2, HEADS, 16), "q_pe": zeros(1, HEADS, 8)}, "q_pe has 1 rows"),
    ("latent", {"ckv_cache": None}, "ckv_cache is a NoneType"),
    ("latent", {"ckv_cache": zeros(6, PAGE, 16), "kpe_cache": zeros(6, PAGE, 8)},
     "do not lie beside each other"),
    ("latent", {"kpe_cache": [1.0]}, "kpe_cache is a list"),
    ("latent", {"k_scale": NAN}, "k_scale = nan"),
    ("append", {"append_key": [1.0]}, "append_key is a list"),
    ("append", {"append_value": None}, "append_value is a NoneType"),
    ("append", {"append_value": zeros(2, KV_HEADS, DIM)}, r"append_value is \[2, 2, 16\]"),
    ("append", {"append_key": zeros(3, KV_HEADS * DIM)}, r"append_key is \[3, 32\]"),
    ("append", {"batch_indices": [0, 0, 1]}, "batch_indices is a list"),
    ("append", {"batch_indices": torch.zeros(3)}, "batch_indices is float32"),
    ("append", {"batch_indices": ints(0, 0)}, r"batch_indices is \[2\]"),
    ("append", {"positions": torch.tensor([5.0, 6, 3])}, "positions is float32"),
    ("append", {"positions": ints(5, 6, 3)[None]}, r"positions is \[1, 3\]"),
    ("append", {"positions": ints(5, 6, 3).to("meta")}, "positions is on meta"),
    ("append", {"paged_kv_cache": [1.0]}, "paged_kv_cache"),
    ("append", {"paged_kv_cache": (PAGES[:, 0],)}, "paged_kv_cache has 1 parts"),
    ("append", {"paged_kv_cache": PAGES[:, :1]}, "paged_kv_cache"),
    ("append", {"paged_kv_cache": PAGES[0, 0]}, "paged_kv_cache"),
    ("append", {"kv_indices": [1, 2, 5]}, "kv_indices is a list"),
    ("append", {"kv_indices": torch.zeros(3)}, "kv_indices is float32"),
    ("append", {"kv_indptr": None}, "kv_indptr is a NoneType"),
    ("append", {"kv_layout": "NDH"}, "kv_layout = 'NDH'"),
    ("append", {"kv_layout": None}, "kv_layout = None"),
    ("places", {"append_indptr": [0, 2, 3]}, "append_indptr is a list"),
    ("places", {"append_indptr": torch.tensor([0.0, 2, 3])}, "append_indptr is float32"),
    ("places", {"seq_lens": (7, 4)}, "seq_lens is a tuple"),
    ("places", {"seq_lens": ints(7)}, r"seq_lens is \[1\]"),
    ("places", {"nnz": 3.0}, "nnz = 3.0"),
    ("places", {"nnz": -1}, "nnz = -1"),
    ("places", {"nnz": None}, "nnz = None"),
    ("capacity", {"batch": 0}, "batch = 0"),
    ("capacity", {"batch": 2.0}, "batch = 2.0"),
    ("capacity", {"max_kv": None}, "max_kv = None"),
    ("paged object", {"kv_layout": "nhd"}, "kv_layout = 'nhd'"),
    ("paged object", {"device": "gpu"}, "device = 'gpu'"),
    ("paged object", {"device": None}, "device = None"),
    ("paged object", {"capacity": 5}, "capacity = 5"),
]  # fmt: skip


@pytest.fixture
def calls():
    with stated(functions, kvcache, planned) as found:
        yield found


def names(table):
    return [f"{i}-{kind}-{'-'.join(wrong)}" for i, (kind, wrong, *_) in enumerate(table)]


@pytest.mark.parametrize("name", CALLS)
def test_the_call_is_right(calls, name):
    function, right = CALLS[name]
    function(**right)


@pytest.mark.parametrize(("name", "other"), RIGHT, ids=names(RIGHT))
def test_numbers_of_other_libraries_are_numbers(calls, name, other):
    function, right = CALLS[name]
    function(**(right | other))


@pytest.mark.parametrize(("name", "wrong", "said"), WRONG, ids=names(WRONG))
def test_a_wrong_call_gives_a_typed_error(calls, name, wrong, said):
    function, right = CALLS[name]
    with pytest.raises((BadArgument, WrongDevice)) as found:
        function(**(right | wrong))
    message = str(found.value)
    assert re.search(said, message), message
    assert "\n" not in message and isinstance(found.value, TilewrightError)
