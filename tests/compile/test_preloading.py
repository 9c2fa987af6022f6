"""A kernel for gfx1250 with more arguments than Triton's compiler can have preloaded is built."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from fake_family import FakeConfig, FakeFamily

from tilewright.compile import Store, build, find, inspect, stages
from tilewright.compile.preloading import preloading_fewer
from tilewright.ops.nouns import MAIN, KernelSource

LLIR = """\
; a line before it
define amdgpu_kernel void @kernel(ptr addrspace(1) inreg writeonly captures(none) %0, {arguments}, \
ptr addrspace(1) inreg readnone captures(none) %8) local_unnamed_addr #0 !dbg !4 {{
  %inreg = add i32 %1, inreg
}}
"""


@pytest.mark.parametrize(
    ("kinds", "words", "marked"),
    [
        # pointer: words 0 and 1; i32: 2; i64: 4 and 5; i16: 6; pointer: 8 and 9
        (("i32", "i64", "i16"), 10, (True, True, True, True, True)),
        (("i32", "i64", "i16"), 9, (True, True, True, True, False)),
        (("i32", "i64", "i16"), 7, (True, True, True, True, False)),
        (("i32", "i64", "i16"), 6, (True, True, True, False, False)),
        (("i32", "i64", "i16"), 5, (True, True, False, False, False)),
        # pointer: 0 and 1; i1, i8: first half of 2; i16: second; float: 3; double: 4; pointer: 6
        (("i1", "i8", "i16", "float", "double"), 8, (True,) * 7),
        (("i1", "i8", "i16", "float", "double"), 3, (True, True, True, True, False, False, False)),
        (("i1", "i8", "i16", "float", "double"), 2, (True, *(False,) * 6)),
    ],
)
def test_arguments_within_the_words_are_marked(kinds, words, marked):
    arguments = ", ".join(f"{kind} inreg range({kind} 0, 5) %{i}" for i, kind in enumerate(kinds))
    llir = LLIR.format(arguments=arguments)
    made = preloading_fewer(llir, words)
    (header,) = re.findall(r"@kernel\((.*)\) local", made)
    found = re.findall(r"(?:^|, )(?:ptr|float|double|i\d+)( addrspace\(1\))?( inreg)? ", header)
    assert tuple(bool(mark) for _, mark in found) == marked
    assert made.replace(" inreg", "") == llir.replace(" inreg", "")
    assert made.partition("\n  %")[2] == llir.partition("\n  %")[2]


@pytest.mark.parametrize("arguments", ["<4 x i32> inreg %1", "{ i32, ptr } inreg %1"])
def test_a_kernel_with_other_types_stays(arguments):
    llir = LLIR.format(arguments=arguments)
    assert preloading_fewer(llir, 1) == llir
    assert preloading_fewer("", 1) == ""


@pytest.mark.parametrize(
    ("backend", "target", "changed"),
    [
        ("hip", "gfx942", set()),
        ("hip", "gfx950", set()),
        ("hip", "gfx1201", set()),
        ("hip", "gfx1250", {"llir"}),
        ("cuda", "90", {"ptx"}),
    ],
)
def test_which_stages_are_edited(backend, target, changed):
    made = {name: lambda source, metadata: "" for name in ("ttir", "llir", "ptx", "amdgcn")}
    found = dict(made)
    stages.hook(backend, target, 1)(None, found)
    assert {name for name in made if found[name] is not made[name]} == changed


class Many(FakeFamily):
    """A kernel with `count` numbers of 4 bytes behind a pointer; two pointers follow them."""

    def __init__(self, count: int) -> None:
        self.count = count

    def source(self, config: FakeConfig, arch: object) -> KernelSource:
        return replace(
            super().source(config, arch),  # type: ignore[arg-type]
            signature=(("x", "*i32"), *((f"numbers.{i}", "i32") for i in range(self.count))),
            constants=(),
            divisibility=(),
            pointer_range_32=(),
        )


@pytest.mark.grid(2)
@pytest.mark.parametrize(
    ("count", "preloaded"),
    [
        (22, 28),  # words: 2, 22, and 4 of the two pointers
        (23, 28),  # 2, 23, 1 of padding, 2 of the first pointer; with the second they were 30
        (27, 29),  # 2, 27
        (40, 29),
    ],
)
def test_one_word_fewer_than_all_registers_is_preloaded(
    count: int, preloaded: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tilewright import ops

    monkeypatch.setattr(ops, "family", lambda name: Many(count))
    store = Store(tmp_path / "store")
    config = FakeConfig("total", block=count)
    build([(config, "gfx1250")], store=store, workers=1).raise_if_failed()
    kernels = find(config, "gfx1250", store)
    assert kernels is not None
    listing = inspect(kernels[MAIN], store, "amdgcn")
    found = re.findall(r"amdhsa_user_sgpr_(?:kernarg_preload_length|count) (\d+)", listing)
    assert found == [str(preloaded + 2), str(preloaded)]
