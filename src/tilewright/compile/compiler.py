"""Drives the Triton compiler, which can abort, hang or print: only a child process runs this, for
one architecture (`compilers`)."""

from __future__ import annotations

import importlib
import os
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from tilewright.compile import stages
from tilewright.compile.kernel import Kernel
from tilewright.compile.resources import Resources, amd_resources, nvidia_resources
from tilewright.errors import BuildFailed, TilewrightError
from tilewright.listing.padding import padded
from tilewright.listing.target import GENERATIONS
from tilewright.ops.nouns import MAIN, KernelSource

INHERITED = frozenset(
    {"PATH", "HOME", "LD_LIBRARY_PATH", "LD_PRELOAD", "PYTHONHOME", "VIRTUAL_ENV"}
)
KEPT = {"cuda": ("cubin", "ptx", "llir", "ttgir"), "hip": ("hsaco", "amdgcn", "llir", "ttgir")}
"""The files that are stored of a build, by backend; the loadable binary first."""


@dataclass(frozen=True, slots=True)
class Job:
    """One kernel to build, as JSON carries it to the child.

    target: the architecture, as Triton calls it.
    module_digest: the `sources_digest` that `key` was made with.
    """

    name: str
    arch: str
    backend: str
    target: str
    warp_size: int
    key: str
    source: KernelSource
    module_digest: str
    part: str = MAIN


def environment(scratch: str) -> dict[str, str | None]:
    """The changes that make the compiler's environment the same everywhere.

    Dozens of variables (``TRITON_*``, ``DISABLE_*``, ``AMDGCN_*``, ``PTXAS_OPTIONS``…) alter what
    Triton makes; everything not known to be harmless goes. `scratch` is a folder of the
    parent's for temporary files.
    """
    return {
        **{name: None for name in os.environ if name not in INHERITED},
        "LC_ALL": "C.UTF-8",
        "PYTHONHASHSEED": "0",
        "TMPDIR": scratch,
        "TRITON_ALWAYS_COMPILE": "1",
        "TRITON_DISABLE_LINE_INFO": "1",  # the source's path would be in the binary
    }


def compile_kernel(job: Job) -> tuple[Kernel, dict[str, bytes]]:
    """Compile one kernel. Returns its manifest without blobs, and its files by kind. Raises
    whatever the compiler raises, and `BuildFailed`."""
    import triton
    from triton import knobs
    from triton.backends.compiler import GPUTarget

    source = job.source
    function = _imported(source.module, source.function)
    signature = _signature(source)
    names = [*signature]
    if names != list(function.arg_names):
        raise BuildFailed(
            f"the signature's arguments {names} are not those of {source.module}."
            f"{source.function}, {list(function.arg_names)}"
        )
    target = GPUTarget(
        job.backend, int(job.target) if job.backend == "cuda" else job.target, job.warp_size
    )
    constants: dict[str, Any] = dict(source.constants)
    for name, called in source.functions:
        constants[name] = tuple(_imported(*one.split(":")) for one in called)
    signature, attributes = _signature(source), _attributes(source, names)
    made = _FRONT_ENDS[source.language](function, signature, constants, attributes)
    with tempfile.TemporaryDirectory() as cache:  # Triton insists on one; the user's stays as is
        os.environ["TRITON_CACHE_DIR"] = cache
        knobs.runtime.add_stages_inspection_hook = stages.hook(
            job.backend, job.target, source.cluster
        )
        built = triton.compile(made, target=target, options=dict(source.options))
    binary, *texts = KEPT[job.backend]
    files: dict[str, bytes] = {binary: built.asm[binary]}
    files |= {kind: built.asm[kind].encode() for kind in texts}
    if job.backend == "hip" and job.target in GENERATIONS:
        files |= _waiting(built.asm["amdgcn"], target, dict(source.options))
    made_by = str(triton.__version__)
    return _kernel(job, made_by, built.metadata._asdict(), _resources(job, built)), files


def _triton_source(function: Any, signature: dict[str, Any], *rest: Any) -> Any:
    from triton.compiler import ASTSource

    return ASTSource(function, signature, *rest)


def _gluon_source(function: Any, signature: dict[str, Any], *rest: Any) -> Any:
    """Gluon's types of descriptors name a layout in shared memory: the default of their block."""
    from triton.experimental.gluon import language as gl
    from triton.experimental.gluon._runtime import GluonASTSource
    from triton.language import str_to_ty

    def laid_out(kind: Any) -> Any:
        if isinstance(kind, tuple):
            return tuple(map(laid_out, kind))
        if not kind.startswith("tensordesc<"):
            return kind
        block = str_to_ty(kind, None).block_type
        layout = gl.NVMMASharedLayout.get_default_for(block.shape, block.element_ty)
        return f"{kind[:-1]},{layout!r}>"

    kinds = {name: laid_out(kind) for name, kind in signature.items()}
    return GluonASTSource(function, kinds, *rest)


_FRONT_ENDS = {"triton": _triton_source, "gluon": _gluon_source}


def _imported(module: str, function: str) -> Any:
    """A Triton function. Raises `BuildFailed` if there is none by this name."""
    from triton import JITFunction

    found = getattr(importlib.import_module(module), function, None)
    if not isinstance(found, JITFunction):
        raise BuildFailed(f"{module} has no function '{function}' decorated with triton.jit")
    return found


def _signature(source: KernelSource) -> dict[str, Any]:
    """The arguments as Triton takes them: a tuple argument has a tuple of types."""
    made: dict[str, Any] = {}
    for name, kind in source.signature:
        whole, dot, _ = name.partition(".")
        if dot:
            made[whole] = (*made.get(whole, ()), kind)
        else:
            made[name] = () if kind == "()" else kind
    return made


def _attributes(source: KernelSource, names: list[str]) -> dict[tuple[int, ...], list[list[Any]]]:
    def place(name: str) -> tuple[int, ...]:
        whole, dot, element = name.partition(".")
        return (names.index(whole), int(element)) if dot else (names.index(whole),)

    attributes: dict[tuple[int, ...], list[list[Any]]] = {}
    for name, value in source.divisibility:
        attributes.setdefault(place(name), []).append(["tt.divisibility", value])
    for name in source.pointer_range_32:
        attributes.setdefault(place(name), []).append(["tt.pointer_range", 32])
    return attributes


def _waiting(listing: str, target: Any, options: dict[str, Any]) -> dict[str, bytes]:
    """The listing with the wait states that the compiler left out, and the code object that it
    assembles to; nothing if the compiler left out none, or if the listing is of a kind that cannot
    be read here."""
    try:
        complete = padded(listing)
    except TilewrightError:
        return {}
    if complete == listing:
        return {}
    from triton.compiler.compiler import make_backend

    backend = make_backend(target)
    binary = backend.make_hsaco(complete, {}, backend.parse_options(options))
    return {"amdgcn": complete.encode(), "hsaco": binary}


def _resources(job: Job, built: Any) -> Resources:
    if job.backend == "hip":
        return amd_resources(built.asm["amdgcn"])
    from triton import knobs

    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(built.asm["cubin"])
        file.flush()
        report = subprocess.run(
            [knobs.nvidia.cuobjdump.path, "-res-usage", file.name],
            check=True,
            capture_output=True,
            text=True,
        ).stdout
    return nvidia_resources(report, built.metadata.tmem_size or 0)


def _kernel(job: Job, version: str, made: Mapping[str, Any], resources: Resources) -> Kernel:
    return msgspec.convert(
        {
            "name": job.name,
            "arch": job.arch,
            "key": job.key,
            "triton": version,
            "binary": KEPT[job.backend][0],
            "entry": made["name"],
            "num_warps": made["num_warps"],
            "num_ctas": max(made["num_ctas"], job.source.cluster),
            "shared": made["shared"],
            "global_scratch": made.get("global_scratch_size") or 0,
            "global_scratch_align": made.get("global_scratch_align") or 1,
            "profile_scratch": made.get("profile_scratch_size") or 0,
            "profile_scratch_align": made.get("profile_scratch_align") or 1,
            "cooperative": made["launch_cooperative_grid"],
            "pdl": made.get("launch_pdl", False),
            "arguments": job.source.arguments,
            "tensor_maps": made.get("tensordesc_meta") or [],
            "resources": resources,
            "blobs": {},
            "part": job.part,
        },
        Kernel,
        from_attributes=True,
    )
