"""Live GPUs, through fake drivers and a fake sysfs: the real ones are not needed."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tilewright.arch import cuda_driver, detect, devices, hip_driver
from tilewright.errors import BadArgument, NoDriver, UnknownArch

CLOCK, UNITS, MEMORY_CLOCK, BUS, L2, MAJOR, MINOR = 13, 16, 36, 37, 38, 75, 76
H200_ATTRIBUTES = {
    MAJOR: 9,
    MINOR: 0,
    UNITS: 132,
    L2: 60 * 2**20,
    MEMORY_CLOCK: 3_201_000,
    BUS: 6144,
    CLOCK: 1_980_000,
}


def put(reference: Any, value: Any) -> int:
    reference._obj.value = value
    return 0


@dataclass
class FakeCuda:
    """libcuda with `gpus` as (name, memory, attributes)."""

    gpus: list[tuple[str, int, dict[int, int]]]
    init: int = 0

    def cuInit(self, flags: int) -> int:
        return self.init

    def cuDeviceGetCount(self, count: Any) -> int:
        return put(count, len(self.gpus))

    def cuDeviceGet(self, handle: Any, index: int) -> int:
        return put(handle, index)

    def cuDeviceGetName(self, text: Any, size: int, handle: ctypes.c_int) -> int:
        text.value = self.gpus[handle.value][0].encode()
        return 0

    def cuDeviceTotalMem_v2(self, memory: Any, handle: ctypes.c_int) -> int:
        return put(memory, self.gpus[handle.value][1])

    def cuDeviceGetAttribute(self, value: Any, number: int, handle: ctypes.c_int) -> int:
        return put(value, self.gpus[handle.value][2][number])

    def cuGetErrorName(self, status: int, word: Any) -> int:
        return put(word, b"CUDA_ERROR_FAKE")


@dataclass
class FakeHip:
    """libamdhip64 with `gpus` as (name, memory, PCI address)."""

    gpus: list[tuple[str, int, str]] = field(default_factory=list)
    status: int = 0

    def hipGetDeviceCount(self, count: Any) -> int:
        put(count, len(self.gpus))
        return self.status

    def hipDeviceGetName(self, text: Any, size: int, index: int) -> int:
        text.value = self.gpus[index][0].encode()
        return 0

    def hipDeviceTotalMem(self, memory: Any, index: int) -> int:
        return put(memory, self.gpus[index][1])

    def hipDeviceGetPCIBusId(self, text: Any, size: int, index: int) -> int:
        text.value = self.gpus[index][2].encode()
        return 0


def add_node(
    sys: Path, number: int, version: int, cus: int, *, bus: int = 0xC1, **more: int
) -> None:
    node = sys / "class/kfd/kfd/topology/nodes" / str(number)
    simds = 2 if version >= 100000 else 4
    facts = {
        "simd_count": cus * simds,
        "simd_per_cu": simds,
        "gfx_target_version": version,
        "location_id": bus << 8,
        "domain": 0,
        "max_engine_clk_fcompute": 2100,
        **more,
    }
    files = {
        "properties": facts,
        "mem_banks/0/properties": {"heap_type": 1, "width": 8192, "mem_clk_max": 1300},
        "caches/0/properties": {"level": 1, "size": 32},
        "caches/1/properties": {"level": 2, "size": 4096},
    }
    for name, numbers in files.items():
        file = node / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("".join(f"{key} {value}\n" for key, value in numbers.items()))


def add_cpu_node(sys: Path) -> None:
    node = sys / "class/kfd/kfd/topology/nodes/0"
    node.mkdir(parents=True)
    (node / "properties").write_text("cpu_cores_count 96\nsimd_count 0\nlocation_id 0\n")


# --- NVIDIA ---------------------------------------------------------------------------------


def test_an_nvidia_gpu_as_its_driver_describes_it() -> None:
    (probe,) = cuda_driver.probes(FakeCuda([("NVIDIA H200", 150 * 10**9, H200_ATTRIBUTES)]))
    seen = probe()
    assert (seen.name, seen.arch, seen.compute_units) == ("NVIDIA H200", "sm_90", 132)
    assert (seen.l2_bytes, seen.memory_bytes) == (60 * 2**20, 150 * 10**9)
    assert seen.bandwidth_gbs == pytest.approx(4916.7, abs=0.1)
    assert seen.clock_mhz == 1980
    assert seen.partition == ""
    assert seen.matrix_tflops == devices()["h200_sxm"].matrix_tflops


def test_a_product_without_a_file_is_still_a_device() -> None:
    (probe,) = cuda_driver.probes(FakeCuda([("NVIDIA GH200", 96 * 2**30, H200_ATTRIBUTES)]))
    seen = probe()
    assert (seen.name, seen.matrix_tflops) == ("NVIDIA GH200", ())


def test_a_mig_instance_is_a_partition_with_its_own_size() -> None:
    attributes = {**H200_ATTRIBUTES, UNITS: 16}
    name = "NVIDIA H200 MIG 1g.18gb"
    (probe,) = cuda_driver.probes(FakeCuda([(name, 18 * 2**30, attributes)]))
    seen = probe()
    assert (seen.name, seen.partition, seen.compute_units) == ("NVIDIA H200", "1g.18gb", 16)
    assert seen.matrix_tflops == ()


def test_a_missing_bandwidth_comes_from_the_known_product() -> None:
    attributes = {**H200_ATTRIBUTES, MEMORY_CLOCK: 0}
    (probe,) = cuda_driver.probes(FakeCuda([("NVIDIA H200", 150 * 10**9, attributes)]))
    assert probe().bandwidth_gbs == 4800.0


def test_a_missing_bandwidth_of_an_unknown_product_is_not_invented() -> None:
    attributes = {**H200_ATTRIBUTES, MEMORY_CLOCK: 0}
    (probe,) = cuda_driver.probes(FakeCuda([("NVIDIA X", 2**30, attributes)]))
    with pytest.raises(NoDriver, match="does not report bandwidth_gbs of 'NVIDIA X'"):
        probe()


@pytest.mark.parametrize("attribute", [UNITS, L2, CLOCK])
def test_a_figure_the_driver_leaves_out_is_an_error(attribute: int) -> None:
    attributes = {**H200_ATTRIBUTES, attribute: 0}
    (probe,) = cuda_driver.probes(FakeCuda([("NVIDIA H200", 150 * 10**9, attributes)]))
    with pytest.raises(NoDriver, match="does not report"):
        probe()


def test_an_nvidia_gpu_of_an_unknown_architecture() -> None:
    attributes = {**H200_ATTRIBUTES, MAJOR: 7, MINOR: 5}
    (probe,) = cuda_driver.probes(FakeCuda([("NVIDIA T4", 2**30, attributes)]))
    with pytest.raises(UnknownArch, match=r"'sm_75'.*known: .*sm_80"):
        probe()


def test_a_cuda_driver_without_a_device_lists_none() -> None:
    assert cuda_driver.probes(FakeCuda([], init=100)) == []


def test_a_cuda_driver_that_does_not_start() -> None:
    with pytest.raises(NoDriver, match=r"CUDA_ERROR_FAKE \(803\) to cuInit"):
        cuda_driver.probes(FakeCuda([], init=803))


def test_an_error_that_the_cuda_driver_has_no_name_for() -> None:
    class Newer(FakeCuda):
        def cuGetErrorName(self, status: int, word: Any) -> int:
            return 1

    with pytest.raises(NoDriver, match=r"unknown error \(9999\) to cuInit"):
        cuda_driver.probes(Newer([], init=9999))


# --- AMD ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("version", "name"),
    [
        (90010, "gfx90a"),
        (90402, "gfx942"),
        (90500, "gfx950"),
        (110000, "gfx1100"),
        (120001, "gfx1201"),
    ],
)
def test_amd_target_versions(tmp_path: Path, version: int, name: str) -> None:
    add_node(tmp_path, 1, version, 64)
    lib = FakeHip([("Some GPU", 2**34, "0000:c1:00.0")])
    (probe,) = hip_driver.probes(lib, tmp_path)
    assert (probe().arch, probe().compute_units) == (name, 64)


def test_an_amd_gpu_as_its_driver_describes_it(tmp_path: Path) -> None:
    add_cpu_node(tmp_path)
    add_node(tmp_path, 1, 90402, 304, num_xcc=8)
    lib = FakeHip([("AMD Instinct MI300X", 192 * 2**30, "0000:C1:00.0")])
    (probe,) = hip_driver.probes(lib, tmp_path)
    assert probe() == devices()["mi300x"]


def test_an_amd_gpu_without_a_file_takes_its_driver_bandwidth(tmp_path: Path) -> None:
    add_node(tmp_path, 1, 90402, 228)
    lib = FakeHip([("AMD Instinct MI300A", 128 * 2**30, "0000:c1:00.0")])
    (probe,) = hip_driver.probes(lib, tmp_path)
    assert probe().bandwidth_gbs == pytest.approx(2 * 1300 * 8192 / 8e3)


def test_hip_devices_meet_their_own_nodes(tmp_path: Path) -> None:
    add_node(tmp_path, 1, 90402, 304, bus=0x05)
    add_node(tmp_path, 2, 110000, 96, bus=0x26)
    lib = FakeHip([("B", 2**34, "0000:26:00.0"), ("A", 2**34, "0000:05:00.0")])
    assert [probe().arch for probe in hip_driver.probes(lib, tmp_path)] == ["gfx1100", "gfx942"]


def test_partitions_of_one_gpu(tmp_path: Path) -> None:
    for number in range(8):
        add_node(tmp_path, number + 2, 90402, 38, num_xcc=1, drm_render_minor=128 + number)
    folder = tmp_path / "bus/pci/devices/0000:c1:00.0"
    folder.mkdir(parents=True)
    (folder / "current_compute_partition").write_text("CPX\n")
    (folder / "current_memory_partition").write_text("NPS4\n")
    lib = FakeHip([("AMD Instinct MI300X", 24 * 2**30, f"0000:c1:00.{i}") for i in range(8)])
    seen = [probe() for probe in hip_driver.probes(lib, tmp_path)]
    assert {(s.partition, s.compute_units) for s in seen} == {("CPX/NPS4", 38)}
    assert seen[7].bandwidth_gbs == pytest.approx(5300 / 8)


def test_a_gpu_in_one_piece_is_no_partition(tmp_path: Path) -> None:
    add_node(tmp_path, 1, 90402, 304)
    folder = tmp_path / "bus/pci/devices/0000:c1:00.0"
    folder.mkdir(parents=True)
    (folder / "current_compute_partition").write_text("SPX\n")
    (probe,) = hip_driver.probes(FakeHip([("X", 2**34, "0000:c1:00.0")]), tmp_path)
    assert probe().partition == ""


def test_an_amd_gpu_of_an_unknown_architecture(tmp_path: Path) -> None:
    add_node(tmp_path, 1, 100300, 80)
    (probe,) = hip_driver.probes(FakeHip([("X", 2**34, "0000:c1:00.0")]), tmp_path)
    with pytest.raises(UnknownArch, match="'gfx1030'"):
        probe()


def test_an_amd_gpu_that_the_kernel_hides(tmp_path: Path) -> None:
    (probe,) = hip_driver.probes(FakeHip([("X", 2**34, "0000:c1:00.0")]), tmp_path)
    with pytest.raises(NoDriver, match="does not describe HIP device 0"):
        probe()


def test_a_topology_that_leaves_out_a_figure(tmp_path: Path) -> None:
    add_node(tmp_path, 1, 0, 304)
    (probe,) = hip_driver.probes(FakeHip([("X", 2**34, "0000:c1:00.0")]), tmp_path)
    with pytest.raises(NoDriver, match="does not give gfx_target_version"):
        probe()


def test_hip_without_a_device_and_hip_that_fails() -> None:
    assert hip_driver.probes(FakeHip(status=100)) == []
    with pytest.raises(NoDriver, match="error 3 to hipGetDeviceCount"):
        hip_driver.probes(FakeHip(status=3))


def test_amds_gpus_are_told_apart_by_what_their_driver_says() -> None:
    @dataclass
    class Named(FakeHip):
        failed: int = 0

        def hipDeviceGetUuid(self, raw: Any, index: int) -> int:
            raw.raw = f"0123456789abcde{index}".encode()
            return self.failed

    assert hip_driver.uuid(Named(), 3) == "GPU-0123456789abcde3"
    with pytest.raises(NoDriver, match="error 101 to hipDeviceGetUuid"):
        hip_driver.uuid(Named(failed=101), 0)


# --- both -----------------------------------------------------------------------------------


def use(monkeypatch: pytest.MonkeyPatch, **libraries: Any) -> None:
    def library(soname: str) -> Any:
        found = libraries.get("cuda" if "cuda" in soname else "hip")
        if found is None:
            raise NoDriver(f"{soname} is not installed")
        return found

    monkeypatch.setattr(detect, "_library", library)


def test_no_driver_is_one_clear_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch)
    message = (
        "no GPU can be used here: libcuda.so.1 is not installed; libamdhip64.so is not installed"
    )
    for ask in (detect.live_devices, detect.live_device):
        with pytest.raises(NoDriver) as caught:
            ask()
        assert str(caught.value) == message


def test_a_driver_that_lists_nothing_is_no_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, cuda=FakeCuda([]))
    with pytest.raises(NoDriver, match=r"libcuda\.so\.1 lists no GPU; libamdhip64\.so is not"):
        detect.live_devices()


def test_live_devices_in_driver_order(monkeypatch: pytest.MonkeyPatch) -> None:
    small = {**H200_ATTRIBUTES, UNITS: 78}
    use(monkeypatch, cuda=FakeCuda([("A", 2**30, H200_ATTRIBUTES), ("B", 2**30, small)]))
    assert [d.name for d in detect.live_devices()] == ["A", "B"]
    assert detect.live_device(1).compute_units == 78


@pytest.mark.parametrize("index", [1, -1])
def test_an_index_out_of_range(monkeypatch: pytest.MonkeyPatch, index: int) -> None:
    use(monkeypatch, cuda=FakeCuda([("A", 2**30, H200_ATTRIBUTES)]))
    with pytest.raises(BadArgument, match=f"there is no GPU {index}: this machine has 1"):
        detect.live_device(index)


def test_one_gpu_can_be_asked_for_beside_an_unsupported_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    old = {**H200_ATTRIBUTES, MAJOR: 7, MINOR: 5}
    use(monkeypatch, cuda=FakeCuda([("Old", 2**30, old), ("New", 2**30, H200_ATTRIBUTES)]))
    assert detect.live_device(1).name == "New"
    with pytest.raises(UnknownArch, match="'sm_75'"):
        detect.live_devices()


def test_an_absent_library_is_no_driver() -> None:
    with pytest.raises(NoDriver, match=r"libnosuch\.so is not installed"):
        detect._library("libnosuch.so")
