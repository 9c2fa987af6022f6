"""What a config compiles and launches: its pipeline's kernels, and one that adds up parts where a
gradient of weights has them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tilewright.arch.model import Arch, Device
from tilewright.ops import binder
from tilewright.ops.binder import Context, Part
from tilewright.ops.conv import boxes, pipelines, swapping, turning, turning_steps
from tilewright.ops.conv.catalogue import CATALOGUE, Case
from tilewright.ops.conv.config import ConvConfig
from tilewright.ops.conv.problem import ConvProblem
from tilewright.ops.estimate import Estimate, Estimates
from tilewright.ops.nouns import KernelSource, Launch
from tilewright.ops.pool import Columns, Each, any_of, each, either, least, most
from tilewright.ops.tile_sharing import MAX_FLAGS, shared_tiles


def _parts(config: ConvConfig) -> tuple[Part, ...]:
    of = pipelines.of(config)
    return (*of.parts(config), *of.totals)


def context(c: Any, problem: ConvProblem, device: Device) -> Context:
    """What the launch of a config for `problem` on `device` depends on. Of `Columns` of configs of
    one kind, which turn the same arrays, numbers are arrays."""
    p = turning.inside(problem, (c[0] if isinstance(c, Columns) else c).turned)
    c = swapping.all_within(c) if isinstance(c, Columns) else swapping.within(c)
    of = pipelines.shared(c)
    tiles = of.tiles(c, p)
    if p.direction != "weights":
        return Context(c, p, device, case=Case(tiles))
    steps = of.steps(c, p)
    case = Case(tiles, steps, programs=least(device.compute_units, tiles * steps))
    return Context(c, p, device, splits=_splits(c, p, device, case), case=case)


def _splits(c: Any, p: ConvProblem, device: Device, case: Case) -> Each:
    """Parts of a tile: as many as fill the device, each of a step or more; 1 where tiles are whole.
    Under stream-K, the number of tiles that are shared."""
    of, found = pipelines.shared(c), 1
    if any_of(c.shares_steps):
        found = either(c.shares_steps, shared_tiles(c, case.tiles, most(1, case.programs)), 1)
    if any_of(c.splits):
        parts = of.splits(c, p, device)
        if any_of(c.parts_meet):
            flags = MAX_FLAGS // (most(1, case.tiles) * each(c, of.meetings))
            parts = either(c.parts_meet, least(parts, flags), parts)
        found = either(c.splits, most(1, least(parts, case.steps)), found)
    return found


def estimates(c: Columns, problem: ConvProblem, device: Device) -> Estimates:
    """What each of `c`, which are of one kind and turn the same arrays, should take for `problem`
    on `device`."""
    found = pipelines.shared(c).estimates(context(c, problem, device))
    turned = c[0].turned
    return found.later(turning.TURNING, turning.us(problem, turned, device)) if turned else found


def estimate(config: ConvConfig, problem: ConvProblem, device: Device) -> Estimate:
    """The estimate of one config."""
    return estimates(Columns([config]), problem, device).one(0)


def sources(config: ConvConfig, arch: Arch) -> Mapping[str, KernelSource]:
    """What to compile for `config` on `arch`, by part."""
    kernels = swapping.within(config)
    own = binder.sources(_parts(kernels), CATALOGUE, kernels, arch)
    return own | turning_steps.sources(config, arch) if config.turned else own


def launch(config: ConvConfig, problem: ConvProblem, device: Device) -> Launch:
    """The launch of `config` for `problem` on `device`; nothing for a result without elements."""
    x = context(config, problem, device)
    cases = [x.case]
    if pipelines.of(config).by_class and config.classes == 1:
        cases = [replace(x.case, residue=residue) for residue in boxes.residues(x.problem)]
    parts = _parts(x.config)
    each = [binder.launch(parts, CATALOGUE, replace(x, case=case)) for case in cases]
    temporaries = dict.fromkeys(one for launch in each for one in launch.temporaries)
    steps = tuple(step for launch in each for step in launch.steps)
    return turning_steps.launch(config, problem, device, Launch(steps, tuple(temporaries)))
