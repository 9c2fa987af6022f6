"""A sweep's options, and the request they make: kernels, problems, settings, the work to do."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tilewright.cli import output
from tilewright.cli.build import TIMEOUT_SECONDS, Workers
from tilewright.cli.groups import StoreOptions
from tilewright.cli.options import FamilyName, OpenWords, Timeout, words
from tilewright.cli.settings import read_settings
from tilewright.cli.vocabulary import WHERE
from tilewright.errors import BadArgument
from tilewright.wording import many

if TYPE_CHECKING:
    from tilewright.arch import Device
    from tilewright.cli.selection import Selection
    from tilewright.compile import Store
    from tilewright.measure.crew import Crew
    from tilewright.measure.designs import Design, Sample
    from tilewright.measure.filters import Filters, LeftOut
    from tilewright.measure.measurement import Settings, Status
    from tilewright.measure.problems import Problems
    from tilewright.measure.sweep import Group, Plan, Wanted


@dataclass(frozen=True, slots=True)
class Chosen:
    """The kernels and problems of a sweep on one architecture, and the ones left out.

    sample: the pairs to measure; None for all kernels on all problems.
    """

    selection: Selection
    configs: tuple[Any, ...]
    left: tuple[LeftOut, ...]
    problems: Problems
    sample: Sample | None = None

    @property
    def pairs(self) -> Wanted:
        """The problems, each with the kernels to measure on it."""
        if self.sample is not None:
            return self.sample.pairs
        return [(problem, self.configs) for problem in self.problems.problems]


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepOptions:
    """The command line of a sweep."""

    inputs: Annotated[
        list[str],
        typer.Argument(
            help="Space files (JSON), kernel names, shipped sets, or operations: every kernel that "
            "tuning chooses from; or the sample of another sweep.",
            metavar="SPACE.json|NAME|FAMILY:SET|OPERATION|SAMPLE.json…",
        ),
    ]
    out: Annotated[Path, typer.Option("--out", help="Directory of the results.", metavar="DIR")]
    problems: Annotated[
        list[str] | None,
        typer.Option(
            "--problems",
            help="Problem list (.json, .csv, aiter's .csv, .txt, a capture's .jsonl), or shipped "
            "set; may be repeated [default: the spaces' sets]",
            metavar="FILE|FAMILY:SET",
        ),
    ] = None
    devices: Annotated[
        str,
        typer.Option(
            "--devices",
            help="all GPUs, how many, which by number, product or UUID (0,3), ray: those of a "
            "cluster, cpu: the interpreter, or emulated:mi300x: an emulated GPU.",
        ),
    ] = "all"
    arch: Annotated[
        str | None,
        typer.Option(
            "--arch",
            help="Architecture to compile or count for without its device, or a list of them "
            "[default with --compile-only: that of `build`]; on cpu, the architecture that "
            "the interpreter stands in for.",
        ),
    ] = None
    match: Annotated[
        list[str] | None,
        typer.Option(
            "--match", help="Only kernels with names that match, as *_tma_*; may be repeated."
        ),
    ] = None
    where: Annotated[
        str,
        typer.Option("--where", help=f"Only kernels that meet this condition, as {WHERE}."),
    ] = ""
    max_kernels: Annotated[
        int | None,
        typer.Option("--max-kernels", min=1, help="At most this many kernels, spread evenly."),
    ] = None
    sample: Annotated[
        int | None,
        typer.Option(
            "--sample",
            min=1,
            help="At most this many kernels on each problem: the estimate's first, and others that "
            "lie far apart; DIR/sample.json says which.",
            metavar="N",
        ),
    ] = None
    design: Annotated[
        str | None,
        typer.Option(
            "--design",
            help="How those that lie far apart are chosen: sobol or lhs [default: sobol].",
        ),
    ] = None
    signature: OpenWords = None
    family: FamilyName = None
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--settings",
            help="How to measure, as budget_seconds=0.5, verify=false, or method=graph: calls in "
            "CUDA graphs, over copies of the inputs; may be repeated.",
            metavar="KEY=VALUE",
        ),
    ] = None
    timeout: Timeout = 60.0
    workers: Workers = None
    build_timeout: Annotated[
        float, typer.Option("--build-timeout", min=1, help="Longest time of one build, in seconds.")
    ] = TIMEOUT_SECONDS
    retry: Annotated[
        list[str] | None,
        typer.Option(
            "--retry",
            help="Repeat measurements with this status, as timeout; may be repeated.",
            metavar="STATUS",
        ),
    ] = None
    no_vendor: Annotated[
        bool,
        typer.Option("--no-vendor", help="Do not measure the vendor's library beside the kernels."),
    ] = False
    kept: StoreOptions


@dataclass(frozen=True, slots=True)
class Request:
    """A sweep's options, and what their words mean."""

    options: SweepOptions
    problems: tuple[str, ...]
    signature: Mapping[str, str]
    filters: Filters
    settings: Settings
    retry: tuple[Status, ...]
    store: Store
    design: Design | None = None
    sample: Path | None = None

    @classmethod
    def of(cls, options: SweepOptions) -> Request:
        """The request. Raises `BadArgument` for words without a meaning."""
        from tilewright.measure.designs import Design, is_sample
        from tilewright.measure.filters import Filters

        design = None
        if options.sample is not None:
            method: Any = options.design or "sobol"  # `Design` checks it
            design = Design(options.sample, method)
        elif options.design is not None:
            raise BadArgument("--design says how the kernels of --sample are chosen: give both")
        sample = next(filter(is_sample, options.inputs), None)
        if sample is not None and (
            design or options.problems or options.match or options.where or options.max_kernels
            or len(options.inputs) > 1
        ):  # fmt: skip
            raise BadArgument(
                f"{sample} says which kernels to measure on which problems: give nothing else that "
                "chooses them"
            )
        return cls(
            options,
            () if sample else tuple(options.problems or own_problems(options.inputs)),
            words(options.signature),
            Filters(tuple(options.match or ()), options.where, options.max_kernels),
            read_settings(words(options.settings)),
            read_statuses(options.retry or ()),
            options.kept.open(),
            design,
            None if sample is None else Path(sample),
        )

    def devices(self) -> tuple[list[Group], Callable[[], Crew]]:
        """The devices, in groups of equal ones, and a function that starts their crew."""
        from tilewright.measure.groups import groups

        asked = self.options
        return groups(
            asked.devices, self.store, self.settings, timeout=asked.timeout, arch=asked.arch
        )

    def choose(self, arch_name: str, groups: Sequence[Group] = ()) -> Chosen:
        """Kernels and problems for an architecture. groups: the devices; the estimates of a sample
        are for the first of them, or else for a known device of the architecture."""
        if self.sample is not None:
            return sampled(self.sample, arch_name)
        from tilewright import ops
        from tilewright.arch import arch
        from tilewright.cli.selection import every, select
        from tilewright.measure.problems import load_problems, shipped

        inputs, family = self.options.inputs, self.options.family
        listed = load_problems(self.problems, arch(arch_name), family, self.signature)
        named = ops.families()
        whole = [word for word in inputs if word in named]
        files = [str(shipped(w, "space.json") or w) for w in inputs if w not in named]
        selection = every(listed.problems, whole, arch_name) if whole else None
        if files:
            selection = select(files, arch_name, family, self.signature).joined(selection)
        assert selection is not None, "a sweep has an input"
        configs, left = self.filters.apply(selection.configs)
        if self.design is None:
            return Chosen(selection, configs, left, listed)
        from tilewright.measure.designs import sample
        from tilewright.measure.filters import LeftOut

        device = device_of(arch_name, groups)
        found = sample(listed.problems, lambda problem: configs, device, self.design)
        left = (*left, LeftOut(len(configs) - len(found.configs), "not in the sample"))
        return Chosen(selection, found.configs, left, listed, found)

    def plan(self, chosen: Mapping[str, Chosen], groups: Sequence[Group]) -> Plan:
        """The work to do, without the results that the directory has."""
        from tilewright.measure.database import FILE
        from tilewright.measure.results import Results
        from tilewright.measure.sweep import plan, plan_some

        known: set[tuple[str, ...]] = set()
        again: set[tuple[str, ...]] = set()
        out = self.options.out
        if (out / FILE).is_file():
            with Results(out) as results:
                known, again = results.keys(), results.keys(self.retry)
        vendor = not self.options.no_vendor
        with output.busy("asking the rules about every pair"):
            if all(one.sample is None for one in chosen.values()):
                return plan(
                    groups,
                    {name: one.configs for name, one in chosen.items()},
                    {name: one.problems.problems for name, one in chosen.items()},
                    self.settings,
                    known,
                    vendor,
                    again,
                )
            wanted = [(group, chosen[group.device.arch].pairs) for group in groups]
            return plan_some(wanted, self.settings, known, vendor, again)


def sampled(path: Path, arch_name: str) -> Chosen:
    """The pairs of a sample's file that are legal on an architecture. Raises `BadFile`, and
    `EmptySpace` if there is none."""
    from tilewright.arch import arch
    from tilewright.cli.selection import Selection
    from tilewright.errors import EmptySpace
    from tilewright.measure.designs import load
    from tilewright.measure.filters import LeftOut
    from tilewright.measure.problems import Problems

    whole = load(path)
    found = whole.legal(arch_name)
    if not found.pairs:
        raise EmptySpace(f"none of the kernels of {path} is legal on {arch_name}")
    lost = len(whole.configs) - len(found.configs)
    left = (LeftOut(lost, f"not legal on {arch_name}"),) if lost else ()
    problems = Problems(tuple(problem for problem, _ in found.pairs))
    return Chosen(
        Selection(arch(arch_name), found.configs, ()), found.configs, left, problems, found
    )


def device_of(arch_name: str, groups: Sequence[Group]) -> Device:
    """The first device of an architecture among the groups, or else a known one. Raises
    `BadArgument` if none is known."""
    from tilewright.arch import devices

    here = (group.device for group in groups if group.device.arch == arch_name)
    known = (device for device in devices().values() if device.arch == arch_name)
    found = next(here, None) or next(known, None)
    if found is None:
        raise BadArgument(f"--sample needs a device of {arch_name}, and none is known")
    return found


def choice(one: Chosen) -> dict[str, Any]:
    """The kernels and problems chosen, as plain data."""
    from tilewright.cli.selection import summary

    return {
        **summary(one.selection),
        "left_out": [asdict(left) for left in one.left],
        "kernels": len(one.configs),
        "problems": len(one.problems.problems),
        "repeated_problems": one.problems.repeated,
        "sampled_pairs": None if one.sample is None else one.sample.count,
    }


def show_choice(one: dict[str, Any]) -> None:
    """Print the result of `choice`, for people."""
    from tilewright.cli.selection import show_rules

    kernels, problems = many(one["kernels"], "kernel"), many(one["problems"], "problem")
    output.heading(f"{one['arch']}: {kernels} × {problems}")
    if one["rules"]:
        show_rules(one["rules"])
    for left in one["left_out"]:
        output.line(f"{many(left['count'], 'legal kernel')} left out: {left['why']}")
    if one["sampled_pairs"] is not None:
        output.line(f"{one['sampled_pairs']} pairs are sampled")
    if one["repeated_problems"]:
        output.line(f"{many(one['repeated_problems'], 'problem')} repeated")
    output.notes(one["notes"])


def own_problems(inputs: Sequence[str]) -> list[str]:
    """The problem lists of the shipped sets among the inputs, and of the operations that were
    declared with problems."""
    from tilewright.measure.problems import declared, shipped

    lists = (declared(word) or (word if shipped(word, "problems.csv") else "") for word in inputs)
    found = [one for one in lists if one]
    if not found:
        raise BadArgument("which problems? say --problems FILE (.json, .csv, .jsonl) or FAMILY:SET")
    return found


def read_statuses(given: Sequence[str]) -> tuple[Status, ...]:
    """The statuses with these names."""
    from tilewright.errors import nearest
    from tilewright.measure.measurement import STATUSES

    for word in given:
        if word not in STATUSES:
            raise BadArgument(
                f"--retry: there is no status '{word}'{nearest(word, STATUSES)}; there are "
                f"{', '.join(STATUSES)}"
            )
    return tuple(status for status in STATUSES if status in given)
