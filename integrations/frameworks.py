"""vLLM and SGLang as far as this machine can import them.

A module of a framework is, in this order:

- *real*, if a release's files are given and `REAL` names it: the release's own file is executed;
- a *fake*, if `fakes/` has it;
- *anything*, if a release's files are given: an empty module whose names are all `Anything`.

Real are the modules that define what our packages derive from and call. The rest needs compiled
extensions, a GPU or a running server.
"""

from __future__ import annotations

import abc
import contextlib
import importlib.abc
import importlib.machinery
import importlib.util
import sys
import types
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent
FAKES = FOLDER / "fakes"
REAL = {
    "vllm": (
        "vllm.model_executor.custom_op",
        "vllm.model_executor.kernels.linear.scaled_mm.ScaledMMLinearKernel",
        "vllm.model_executor.layers.fused_moe.fused_moe_method_base",
        "vllm.model_executor.layers.fused_moe.modular_kernel",
        "vllm.model_executor.layers.fused_moe.topk_weight_and_reduce",
        "vllm.model_executor.layers.fused_moe.unquantized_fused_moe_method",
        "vllm.model_executor.layers.fusion.quant_activation",
        "vllm.model_executor.layers.linear",
        "vllm.model_executor.layers.quantization.base_config",
        "vllm.model_executor.layers.quantization.utils.quant_utils",
        "vllm.model_executor.parameter",
        "vllm.v1.attention.backend",
        "vllm.v1.attention.backends.registry",
    ),
    "sglang": (
        "sglang.srt.arg_groups.choices",
        "sglang.srt.layers.attention.attention_registry",
        "sglang.srt.layers.attention.base_attn_backend",
        "sglang.srt.layers.moe.moe_runner.base",
        "sglang.srt.layers.moe.token_dispatcher.base",
        "sglang.srt.layers.moe.token_dispatcher.standard",
        "sglang.srt.layers.moe.topk",
        "sglang.srt.layers.moe.utils",
        "sglang.srt.layers.quantization.base_config",
        "sglang.srt.layers.quantization.unquant",
        "sglang.srt.layers.radix_attention",
        "sglang.srt.mem_cache.memory_pool",
        "sglang.srt.model_executor.forward_batch_info",
        "sglang.srt.plugins",
        "sglang.srt.plugins.hook_registry",
    ),
}
"""The modules of which a release's own file is executed."""
PACKAGES = {"vllm": "tilewright_vllm", "sglang": "tilewright_sglang"}
"""Our package for each framework."""


class _Names(abc.ABCMeta):
    """A class that goes wherever a name may: as a base, an annotation, a decorator."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Names(name, (Anything,), {})

    def __getitem__(cls, _: Any) -> Any:
        return cls

    def __or__(cls, _: Any) -> Any:
        return cls

    __ror__ = __or__


class Anything(metaclass=_Names):
    """Stands for what no test needs. Calling it, or anything of it, gives another. It is false, so
    no platform is the present one."""

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def __init_subclass__(cls, **_: Any) -> None:
        pass

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Anything()

    def __bool__(self) -> bool:
        return False

    def __call__(self, *given: Any, **_: Any) -> Any:
        return given[0] if given and callable(given[0]) else Anything()


def _anything() -> Callable[[str], Any]:
    """A module's ``__getattr__`` that has every name."""
    made: dict[str, Any] = {}

    def found(name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return made.setdefault(name, _Names(name, (Anything,), {}))

    return found


class _Empty(importlib.abc.Loader):
    """Makes a module of `Anything`."""

    def exec_module(self, module: types.ModuleType) -> None:
        module.__dict__["__getattr__"] = _anything()


class _Fake(importlib.machinery.SourceFileLoader):
    """Executes a fake. Beside real modules it has every name besides its own."""

    def exec_module(self, module: types.ModuleType) -> None:
        super().exec_module(module)
        module.__dict__.setdefault("__getattr__", _anything())


class Finder(importlib.abc.MetaPathFinder):
    """Finds a framework's modules.

    source: a folder with a release's files; None for the fakes alone.
    """

    def __init__(self, framework: str, source: Path | None) -> None:
        self.framework, self.source = framework, source

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: Any = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name.partition(".")[0] != self.framework:
            return None
        if self.source is not None and name in REAL[self.framework]:
            return _from_file(name, self.source)
        found = _from_file(name, FAKES)
        if self.source is None:
            return found
        if found is None:
            return importlib.machinery.ModuleSpec(name, _Empty(), is_package=True)
        found.loader = _Empty() if found.origin is None else _Fake(name, found.origin)
        return found


def _from_file(name: str, folder: Path) -> importlib.machinery.ModuleSpec | None:
    place = folder.joinpath(*name.split("."))
    for file in (place / "__init__.py", place.with_suffix(".py")):
        if file.exists():
            inside = [str(place)] if file.stem == "__init__" else None
            return importlib.util.spec_from_file_location(
                name, file, submodule_search_locations=inside
            )
    if place.is_dir():  # a package of the fakes without a file of its own
        spec = importlib.machinery.ModuleSpec(name, None, is_package=True)
        spec.submodule_search_locations = [str(place)]
        return spec
    return None


@contextlib.contextmanager
def standing_in(framework: str, source: Path | None = None) -> Iterator[None]:
    """A framework that can be imported, with our package beside it; as before behind it.

    source: a folder with a release's files; None for the fakes alone.
    """
    roots = (framework, PACKAGES[framework])
    before = {name: sys.modules.pop(name) for name in list(sys.modules) if _of(name, roots)}
    finder = Finder(framework, source)
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        for name in [name for name in sys.modules if _of(name, roots)]:
            del sys.modules[name]
        sys.modules.update(before)


def _of(name: str, roots: Sequence[str]) -> bool:
    return name.partition(".")[0] in roots
