"""Ask the real hipBLASLt for its algorithms without a GPU, make each again from what its name says,
and look at what a launch of it would run.

    for file in debs/*.deb; do dpkg -x "$file" unpacked; done
    python benchmarks/hipblaslt_offers.py unpacked --json hipblaslt_offers.json

The packages are those of Debian sid (amd64): libhipblaslt1, libhipblaslt-dev, libamdhip64-dev,
libc6, libgcc-s1 and libstdc++6.

The library runs on a stand-in for AMD's runtime (stand_in_hip.c), which pretends to be one device
and writes launches down in place of running them. No kernel runs: nothing is said of a result or of
a time. What is looked at is the binding. Of every algorithm:

- its name gives the same algorithm again, byte for byte;
- a launch through the launcher runs the kernels that the heuristic's own algorithm would run, with
  the same grid and the same bytes of arguments; so does one on a second stream;
- the arguments of its first kernel, by their names in the code object's metadata, are the product
  that was asked for: sizes, leading dimensions, strides, addresses, factors. Of a split sum the
  kernel stores to the workspace, and a second kernel follows;
- no call asks for memory.

What the library must refuse is asked for too (`refusals`). The unpacked C library is used, since
the system's may be older. A C compiler and zstd must be there. Exit status 1 if something
disagrees.
"""

from __future__ import annotations

import argparse
import ctypes
import gzip
import json
import os
import re
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from environment import environment
from tilewright.arch import arch, device
from tilewright.emulate.code_object import section
from tilewright.errors import TilewrightError
from tilewright.ops.gemm import FAMILY, GemmProblem
from tilewright.ops.library import Matmul, Solution
from tilewright.ops.nouns import Pointer
from tilewright.runtime import blaslt, libraries
from tilewright.runtime.bound import Bound, BoundLaunch
from tilewright.runtime.hip import HipDriver

DEVICES = {
    "mi210": ("gfx90a:sramecc+:xnack-", 104),
    "rx_7900_xtx": ("gfx1100", 48),
    "rx_9070_xt": ("gfx1201", 32),
}
"""The architecture and the compute units that the runtime says of a device; of RDNA, pairs."""

LIBRARY = "usr/lib/x86_64-linux-gnu"
LOADER = f"{LIBRARY}/ld-linux-x86-64.so.2"

SYMBOLS = "hip_4.2 { global: hip*; stand_in_*; local: *; }; hip_6.0 { global: *R0600; } hip_4.2;"
"""The versions of the runtime's functions that the library asks for."""

ADDRESSES = {"A": 1 << 40, "B": 2 << 40, "C": 3 << 40, "bias": 4 << 40, "scale": 5 << 40}
SCRATCH = 6 << 40
BIASES = {"fp32": 0, "fp16": 4, "bf16": 7}
"""The numbers that the library's kernels have for a bias's dtype."""
STREAMS = (0, 0x5000)

SIZES = ((512, 2048, 4096), (16, 512, 16384), (4096, 4096, 1024), (1, 4096, 4096), (511, 509, 507))
LAYOUTS = ("rcr", "rrr", "ccr", "crr", "rcc")


def problems(fp8: str) -> Iterator[GemmProblem]:
    """The products asked for; `fp8` names the architecture's 8-bit type, if it has one."""
    for m, n, k in SIZES:
        for dtype in ("bf16", "fp16"):
            yield GemmProblem(m, n, k, dtype)
        if fp8:
            yield GemmProblem(m, n, k, fp8, dtype_c="bf16", epilogue="scale")
    for layout in LAYOUTS:
        yield GemmProblem(384, 640, 768, "bf16", layout=layout)
        yield GemmProblem(384, 640, 768, "fp32", layout=layout)
    yield GemmProblem(384, 640, 768, "fp16", dtype_c="fp32")
    yield GemmProblem(384, 640, 768, "bf16", epilogue="bias")
    yield GemmProblem(384, 640, 768, "fp16", epilogue="bias")
    yield GemmProblem(384, 640, 768, "bf16", lda=800, ldb=832, ldc=704)
    yield GemmProblem(384, 640, 768, "bf16", batch=3)
    yield GemmProblem(384, 640, 768, "bf16", batch=3, stride_b=0, batching="strided")
    if fp8:
        yield GemmProblem(384, 640, 768, fp8, dtype_c="fp16")
        yield GemmProblem(384, 640, 768, fp8, dtype_c="fp32", layout="crr")


class Launch(ctypes.Structure):
    """`Launch` of stand_in_hip.c."""

    _fields_ = (
        ("file", ctypes.c_char * 2048),
        ("name", ctypes.c_char * 2048),
        ("threads", ctypes.c_uint32 * 3),
        ("block", ctypes.c_uint32 * 3),
        ("shared", ctypes.c_uint32),
        ("bytes", ctypes.c_uint32),
        ("arguments", ctypes.c_ubyte * 4096),
    )

    def said(self) -> dict[str, Any]:
        """What a launch would run."""
        return {
            "kernel": self.name.decode(),
            "threads": [*self.threads],
            "block": [*self.block],
            "arguments": bytes(self.arguments[: self.bytes]).hex(),
        }


class Asked:
    """The library on the stand-in, for one device."""

    def __init__(self, folder: Path, key: str) -> None:
        self.code = folder / LIBRARY / "hipblaslt" / "library"
        self.device = device(key)
        self.arch = arch(self.device.arch)
        self.runtime: Any = ctypes.CDLL("libamdhip64.so.6")
        self.driver: Any = HipDriver(self.runtime)
        self.library: Any = libraries.opened("hipblaslt1")

    def count(self, name: str) -> int:
        return ctypes.c_uint32.in_dll(self.runtime, f"stand_in_{name}").value

    def run(
        self, bound: BoundLaunch, addresses: tuple[int, ...], stream: int, scratch: int = SCRATCH
    ) -> tuple[list[dict[str, Any]], int]:
        """What a launch runs, and how often memory is asked for meanwhile."""
        before, asked = self.count("launches"), self.count("allocations")
        if not bound(stream, addresses, (0, scratch)):
            raise SystemExit("the operands overlap")
        launches = (Launch * 16).in_dll(self.runtime, "stand_in_launch")
        made = range(before, self.count("launches"))
        return [launches[i % 16].said() for i in made], self.count("allocations") - asked

    def build(self) -> dict[str, Any]:
        """What the library says of itself."""
        with self.driver.current(0):
            handle = ctypes.c_void_p(self.library._handle(0))
        version, revision = ctypes.c_int(), ctypes.create_string_buffer(256)
        self.library._lib.hipblasLtGetVersion(handle, ctypes.byref(version))
        self.library._lib.hipblasLtGetGitRevision(handle, revision)
        return {"version": version.value, "revision": revision.value.decode()}

    def refusals(self) -> Iterator[dict[str, str]]:
        """What the library, or the binding, says of algorithms that must be refused."""
        problem, other = GemmProblem(16, 512, 16384), GemmProblem(16, 512, 16384, "fp32")
        fine, wrong = (self.offers(p)[0] for p in (problem, other))
        larger = max(self.offers(problem), key=lambda found: found.workspace)
        cases = {
            "another build's": replace(fine, algorithm=replace(fine.algorithm, digest="0" * 8)),
            "another dtype's": replace(wrong, workspace=32 << 20),
            "no algorithm's number": replace(fine, algorithm=Solution(2**31 - 1, "0" * 8)),
        }
        if larger.workspace:
            cases["too little workspace"] = replace(larger, workspace=0)
        for what, found in cases.items():
            config = FAMILY.library_config(problem, self.library.name, found)
            (step,) = FAMILY.launch(config, problem, self.device).steps
            try:
                self.library.prepared(self.driver, 0, step.matmul)
                yield {"what": what, "said": ""}
            except TilewrightError as error:
                yield {"what": what, "said": str(error)}

    def offers(self, p: GemmProblem) -> list[Any]:
        query = FAMILY.library_query(p, self.arch, self.library.name)
        found: list[Any] = self.library.offered(self.driver, 0, query, libraries.ALGORITHMS)
        return found

    def problem(self, p: GemmProblem) -> dict[str, Any]:
        """What is offered for a problem, and what becomes of each offer."""
        said: dict[str, Any] = {"problem": str(p), "algorithms": [], "refused": ""}
        query = FAMILY.library_query(p, self.arch, self.library.name)
        if not isinstance(query, Matmul):
            return said | {"refused": query.reason}
        try:
            raw = self.library._results(self.driver, 0, query, libraries.ALGORITHMS)
            offers = self.library.offered(self.driver, 0, query, libraries.ALGORITHMS)
        except TilewrightError as error:
            return said | {"refused": str(error)}
        for own, offer in zip(raw, offers, strict=True):
            said["algorithms"].append(self.algorithm(p, query, own, offer))
        return said

    def algorithm(self, p: GemmProblem, query: Matmul, own: Any, offer: Any) -> dict[str, Any]:
        config = FAMILY.library_config(p, self.library.name, offer)
        wrong = [] if FAMILY.parse_name(config.name) == config else ["the name"]
        (step,) = (launch := FAMILY.launch(config, p, self.device)).steps
        names = [a.operand for a in step.arguments if isinstance(a, Pointer)]
        operands = [name for name in names if name != "workspace"]
        ready = self.library.prepared(self.driver, 0, step.matmul)
        bound = BoundLaunch(
            self.driver, 0, {}, 64, launch, [Bound(o, "in", 1) for o in operands],
            products={step.matmul: ready},
        )  # fmt: skip
        addresses = tuple(ADDRESSES[name] for name in operands)
        ours, asked = self.run(bound, addresses, STREAMS[0])
        second, _ = self.run(bound, addresses, STREAMS[1])
        again, more = self.run(bound, addresses, STREAMS[1])
        context: Any = blaslt.Context.from_address(ready.address)
        own.algorithm.most_workspace = step.matmul.workspace
        same = bytes(context.algorithm)[: ctypes.sizeof(own.algorithm)] == bytes(own.algorithm)
        ctypes.memmove(context.algorithm, bytes(own.algorithm), ctypes.sizeof(own.algorithm))
        theirs, _ = self.run(bound, addresses, STREAMS[0])
        for what, right in (
            ("the algorithm's bytes", same),
            ("the launch", ours == theirs and bool(ours)),
            ("the second stream", ours == second == again),
            ("memory", not asked and not more),
        ):
            wrong += [] if right else [what]
        wrong += self.compared(query, ours, operands)
        return {
            "name": config.name,
            "workspace": offer.workspace,
            "kernels": [short(one) for one in ours],
            "wrong": wrong,
        }

    def compared(self, asked: Matmul, ran: list[dict[str, Any]], operands: list[str]) -> list[str]:
        """What the arguments of the first kernel say otherwise than the product."""
        kernel = kernels_of(str(self.code), self.arch.name).get(ran[0]["kernel"])
        if kernel is None:
            return [f"no code object has {words(ran[0]['kernel'])}"]
        content, split = bytes.fromhex(ran[0]["arguments"]), len(ran) > 1
        found = {
            a[".name"]: content[a[".offset"] : a[".offset"] + a[".size"]] for a in kernel[".args"]
        }
        inner = asked.first.rows if asked.transposed[0] else asked.first.columns
        one, two, out = (ADDRESSES[name] for name in operands[:3])
        stored = asked.result
        if split:  # parts lie packed in the workspace
            packed = asked.result.rows * asked.result.columns
            stored, out = replace(stored, ld=stored.rows, stride=packed), SCRATCH
        wanted: dict[str, int] = {
            "SizesFree0": asked.result.rows,
            "SizesFree1": asked.result.columns,
            "SizesFree2": asked.count,
            "SizesSum0": inner,
            "A": one,
            "B": two,
            "C": out,
            "D": out,
            "alpha": struct.unpack("<I", struct.pack("<f", 1.0))[0],
            "beta": 0,
        }
        if asked.chain == "bias" and not split:
            wanted |= {"bias": ADDRESSES["bias"], "biasType": BIASES[asked.result.dtype]}
        if asked.chain == "scale":
            wanted |= {"AddressScaleA": ADDRESSES["scale"], "AddressScaleB": 0}
        names = ("strideD", "strideA", "strideB")
        for name, matrix in zip(names, (stored, asked.first, asked.second), strict=True):
            wanted[f"{name}0"] = matrix.ld
            if asked.count > 1:
                wanted[f"{name}1"] = matrix.stride
        told = {name: int.from_bytes(found.get(name, b""), "little") for name in wanted}
        return [f"{n} is {told[n]}, not {value}" for n, value in wanted.items() if told[n] != value]


def words(kernel: str) -> str:
    """The words of a kernel's name that say its tile, and how it splits sums."""
    kept = [w for w in kernel.split("_") if re.match(r"(MT|MI|GSU|PostGSU|SK)[0-9A-Z]", w)]
    return "_".join(kept) or kernel


def short(ran: dict[str, Any]) -> str:
    """A launch in a line."""
    groups = (n // each for n, each in zip(ran["threads"], ran["block"], strict=True))
    grid, size = "×".join(map(str, groups)), len(ran["arguments"]) // 2
    return f"{words(ran['kernel'])}: {grid} of {ran['block'][0]} threads, {size} bytes"


@cache
def kernels_of(folder: str, arch_name: str) -> dict[str, dict[str, Any]]:
    """The metadata of an architecture's kernels, by their names."""
    found: dict[str, dict[str, Any]] = {}
    for image in images(Path(folder), arch_name):
        for note in notes(section(image, ".note")):
            found |= {one[".name"]: one for one in note["amdhsa.kernels"]}
    return found


def images(folder: Path, arch_name: str) -> Iterator[bytes]:
    """The code objects of an architecture."""
    for file in sorted(folder.glob(f"*{arch_name}*")):
        if file.suffix not in (".co", ".hsaco"):
            continue
        content = file.read_bytes()
        if content.startswith(b"CCOB"):  # a compressed bundle, of zstd behind a header
            unpack = ["zstd", "-dcq"]
            done = subprocess.run(unpack, input=content[24:], stdout=subprocess.PIPE, check=True)
            content = done.stdout
        yield content[content.index(b"\x7fELF\x02\x01") :]


def notes(content: bytes) -> Iterator[dict[str, Any]]:
    """The notes of AMD's metadata: a code object of several has one of each."""
    at = 0
    while at < len(content):
        name, size, _ = struct.unpack_from("<III", content, at)
        start = at + 12 + name + -name % 4
        yield msgspec.msgpack.decode(content[start : start + size])
        at = start + size + -size % 4


def child(folder: Path, key: str) -> None:
    """Print what is found for one device."""
    asked = Asked(folder, key)
    fp8 = "e4m3fn" if asked.arch.dtypes["e4m3fn"].support == "native" else ""
    found = [asked.problem(p) for p in problems(fp8)]
    refusals = [*asked.refusals()]
    answer = {"device": key, "arch": asked.arch.name, **asked.build(), "refusals": refusals}
    json.dump({**answer, "problems": found}, sys.stdout)


def through_loader(folder: Path, *more: str) -> list[str]:
    """What a program is started with, so that it has the unpacked libraries. more: folders of
    others."""
    paths = [str(folder / path) for path in (*more, LIBRARY)]
    return [str(folder / LOADER), "--library-path", ":".join(paths)]


def ask_all(folder: Path, script: str) -> list[dict[str, Any]]:
    """What `script` prints for each device, on the stand-in."""
    with tempfile.TemporaryDirectory() as scratch:
        stand_in(folder, Path(scratch))
        return [ask(folder, key, scratch, script) for key in DEVICES]


def ask(folder: Path, key: str, scratch: str, script: str) -> dict[str, Any]:
    """What `script` prints for one device, on the stand-in."""
    target, units = DEVICES[key]
    command = [
        *through_loader(folder, scratch), str(Path(sys.executable).resolve()), script, str(folder),
        "--device", key,
    ]  # fmt: skip
    variables = {
        **os.environ,
        "STAND_IN_ARCH": target,
        "STAND_IN_UNITS": str(units),
        "PYTHONPATH": ":".join(filter(None, sys.path)),
    }
    done = subprocess.run(command, env=variables, stdout=subprocess.PIPE, check=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def package(folder: Path) -> str:
    """The package of the library, with its version."""
    changes = folder / "usr/share/doc/libhipblaslt1/changelog.Debian.gz"
    return gzip.decompress(changes.read_bytes()).decode().partition(")")[0] + ")"


def stand_in(folder: Path, scratch: Path) -> None:
    """Compile the stand-in for AMD's runtime."""
    symbols = scratch / "symbols"
    symbols.write_text(SYMBOLS)
    source = Path(__file__).with_name("stand_in_hip.c")
    subprocess.run(
        [
            "cc", "-O1", "-shared", "-fPIC", "-D__HIP_PLATFORM_AMD__",
            "-idirafter", str(folder / "usr" / "include"), f"-Wl,--version-script={symbols}",
            "-Wl,-soname,libamdhip64.so.6", str(source), "-o", str(scratch / "libamdhip64.so.6"),
        ],
        check=True,
    )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="where the packages are unpacked")
    parser.add_argument("--json", type=Path, help="write everything to this file")
    parser.add_argument("--device", choices=DEVICES, help=argparse.SUPPRESS)
    given = parser.parse_args()
    folder = given.folder.resolve()
    if given.device:
        return child(folder, given.device)
    found, wrong = ask_all(folder, __file__), 0
    for one in found:
        algorithms = [a for p in one["problems"] for a in p["algorithms"]]
        bad = [a for a in algorithms if a["wrong"]]
        wrong += len(bad)
        without = [p for p in one["problems"] if not p["algorithms"]]
        split = sum(len(a["kernels"]) > 1 for a in algorithms)
        taken = [refusal["what"] for refusal in one["refusals"] if not refusal["said"]]
        wrong += len(taken)
        print(
            f"{one['device']}, hipBLASLt {one['version']}: {len(algorithms)} algorithms of "
            f"{len(one['problems'])} problems, {split} of two kernels, {len(bad)} wrong; none for "
            f"{len(without)} problems; {len(one['refusals'])} refusals, not made: {taken or 'none'}"
        )
        for a in bad[:5]:
            print(f"  {a['name']}: {'; '.join(a['wrong'])}")
    if given.json:
        said = {**environment(), "package": package(folder)}
        given.json.write_text(json.dumps({"environment": said, "asked": found}, indent=1) + "\n")
    raise SystemExit(1 if wrong else 0)


if __name__ == "__main__":
    main()
