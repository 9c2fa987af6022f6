"""From a config and an architecture to a binary, with no GPU: compile, store, inspect."""

from tilewright.build.inspection import inspect
from tilewright.build.kernel import Blob, Kernel, TensorMap, check_limits
from tilewright.build.pool import build, build_keys, find
from tilewright.build.progress import show_progress
from tilewright.build.report import BuildReport, BuildResult, Progress
from tilewright.build.resources import Occupancy, Resources, occupancy
from tilewright.build.store import Store, UntrustedEntry, default_store_path

__all__ = [
    "Blob",
    "BuildReport",
    "BuildResult",
    "Kernel",
    "Occupancy",
    "Progress",
    "Resources",
    "Store",
    "TensorMap",
    "UntrustedEntry",
    "build",
    "build_keys",
    "check_limits",
    "default_store_path",
    "find",
    "inspect",
    "occupancy",
    "show_progress",
]
