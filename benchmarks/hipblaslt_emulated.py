"""Execute the real hipBLASLt's kernels in emulation, and judge their results against float64.

    for file in debs/*.deb; do dpkg -x "$file" unpacked; done
    python benchmarks/hipblaslt_emulated.py unpacked --json hipblaslt_emulated.json

The packages are those of hipblaslt_offers.py, and of Debian sid (amd64) llvm-21, libllvm21 and what
they need: libedit2, libffi8, libxml2-16, libz3-4, libzstd1, libtinfo6, zlib1g, libbsd0, libmd0.

For each product the library is asked as in hipblaslt_offers.py. Each algorithm is made from its
name and launched by the native launcher, with operands at addresses of the emulator's memory. The
stand-in for AMD's runtime writes down what the library launches. These kernels, disassembled by
LLVM from the library's own code objects, are executed with the arguments that it passed, and their
result is compared with a reference in float64 under this project's tolerances.

The listing is LLVM's and not a compiler's: nothing proves it but the results. A launch that reaches
what the emulator does not know is counted as not executed. Exit status 1 if a result is wrong, or
if an access to memory is.
"""

from __future__ import annotations

import argparse
import json
import re
import struct
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

import hipblaslt_offers as offers
from environment import environment
from tilewright import verify
from tilewright.emulate import machine
from tilewright.emulate.code_object import section
from tilewright.emulate.isa import registry, scalar
from tilewright.emulate.isa.access import scalar_destination, scalar_source
from tilewright.emulate.machine import Limits, Machine
from tilewright.emulate.memory import Memory
from tilewright.emulate.waves import Waves
from tilewright.errors import TilewrightError, UnknownInstruction
from tilewright.listing.target import GENERATIONS
from tilewright.listing.text import Instruction, Program, parse
from tilewright.ops.gemm import FAMILY, GemmProblem
from tilewright.ops.library import Matmul
from tilewright.ops.nouns import Pointer
from tilewright.runtime.bound import Bound, BoundLaunch

OBJDUMP = "usr/lib/llvm-21/bin/llvm-objdump"
EACH = 3
"""Algorithms of a product that are executed."""

LIMITS = Limits(seconds=20)

REGISTERS = ("wait states", "unwaited register", "unwritten register")
"""Findings about registers: counted apart. They are sought as a compiler's code has them, and these
kernels are written by a generator of assembly, which reads what it does not use."""


def problems(fp8: str) -> Iterator[GemmProblem]:
    """The products computed; `fp8` names the architecture's 8-bit type, if it has one."""
    for dtype in ("bf16", "fp16", "fp32"):
        for layout in ("rcr", "rrr", "ccr", "crr", "rcc"):
            yield GemmProblem(64, 96, 128, dtype, layout=layout)
    for dtype in ("bf16", "fp16"):
        yield GemmProblem(64, 96, 128, dtype, epilogue="bias")
        yield GemmProblem(65, 97, 131, dtype)
        yield GemmProblem(64, 96, 128, dtype, batch=2)
        yield GemmProblem(16, 32, 8192, dtype)
    yield GemmProblem(64, 96, 128, "bf16", batch=2, stride_b=0)
    yield GemmProblem(64, 96, 128, "bf16", lda=144, ldb=160, ldc=112)
    yield GemmProblem(64, 96, 128, "fp16", dtype_c="fp32")
    if fp8:
        yield GemmProblem(64, 96, 128, fp8, dtype_c="bf16", epilogue="scale")
        yield GemmProblem(64, 96, 128, fp8, dtype_c="bf16")
        yield GemmProblem(64, 96, 128, fp8, dtype_c="fp32")


# --- code objects as listings ---------------------------------------------------------------------


class Code:
    """The code objects of an architecture, and their kernels as listings."""

    def __init__(self, folder: Path, library: Path, arch_name: str, scratch: Path) -> None:
        self._folder, self._arch, self._scratch = folder, arch_name, scratch
        self._images: list[tuple[Path, bytes]] = []
        self._kernels: dict[str, tuple[int, dict[str, Any]]] = {}
        for number, image in enumerate(offers.images(library, arch_name)):
            self._images.append((scratch / f"{arch_name}-{number}.o", image))
            for note in offers.notes(section(image, ".note")):
                self._kernels |= {one[".name"]: (number, one) for one in note["amdhsa.kernels"]}

    def program(self, kernel: str) -> tuple[Program, list[int], dict[str, Any]]:
        """A kernel, the addresses of its instructions, and its metadata."""
        number, metadata = self._kernels[kernel]
        path, image = self._images[number]
        if not path.exists():
            path.write_bytes(image)
        functions, objects = symbols(path)
        start = functions[kernel]
        end = min((at for at in functions.values() if at > start), default=start + (1 << 20))
        code = [*self._disassembled(path, start, end, metadata[".wavefront_size"])]
        descriptor = described(image, path, objects[f"{kernel}.kd"], self._arch)
        lines = [f'.amdgcn_target "amdgcn-amd-amdhsa--{self._arch}"', ".type kernel,@function"]
        for text, at in code:
            lines += [f"L{at:x}:", text]
        lines += [f".amdhsa_{name} {value}" for name, value in descriptor.items()]
        lines.append(".amdgpu_metadata")
        lines += [f"    {n}: {v}" for n, v in metadata.items() if isinstance(v, int)]
        lines.append(".end_amdgpu_metadata")
        return parse("\n".join(lines)), [at for _, at in code], metadata

    def _disassembled(
        self, path: Path, start: int, end: int, lanes: int
    ) -> Iterator[tuple[str, int]]:
        """(instruction, address); a branch names its target's address as a label."""
        command = [
            *offers.through_loader(self._folder, "usr/lib/llvm-21/lib"),
            str(self._folder / OBJDUMP), "-d", f"--mcpu={self._arch}",
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
            text = text.replace("s_barrier_wait 0xffff", "s_barrier_wait -1")
            if text.startswith("s_setreg_imm32_b32 hwreg(26,"):
                text = "s_nop 0"  # how waves are scheduled, which no result depends on
            yield text, at


def symbols(path: Path) -> tuple[dict[str, int], dict[str, int]]:
    """The addresses of functions and of objects, by name."""
    done = subprocess.run(
        ["readelf", "-sW", "--dyn-syms", str(path)], stdout=subprocess.PIPE, text=True, check=True
    )
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


# --- instructions --------------------------------------------------------------------------------

ADDRESSES: list[int] = []
"""Of the instructions of the kernel that runs: these kernels add bytes to the program counter, and
the emulator's counts instructions."""


def _counter(ins: Instruction, context: registry.Context) -> registry.Executor:
    write = scalar_destination(ins, 0, "u64")
    value = np.array([ADDRESSES[ins.index + 1]], np.uint64)
    return lambda waves: write(waves, value)


def _jump(ins: Instruction, context: registry.Context) -> registry.Executor:
    """Waves that jump elsewhere than the first stay, and jump next."""
    kept = scalar_destination(ins, 0, "u64") if len(ins.operands) == 2 else None
    read = scalar_source(ins, len(ins.operands) - 1, "u64")

    def execute(waves: Waves) -> Waves | None:
        places = read(waves)
        first = places == places[0]
        apart = waves if first.all() else waves.taken(np.flatnonzero(first))
        if apart is not waves:
            waves.become(waves.taken(np.flatnonzero(~first)))
            waves.position = ins.index
        if kept is not None:
            kept(apart, np.array([ADDRESSES[ins.index + 1]], np.uint64))
        apart.position = ADDRESSES.index(int(places[0]))
        return None if apart is waves else apart

    return execute


def teach() -> None:
    """Let the emulator execute what the library's kernels have and a compiler's do not: the program
    counter in bytes, calls, and shifts with a sum. What it does not know ends a launch only where
    it is reached."""
    for generation in GENERATIONS.values():
        registry._MEANINGS["s_getpc_b64", generation] = _counter
        registry._MEANINGS["s_setpc_b64", generation] = _jump
        registry._MEANINGS["s_swappc_b64", generation] = _jump
    for by in (1, 2, 3, 4):
        name, shift = f"s_lshl{by}_add_u32", np.uint32(by)
        wide = np.uint64(by)
        scalar._ROWS[name] = (
            "u32 <- u32 u32",
            lambda a, b, shift=shift: (a << shift) + b,
            lambda a, b, *rest, wide=wide: ((a.astype(np.uint64) << wide) + b) >> np.uint64(32) > 0,
        )
        registry.means(name)(scalar._general)
    known = registry.executor

    def lazy(ins: Instruction, context: registry.Context) -> registry.Executor:
        try:
            return known(ins, context)
        except UnknownInstruction as error:
            reason = str(error)

        def unknown(waves: Waves) -> None:
            raise UnknownInstruction(reason)

        return unknown

    machine.executor = lazy


# --- launches ------------------------------------------------------------------------------------


def computed(asked: offers.Asked, code: Code, p: GemmProblem, config: Any) -> dict[str, Any]:
    """What came of one algorithm for one problem."""
    (step,) = (launch := FAMILY.launch(config, p, asked.device)).steps
    names = [a.operand for a in step.arguments if isinstance(a, Pointer)]
    operands = [name for name in names if name != "workspace"]
    given, memory = verify.operands_of(p, 0), Memory()
    arrays = {**given.inputs, **given.outputs}
    places = tuple(
        memory.place(arrays[name], f"operand {name}", writable=name == "C") for name in operands
    )
    room = step.matmul.workspace
    scratch = memory.allocate(room, "workspace") if room else 0
    ready = asked.library.prepared(asked.driver, 0, step.matmul)
    bound = BoundLaunch(
        asked.driver, 0, {}, 64, launch, [Bound(o, "in", 1) for o in operands],
        products={step.matmul: ready},
    )  # fmt: skip
    launches, _ = asked.run(bound, places, 0, scratch)
    said: dict[str, Any] = {"name": config.name, "kernels": [*map(offers.short, launches)]}
    found: list[str] = []
    registers = 0
    for one in launches:
        program, ADDRESSES[:], metadata = code.program(one["kernel"])
        ADDRESSES.append(0)
        groups = [n // each for n, each in zip(one["threads"], one["block"], strict=True)]
        content = filled(bytes.fromhex(one["arguments"]), metadata, groups, one["block"])
        try:
            done = Machine(program).launch(
                (groups[0], groups[1], groups[2]), one["block"][0], content,
                metadata[".group_segment_fixed_size"], memory, limits=LIMITS, preload=False,
            )  # fmt: skip
        except TilewrightError as error:
            return said | {"not_executed": str(error)}
        texts = [*map(str, done.findings)]
        registers += sum(text.startswith(REGISTERS) for text in texts)
        found += [text for text in texts if not text.startswith(REGISTERS)]
    out = given.outputs["C"]
    memory.fetch(places[operands.index("C")], out)
    reference = verify.reference(p, given.inputs)["C"]
    check = verify.compare(out, reference, FAMILY.tolerances(p, config)["C"])
    worst = float(f"{check.worst:.3g}")
    wrong = "" if check.ok else str(check)
    return said | {
        "wrong": wrong,
        "of_tolerance": worst,
        "findings": found[:5],
        "registers": registers,
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


def child(folder: Path, key: str) -> None:
    """Print what is found for one device."""
    teach()
    asked = offers.Asked(folder, key)
    fp8 = "e4m3fn" if asked.arch.dtypes["e4m3fn"].support == "native" else ""
    answers = []
    with tempfile.TemporaryDirectory() as scratch:
        code = Code(folder, asked.code, asked.arch.name, Path(scratch))
        for p in problems(fp8):
            query = FAMILY.library_query(p, asked.arch, asked.library.name)
            assert isinstance(query, Matmul)
            results = []
            try:
                for found in asked.library.offered(asked.driver, 0, query, EACH):
                    config = FAMILY.library_config(p, asked.library.name, found)
                    results.append(computed(asked, code, p, config))
            except TilewrightError as error:
                results.append({"name": "", "not_executed": str(error)})
            answers.append({"problem": str(p), "algorithms": results})
    answer = {"device": key, "arch": asked.arch.name, **asked.build(), "problems": answers}
    json.dump(answer, sys.stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="where the packages are unpacked")
    parser.add_argument("--json", type=Path, help="write everything to this file")
    parser.add_argument("--device", choices=offers.DEVICES, help=argparse.SUPPRESS)
    given = parser.parse_args()
    folder = given.folder.resolve()
    if given.device:
        return child(folder, given.device)
    found, wrong = offers.ask_all(folder, __file__), 0
    for one in found:
        results = [a for p in one["problems"] for a in p["algorithms"]]
        executed = [a for a in results if "wrong" in a]
        bad = [a for a in executed if a["wrong"] or a["findings"]]
        wrong += len(bad)
        why = Counter(a["not_executed"].rpartition(": ")[2] for a in results if "wrong" not in a)
        print(
            f"{one['device']}, hipBLASLt {one['version']}: {len(executed)} algorithms executed of "
            f"{len(one['problems'])} problems, {len(bad)} wrong or with findings; largest error "
            f"{max((a['of_tolerance'] for a in executed), default=0)} of the tolerance; "
            f"{len(results) - len(executed)} not executed: {dict(why.most_common(3))}; "
            f"{sum(a['registers'] > 0 for a in executed)} with findings about registers"
        )
        for a in bad[:5]:
            print(f"  {a['name']}: {a['wrong']} {a['findings'][:1]}")
    if given.json:
        said = {**environment(), "package": offers.package(folder)}
        given.json.write_text(json.dumps({"environment": said, "executed": found}, indent=1) + "\n")
    raise SystemExit(1 if wrong else 0)


if __name__ == "__main__":
    main()
