"""Words for devices, what pins a process to one, and what a device says of itself."""

from __future__ import annotations

import logging
import types

import pytest

from tilewright.arch import device
from tilewright.child import Child, ChildDied
from tilewright.compile import Store
from tilewright.errors import BadArgument, NoDriver
from tilewright.measure import devices, telemetry
from tilewright.measure.devices import (
    PRELOAD_VARIABLE,
    WORKER,
    Place,
    environment,
    interpreted_device,
)
from tilewright.measure.groups import groups
from tilewright.measure.measurement import Settings, Telemetry
from tilewright.measure.places import parse

H200, MI300X = device("h200_sxm"), device("mi300x")
UUIDS = ["GPU-1b2c-0", "GPU-1b2d-1", "GPU-77aa-2", "MIG-1b2c-3"]
HERE = [Place(uuid, environment("cuda"), H200) for uuid in UUIDS]


@pytest.mark.parametrize(
    ("words", "numbers"),
    [
        ("all", [0, 1, 2, 3]),
        ("1", [0]),
        ("3", [0, 1, 2]),
        ("0,3", [0, 3]),
        ("2,", [2]),
        ("GPU-77", [2]),
        ("77AA", [2]),
        ("GPU-1b2c,1", [0, 1]),
        ("mig-1", [3]),
        ("native", [0, 1, 2, 3]),
        ("cuda:2", [2]),
        ("h200", [0, 1, 2, 3]),
    ],
)
def test_words_name_gpus(words, numbers):
    assert parse(words, HERE) == [HERE[n] for n in numbers]


def test_a_product_names_all_gpus_that_are():
    mixed = [*HERE[:2], Place("GPU-f", environment("hip"), MI300X), *HERE[2:]]
    assert parse("H200", mixed) == HERE
    assert parse("mi300x,0", mixed) == [mixed[2], mixed[0]]
    with pytest.raises(BadArgument, match=r"no GPU 'h100' here; these are: NVIDIA H200 \(GPU-1"):
        parse("h100", mixed)
    hexadecimal = [Place("GPU-a100b", environment("cuda"), H200)]
    assert parse("a100,", hexadecimal) == hexadecimal


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("", "names none"),
        (",", "names none"),
        ("0", "0 GPUs are asked for, this machine has 4.*'0,'"),
        ("5", "5 GPUs are asked for, this machine has 4"),
        ("0,4", "no GPU 4: this machine has 4, from 0"),
        ("GPU-ff", r"no GPU 'GPU-ff' here; these are: NVIDIA H200 \(GPU-1b2c-0\), "),
        ("GPU-1b2", "beginning of 2 GPUs' UUIDs"),
        ("0,0", "GPU-1b2c-0 more than once"),
        ("0,GPU-1b2c", "more than once"),
        ("-1", "no GPU '-1' here"),
    ],
)
def test_words_that_name_none_say_so(words, message):
    with pytest.raises(BadArgument, match=message):
        parse(words, HERE)


def test_without_a_gpu_the_interpreter_is_offered():
    for words in ("all", "2", "0,1"):
        with pytest.raises(NoDriver, match="--devices cpu"):
            parse(words, [])
    first, second = parse("cpu,cpu")
    assert first == second and first.device is None


def test_a_process_sees_its_place_and_nothing_else():
    assert HERE[1].variables == {"CUDA_VISIBLE_DEVICES": "GPU-1b2d-1", "ROCR_VISIBLE_DEVICES": ""}
    amd = Place("GPU-abcdef", environment("hip"), MI300X).variables
    assert amd["ROCR_VISIBLE_DEVICES"] == "GPU-abcdef"
    assert amd["HIP_VISIBLE_DEVICES"] is None and amd["CUDA_VISIBLE_DEVICES"] is None
    assert set(parse("cpu")[0].variables.values()) == {""}


def test_a_place_takes_the_kernels_of_its_architecture_and_the_interpreter_any():
    assert HERE[0].device_for("sm_90") == H200 and HERE[0].device_for("sm_80") is None
    (cpu,) = parse("cpu")
    for name in ("sm_90", "gfx942", "sm_80"):
        played = cpu.device_for(name)
        assert played.arch == name and played == interpreted_device(name)
        assert played.name.startswith("interpreter as ")
    assert cpu.device_for("sm_90").name == f"interpreter as {H200.name}"


def test_environments_say_what_kernels_run_with():
    cpu = dict(environment("cpu").versions)
    assert set(cpu) == {"tilewright", "triton", "numpy"} and "absent" not in cpu.values()
    assert "torch" in dict(environment("cuda").versions)


class Nvml(types.SimpleNamespace):
    """NVML of one device, whose power cannot be read."""

    class NVMLError(Exception):
        pass

    NVML_CLOCK_SM = NVML_TEMPERATURE_GPU = 0

    def __init__(self) -> None:
        self.clocks = iter([1980, 1200, 1950])
        self.reasons = iter([0x1, 0x4 | 0x20, 0x2])
        self.pids = [7, 7]

    def nvmlDeviceGetHandleByUUID(self, uuid):
        if uuid != "GPU-a":
            raise self.NVMLError
        return uuid

    def nvmlDeviceGetClockInfo(self, handle, which):
        return next(self.clocks)

    def nvmlDeviceGetTemperature(self, handle, which):
        return 40

    def nvmlDeviceGetPowerUsage(self, handle):
        raise self.NVMLError

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, handle):
        return next(self.reasons)

    def nvmlDeviceGetComputeRunningProcesses(self, handle):
        return [types.SimpleNamespace(pid=pid) for pid in self.pids]


def test_a_monitor_keeps_what_was_read_until_it_is_taken():
    nvml = Nvml()
    monitor = telemetry.Monitor("GPU-a", nvml)
    for _ in range(3):
        monitor.read()
    seen = monitor.take()
    assert seen == Telemetry((1200, 1950), 40, None, ("sw_thermal_slowdown",), 0)
    nvml.pids = [7, 8, 9]
    again = monitor.take()
    assert again == Telemetry(others=2), "the readings are taken already"
    assert telemetry.flags(seen, settled=True, late=False) == ("throttled",)
    assert telemetry.flags(again, settled=False, late=True) == ("contended", "unsettled", "late")


def test_a_gpu_that_somebody_works_on_is_said_before_anything_begins(monkeypatch, caplog):
    nvml = Nvml()
    monkeypatch.setattr(telemetry, "_nvml", lambda: nvml)
    here = [Place(f"GPU-{x}", environment("cuda"), H200) for x in "ab"]
    monkeypatch.setattr(devices, "gpus", lambda: here)

    def said(*pids):
        nvml.pids = pids
        caplog.clear()
        found, _ = groups("all", Store("."), Settings(), timeout=1)
        assert [group.count for group in found] == [2]
        return caplog.text

    assert f"{here[0]} is also used by 1 other process: times" in said(7)
    assert "also used by 2 other processes" in said(7, 8, 8)
    assert said() == "", "GPU-b is unknown to NVML, and GPU-a idle"
    monkeypatch.setattr(telemetry, "_nvml", lambda: None)
    assert said(7) == ""


def test_what_cannot_be_read_is_none_and_that_is_said_once(monkeypatch, caplog):
    blind = telemetry.Monitor("GPU-b", Nvml())
    blind.read()
    assert blind.take() == Telemetry()
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    telemetry._say_blind.cache_clear()
    with caplog.at_level(logging.WARNING):
        telemetry.say_if_blind()
        telemetry.say_if_blind()
    assert caplog.text.count("pip install 'tilewright[tune]'") == 1


def test_no_driver_says_what_needs_none(monkeypatch):
    class NoneHere:
        def __init__(self, *_):
            pass

        def __enter__(self):
            return self

        def __exit__(self, *_):
            pass

        def request(self, message, timeout):
            return {"error": "no GPU can be used here: no library"}, []

    monkeypatch.setattr(devices, "Child", NoneHere)
    with pytest.raises(NoDriver, match=r"no library \(--devices cpu"):
        parse("all")


@pytest.mark.turns(8)
def test_only_a_gpus_worker_needs_torch(tmp_path, monkeypatch):
    """Who asks which GPUs there are may have none, whatever the user's environment hides."""
    (tmp_path / "torch.py").write_text("raise ImportError('no torch here')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    variables = {"CUDA_VISIBLE_DEVICES": "0"}
    with Child("tilewright.arch.asked", variables) as child:
        answer, _ = child.request({}, timeout=60)
    assert answer.keys() & {"devices", "error"} and "torch" not in str(answer)
    with Child(WORKER, {**variables, PRELOAD_VARIABLE: "torch"}) as child:
        with pytest.raises(ChildDied) as died:
            child.request({"do": "open"}, timeout=60)
        assert "no torch here" in died.value.stderr_tail
