"""``archs`` and ``devices``: the GPUs Tilewright knows, and the GPUs of this machine."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tilewright.cli import completion, output
from tilewright.cli.options import Json, command

if TYPE_CHECKING:
    from tilewright.arch import Arch, Device


app = typer.Typer()


@command(
    app,
    "List the GPU architectures that kernels can be built for.",
    "tilewright archs",
    "tilewright archs gfx942",
    "tilewright archs --json",
)
def archs(
    name: Annotated[
        str | None,
        typer.Argument(
            help="Show one architecture in detail.",
            metavar="NAME",
            autocompletion=completion.archs,
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """List the GPU architectures that kernels can be built for."""
    from tilewright import arch

    known = [arch.arch(n) for n in ([name] if name else arch.archs())]
    if as_json:
        output.emit(_described(known[0]) if name else [_described(a) for a in known])
    elif name:
        _show_arch(known[0])
    else:
        output.records(
            {
                "arch": a.name,
                "vendor": a.vendor,
                "warp": a.warp_size,
                "shared memory": output.size(a.shared_memory),
                "fp8": a.fp8,
                "native": _dtypes(a, "native"),
                "emulated": _dtypes(a, "emulated") or "-",
                "refused": _dtypes(a, "refused") or "-",
                "products": ", ".join(a.products),
            }
            for a in known
        )


def _dtypes(arch: Arch, support: str) -> str:
    return " ".join(name for name, s in arch.dtypes.items() if s.support == support)


def _described(a: Arch) -> dict[str, Any]:
    from tilewright import ops

    return {**asdict(a), "pipelines": ops.pipelines(a)}


def _show_arch(a: Arch) -> None:
    from tilewright import ops

    output.heading(f"{a.name} ({a.vendor})")
    output.fields(
        {
            "products": ", ".join(a.products),
            "warp": f"{a.warp_size} threads; at most {a.max_threads} in a workgroup",
            "shared memory": f"{output.size(a.shared_memory)} a workgroup, "
            f"{output.size(a.shared_memory_per_cu)} a compute unit",
            "registers": f"{a.max_registers} a thread; {a.simds_per_cu} SIMDs of "
            f"{a.registers_per_lane} a lane",
            "fp8, bf8": f"{a.fp8}",
            "pipelines": ", ".join(ops.pipelines(a)),
            "mma": "can be chosen" if a.mma_selectable else "the compiler chooses the shape",
            "wildcards": f"num_warps {', '.join(map(str, a.num_warps))}; "
            f"num_stages {', '.join(map(str, a.num_stages))}",
            "notes": a.notes or "-",
        }
    )
    output.line()
    output.table(
        ("operands", "support", "note"),
        [(name, s.support, s.note or "-") for name, s in a.dtypes.items()],
    )
    output.line()
    output.records(
        {
            "instruction": unit.instruction,
            "accumulates in": unit.acc,
            "operands": " ".join(unit.dtypes),
            "shapes (m x n x k)": " ".join("x".join(map(str, shape)) for shape in unit.shapes),
        }
        for unit in a.mma
    )


@command(
    app,
    "List the known GPUs, or the GPUs of this machine.",
    "tilewright devices",
    "tilewright devices h200_sxm",
    "tilewright devices --live --json",
)
def devices(
    name: Annotated[
        str | None,
        typer.Argument(
            help="Show one known device (slug or name).",
            metavar="NAME",
            autocompletion=completion.gpus,
        ),
    ] = None,
    live: Annotated[
        bool,
        typer.Option("--live", help="List the GPUs of this machine, as their drivers report them."),
    ] = False,
    as_json: Json = False,
) -> None:
    """List the known GPUs, or with --live the GPUs of this machine.

    Kernels can be planned for a known GPU without having it. To plan for a GPU of another machine,
    save its fingerprint there with --live --json, and pass the file to --device.
    """
    from tilewright import arch
    from tilewright.arch.detect import live_devices
    from tilewright.errors import BadArgument

    if name and live:
        raise BadArgument("give the name of a known device, or --live, not both")
    if live:
        known = {str(index): device for index, device in enumerate(live_devices())}
    elif name:
        known = {name: arch.device(name)}
    else:
        known = arch.devices()
    shown: dict[str, Any] = {slug: asdict(device) for slug, device in known.items()}
    if as_json:
        output.emit(shown[name] if name else [*shown.values()] if live else shown)
    elif name:
        shown = shown[name]
        peaks = ", ".join(f"{d} {t:g}" for d, t in shown.pop("matrix_tflops"))
        partition = shown["partition"] or "the whole GPU"
        published = peaks or "the architecture's rate"
        output.fields({**shown, "partition": partition, "peak TFLOP/s": published})
    else:
        output.table(
            ("GPU" if live else "device", "name", "arch", "units", "L2", "memory", "GB/s"),
            [(slug, *_row(device)) for slug, device in known.items()],
        )


def _row(d: Device) -> tuple[Any, ...]:
    name = f"{d.name} {d.partition}".strip()
    sizes = output.size(d.l2_bytes), output.size(d.memory_bytes)
    return name, d.arch, d.compute_units, *sizes, round(d.bandwidth_gbs)
