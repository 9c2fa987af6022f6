"""Messages about a kernel that a bundle lacks: what the bundle has, and the command that adds the
kernel."""

from __future__ import annotations

import json
from typing import Any

from tilewright.arch.model import Device
from tilewright.arch.targets import Target
from tilewright.bundle.shelf import Shelf
from tilewright.tables.row import said


def lacking(bundles: Shelf, problem: Any, target: Device) -> str:
    """What to do where `bundles` have no kernel for a problem on a device."""
    line = json.dumps({"problem": said(problem), "count": 1})
    return (
        f"{_has(bundles, target.arch)}; where Triton is installed, this adds one: write the line "
        f"{line} to missing.jsonl, then `{command(bundles, 'missing.jsonl', target)}`"
    )


def lacks(bundles: Shelf, name: str, target: Device) -> str:
    """What to do where `bundles` have no kernel called `name` for a device's architecture."""
    return (
        f"{name} for {target.arch} is not in {bundles.where}, and this dispatcher does not build; "
        f"{_has(bundles, target.arch)}; where Triton is installed, this adds it: "
        f"`{command(bundles, name, target)}`"
    )


def command(bundles: Shelf, added: str, target: Device) -> str:
    """The command that makes a bundle of `bundles` and what is added."""
    old = " ".join(bundle.where for bundle in bundles.bundles)
    arch = Target(target.arch, target.compute_units)
    return f"tilewright bundle {old} {added} --arch {arch} -o more.bundle"


def _has(bundles: Shelf, arch: str) -> str:
    count = len(bundles.names(arch))
    if count:
        return f"{bundles.where} has {count} kernels for {arch}"
    return f"{bundles.where} has kernels for {', '.join(bundles.archs)}, and none for {arch}"
