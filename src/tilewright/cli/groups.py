"""Groups of options that several commands share, each with the object that it stands for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tilewright.cli import completion
from tilewright.cli.options import (
    Archs,
    FamilyName,
    OnlyOurs,
    RegistryFile,
    StorePath,
    gpu_index,
    targets,
    words,
)
from tilewright.cli.vocabulary import PROBLEM, WORDS

if TYPE_CHECKING:
    from tilewright.arch import Device
    from tilewright.arch.targets import Target
    from tilewright.bundle import Bundle
    from tilewright.cli.planned import Planning
    from tilewright.cli.selection import Selection
    from tilewright.compile import Store
    from tilewright.dispatch import Dispatcher
    from tilewright.measure.measurement import Method
    from tilewright.select.constraints import Constraints


@dataclass(frozen=True, slots=True)
class StoreOptions:
    """Where built kernels are kept."""

    store: StorePath = None
    trust_store: Annotated[
        bool,
        typer.Option("--trust-store", help="Use kernels of the store that other users built."),
    ] = False

    def open(self) -> Store:
        """The store."""
        from tilewright.compile import Store

        return Store(self.store, self.trust_store)

    def open_if_given(self) -> Store | None:
        """The store; None if no option says anything about it."""
        return self.open() if self.store is not None or self.trust_store else None


@dataclass(frozen=True, slots=True)
class SpaceOptions:
    """What files of spaces and of problems leave open."""

    archs: Archs = None
    signature: Annotated[
        list[str] | None,
        typer.Option(
            "--signature",
            help="A value that the space leaves open, as dtype=bf16; may be repeated.",
            metavar="KEY=VALUE",
        ),
    ] = None
    family: FamilyName = None

    def targets(self) -> tuple[Target, ...]:
        """The architectures, see `options.targets`."""
        return targets(self.archs)

    def select(
        self,
        inputs: Sequence[str],
        arch: str,
        wanted: Sequence[Target] = (),
        how: Planning | None = None,
    ) -> Selection:
        """The kernels that `inputs` mean, see `selection.select`."""
        from tilewright.cli.selection import select

        return select(inputs, arch, self.family, words(self.signature), wanted, how)


@dataclass(frozen=True, slots=True)
class ProblemArguments:
    """A problem: its family, and its words."""

    family: Annotated[
        str,
        typer.Argument(
            help="Operation family.", metavar="FAMILY", autocompletion=completion.families
        ),
    ]
    pairs: Annotated[
        list[str] | None,
        typer.Argument(help=f"The problem, as {WORDS} dtype=bf16.", metavar=PROBLEM),
    ] = None

    def on(self, device: Device) -> Any:
        """The problem on a GPU. Raises `BadArgument` for words that describe none."""
        from tilewright import ops
        from tilewright.arch import arch

        return ops.family(self.family).parse_problem(words(self.pairs), arch(device.arch))


@dataclass(frozen=True, slots=True)
class LimitOptions:
    """Constraints on every kernel."""

    deterministic: Annotated[
        bool, typer.Option("--deterministic", help="Only kernels that repeat bit for bit.")
    ] = False
    batch_invariant: Annotated[
        bool,
        typer.Option(
            "--batch-invariant", help="One kernel with the same bits for every batch size."
        ),
    ] = False
    max_workspace: Annotated[
        int | None,
        typer.Option(
            "--max-workspace",
            min=0,
            help="Most bytes of scratch memory for a launch [default: any]",
            metavar="BYTES",
        ),
    ] = None
    only_ours: OnlyOurs = False

    def constraints(self) -> Constraints:
        """The constraints."""
        from tilewright.select.constraints import Constraints

        return Constraints(
            deterministic=self.deterministic,
            batch_invariant=self.batch_invariant,
            max_workspace=self.max_workspace,
            only_ours=self.only_ours,
        )


@dataclass(frozen=True, slots=True)
class PlanOptions:
    """What a dispatcher chooses kernels by."""

    device: Annotated[
        str | None,
        typer.Option(
            "--device",
            help="GPU to plan for: a known one (see `devices`), one of this machine (cuda:0) or a "
            "JSON file [default: the first GPU of this machine, else h200_sxm]",
            autocompletion=completion.gpus,
        ),
    ] = None
    registry: RegistryFile = None
    tables: Annotated[
        list[Path] | None,
        typer.Option(
            "--table",
            help="Table of tuned choices; may be repeated [default: TILEWRIGHT_TABLES]",
            metavar="FILE",
        ),
    ] = None
    models: Annotated[
        list[Path] | None,
        typer.Option(
            "--model",
            help="Models of learned selection; may be repeated [default: TILEWRIGHT_MODELS]",
            metavar="FILE",
        ),
    ] = None
    limits: LimitOptions = LimitOptions()
    pipelines: Annotated[
        list[str] | None,
        typer.Option("--pipelines", help="Only these pipelines, as tma,gluon_ws.", metavar="NAMES"),
    ] = None
    blocked: Annotated[
        list[str] | None,
        typer.Option(
            "--block",
            help="Exclude this kernel, or kernels that match; may be repeated.",
            metavar="PATTERN",
        ),
    ] = None

    def dispatcher(
        self,
        device: Device | str | None,
        store: Store | None = None,
        bundles: Sequence[Bundle] = (),
    ) -> Dispatcher:
        """A dispatcher for `device`, with the other options."""
        from tilewright.dispatch import Dispatcher
        from tilewright.registry import Registry

        return Dispatcher(
            Registry.load(self.registry) if self.registry is not None else None,
            device,
            store=store,
            constraints=replace(
                self.limits.constraints(),
                pipelines=tuple(n for some in self.pipelines or () for n in some.split(",")),
                blocked=tuple(self.blocked or ()),
            ),
            tables=self.tables or None,
            models=self.models or None,
            bundle=bundles or None,
        )


@dataclass(frozen=True, slots=True)
class PairOptions:
    """How two contenders are timed, in pairs."""

    rounds: Annotated[int, typer.Option("--rounds", min=6, help="Number of pairs of samples.")] = 60
    on: Annotated[
        str,
        typer.Option(
            "--on", help="Where to run: a GPU as cuda:0, or cpu (wall time of the interpreter)."
        ),
    ] = "cuda:0"
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--settings",
            help="How to time: method=single, one call at a time behind a flush of L2, or "
            "method=graph, calls back to back in a CUDA graph, over copies of the inputs "
            "[default: method=single]",
            metavar="KEY=VALUE",
        ),
    ] = None

    def gpu(self) -> int | None:
        """The number of the GPU; None for the CPU. Raises if this machine lacks it."""
        return gpu_index(self.on)

    def method(self) -> Method:
        """The way of timing. Raises `BadArgument` for other settings."""
        from tilewright.cli.settings import read_method

        return read_method(words(self.settings))
