"""A registry as JSON: every kernel's name, fields, priority and builds, without loss.

python examples/06_registry_out.py [FILE]
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import tilewright as tw
from tilewright.compile import build

archs = ("sm_90", "gfx942")
space = tw.KernelSpace("gemm", {"tile_m": [64, 128], "num_stages": [2]})
configs = space.expand(tw.arch.arch("sm_90")).configs
report = build([(config, arch) for config in configs for arch in archs], store=tw.Store())
report.raise_if_failed()

registry = tw.Registry("example")
registry.register_all(report.kernels)  # built kernels; configs and names are taken too
registry.set_priority(configs[0].name, 1)

given = sys.argv[1:]
path = Path(given[0]) if given else Path(tempfile.mkdtemp()) / "registry.json"
registry.save(path)
print(f"{len(registry)} kernels, each built for {' and '.join(archs)}: {path.name}")
for entry in registry:
    print(f"  priority {entry.priority}  {entry.name}  {', '.join(entry.builds)}")
assert tw.Registry.load(path) == registry
print("reading it back gives an equal registry")
