"""The smallest family that the build room can work with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

from tilewright.arch.model import Arch
from tilewright.ops.nouns import MAIN, KernelSource
from tilewright.verdict import YES, Verdict


@dataclass(frozen=True)
class FakeConfig:
    function: str = "scale"
    block: int = 1024
    num_warps: int = 4
    num_stages: int = 2
    module: str = "fake_kernels"
    then: str = ""
    """The function of a second kernel, the part `reduce`; the first is then the part `partial`."""
    family: ClassVar[str] = "fake"

    @property
    def name(self) -> str:
        then = self.then and f"_then_{self.then}"
        return (
            f"fake_{self.module}_{self.function}_{self.block}_{self.num_warps}_{self.num_stages}"
            f"{then}"
        )


class FakeFamily:
    name = "fake"

    def judge(self, config: FakeConfig, arch: Arch) -> Verdict:
        return YES

    def interpreted(self, config: FakeConfig) -> FakeConfig:
        return config

    def parse_name(self, name: str) -> FakeConfig:
        words, _, then = name.removeprefix("fake_fake_kernels_").partition("_then_")
        function, block, num_warps, num_stages = words.rsplit("_", 3)
        return FakeConfig(function, int(block), int(num_warps), int(num_stages), then=then)

    def sources(self, config: FakeConfig, arch: Arch) -> Mapping[str, KernelSource]:
        first = self.source(config, arch)
        if not config.then:
            return {MAIN: first}
        second = replace(config, function=config.then, then="")
        return {"partial": first, "reduce": self.source(second, arch)}

    def source(self, config: FakeConfig, arch: Arch) -> KernelSource:
        if config.function == "tile":
            b = config.block
            signature = (
                ("a", f"tensordesc<bf16[{b}, 64]>"),
                ("b", f"tensordesc<bf16[64, {b}]>"),
                ("c", f"tensordesc<bf16[{b}, {b}]>"),
                ("k", "i32"),
                ("BLOCK", "constexpr"),
            )
            divisibility: tuple[tuple[str, int], ...] = (("k", 16),)
            narrow: tuple[str, ...] = ()
        else:
            signature = (("x", "*fp32"), ("y", "*fp32"), ("n", "i32"), ("BLOCK", "constexpr"))
            divisibility = (("x", 16), ("y", 16), ("n", 16))
            narrow = ("x", "y") if arch.vendor == "amd" else ()
        return KernelSource(
            module=config.module,
            function=config.function,
            signature=signature,
            constants=(("BLOCK", config.block),),
            divisibility=divisibility,
            pointer_range_32=narrow,
            options=(("num_warps", config.num_warps), ("num_stages", config.num_stages)),
        )


def install() -> None:
    """Make `tilewright.ops.family("fake")` find this family in the present process."""
    from tilewright import ops

    ops.family = lambda name: FakeFamily()
