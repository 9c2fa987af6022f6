"""AMD GPUs: the HIP runtime numbers and names them; the kernel driver's sysfs describes them.

HIP's property struct and attribute numbers change between releases, and its multiprocessor count is
half the CU count on RDNA. The topology files under ``/sys/class/kfd`` have neither problem. The PCI
address links a HIP device to its topology node.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tilewright.arch.load import named
from tilewright.arch.model import Device
from tilewright.arch.product import fingerprint
from tilewright.errors import NoDriver

_NO_DEVICE = 100
_VIDEO_MEMORY = (1, 2)  # KFD heap types: visible and invisible frame buffer


def probes(lib: Any, sys: Path = Path("/sys")) -> list[Callable[[], Device]]:
    """One probe for each GPU (or partition) that `lib`, the loaded HIP runtime, can see.

    sys: the mount point of sysfs.

    Raises `NoDriver` if the runtime does not start.
    """
    count = ctypes.c_int()
    status = lib.hipGetDeviceCount(ctypes.byref(count))
    if status == _NO_DEVICE:
        return []
    _check(status, "hipGetDeviceCount")
    return [functools.partial(_device, lib, sys, index) for index in range(count.value)]


def uuid(lib: Any, index: int) -> str:
    """The UUID of a GPU (``GPU-…``), as ROCR_VISIBLE_DEVICES takes it."""
    raw = ctypes.create_string_buffer(16)
    _check(lib.hipDeviceGetUuid(raw, index), "hipDeviceGetUuid")
    return f"GPU-{raw.raw.decode(errors='replace')}"


def _device(lib: Any, sys: Path, index: int) -> Device:
    text = ctypes.create_string_buffer(256)
    _check(lib.hipDeviceGetName(text, len(text), index), "hipDeviceGetName")
    memory = ctypes.c_size_t()
    _check(lib.hipDeviceTotalMem(ctypes.byref(memory), index), "hipDeviceTotalMem")
    address = _address(lib, index)
    node = _node(lib, sys, index)
    facts = _numbers(node / "properties")
    needed = ("simd_count", "simd_per_cu", "gfx_target_version", "max_engine_clk_fcompute")
    for fact in needed:
        if facts.get(fact, 0) <= 0:
            raise NoDriver(f"{node / 'properties'} does not give {fact}")
    # KFD lists each CU's SIMDs, so this is CUs on RDNA too, where HIP counts pairs.
    units = facts["simd_count"] // facts["simd_per_cu"]
    return fingerprint(
        name=text.value.decode(errors="replace").strip(),
        arch=named(_target(facts["gfx_target_version"])).name,
        compute_units=units,
        l2_bytes=_l2_bytes(node) * max(1, facts.get("num_xcc", 1)),
        memory_bytes=memory.value,
        bandwidth_gbs=_bandwidth(node),
        clock_mhz=facts["max_engine_clk_fcompute"],
        partition=_partition(sys, address),
        # Two transfers a clock is right for HBM2; HBM3 and GDDR6 make more.
        trust_bandwidth=False,
    )


def _target(version: int) -> str:
    """``gfx90a`` from 90010: two decimal digits each of minor version and stepping."""
    return f"gfx{version // 10000}{version // 100 % 100:x}{version % 100:x}"


def _address(lib: Any, index: int) -> str:
    text = ctypes.create_string_buffer(64)
    _check(lib.hipDeviceGetPCIBusId(text, len(text), index), "hipDeviceGetPCIBusId")
    return text.value.decode().lower()


def _node(lib: Any, sys: Path, index: int) -> Path:
    """The topology node of HIP device `index`.

    The partitions of one GPU share its address; both sides list them in the same order.
    """
    wanted = _slot(_address(lib, index))
    earlier = sum(_slot(_address(lib, other)) == wanted for other in range(index))
    topology = sys / "class/kfd/kfd/topology/nodes"
    nodes = sorted(topology.glob("*"), key=lambda node: (len(node.name), node.name))
    matching = []
    for node in nodes:
        facts = _numbers(node / "properties")
        location = facts.get("location_id", 0)
        slot = (facts.get("domain", 0), location >> 8 & 0xFF, location >> 3 & 0x1F)
        if facts.get("simd_count", 0) > 0 and slot == wanted:
            matching.append(node)
    if earlier >= len(matching):
        raise NoDriver(f"the kernel driver does not describe HIP device {index} under {topology}")
    return matching[earlier]


def _slot(address: str) -> tuple[int, int, int]:
    """(domain, bus, device) of ``0000:c1:00.0``."""
    domain, bus, rest = address.split(":")
    return int(domain, 16), int(bus, 16), int(rest.partition(".")[0], 16)


def _l2_bytes(node: Path) -> int:
    """The L2 of one compute die; the topology gives sizes in KiB."""
    caches = [_numbers(file) for file in node.glob("caches/*/properties")]
    return max((c.get("size", 0) * 1024 for c in caches if c.get("level") == 2), default=0)


def _bandwidth(node: Path) -> float:
    banks = [_numbers(file) for file in node.glob("mem_banks/*/properties")]
    video = [bank for bank in banks if bank.get("heap_type") in _VIDEO_MEMORY]
    megabits = max((b.get("width", 0) * b.get("mem_clk_max", 0) for b in video), default=0)
    return 2 * megabits / 8e3


def _partition(sys: Path, address: str) -> str:
    """``""`` for a whole GPU, else its compute mode (and its memory mode if the memory is
    split)."""
    folder = sys / "bus/pci/devices" / f"{address.partition('.')[0]}.0"
    compute = _word(folder / "current_compute_partition")
    if compute in ("", "SPX"):
        return ""
    memory = _word(folder / "current_memory_partition")
    return compute if memory in ("", "NPS1") else f"{compute}/{memory}"


def _word(file: Path) -> str:
    try:
        return file.read_text().strip()
    except OSError:  # GPUs that cannot be partitioned have no such file
        return ""


def _numbers(file: Path) -> dict[str, int]:
    """The ``name number`` lines of a topology file; empty if it cannot be read."""
    try:
        lines = file.read_text().splitlines()
    except OSError:  # nodes that this container may not see
        return {}
    pairs = (line.split() for line in lines)
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdigit()}


def _check(status: int, call: str) -> None:
    if status != 0:
        raise NoDriver(f"the HIP runtime answered error {status} to {call}")
