"""Whatever a file, a message or a word contains: a typed error or none, at once, in little memory.

10,000 mutated inputs, the same ones each time. ``TILEWRIGHT_FUZZ=10`` tries ten times as many, from
other seeds each time. A failure names the reader and the seed:
``READERS[name](Random(seed), folder)`` reads the same input again.
"""

from __future__ import annotations

import hashlib
import logging
import os
import resource
import sqlite3
import time
import warnings
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, replace
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import mutations
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tilewright import capturing, ops, space
from tilewright.arch import arch, device, targets
from tilewright.arch.model import Arch
from tilewright.canonical import canonical, sha256
from tilewright.child import read_frame, write_frame
from tilewright.cli.sweep_request import read_settings
from tilewright.compile import Kernel, Resources
from tilewright.compile.kernel import Blob, TensorMap
from tilewright.compile.store import parse_manifest
from tilewright.errors import TilewrightError
from tilewright.jsonfile import convert, load_json
from tilewright.measure import counters, export, summary
from tilewright.measure.filters import Filters
from tilewright.measure.measurement import Environment, Measurement, Settings, Telemetry
from tilewright.measure.problems import load_problems
from tilewright.measure.results import Build, Results
from tilewright.ops.gemm import GemmProblem
from tilewright.ops.grouped_gemm import GroupedGemmProblem
from tilewright.registry import Registry
from tilewright.report.data import gather
from tilewright.tables import aiter, file, packed
from tilewright.tables.check import check
from tilewright.tables.row import Row, said
from tilewright.tolerance import Tolerance
from tilewright.tune import minimise
from tilewright.verify import Check

TIMES = int(os.environ.get("TILEWRIGHT_FUZZ", "0"))
MOST_SECONDS = 1.0
"""CPU time of one input, which does not depend on what else the machine does."""
MOST_BYTES = 200 << 20

SM90, H200 = arch("sm_90"), device("h200_sxm")
PROBLEMS = (
    GemmProblem(64, 128, 256),
    GemmProblem(33, 512, 512, dtype_a="e4m3fn", epilogue="bias+gelu"),
    GemmProblem(64, 64, 64, batch=4, stride_b=0),
    GemmProblem(64, 128, 256, dtype_a="e4m3fn", scale_a="1x128", scale_b="128x128"),
    GroupedGemmProblem("list", sizes=((1, 64, 64), (7, 128, 64))),
    GroupedGemmProblem("contiguous", groups=8, m=100, n=512, k=256),
)
NAME = "gemm_rcr_bf16_bf16_bf16_fp32_128x256x64_w8_s3_tma_persistent_g8_split_padmnk_al16"
NAMES = (
    NAME,
    "gemm_rcr_bf16_bf16_bf16_fp32_64x64x64_w4_s2_basic_split_k4_linear_g8_direct_pad0_al1_epi-bias",
    "grouped_gemm_contiguous_rcr_bf16_bf16_bf16_fp32_64x64x64_w4_s2_basic_persistent_g8_direct"
    "_padmnk_al16",
)


# --- valid inputs --------------------------------------------------------------------------------


def _kernel() -> Kernel:
    return Kernel(
        name=NAME, arch="sm_90", key=sha256(b"k"), triton="3.6.0", binary="cubin",
        entry="scale", num_warps=4, num_ctas=1, shared=1024, global_scratch=0,
        global_scratch_align=1, profile_scratch=0, profile_scratch_align=1,
        cooperative=False, pdl=False, arguments=(("x", "*fp32"),),
        tensor_maps=(TensorMap(3, 2, 10, (128, 64), False),),
        resources=Resources(32, 0, 0, 0, 0, 0),
        blobs={"cubin": Blob(sha256(b"x"), 1)},
    )  # fmt: skip


def _rows() -> list[Row]:
    return [
        Row(
            on, problem, name, (NAMES[1],), us, (us * 0.99, us * 1.01), error,
            "2026-01-02T03:04:05", (("tilewright", "0.1.0"),), "570.1", '{"cache":"flushed"}',
        )
        for on in (H200, device("mi300x"))
        for problem in PROBLEMS
        for name, us, error in ((NAME, 10.0 + problem.flops % 7, 0.5),)
    ]  # fmt: skip


SPACES: tuple[Any, ...] = (
    {
        "problem": {"datatype_a": {"values": ["fp16"]}, "layout_b": {"values": ["c", "r"]}},
        "tile_config": {
            "tile_m": {"min": 64, "max": 256, "step": 64, "exclude": [192]},
            "tile_n": {"values": [64, 128]}, "tile_k": {"values": [64]},
            "warp_m": {"values": [2, 4]}, "warp_n": {"values": [2]}, "warp_k": {"values": [1]},
            "warp_tile_m": {"values": [32, 16]}, "warp_tile_k": {"values": [16]},
        },
        "trait_config": {
            "pipeline": {"values": ["compv3", "mem"]}, "scheduler": {"values": ["intrawave"]},
            "epilogue": {"values": ["cshuffle"]}, "pad_m": {"values": [False]},
            "persistent": {"values": [True, False]},
        },
        "k_block_per_cu": 1,
    },
    {
        "family": "gemm", "dtype_a": "fp8", "tile_m": [64, "*"], "num_stages": -1,
        "pipeline": ["basic", "tma"], "epilogue": ["bias+gelu", ""], "mma": [0, 0, 0],
    },
    {"family": "grouped_gemm", "form": ["list", "masked"], "dtype": "bf16", "tile_m": [64, 128]},
    {"streamk_config": {"reduction_strategy": {"values": ["linear", "tree"]}}, "tile_m": 64},
)  # fmt: skip
LISTED: Any = [
    {"m": 64, "n": 128, "k": 256, "dtype": "bf16"},
    {"family": "grouped_gemm", "form": "list", "sizes": [[1, 64, 64], [7, 128, 64]]},
    {"m": "64", "n": 64, "k": 64, "layout": "rcr", "epilogue": "bias", "batch": 3},
]
PROBLEM_CSV = (
    "m,n,k,dtype,epilogue,batch\n64,128,256,bf16,,\n# a comment\n8,16,32,fp16,bias+gelu,4\n"
)
AITER_CSVS = {
    "bf16_tuned_gemm.csv": (
        "gfx,cu_num,M,N,K,bias,dtype,outdtype,scaleAB,bpreshuffle,libtype,solidx,splitK,us,"
        "kernelName,err_ratio,tflops,bw\n"
        f"gfx942,304,64,128,256,True,torch.bfloat16,torch.bfloat16,False,False,tilewright,-1,1,20.5,"
        f"{NAME},0.0,1.0,2.0\n"
        "gfx942,304,64,128,256,False,torch.bfloat16,torch.float32,False,False,asm,7,1,9.5,x,0.0,1,2\n"
    ),
    "a8w8_tuned_gemm.csv": (
        "cu_num,M,N,K,q_dtype_w,kernelId,splitK,us,kernelName,tflops,bw,errRatio\n"
        "304,64,128,256,torch.int8,7,0,20.5,a8w8_256x128,1.0,2.0,0.01\n"
    ),
    "a8w8_blockscale_untuned_gemm.csv": "M,N,K\n64,512,512\n128,512,512\n",
}
NCU = (
    "==PROF== Connected\n"
    '"ID","Kernel Name","Block Size","Grid Size","gpu__time_duration.sum",'
    '"dram__bytes_read.sum","smsp__average_warps_issue_stalled_wait_per_issue_active.ratio"\n'
    '"","","","","ns","byte","inst"\n'
    '"0","gemm","(256, 1, 1)","(132, 1, 1)","1,056","2048","0.5"\n'
)


@cache
def _database() -> bytes:
    """A sweep's results."""
    import tempfile

    environment, how = Environment((("tilewright", "0"),), "1.0"), Settings()
    seen = Check(True, 1.0, 0.5, 0.25, 0.01, 0.02, 0.1, 22.5, Tolerance(0.01, 0.001), 7, 4096)
    with tempfile.TemporaryDirectory() as folder:
        with Results(folder, write=True) as results:
            for problem in PROBLEMS[:3]:
                for name in NAMES[:2]:
                    made = Measurement(
                        name, problem, H200, environment, how, "ok", "b" * 64, "",
                        (10.0, 11.0, 12.0), (10.0, 12.0), seen,
                        Telemetry((1200, 1980), 61, 450.5, ("thermal",), 1),
                        ("throttled",), 1, "2026-01-02T03:04:05", 0.01,
                    )  # fmt: skip
                    results.add([made])
            results.add([replace(made, kernel="vendor.torch.mm", build="1")])
            results.add_builds([Build(NAME, "b" * 64, "sm_90", "built", "", 1.5)])
            results._db.execute("PRAGMA journal_mode = DELETE")
        return (Path(folder) / "results.db").read_bytes()


# --- readers -------------------------------------------------------------------------------------


def _file(folder: Path, name: str, data: bytes) -> Path:
    path = folder / name
    path.write_bytes(data)
    return path


def _device(random: Random, folder: Path) -> None:
    data = mutations.json_text(asdict(random.choice((H200, device("h20")))), random)
    device(_file(folder, "device.json", data))


def _device_text(random: Random, folder: Path) -> None:
    device(mutations.json_text(asdict(H200), random).decode(errors="surrogateescape"))


def _arch(random: Random, folder: Path) -> None:
    data = mutations.json_text(asdict(random.choice((SM90, arch("gfx942")))), random)
    convert(load_json(_file(folder, "arch.json", data)), Arch, "arch.json")


def _space(random: Random, folder: Path) -> None:
    data = mutations.json_text(random.choice(SPACES), random)
    this = random.choice((SM90, arch("gfx942")))
    declared, _ = space.load_space(_file(folder, "space.json", data), this)
    declared.expand(this)


def _problems_json(random: Random, folder: Path) -> None:
    load_problems([_file(folder, "p.json", mutations.json_text(LISTED, random))], SM90)


def _problems_csv(random: Random, folder: Path) -> None:
    load_problems([_file(folder, "p.csv", mutations.csv_text(PROBLEM_CSV, random))], SM90)


def _capture(random: Random, folder: Path) -> None:
    records = [{"problem": said(problem), "count": 3} for problem in PROBLEMS]
    capturing.load(_file(folder, "c.jsonl", mutations.json_lines(records, random)))


def _registry(random: Random, folder: Path) -> None:
    kept = Registry("r").register_all(NAMES)
    kept.register(_kernel(), 3)
    data = mutations.json_text(msgspec.json.decode(kept.to_json()), random)
    if random.randrange(2):
        Registry.load(_file(folder, "r.json", data))
    else:
        Registry.from_json(data.decode(errors="surrogateescape"))


def _manifest(random: Random, folder: Path) -> None:
    changed = mutations.tree(msgspec.json.decode(canonical(asdict(_kernel()))), random)
    data = canonical(changed) if random.randrange(2) else mutations.json_text(changed, random)
    parse_manifest(data, folder / "m.json")


@cache
def _packed() -> tuple[bytes, Any]:
    data = packed.pack(_rows())
    return data, msgspec.msgpack.decode(data)


def _twt(random: Random, folder: Path) -> None:
    data, parts = _packed()
    if random.randrange(3):
        with suppress(OverflowError):  # what msgpack cannot say
            data = msgspec.msgpack.encode(mutations.tree(parts, random))
    else:
        data = mutations.raw(data, random)
    head = b"twtable\n" + (1).to_bytes(4, "little") + hashlib.sha256(data).digest()
    _read_table(_file(folder, "t.twt", head + data))


@cache
def _table() -> Any:
    return msgspec.json.decode(file.to_json(file.Table.of(_rows())))


def _table_json(random: Random, folder: Path) -> None:
    _read_table(_file(folder, "t.json", mutations.json_text(_table(), random)))


def _read_table(path: Path) -> None:
    check([path])
    table = file.load(path)
    for row in table:
        table.get(row.problem, row.device)
    table.get(PROBLEMS[0], H200)
    file.to_json(table)


def _aiter(random: Random, folder: Path) -> None:
    name = random.choice([*AITER_CSVS])
    path = _file(folder, name, mutations.csv_text(AITER_CSVS[name], random))
    entries = aiter.read_aiter(path)
    aiter.rows(entries, device("mi300x"), foreign=True)
    load_problems([path], arch("gfx942"))


def _results(random: Random, folder: Path) -> None:
    path = folder / "results.db"
    if random.randrange(3) == 0:
        path.write_bytes(mutations.raw(_database(), random))
    else:
        path.write_bytes(_database())
        with suppress(sqlite3.DatabaseError):
            _change_a_cell(path, random)
    with Results(folder) as results:
        list(results.measurements())
        results.keys(), list(results.outlines()), list(results.builds())
        summary.best(results), summary.coverage(results), summary.seconds_each(results)
        summary.slowest_builds(results, 5), minimise.times_of(results)
        export.columns(results), list(export.rows(results))
        gather(results)


def _change_a_cell(path: Path, random: Random) -> None:
    db = sqlite3.connect(path, isolation_level=None)
    try:
        db.execute("PRAGMA synchronous = OFF")
        table = random.choice(
            (
                "problem",
                "kernel",
                "device",
                "environment",
                "settings",
                "build",
                *["measurement"] * 6,
            )
        )
        columns = [name for _, name, *_ in db.execute(f"PRAGMA table_info({table})")]
        column = random.choice(columns)
        number, old = random.choice(db.execute(f'SELECT rowid, "{column}" FROM {table}').fetchall())
        if isinstance(old, str) and old[:1] == "{" and random.randrange(3):
            new: Any = mutations.json_text(msgspec.json.decode(old), random).decode(
                errors="replace"
            )
        elif isinstance(old, bytes) and random.randrange(2):
            new = mutations.raw(old, random)
        else:
            new = random.choice(
                (*mutations.NUMBERS, *mutations.WORDS, b"", b"\xff" * 8, None, 9e999)
            )
        if isinstance(new, int) and abs(new) >= 2**63:
            new = float(new)
        db.execute(f'UPDATE {table} SET "{column}" = ? WHERE rowid = ?', (new, number))
    finally:
        db.close()


def _message(random: Random, folder: Path) -> None:
    path = folder / "frame"
    with path.open("wb") as pipe:
        write_frame(pipe, {"status": "ok", "samples": [1.0]}, [b"abc", b"d" * 40])
    data = path.read_bytes()
    header = mutations.json_text(msgspec.json.decode(data[4:-43]), random)
    data = len(header).to_bytes(4, "little") + header + data[-43:]
    _file(folder, "frame", mutations.raw(data, random) if random.randrange(2) else data)
    with path.open("rb") as pipe, suppress(EOFError):
        read_frame(pipe, None)


def _driver(random: Random, folder: Path) -> None:
    answer = mutations.tree({"devices": [["GPU-1", asdict(H200)]]}, random)
    convert(answer, dict[str, list[tuple[str, type(H200)]]], "the driver")  # type: ignore[misc]


def _ncu(random: Random, folder: Path) -> None:
    launches = counters.parse(mutations.csv_text(NCU, random).decode(errors="replace"))
    if launches:
        counters.combine(launches)


def _name(random: Random, folder: Path) -> None:
    name = mutations.words(random.choice(NAMES), random)
    ops.family_of(name).parse_name(name)


PROBLEM_WORDS = (
    ("gemm", "m=64 n=128 k=256 dtype=fp8 epilogue=bias+gelu layout=rcr lda=512 alignment=16"),
    ("gemm", "m=64 n=128 k=256 batch=4 stride_a=0 dtype_c=fp32 strides_sa=1,2 scale_a=1x128"),
    ("grouped_gemm", "form=list sizes=64x128x32,7x48x80 dtype=bf16"),
    ("grouped_gemm", "form=masked groups=8 m=100 n=512 k=256 stride_b=0 bounds=false"),
)


def _problem_words(random: Random, folder: Path) -> None:
    family, text = random.choice(PROBLEM_WORDS)
    pairs = [pair.partition("=") for pair in mutations.words(text, random).split(" ")]
    problem = ops.family(family).parse_problem({word: said for word, _, said in pairs}, SM90)
    str(problem), problem.flops, problem.min_bytes


def _targets(random: Random, folder: Path) -> None:
    targets.parse(
        mutations.words("gfx942:304;sm_90a;gfx950:sramecc+:xnack-", random), lambda: [H200]
    )


@cache
def _configs() -> tuple[Any, ...]:
    return tuple(ops.family_of(name).parse_name(name) for name in NAMES[:2])


def _where(random: Random, folder: Path) -> None:
    text = "tile_m >= 1 and (pipeline in ('tma', 'basic') or num_stages * tile_k // 2 < 64)"
    pattern, where = "*_64x*_al1*", text
    if random.randrange(3):
        where = mutations.words(text, random)
    else:
        pattern = mutations.words(pattern, random)
    Filters(match=(pattern,), where=where).apply(_configs())


def _settings(random: Random, folder: Path) -> None:
    text = "race=0.02 budget_seconds=2.5 min_samples=12 cache=rotated verify=false precision=0.01"
    pairs = [pair.partition("=") for pair in mutations.words(text, random).split(" ")]
    read_settings({word: said for word, _, said in pairs})


Reader = Callable[[Random, Path], None]
READERS: dict[str, tuple[Reader, int]] = {
    "device file": (_device, 700),
    "device text": (_device_text, 300),
    "arch file": (_arch, 500),
    "space": (_space, 1100),
    "problems json": (_problems_json, 700),
    "problems csv": (_problems_csv, 700),
    "capture": (_capture, 600),
    "registry": (_registry, 600),
    "manifest": (_manifest, 500),
    "packed table": (_twt, 1000),
    "json table": (_table_json, 500),
    "aiter csv": (_aiter, 700),
    "results": (_results, 500),
    "child message": (_message, 300),
    "driver's answer": (_driver, 200),
    "ncu's answer": (_ncu, 200),
    "kernel name": (_name, 300),
    "problem words": (_problem_words, 300),
    "targets": (_targets, 100),
    "where": (_where, 100),
    "settings": (_settings, 100),
}
"""How each reads a mutated input, and how many are tried."""


def test_ten_thousand_inputs_are_tried() -> None:
    assert sum(count for _, count in READERS.values()) == 10_000


@pytest.mark.parametrize("name", READERS)
def test_mutated_inputs_give_typed_errors_at_once_and_in_little_memory(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader, count = READERS[name]
    monkeypatch.setattr(space, "MAX_COMBINATIONS", 300)  # of thousands, each takes its time
    logging.getLogger("tilewright").setLevel(logging.ERROR)
    warnings.simplefilter("ignore")
    tried = settings(
        max_examples=count * max(1, TIMES),
        derandomize=TIMES == 0,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    with suppress(TilewrightError):
        reader(Random(0), tmp_path)  # imports, and what is made once
    before = _peak()

    def taken(seed: int) -> float:
        begun = time.process_time()
        with suppress(TilewrightError):
            reader(Random(seed), tmp_path)
        return time.process_time() - begun

    @tried
    @given(st.integers(0, 2**64 - 1))
    def each(seed: int) -> None:
        seconds = taken(seed)
        if seconds >= MOST_SECONDS:  # the first to import a family, or to collect others' garbage
            seconds = taken(seed)
        assert seconds < MOST_SECONDS, f"{name}, seed {seed}: {seconds:.2f} s"
        assert _peak() - before < MOST_BYTES, f"{name}, seed {seed}: {_peak() - before} bytes"

    try:
        each()
    finally:
        logging.getLogger("tilewright").setLevel(logging.NOTSET)


def _peak() -> int:
    """The most bytes that this process has had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
