"""``profile --on emulated:…``: what kernels do, counted instead of timed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from tilewright.cli import output
from tilewright.cli.build import compile_all
from tilewright.wording import many

if TYPE_CHECKING:
    from tilewright.arch.model import Device
    from tilewright.cli.groups import ProblemArguments
    from tilewright.compile import Store
    from tilewright.emulate.counts import Traffic
    from tilewright.measure.counting import Counting, Executed


def profile_counts(
    asked: ProblemArguments,
    on: str,
    configs: Callable[[Any, Device], Sequence[Any]],
    most: int,
    kept: Store,
    as_json: bool,
) -> bool:
    """Count what kernels do for a problem, and show it. Returns whether all were right and without
    findings.

    configs: gives the kernels to look at, for a problem and a device.
    most: how many are executed: those with the least estimated time.

    Raises `BadArgument` if no kernel supports the problem.
    """
    from tilewright.dispatch import Dispatcher
    from tilewright.errors import BadArgument
    from tilewright.measure.counting import count, in_order

    dispatcher = Dispatcher(device=on, store=kept)
    device = dispatcher.device_for_planning()
    problem = asked.on(device)
    usable = in_order(problem, configs(problem, device), device)
    if not usable:
        raise BadArgument(f"no kernel supports {problem} on {device.name}")
    compile_all([(config, device.arch) for config in usable[:most]], kept)
    with output.busy("executing kernels"):
        done = [count(problem, config, dispatcher) for config in usable[:most]]
    if as_json:
        output.emit(_document(problem, device, done))
    else:
        _show(problem, device, done, len(usable))
    return all(one.check.ok for one in done)


def _document(problem: Any, device: Device, done: Sequence[Counting]) -> dict[str, Any]:
    return {
        "problem": {"family": problem.family, **asdict(problem)},
        "device": asdict(device),
        "emulated": True,
        "counted": [
            {
                "kernel": one.kernel,
                "ok": one.check.ok,
                "findings": one.check.findings,
                "estimate": asdict(one.estimate),
                "executed": [asdict(each) for each in one.executed],
            }
            for one in done
        ],
    }


def _show(problem: Any, device: Device, done: Sequence[Counting], usable: int) -> None:
    output.heading(f"{problem} on an emulated {device.name} ({device.arch}): counts, not times")
    rows = [
        (each.waves, each.counted.matrix_clocks, each.counted.vector_clocks,
         each.counted.shared.clocks, each.counted.shared.conflicts,
         output.size(each.counted.read.requested), output.size(each.counted.written.requested),
         _verdict(one), each.name)
        for one in done for each in one.executed
    ]  # fmt: skip
    titles = ("waves", "matrix", "vector", "LDS", "conflicts", "read", "written", "", "kernel")
    output.table(titles, rows)
    output.line("matrix, vector, LDS, conflicts: clocks of these units, summed over all waves")
    if usable > len(done):
        others = many(usable - len(done), "kernel")
        output.line(f"and {others} with longer estimates (--top counts more)")
    for one in done[:1]:
        for each in one.executed:
            output.line()
            last = each is one.executed[-1]
            estimated = {"estimated": str(one.estimate)} if last else {}
            output.fields({**_lines(each, problem, device), **estimated})
    for one in done:
        for finding in one.check.findings:
            output.line(f"found: {finding}")


def _verdict(one: Counting) -> str:
    if one.check.findings:
        return f"{len(one.check.findings)} findings"
    return "" if one.check.ok else "wrong"


def _lines(each: Executed, problem: Any, device: Device) -> dict[str, str]:
    """One kernel's counts, as names and values for people."""
    from tilewright.arch import arch

    found, this = each.counted, arch(device.arch)
    simds = this.simds_per_cu
    kinds = ", ".join(f"{count:,} {kind}" for kind, count in found.instructions.items() if count)
    lines = {
        "kernel": each.name,
        "launched": f"{each.workgroups:,} workgroups, {each.waves:,} waves",
        "takes": f"{each.registers} registers a thread, {output.size(each.shared_bytes)} of LDS: "
        f"{each.workgroups_per_cu} workgroups a compute unit, limited by {each.limiter}",
        "instructions": f"{kinds}; each of a wave",
        "matrix units": f"{_per_workgroup(found.matrix_clocks / simds, each)} on {simds} SIMDs",
        "vector units": f"{_per_workgroup(found.vector_clocks / simds, each)} on {simds} SIMDs",
        "LDS": f"{output.size(found.shared.read)} read, {output.size(found.shared.written)} "
        f"written; {_per_workgroup(found.shared.clocks, each)}, of which "
        f"{found.shared.conflicts / max(1, found.shared.clocks):.0%} bank conflicts",
        "read": _traffic(found.read),
        "written": _traffic(found.written),
    }
    if problem.min_bytes:
        touched = found.read.distinct + found.written.distinct
        lines["memory"] = f"{touched / problem.min_bytes:.3g} × the fewest bytes of the problem"
    return lines


def _per_workgroup(clocks: float, each: Executed) -> str:
    return f"{clocks / each.workgroups:,.0f} clocks a workgroup"


def _traffic(traffic: Traffic) -> str:
    if not traffic.accesses:
        return "nothing"
    return (
        f"{output.size(traffic.requested)} by {traffic.accesses:,} instructions, "
        f"{output.size(traffic.distinct)} once; each touches "
        f"{traffic.segments / traffic.accesses:.3g} pieces of 64 bytes and uses {traffic.used:.0%}"
    )
