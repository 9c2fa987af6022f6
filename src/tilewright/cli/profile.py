"""``profile``: time every kernel of a registry on one problem."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tilewright.cli import output
from tilewright.cli.build import compile_all
from tilewright.cli.errors import FAILED
from tilewright.cli.groups import ProblemArguments, StoreOptions
from tilewright.cli.options import Json, RegistryFile, Timeout, command
from tilewright.cli.profile_counts import profile_counts
from tilewright.cli.vocabulary import FEW, LARGE, SMALL
from tilewright.errors import BadArgument
from tilewright.throughput import gb_per_s
from tilewright.wording import many

if TYPE_CHECKING:
    from tilewright.arch.model import Device
    from tilewright.compile import Store
    from tilewright.measure.measurement import Measurement
    from tilewright.measure.profile import Profile
    from tilewright.measure.sweep import Group


_TOP_STALLS = 4
"""Number of stall reasons to show."""


app = typer.Typer()


@command(
    app,
    "Rank every kernel on one problem.",
    f"tilewright profile {LARGE}",
    f"tilewright profile {FEW} --registry r.json --top 5",
    f"tilewright profile {SMALL} --kernel NAME --json",
    f"tilewright profile {LARGE} --all --top 1000",
    f"tilewright profile {SMALL} --no-counters",
    f"tilewright profile {SMALL} --on emulated:mi300x --top 3",
)
def profile(
    *,
    asked: ProblemArguments,
    registry: RegistryFile = None,
    kernel: Annotated[
        list[str] | None,
        typer.Option("--kernel", help="Only this kernel; may be repeated.", metavar="NAME"),
    ] = None,
    every: Annotated[
        bool,
        typer.Option(
            "--all",
            help="Every kernel that a tuning chooses from, and a line for each refused one.",
        ),
    ] = False,
    devices: Annotated[
        str | None,
        typer.Option(
            "--devices",
            help="Devices of one kind: GPUs (all, 1, 0,3, a UUID), or cpu [default: 1]",
        ),
    ] = None,
    on: Annotated[
        str | None,
        typer.Option(
            "--on",
            help="An emulated AMD GPU, as emulated:mi300x: count what kernels do on it, and time "
            "nothing.",
        ),
    ] = None,
    top: Annotated[
        int,
        typer.Option("--top", min=1, help="Number of ranked kernels to show, or to count."),
    ] = 20,
    timeout: Timeout = 30.0,
    counters: Annotated[
        bool,
        typer.Option(
            "--counters/--no-counters", help="Read hardware counters with Nsight Compute."
        ),
    ] = True,
    kept: StoreOptions,
    as_json: Json = False,
) -> None:
    """Build, verify, time and rank every kernel that supports a problem, and say why the others do
    not.

    The kernels are a registry's, the named ones, the usual ones for the problem, or all. For the
    fastest kernel (or the named one), the command shows its place on the roofline, its resources on
    a compute unit and, if Nsight Compute is installed, hardware counters. Exits with 1 if no kernel
    was timed.

    On an emulated GPU nothing is timed. The command counts what the kernels with the least
    estimated times do: instructions by kind, clocks of the units, bytes by level, bank conflicts.
    It exits with 1 if one is wrong or has findings.
    """
    from tilewright.arch import words
    from tilewright.measure import profile as tune
    from tilewright.measure.groups import groups
    from tilewright.measure.measurement import Settings
    from tilewright.registry import Registry

    if sum((registry is not None, bool(kernel), every)) > 1:
        raise BadArgument("give --registry, --kernel or --all, not two of them")
    store = kept.open()

    def configs_for(problem: Any, device: Device) -> list[Any]:
        if registry is not None:
            return [entry.config for entry in Registry.load(registry)]
        return tune.candidates(problem, device, kernel or (), every=every)

    if on is not None:
        if devices is not None:
            raise BadArgument(f"--devices {devices} measures and --on {on} counts: drop one")
        if not words.emulated(on):
            raise BadArgument(
                f"--on takes an emulated GPU, as emulated:mi300x, and not '{on}': --devices says "
                "which devices measure"
            )
        if not profile_counts(asked, on, configs_for, top, store, as_json):
            raise typer.Exit(FAILED)
        return
    devices = devices or "1"
    found, start = groups(devices, store, Settings(), timeout=timeout)
    if len(found) != 1:
        kinds = "; ".join(group.device.name for group in found)
        raise BadArgument(f"a problem is profiled on one kind of device, not {len(found)}: {kinds}")
    (group,) = found
    problem = asked.on(group.device)
    done = _measured(problem, configs_for(problem, group.device), group, start, store)
    counted = _counted(done, devices, store) if counters and done.ranked else {}
    if as_json:
        output.emit({**_document(done, group, store), **counted})
    else:
        _show(done, group, store, top, counted)
        if every:
            _show_refused(done)
    if not done.ranked:
        raise typer.Exit(FAILED)


def _measured(problem: Any, configs: list[Any], group: Group, start: Any, kept: Store) -> Profile:
    """The profile, with progress of building, then of measuring, on stderr."""
    from tilewright.measure import profile as tune
    from tilewright.measure.progress import show_measuring

    usable = tune.supported(problem, configs, group.device)
    if usable and not group.interpreted:
        compile_all([(config, group.device.arch) for config in usable], kept)
    counted = 0
    with show_measuring() as progress:

        def each(m: Measurement) -> None:
            nonlocal counted
            counted += 1
            progress(m, counted, len(usable))

        return tune.profile(problem, configs, group, start, each)


def _counted(done: Profile, devices: str, kept: Store) -> dict[str, Any]:
    """The fastest kernel's hardware counters, or the reason for their absence."""
    from tilewright.measure import nsight
    from tilewright.measure.counters import COUNTERS, NoCounters
    from tilewright.measure.places import parse

    name = done.ranked[0].name
    try:
        with output.busy("reading hardware counters"):
            found = nsight.read(name, done.problem, parse(devices)[0], kept)
    except NoCounters as error:  # keep the measurements
        return {"no_counters": str(error)}
    return {
        "counters": {
            "kernel": name,
            "launches": [
                {"function": one.function, "grid": one.grid, "block": one.block}
                for one in found.launches
            ],
            "values": {
                counter.name: {"value": found.values[counter.name], "unit": counter.unit}
                for counter in COUNTERS
                if counter.name in found.values
            },
            "stalls": found.stalls,
            "missing": found.missing,
        }
    }


def _document(done: Profile, group: Group, kept: Store) -> dict[str, Any]:
    return {
        "problem": {"family": done.problem.family, **asdict(done.problem)},
        "device": asdict(done.device),
        "alike": done.alike,
        "ranked": [_details(m.measurement, group, kept) for m in done.ranked],
        "failed": [
            {"kernel": i.name, "status": i.measurement.status, "reason": i.measurement.reason}
            for i in done.failed
            if i.measurement
        ],
        "unsupported": [
            {"kernel": i.name, "rule": i.verdict.rule, "reason": i.verdict.reason}
            for i in done.unsupported
        ],
    }


def _details(m: Measurement | None, group: Group, kept: Store) -> dict[str, Any]:
    """One kernel's time, place on the roofline and resources."""
    from tilewright import ops
    from tilewright.measure import profile as tune
    from tilewright.measure import roofline
    from tilewright.ops.nouns import MAIN

    assert m is not None
    found: dict[str, Any] = {
        "kernel": m.kernel,
        "median_us": m.median_us,
        "interval_us": m.interval_us,
        "tflops": m.tflops,
        "gb_per_s": m.gb_per_s,
        "worst": m.check.worst if m.check else None,
        "flags": m.flags,
        "clock_mhz": m.telemetry.clock_mhz,
    }
    if not group.interpreted:
        try:
            place = roofline.position(m.problem, group.device, m.median_us)
            found["roofline"] = {**asdict(place), "bound": place.bound}
        except BadArgument as error:  # keep the measurements
            found["no_roofline"] = str(error)
        config = ops.family(m.problem.family).parse_name(m.kernel)
        taken = tune.taken(config, group.device, kept)
        # For a config with several kernels: the resources of each part.
        found["resources"] = taken[MAIN] if taken and [*taken] == [MAIN] else taken
    return found


def _show(done: Profile, group: Group, kept: Store, top: int, counted: dict[str, Any]) -> None:
    output.heading(f"{done.problem} on {done.device.name} ({done.device.arch})")
    if done.ranked:
        rows = []
        for number, instance in enumerate(done.ranked[:top], 1):
            m = instance.measurement
            assert m is not None
            low, high = m.interval_us
            alike = "alike" if instance.name in done.alike and len(done.alike) > 1 else ""
            rows.append(
                (number, f"{m.median_us:.2f}", f"{low:.2f} to {high:.2f}",
                 output.operations(m.tflops), f"{m.gb_per_s:.4g}",
                 " ".join((alike, *m.flags)).strip(), m.kernel)
            )  # fmt: skip
        output.table(("", "µs", "interval", "TFLOP/s", "GB/s", "", "kernel"), rows)
        if len(done.ranked) > top:
            output.line(f"and {len(done.ranked) - top} slower ones (--top shows more)")
        output.line()
        lines = _lines(_details(done.ranked[0].measurement, group, kept))
        output.fields({**lines, **_counter_lines(counted, done)})
    for instance in done.failed:
        assert instance.measurement is not None
        m = instance.measurement
        output.line(f"{m.status}: {m.kernel}: {m.reason}")
    if done.unsupported:
        output.line()
        refused = output.by_rule((i.verdict.rule, i.verdict.reason) for i in done.unsupported)
        output.table(("refused by", "kernels", "for example"), refused)


def _show_refused(done: Profile) -> None:
    """Every refused kernel, as a list of all instances has it."""
    rows = [(i.verdict.rule, i.name, i.verdict.reason) for i in done.unsupported]
    output.line()
    supported = len(done.ranked) + len(done.failed)
    output.line(f"{supported} of {many(supported + len(rows), 'kernel')} can serve it")
    if rows:
        output.table(("refused by", "kernel", "why"), rows)


def _lines(details: dict[str, Any]) -> dict[str, str]:
    """The fastest kernel's details, as names and values for people."""
    lines = {"fastest": details["kernel"]}
    if details["worst"] is not None:
        lines["verified"] = f"the worst error is {details['worst']:.3g} of the allowed error"
    place, takes = details.get("roofline"), details.get("resources")
    if place:
        lines["work"] = (
            f"{place['flops']:.4g} FLOP, {place['bytes']:.4g} bytes at least: "
            f"{place['intensity']:.4g} FLOP a byte"
        )
        units = ", ".join(f"{unit} {us:.2f} µs" for unit, us in place["units_us"].items())
        several = f": {units}" if len(place["units_us"]) > 1 else ""
        lines["roofline"] = (
            f"{place['share']:.1%} of the bound by {place['bound']} (computing "
            f"{place['compute_us']:.2f} µs{several}, moving {place['memory_us']:.2f} µs)"
        )
    parts = {"": takes} if takes and "registers" in takes else takes or {}
    for part, takes in parts.items():
        of = part and f" of {part}"
        lines[f"takes{of}"] = (
            f"{takes['registers']} registers a thread, {takes['spill_bytes']} bytes spilled, "
            f"{takes['shared_bytes']} bytes of shared memory"
        )
        lines[f"occupancy{of}"] = (
            f"{takes['workgroups_per_cu']} workgroups of {takes['warps']} warps a compute unit, "
            f"limited by {takes['limiter']}"
        )
    if not place:
        why = details.get("no_roofline", "the interpreter's time says nothing about a GPU")
        lines["roofline"] = f"none: {why}"
    return lines


def _counter_lines(counted: dict[str, Any], done: Profile) -> dict[str, str]:
    """The hardware counters, as names and values for people."""
    if "no_counters" in counted:
        return {"counters": f"none: {counted['no_counters']}"}
    if not counted:
        return {}
    found = counted["counters"]
    values = {name: each["value"] for name, each in found["values"].items()}
    texts = {name: _with_unit(**each) for name, each in found["values"].items()}

    def said(text: str, *names: str) -> list[str]:
        """The text with the values of these counters, if all were counted."""
        return [text.format(*map(texts.get, names))] if texts.keys() >= set(names) else []

    launched = [f"{one['function']} {one['grid']} × {one['block']}" for one in found["launches"]]
    memory = said("{} read, {} written", "dram_read", "dram_written")
    if memory and values.get("time"):
        total = values["dram_read"] + values["dram_written"]
        rate = gb_per_s(total, values["time"])
        memory.append(f"{total / max(1, done.problem.min_bytes):.3g} × the least")
        memory.append(f"{rate / done.device.bandwidth_gbs:.0%} of the bandwidth")
    waits = [f"{why.replace('_', ' ')} {share:.0%}" for why, share in found["stalls"].items()]
    lines = {
        "counted": [*said("{}", "time"), *launched],
        "DRAM": memory,
        "L2": said("{}", "l2") + said("{} hits", "l2_hits"),
        "busy": said("matrix units {}", "matrix_units")
        + said("compute units {}", "compute_units")
        + said("issue slots {}", "issue_slots"),
        "warps": said("{} of the most that a compute unit holds", "occupancy"),
        "they wait": waits[:_TOP_STALLS],
        "besides": said("{} bank conflicts of shared memory", "bank_conflicts")
        + said("spills: {} read, {} written", "local_read", "local_written"),
        "not counted": found["missing"],
    }
    return {name: ", ".join(parts) for name, parts in lines.items() if parts}


def _with_unit(value: float, unit: str) -> str:
    """A counter's value, for people."""
    if unit == "byte":
        return output.size(round(value))
    return {"us": f"{value:.2f} µs", "%": f"{value:.1f}%"}.get(unit, f"{value:.0f}")
