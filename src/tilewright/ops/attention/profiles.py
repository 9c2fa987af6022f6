"""Named sets of kernels to build: what FlashAttention's functions call, what PyTorch calls, and so
on. Each is a product of dtypes, head dims and kinds of calls; a kind of call has the sizes of a
prompt and of one query where both occur."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence

from tilewright.arch.model import Arch
from tilewright.dtypes import resolve
from tilewright.ops.attention import words
from tilewright.ops.attention.problem import AttentionProblem
from tilewright.ops.profiles import Profile

HALF = ("bf16", "fp16")
SHORT, LONG = "q_len=512 kv_len=512", "q_len=4096 kv_len=4096"
ONE = "q_len=1 kv_len=8192"
MASKS = ("", "mask=causal", "window=1023,0")

Calls = Sequence[str]
"""Words of problems: their sizes, mask and features."""


def _calls(*choices: Calls) -> list[str]:
    """One of each, in all combinations."""
    return [" ".join(filter(None, one)) for one in itertools.product(*choices)]


_PROMPTS = (f"batch=4 {SHORT}", f"batch=4 {LONG}")
_PACKED = "batch=16 q_len=4096 kv_len=4096 packed=true total_q=16384 total_kv=16384"
_DECODE = (f"batch=1 {ONE}", f"batch=64 {ONE}")
_FEW = "batch=8 q_len=4 kv_len=8192 mask=causal"
_CACHES = ("usedkv=true", "page_size=16", "page_size=64", "page_size=256")
_CHUNK = "batch=8 q_len=2048 total_q=8192 kv_len=8192 packedq=true"

TRAINING = [
    *_calls(_PROMPTS, MASKS, ("lse=true", "lse=true dropout=0.125", "lse=true alibi=true",
                              "lse=true softcap=30")),
    *_calls((_PACKED,), MASKS, ("lse=true", "lse=true dropout=0.125", "lse=true softcap=30")),
]  # fmt: skip
FLASH = [
    *TRAINING,
    *_calls(_PROMPTS, MASKS, ("", "softcap=30", "alibi=true")),
    *_calls((_PACKED,), MASKS, ("", "softcap=30")),
    *_calls((*_DECODE, _FEW), _CACHES, ("", "new_kv=1", "new_kv=1 rotary=half")),
    *_calls(_DECODE, ("usedkv=true", "page_size=16"), ("lse=true", "window=1023,0")),
    *_calls((_CHUNK,), ("page_size=16", "page_size=256"), ("mask=causal",)),
]
PYTORCH = [
    *_calls(_PROMPTS, ("", "mask=causal_top_left", "bias=1x1"), ("", "lse=true")),
    *_calls(_PROMPTS, ("", "mask=causal_top_left"), ("lse=true dropout=0.125",)),
    *_calls(_DECODE, ("", "bias=1x1")),
]
FLASHINFER = [
    *_calls((_PACKED,), MASKS, ("", "lse=true", "softcap=30")),
    *_calls((_CHUNK,), ("page_size=16 pagelist=true", "page_size=1 pagelist=true"),
            ("", "lse=true"), ("mask=causal",)),
    *_calls(("batch=1 total_q=1", "batch=64 total_q=64"), (f"{ONE} packedq=true",),
            ("page_size=16 pagelist=true", "page_size=1 pagelist=true"), ("", "lse=true")),
]  # fmt: skip
AITER = [
    *_calls(_PROMPTS, MASKS, ("", "lse=true", "lse=true dropout=0.125")),
    *_calls((_PACKED,), MASKS, ("", "lse=true", "sinks=true")),
    *_calls((*_DECODE, _FEW), ("page_size=16", "page_size=64", "page_size=1 pagelist=true")),
    *_calls((_CHUNK,), ("page_size=1 pagelist=true", "page_size=16 pagelist=true"),
            ("mask=causal",), ("", "softcap=30")),
]  # fmt: skip
QUANTISED = [
    *_calls(_PROMPTS, ("", "mask=causal"), ("tscale=true", "hscale=true")),
    *_calls((_PACKED,), ("mask=causal",), ("tscale=true", "hscale=true")),
    *_calls(_DECODE, ("usedkv=true", "page_size=16"), ("tscale=true", "hscale=true")),
]
CACHED = _calls(_DECODE, ("usedkv=true", "page_size=16", "page_size=64"), ("tscale=true",))
LATENT = _calls(_DECODE, ("usedkv=true", "page_size=64", "page_size=1 pagelist=true"))
SINGLE = _calls(_PROMPTS, ("", "mask=causal"), ("", "lse=true")) + _calls(_DECODE, ("usedkv=true",))

HEADS = "heads=32 kv_heads=8"
_LATENT = "heads=128 latent=true head_dim=576 head_dim_v=512"
_UNEQUAL = "heads=128 head_dim=192 head_dim_v=128"


def _dims(*dims: int) -> tuple[str, ...]:
    return tuple(f"{HEADS} head_dim={dim}" for dim in dims)


def _made(arch: Arch, dtypes: Calls, shapes: Calls, calls: Calls) -> Iterator[AttentionProblem]:
    """The problems, without those of dtypes that the architecture does not take."""
    for dtype in dtypes:
        said = [resolve(one, arch.fp8) for one in dtype.split("/")]
        if any(one not in arch.dtypes or arch.dtypes[one].support == "refused" for one in said):
            continue
        for shape, call in itertools.product(shapes, calls):
            pairs = f"{shape} {call} dtype={said[0]} dtype_kv={said[-1]}".split()
            yield words.parse(dict(pair.split("=", 1) for pair in pairs), arch.fp8)


def _flash(arch: Arch) -> Iterator[AttentionProblem]:
    yield from _made(arch, HALF, _dims(32, 64, 96, 128, 192, 256), FLASH)


def _pytorch(arch: Arch) -> Iterator[AttentionProblem]:
    yield from _made(arch, (*HALF, "fp32"), _dims(64, 80, 128, 256), PYTORCH)


def _flashinfer(arch: Arch) -> Iterator[AttentionProblem]:
    yield from _made(arch, HALF, _dims(64, 128, 256), FLASHINFER)
    yield from _made(arch, HALF, (_LATENT,), LATENT)


def _aiter(arch: Arch) -> Iterator[AttentionProblem]:
    yield from _made(arch, HALF, (*_dims(64, 128, 256), _UNEQUAL), AITER)
    yield from _made(arch, HALF, (_LATENT,), LATENT)
    yield from _made(arch, ("fp8",), _dims(128), QUANTISED)


def _fp8(arch: Arch) -> Iterator[AttentionProblem]:
    yield from _made(arch, ("fp8",), _dims(64, 128, 256), QUANTISED)
    yield from _made(arch, ("bf16/fp8", "fp16/fp8"), _dims(64, 128, 256), CACHED)


def _fp32(arch: Arch) -> Iterator[AttentionProblem]:
    yield from _made(arch, ("fp32",), _dims(32, 64, 96, 128, 256), SINGLE)


_EACH: dict[str, tuple[str, Callable[[Arch], Iterator[AttentionProblem]]]] = {
    "flash": ("FlashAttention's functions, in bf16 and fp16, head dims 32 to 256", _flash),
    "pytorch": ("scaled_dot_product_attention, in bf16, fp16 and fp32", _pytorch),
    "flashinfer": ("prefill, paged decode and latent decode by lists of pages", _flashinfer),
    "aiter": ("serving: packed and paged prompts, decode, latent decode, fp8", _aiter),
    "fp8": ("fp8 with scales, and caches in fp8 under bf16 and fp16", _fp8),
    "fp32": ("fp32, which no matrix unit has", _fp32),
}


def _all(arch: Arch) -> Iterator[AttentionProblem]:
    return itertools.chain.from_iterable(problems(arch) for _, problems in _EACH.values())


PROFILES = {
    **{name: Profile(about, problems) for name, (about, problems) in _EACH.items()},
    "all": Profile("all of these", _all),
}
"""By name."""
