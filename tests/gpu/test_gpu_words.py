"""GPUs of this machine, by the words for them."""

from __future__ import annotations

import pytest

from tilewright.arch import arch, device
from tilewright.arch.detect import live_device, live_devices
from tilewright.arch.targets import Target
from tilewright.arch.targets import parse as parse_targets
from tilewright.dispatch import Dispatcher
from tilewright.errors import BadArgument
from tilewright.measure.places import parse as parse_places

pytestmark = pytest.mark.gpu


def test_the_first_gpu_by_its_number():
    first = live_device(0)
    assert device("cuda:0") == device("cuda") == first
    assert arch("cuda:0").name == first.arch
    assert parse_targets("cuda:0") == (Target(first.arch, first.compute_units),)
    assert parse_places("cuda:0") == parse_places("0,")
    assert Dispatcher(device="cuda:0").device_for_planning() == first


def test_all_of_them():
    found = live_devices()
    assert parse_places("native") == parse_places("all")
    assert {target.arch for target in parse_targets("native")} == {one.arch for one in found}
    if len({*found}) == 1:
        assert device("native") == found[0] and arch("native").name == found[0].arch


def test_one_that_is_not_here():
    with pytest.raises(BadArgument, match="there is no GPU 99"):
        device("cuda:99")
    with pytest.raises(BadArgument, match="there is no GPU 99"):
        parse_places("cuda:99")
