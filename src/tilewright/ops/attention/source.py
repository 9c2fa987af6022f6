"""From a config to what is compiled: the same for every pipeline, from its record.

A config's parts, in order: ``append`` writes new keys and values into the cache, and rotates them
and Q; ``turn`` writes fp8 values by columns, for a pipeline that wants them so; `MAIN` is the
pipeline's kernel; ``combine`` adds up what splits of the keys found.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tilewright.arch.model import Arch
from tilewright.dtypes import DTYPES
from tilewright.ops.attention import parts, pipelines
from tilewright.ops.attention.arguments import ARGUMENTS, CONSTANTS, Argument, Value
from tilewright.ops.attention.config import AttentionConfig
from tilewright.ops.nouns import MAIN, KernelSource

KERNELS = "tilewright.ops.attention.kernels"

TEMPORARIES = (
    "partial_o", "partial_lse", "counter", "rotated_q", "delta", "distances", "log_sums", "deltas",
    "row_tops", "tops", "logs", "dq_sums", "turns", "order", "ds", "turned_v",
)  # fmt: skip
"""Arguments that are temporaries, of attention and of its backward pass."""


def sources(config: AttentionConfig, arch: Arch) -> Mapping[str, KernelSource]:
    """What to compile for `config` on `arch`, by part."""
    found = {}
    if "append" in config.words:
        found[parts.APPEND.name] = _of_part(parts.APPEND, config, arch)
    for one in pipelines.of(config).before:
        found[one.part.name] = _of_part(one.part, config, arch)
    found[MAIN] = main(config, arch)
    if config.scheduler == "split":
        found[parts.COMBINE.name] = _of_part(parts.COMBINE, config, arch)
    return found


def main(config: AttentionConfig, arch: Arch) -> KernelSource:
    """The pipeline's kernel."""
    record = pipelines.of(config)
    boxes = record.boxes(config)
    own = tuple((name, made(config, arch)) for name, made in record.own_constants.items())
    return kernel_source(
        config,
        (f"{KERNELS}.{record.module}", record.function, record.language),
        tuple(record.arguments),
        {name: CONSTANTS[name](config) for name in record.constants} | dict(own),
        {name: _described(config, name, box) for name, box in boxes.items()},
        record.options(config, arch),
    )


def _of_part(part: parts.Part, config: AttentionConfig, arch: Arch) -> KernelSource:
    constants = {name: CONSTANTS[name](config) for name in part.constants}
    options: tuple[tuple[str, Value], ...] = (("num_warps", part.num_warps), ("num_stages", 1))
    if part.dependent:
        constants["DEPENDENT"] = arch.has("pdl")
        options += (("launch_pdl", True),) if arch.has("pdl") else ()
    return kernel_source(
        config,
        (f"{KERNELS}.{part.module}", part.function, "triton"),
        part.arguments,
        constants,
        {},
        options,
    )


def _described(config: AttentionConfig, name: str, box: tuple[int, ...]) -> str:
    dtype = {"q": config.dtype, "o": config.dtype_o}.get(name, config.dtype_kv)
    return f"tensordesc<{DTYPES[dtype].triton}[{', '.join(map(str, box))}]>"


def kernel_source(
    config: Any,
    where: tuple[str, str, str],
    names: tuple[str, ...],
    constants: Mapping[str, Value],
    described: Mapping[str, str],
    options: tuple[tuple[str, Value], ...],
    catalogue: Mapping[str, Argument] = ARGUMENTS,
    aligned: Mapping[str, str] | None = None,
) -> KernelSource:
    """The source of one kernel.

    config: an `AttentionConfig`, or a config with the fields of one that the arguments read.
    where: module, function and language.
    names: of its arguments, in order. described: those that are descriptors, with their types.
    constants, options: with their values.
    catalogue: what the names mean.
    aligned: pointers whose alignment the config promises, with their strides: names and dtypes; by
        default those of attention.
    """
    module, function, language = where
    dtypes = aligned if aligned is not None else _aligned(config)
    signature: list[tuple[str, str]] = []
    values: list[tuple[str, Value]] = []
    promises: dict[str, int] = {}
    for name in names:
        one = catalogue[name]
        if not one.passed(config):
            signature.append((name, "constexpr"))
            values.append((name, 0))
        elif name in described:
            signature.append((name, described[name]))
        elif one.is_tuple:
            types = one.types(config)
            signature += [(f"{name}.{i}", kind) for i, kind in enumerate(types)]
            promises |= _strides_promise(config, name, dtypes)
        else:
            signature += [(name, kind) for kind in one.types(config)]
            promises |= _promise(config, name, dtypes)
    values += constants.items()
    signature += [(name, "constexpr") for name in constants]
    assert language in ("triton", "gluon")
    return KernelSource(
        module=module,
        function=function,
        signature=tuple(signature),
        constants=tuple(values),
        divisibility=tuple(promises.items()),
        options=options,
        language="gluon" if language == "gluon" else "triton",
    )


def _aligned(config: AttentionConfig) -> dict[str, str]:
    """Pointers whose alignment a config promises, with their strides, and the pointers' dtypes."""
    q, kv, o = config.dtype, config.dtype_kv, config.dtype_o
    return {"q": q, "k": kv, "v": kv, "o": o, "o_rows": o, "rotated_q": q}


def _promise(config: Any, name: str, dtypes: Mapping[str, str]) -> dict[str, int]:
    if name in TEMPORARIES:
        return {name: 16}  # temporaries come from an allocator
    if name in dtypes and config.alignment > 1:
        return {name: config.alignment}
    return {}


def _strides_promise(config: Any, name: str, dtypes: Mapping[str, str]) -> dict[str, int]:
    """Strides of all dimensions but the innermost are multiples of the alignment."""
    operand, _, kind = name.partition("_")
    if kind != "strides" or operand not in dtypes:
        return {}
    count = config.alignment // DTYPES[dtypes[operand]].bytes
    return {f"{name}.{i}": count for i in range(3)} if count > 1 else {}
