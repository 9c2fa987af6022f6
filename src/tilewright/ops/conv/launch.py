"""What a config compiles and launches: its pipeline's kernels, and one that adds up parts where a
gradient of weights has them (`sharing`)."""

from __future__ import annotations

from collections.abc import Mapping

from tilewright.arch.model import Arch, Device
from tilewright.ops.conv import parts, pipelines, sharing
from tilewright.ops.conv.config import ConvConfig
from tilewright.ops.conv.parts import TOTALS
from tilewright.ops.conv.problem import ConvProblem
from tilewright.ops.nouns import KernelSource, Launch


def sources(config: ConvConfig, arch: Arch) -> Mapping[str, KernelSource]:
    """What to compile for `config` on `arch`, by part."""
    of = pipelines.of(config)
    found = of.sources(config, arch)
    if config.two_stage:
        found = {**found, TOTALS: parts.source(of.totals, config, arch)}
    return found


def launch(config: ConvConfig, problem: ConvProblem, device: Device) -> Launch:
    """The launch of `config` for `problem` on `device`; nothing for a result without elements."""
    c, p, of = config, problem, pipelines.of(config)
    if c.direction != "weights":
        return Launch(tuple(of.launch(c, p, device, 1, 0)), of.temporaries(p))
    splits = sharing.splits(c, p, device)
    programs = sharing.programs(c, p, device) if c.scheduler == "stream_k" else 0
    steps = [*of.launch(c, p, device, splits, programs)]
    if c.two_stage:
        groups = of.totals.grid(c, p, splits)
        steps += parts.steps(of.totals, TOTALS, c, p, splits, groups)
    return Launch(tuple(steps), (*of.temporaries(p), *sharing.temporaries(c, p, device)))
