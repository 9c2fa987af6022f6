"""C++ that is compiled with torch's headers: once for each torch, by the system's C++ compiler."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

from tilewright import native

_SHARED = Path(__file__).with_name("with_torch.h")
_LIBRARIES = ("c10", "torch_cpu", "torch_python")


def loaded(source: Path, what: str, torch: Any) -> ModuleType:
    """The module of `source`, compiled on first use, which takes some ten seconds.

    what: it is, for errors.
    torch: the module.

    Raises `NoCompiler` if it cannot be compiled, kept or loaded, and `StoreError` if others could
    have written it.
    """
    home = Path(torch.__file__).parent
    arguments = (
        "-std=c++20",
        f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}",
        f"-DOF_TORCH={torch.__version__}",
        f"-L{home / 'lib'}",
        *(f"-l{name}" for name in _LIBRARIES),
    )
    built = native.compiled(source, (_SHARED,), what, home / "include", arguments)
    try:
        spec = importlib.util.spec_from_file_location(source.stem, built)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    except (OSError, ImportError) as error:
        raise native.cannot_keep(built, what, error) from None
    return module
