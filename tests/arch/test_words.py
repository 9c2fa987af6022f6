"""Products and GPUs of this machine, wherever an architecture or a device is asked for."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable

import pytest

from tilewright.arch import arch, archs, detect, device, devices
from tilewright.arch.targets import Target, parse
from tilewright.errors import BadArgument, NoDriver, TilewrightError, UnknownArch, nearest

H200, MI300X = devices()["h200_sxm"], devices()["mi300x"]


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Has the drivers of this machine report these GPUs."""

    def put(*found: object) -> None:
        monkeypatch.setattr(detect, "_probes", lambda: [lambda d=d: d for d in found])

    return put


@pytest.mark.parametrize("name", archs())
def test_every_product_and_device_is_understood_as_an_architecture(name: str) -> None:
    for product in arch(name).products:
        for word in (product, product.lower(), product.replace(" ", "_"), product.replace(" ", "")):
            assert arch(word).name == name
            assert parse(word) == (Target(name),) and parse(f"{word}:7") == (Target(name, 7),)
    for slug, known in devices().items():
        if known.arch == name:
            assert arch(slug).name == arch(known.name).name == name


@pytest.mark.parametrize(
    ("word", "slug"),
    [
        ("H200", "h200_sxm"), ("h200", "h200_sxm"), ("h20", "h20"), ("H100 PCIe", "h100_pcie"),
        ("h100-sxm", "h100_sxm"), ("mi300x", "mi300x"), ("MI250X", "mi250x_gcd"),
        ("rtx4090", "rtx_4090"), ("RTX 4090", "rtx_4090"), ("GeForce RTX 5090", "rtx_5090"),
        ("RX 7900 XTX", "rx_7900_xtx"), ("nvidia h200", "h200_sxm"), ("7900 xtx", "rx_7900_xtx"),
        ("4090", "rtx_4090"), ("geforce_5090", "rtx_5090"), ("090", None),
    ],
)  # fmt: skip
def test_products_are_understood_as_devices(word: str, slug: str | None) -> None:
    if slug is None:
        with pytest.raises(BadArgument):
            device(word)
    else:
        assert device(word) is devices()[slug]


@pytest.mark.parametrize(
    ("word", "says"),
    [
        ("h100", "device 'h100' may be any of h100_pcie, h100_sxm: say which"),
        ("A100", "device 'A100' may be any of a100_sxm_40gb, a100_sxm_80gb: say which"),
        ("a100-80gb", "'a100-80gb' is not known; A100 is known as a100_sxm_40gb, a100_sxm_80gb:"),
        ("h200_sx", "'h200_sx' is not known; H200 is known as h200_sxm: say which"),
        ("GH200", "'GH200' is a product of sm_90, of which these are known: h100_pcie, h100_sxm,"),
        ("gfx942", "'gfx942' is an architecture, of which these are known: mi300x, mi325x;"),
    ],
)
def test_a_device_that_is_not_clear_is_answered_with_those_there_are(word: str, says: str) -> None:
    with pytest.raises(BadArgument, match=re.escape(says)):
        device(word)


@pytest.mark.parametrize(
    "word", ["sm_75", "sm_900", "gfx90c", "gfx943", "V100", "a1000", "h100x", "l40", "b400", "h2"]
)
def test_another_gpus_name_is_never_a_hint(word: str) -> None:
    for asked in (arch, device, parse):
        with pytest.raises(BadArgument) as error:
            asked(word)
        before_the_list = str(error.value).partition("known: ")[0]
        assert before_the_list.endswith(f"'{word}'; ") and "mean" not in str(error.value)


def test_what_follows_a_product_is_said_to_be_of_its_architecture() -> None:
    with pytest.raises(UnknownArch, match=r"'h100 nvl' \(H100 is of sm_90\); known: gfx1100"):
        arch("h100 nvl")


def test_gpus_of_this_machine(here: Callable[..., None]) -> None:
    here(H200, H200)
    for word in ("cuda:0", "cuda", "CUDA:1", "hip:0", "native", " Native "):
        assert device(word) == H200
        assert arch(word).name == "sm_90"
    assert parse("cuda:1;gfx942", lambda: [MI300X, H200]) == (
        Target("sm_90", 132),
        Target("gfx942"),
    )
    for asked in (arch, device):
        with pytest.raises(BadArgument, match="there is no GPU 2: this machine has 2"):
            asked("cuda:2")
    with pytest.raises(BadArgument, match="there is no GPU 2 here, as 'cuda:2' says"):
        parse("cuda:2", lambda: [H200])


def test_gpus_that_differ_are_named(here: Callable[..., None]) -> None:
    here(H200, MI300X)
    with pytest.raises(BadArgument, match="cuda:0 NVIDIA H200, cuda:1 AMD Instinct MI300X"):
        device("native")
    assert arch("cuda:1").name == "gfx942"
    here(H200)
    assert arch("native").name == "sm_90", "looked at each time"


def test_without_a_gpu_the_drivers_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(detect, "_probes", lambda: (_ for _ in ()).throw(NoDriver("none")))
    for asked in (arch, device):
        with pytest.raises(NoDriver):
            asked("cuda:0")


def test_a_description_names_an_architecture_and_no_gpu_of_this_machine() -> None:
    for word in ("native", "h200", "sm90"):
        with pytest.raises(TilewrightError, match=f"arch: unknown architecture '{word}'"):
            device({**dataclasses.asdict(H200), "arch": word})


def test_a_word_of_another_meaning_is_no_hint() -> None:
    known = ["dtype_a", "dtype_b", "tile_m", "tile_n", "alignment"]
    assert nearest("dtype_c", known) == nearest("tile_x", known) == ""
    assert nearest("dtyp_b", known) == " (did you mean 'dtype_b'?)"
    assert nearest("alignmet", known) == " (did you mean 'alignment'?)"
