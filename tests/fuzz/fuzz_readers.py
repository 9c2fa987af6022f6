"""What reads files, messages and words from outside, each with a mutated input.

``READERS[name](Random(seed), folder)`` reads the same input again.
"""

from __future__ import annotations

import hashlib
import sqlite3
import tempfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, replace
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import fuzz_seeds as seeds
import msgspec
import mutations
from fuzz_seeds import GFX942, H200, MI300X, SM90

from tilewright import capture_file, ops, space, space_file
from tilewright.arch import arch, device, targets
from tilewright.arch.model import Arch
from tilewright.bundle import Bundle
from tilewright.bundle.write import Content
from tilewright.canonical import canonical
from tilewright.child import read_frame, write_frame
from tilewright.cli.settings import read_settings
from tilewright.compile.kernel import to_data
from tilewright.compile.manifest import parse_manifest
from tilewright.compile.resources import amd_resources, nvidia_resources
from tilewright.emulate import code_object
from tilewright.jsonfile import convert, load_json
from tilewright.listing.padding import padded
from tilewright.measure import counters, export, places, summary
from tilewright.measure.filters import Filters
from tilewright.measure.measurement import Environment, Measurement, Settings, Telemetry
from tilewright.measure.problems import lines, load_problems
from tilewright.measure.results import Build, Results
from tilewright.ops.help import helps
from tilewright.registry import Registry
from tilewright.report.data import gather
from tilewright.tables import aiter, file, packed
from tilewright.tables.check import check
from tilewright.tables.row import said
from tilewright.tolerance import Tolerance
from tilewright.tune import minimise
from tilewright.verify import Check


def _file(folder: Path, name: str, data: bytes) -> Path:
    path = folder / name
    path.write_bytes(data)
    return path


def _text(data: bytes) -> str:
    return data.decode(errors="surrogateescape")


# --- devices and architectures -------------------------------------------------------------------


def _device(random: Random, folder: Path) -> None:
    data = mutations.json_text(asdict(random.choice((H200, MI300X, device("h20")))), random)
    if random.randrange(3):
        device(_file(folder, "device.json", data))
    else:
        device(_text(data))


def _arch(random: Random, folder: Path) -> None:
    data = mutations.json_text(asdict(random.choice((SM90, GFX942))), random)
    convert(load_json(_file(folder, "arch.json", data)), Arch, "arch.json")


def _driver(random: Random, folder: Path) -> None:
    answer = mutations.tree({"devices": [["GPU-1", asdict(H200)]]}, random)
    convert(answer, dict[str, list[tuple[str, type(H200)]]], "the driver")  # type: ignore[misc]


def _targets(random: Random, folder: Path) -> None:
    text = mutations.words(
        random.choice(("gfx942:304;sm_90a;gfx950:sramecc+:xnack-", "sm_90", "gfx942")), random
    )
    targets.parse(text, lambda: [H200])
    if ";" not in text:
        arch(text)
    places.parse(mutations.words("cpu", random), [])


# --- spaces, problems, names ---------------------------------------------------------------------


def _space(random: Random, folder: Path) -> None:
    data = mutations.json_text(random.choice(seeds.spaces()), random)
    this = random.choice((SM90, GFX942))
    declared, _ = space_file.load_space(_file(folder, "space.json", data), this)
    declared.expand(this)


def _problems_json(random: Random, folder: Path) -> None:
    some = random.sample(seeds.listed(), 2)
    load_problems([_file(folder, "p.json", mutations.json_text(some, random))], SM90)


def _problems_csv(random: Random, folder: Path) -> None:
    family, text = random.choice(seeds.tables_of_problems())
    path = _file(folder, "p.csv", mutations.csv_text(text, random))
    load_problems([path], SM90, family=family)


def _problems_python(random: Random, folder: Path) -> None:
    text = (
        "A = [\n    GemmProblem(m=64, n=128, k=256, dtype='bf16'),\n]\nGemmProblem(m=1, n=2, k=3)\n"
    )
    load_problems([_file(folder, "p.py", mutations.raw(text.encode(), random))], SM90)


def _command_lines(random: Random, folder: Path) -> None:
    text = "\n".join(line for _, _, line in random.sample(seeds.LINES, 4))
    path = _file(folder, random.choice(("a", "a.txt")), mutations.raw(text.encode(), random))
    for line in lines(str(path), SM90, {}):
        assert line.problems or line.reasons


def _problem_words(random: Random, folder: Path) -> None:
    family, pairs = random.choice(seeds.words())
    pairs = dict(pairs)
    if random.randrange(3):
        word = random.choice([*pairs])
        pairs[word] = mutations.words(pairs[word], random)
    else:
        value = pairs.pop(word := random.choice([*pairs]))
        pairs[mutations.words(word, random)] = value
    problem = ops.family(family).parse_problem(pairs, random.choice((SM90, GFX942)))
    str(problem), problem.flops, problem.min_bytes, problem.work, said(problem)


def _name(random: Random, folder: Path) -> None:
    name = mutations.words(random.choice(seeds.names()), random)
    ops.family_of(name).parse_name(name)


def _declared_space(random: Random, folder: Path) -> None:
    """A space of one kernel, or a few, declared in Python."""
    name = random.choice(ops.families())
    axes = mutations.tree({**ops.family(name).axes()}, random)
    space.KernelSpace(name, axes if isinstance(axes, dict) else {}).expand(SM90)


def _capture(random: Random, folder: Path) -> None:
    some = random.sample(seeds.problems(), 3)
    records: list[object] = [{"problem": said(problem), "count": 3} for problem in some]
    facts = {"by": "aten.mm", "timed": 2, "seconds": 0.5, "followed": 1, "seen": {"relu": 1}}
    unstated = [{"by": "aten.mm", "why": "float64", "count": 2}]
    run = {"device": "cpu", "torch": "2.13.0", "seconds": 1.5, "steps": 2, "unstated": unstated}
    records += [{"problem": said(some[0]), "count": 0, "heard": facts}, {"listening": run}]
    found = capture_file.read(_file(folder, "c.jsonl", mutations.json_lines(records, random)))
    [facts.each for facts in found.heard.values()]


def _where(random: Random, folder: Path) -> None:
    family, helped = random.choice([*helps().items()])
    pattern, where = f"{family}_*", helped.where
    if random.randrange(3):
        where = mutations.words(where, random)
    else:
        pattern = mutations.words(pattern, random)
    some = [config for config in seeds.configs() if config.family == family]
    Filters(match=(pattern,), where=where).apply(some)


def _settings(random: Random, folder: Path) -> None:
    text = "race=0.02 budget_seconds=2.5 min_samples=12 cache=rotated verify=false precision=0.01"
    pairs = [pair.partition("=") for pair in mutations.words(text, random).split(" ")]
    read_settings({word: said for word, _, said in pairs})


# --- registries, tables, bundles, results --------------------------------------------------------


@cache
def _registered() -> Any:
    kept = Registry("r").register_all(seeds.names()[::5])
    kept.register(seeds.kernel(), 3)
    return msgspec.json.decode(kept.to_json())


def _registry(random: Random, folder: Path) -> None:
    data = mutations.json_text(_registered(), random)
    if random.randrange(2):
        Registry.load(_file(folder, "r.json", data))
    else:
        Registry.from_json(_text(data))


def _manifest(random: Random, folder: Path) -> None:
    data = canonical(to_data(seeds.kernel()))
    if random.randrange(2):
        data = canonical(mutations.tree(msgspec.json.decode(data), random))
    else:
        data = mutations.raw(data, random)
    parse_manifest(data, folder / "m.json")


@cache
def _packed() -> tuple[bytes, Any]:
    data = packed.pack(seeds.rows())
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


def _table_json(random: Random, folder: Path) -> None:
    table = file.Table.of(random.sample(seeds.rows(), 3))
    data = mutations.json_text(msgspec.json.decode(file.to_json(table)), random)
    _read_table(_file(folder, "t.json", data))


def _read_table(path: Path) -> None:
    check([path])
    table = file.load(path)
    for row in table:
        table.get(row.problem, row.device)
    table.get(seeds.problems()[0], H200)
    file.to_json(table)


def _aiter(random: Random, folder: Path) -> None:
    name, text = random.choice(seeds.foreign_tables())
    path = _file(folder, name, mutations.csv_text(text, random))
    entries = aiter.read_aiter(path)
    aiter.rows(entries, MI300X, foreign=True)
    load_problems([path], GFX942)


@cache
def _bundle() -> bytes:
    """A bundle with a kernel and a table."""
    content = Content(table=file.Table.of(seeds.rows()[:2]), priorities={seeds.names()[0]: 2})
    config = next(c for c in seeds.configs() if len(_parts(c)) == 1)
    content.add(replace(seeds.kernel(), name=config.name), b"\x7fELF")
    return content.to_bytes()[1]


def _parts(config: Any) -> Any:
    return ops.family(config.family).sources(config, SM90)


def _bundled(random: Random, folder: Path) -> None:
    bundle = Bundle(_file(folder, "b.bundle", mutations.raw(_bundle(), random)), trusted=True)
    bundle.verify(), bundle.table, bundle.registry()
    for name in bundle.names("sm_90"):
        bundle.load(ops.family_of(name).parse_name(name), "sm_90")


@cache
def _database() -> bytes:
    """A sweep's results: of two families at a time, all fields in use."""
    environment, how = Environment((("tilewright", "0"),), "1.0"), Settings()
    seen = Check(True, 1.0, 0.5, 0.25, 0.01, 0.02, 0.1, 22.5, Tolerance(0.01, 0.001), 7, 4096)
    with tempfile.TemporaryDirectory() as folder:
        with Results(folder, write=True) as results:
            for problem in seeds.problems()[::4]:
                made = Measurement(
                    seeds.kernel_of(problem), problem, H200, environment, how, "ok", "b" * 64, "",
                    (10.0, 11.0, 12.0), (10.0, 12.0), seen,
                    Telemetry((1200, 1980), 61, 450.5, ("thermal",), 1),
                    ("throttled",), 1, "2026-01-02T03:04:05", 0.01,
                )  # fmt: skip
                results.add([made])
            results.add([replace(made, kernel="vendor.torch.mm", build="1")])
            results.add_builds([Build(seeds.names()[0], "b" * 64, "sm_90", "built", "", 1.5)])
            results._db.execute("PRAGMA journal_mode = DELETE")
        return (Path(folder) / "results.db").read_bytes()


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


TABLES = ("problem", "kernel", "device", "environment", "settings", "build", *["measurement"] * 6)


def _change_a_cell(path: Path, random: Random) -> None:
    db = sqlite3.connect(path, isolation_level=None)
    try:
        db.execute("PRAGMA synchronous = OFF")
        table = random.choice(TABLES)
        columns = [name for _, name, *_ in db.execute(f"PRAGMA table_info({table})")]
        column = random.choice(columns)
        number, old = random.choice(db.execute(f'SELECT rowid, "{column}" FROM {table}').fetchall())
        new = mutations.cell(old, random)
        db.execute(f'UPDATE {table} SET "{column}" = ? WHERE rowid = ?', (new, number))
    finally:
        db.close()


# --- other programs ------------------------------------------------------------------------------


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


def _ncu(random: Random, folder: Path) -> None:
    text = (
        mutations.csv_text(seeds.NCU, random)
        if random.randrange(3)
        else (mutations.raw(seeds.NCU.encode(), random))
    )
    launches = counters.parse(text.decode(errors="replace"))
    if launches:
        counters.combine(launches)


def _listing(random: Random, folder: Path) -> None:
    text = mutations.lines(random.choice(seeds.listings()), random)
    padded(text)


def _resources(random: Random, folder: Path) -> None:
    amd_resources(mutations.lines(random.choice(seeds.listings()), random))
    nvidia_resources(mutations.words("REG:32 STACK:0 SHARED:1024 LOCAL:0 CONSTANT[0]:4", random), 0)


def _code_object(random: Random, folder: Path) -> None:
    if random.randrange(2):
        with suppress(OverflowError):
            image = seeds.code_object(mutations.tree(seeds.METADATA, random))
            code_object.read(image)
    else:
        image = mutations.raw(seeds.code_object(seeds.METADATA), random)
        code_object.image_bytes(image[: code_object.HEADER_BYTES])
        code_object.section(image, ".text")
        code_object.read(image)


Reader = Callable[[Random, Path], None]
READERS: dict[str, tuple[Reader, int]] = {
    "device": (_device, 1000),
    "arch file": (_arch, 600),
    "driver's answer": (_driver, 300),
    "targets": (_targets, 500),
    "space": (_space, 2500),
    "problems json": (_problems_json, 1500),
    "problems csv": (_problems_csv, 1000),
    "problems python": (_problems_python, 300),
    "command lines": (_command_lines, 500),
    "problem words": (_problem_words, 2000),
    "kernel name": (_name, 1500),
    "declared space": (_declared_space, 1000),
    "capture": (_capture, 700),
    "where": (_where, 300),
    "settings": (_settings, 300),
    "registry": (_registry, 600),
    "manifest": (_manifest, 500),
    "packed table": (_twt, 400),
    "json table": (_table_json, 500),
    "foreign table": (_aiter, 800),
    "bundle": (_bundled, 300),
    "results": (_results, 300),
    "child message": (_message, 300),
    "ncu's answer": (_ncu, 500),
    "listing": (_listing, 1000),
    "resources": (_resources, 300),
    "code object": (_code_object, 500),
}
"""How each reads a mutated input, and how many are tried."""
