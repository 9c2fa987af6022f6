"""Read what the compiler made of a kernel."""

from __future__ import annotations

import importlib.util
import subprocess
import tempfile
from pathlib import Path

from tilewright.compile.kernel import Kernel
from tilewright.compile.store import Store
from tilewright.errors import BadArgument, BuildFailed


def inspect(kernel: Kernel, store: Store, what: str) -> str:
    """The text of one of a kernel's forms: ``ptx``, ``sass`` (NVIDIA), ``amdgcn`` (AMD),
    ``llir`` (LLVM IR) or ``ttgir`` (Triton's GPU IR).

    Raises `BadArgument` for a form it does not have, and what `Store.read` raises.
    """
    texts = [kind for kind in kernel.blobs if kind != kernel.binary]
    if kernel.binary == "cubin":
        texts.append("sass")
    if what not in texts:
        raise BadArgument(
            f"{kernel.called} is built for {kernel.arch}, which has no '{what}'; "
            f"it has {', '.join(sorted(texts))}"
        )
    if what == "sass":
        return _disassemble(store.read(kernel))
    return store.read(kernel, what).decode(errors="replace")


def _disassemble(cubin: bytes) -> str:
    """SASS, by the disassembler in Triton's package. Raises `BuildFailed`."""
    spec = importlib.util.find_spec("triton")
    if spec is None or spec.origin is None:
        raise BuildFailed("triton is not installed, and SASS needs the disassembler in its package")
    tool = Path(spec.origin).parent / "backends" / "nvidia" / "bin" / "nvdisasm"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        try:
            ran = subprocess.run(
                [tool, "-c", file.name],
                capture_output=True,
                text=True,
                errors="replace",
                timeout=120,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise BuildFailed(f"{tool} could not run: {error}") from error
    if ran.returncode != 0:
        raise BuildFailed(f"{tool} failed: {ran.stderr.strip()[:500]}")
    return ran.stdout
