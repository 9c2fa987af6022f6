"""From a config and an architecture to a binary, with no GPU: compile, store, inspect."""

from tilewright.compile.inspection import inspect
from tilewright.compile.kernel import Blob, Kernel, TensorMap, check_limits
from tilewright.compile.pool import build, build_keys, find, part_keys
from tilewright.compile.progress import show_progress
from tilewright.compile.report import BuildReport, BuildResult, Progress
from tilewright.compile.resources import Occupancy, Resources, occupancy
from tilewright.compile.shared import SharedStore
from tilewright.compile.signing import UntrustedEntry
from tilewright.compile.store import Store, default_store_path

__all__ = [
    "Blob",
    "BuildReport",
    "BuildResult",
    "Kernel",
    "Occupancy",
    "Progress",
    "Resources",
    "SharedStore",
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
    "part_keys",
    "show_progress",
]
